//! F18: without a runtime, outside of one, after one: guards and clients work and end on any thread.

use std::thread;
use std::time::Duration;

use super::LONG;
use crate::{Scene, in_time};

/// Everything that can be awaited can be waited for on a plain thread.
pub async fn everything_on_a_plain_thread(scene: &Scene) {
    let (client, other) = scene.two_clients().await;
    let plain = client.clone();
    let work = thread::spawn(move || {
        let mutex = plain.mutex("x").unwrap().ttl(LONG).unwrap();
        let held = plain.block_on(mutex.lock()).unwrap();
        assert!(plain.block_on(mutex.try_lock()).unwrap().is_none());
        assert!(plain.block_on(mutex.try_lock_for(Duration::from_millis(5))).unwrap().is_none());
        assert_eq!(plain.block_on(held.run(async { 7 })).unwrap(), 7);
        assert_eq!(plain.block_on(plain.view("x")).unwrap().holders.len(), 1);
        plain.block_on(held.release()).unwrap();
    });
    in_time("the thread ends", tokio::task::spawn_blocking(move || work.join().unwrap())).await.unwrap();
    scene.leaves_nothing([client, other]).await;
}

/// Threads wait for each other as tasks do.
pub async fn threads_take_turns(scene: &Scene) {
    let client = scene.client().await;
    let count = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (client, count) = (client.clone(), std::sync::Arc::clone(&count));
            tokio::task::spawn_blocking(move || {
                // Nobody renews it, so whoever waited has it for the whole ttl too: nothing else protects the count.
                let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
                for _ in 0..25 {
                    let held = client.block_on(mutex.lock()).unwrap();
                    let before = count.load(std::sync::atomic::Ordering::Relaxed);
                    thread::yield_now();
                    count.store(before + 1, std::sync::atomic::Ordering::Relaxed);
                    drop(held);
                }
            })
        })
        .collect();
    for thread in threads {
        in_time("the threads end", thread).await.unwrap();
    }
    assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 100);
}

/// A guard may be dropped on a thread that has never heard of a runtime.
pub async fn a_guard_dropped_on_a_plain_thread(scene: &Scene) {
    let (client, other) = scene.two_clients().await;
    let held = client.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    thread::spawn(move || drop(held)).join().unwrap();
    in_time("it is free", other.mutex("x").unwrap().keep(false).lock()).await.unwrap().release().await.unwrap();
}

/// A guard may be dropped while its thread unwinds.
pub async fn a_guard_dropped_by_a_panic(scene: &Scene) {
    let (client, other) = scene.two_clients().await;
    let held = client.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let panicked = thread::spawn(move || {
        let _held = held;
        std::panic::resume_unwind(Box::new("on purpose")); // a panic without the message
    });
    panicked.join().unwrap_err();
    in_time("it is free", other.mutex("x").unwrap().keep(false).lock()).await.unwrap().release().await.unwrap();
}

/// A guard may be dropped after the runtime that it came from has ended, and so may a waiting future.
pub async fn dropped_after_the_runtime(scene: &Scene) {
    let (client, other) = scene.two_clients().await;
    let (mutex, same) = (client.mutex("x").unwrap().ttl(LONG).unwrap(), client.mutex("x").unwrap());
    let work = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let held = runtime.block_on(mutex.lock()).unwrap();
        let mut waiting = Box::pin(async move { same.lock().await.map(drop) });
        runtime.block_on(async {
            let _ = tokio::time::timeout(Duration::from_millis(20), &mut waiting).await;
        });
        drop(runtime);
        drop(waiting);
        drop(held);
    });
    in_time("the thread ends", tokio::task::spawn_blocking(move || work.join().unwrap())).await.unwrap();
    scene.is_free(&other, "x").await;
    scene.leaves_nothing([client, other]).await;
}

/// A client that is dropped with everything it has, at once, leaves nothing.
pub async fn a_client_dropped_with_its_guards(scene: &Scene) {
    let (client, other) = scene.two_clients().await;
    let mut held = Vec::new();
    for n in 0..20 {
        held.push(client.mutex(format!("x{n}")).unwrap().ttl(LONG).unwrap().lock().await.unwrap());
    }
    drop(client);
    thread::spawn(move || drop(held)).join().unwrap();
    scene.leaves_nothing([other]).await;
}

/// Closing waits until what was dropped has been released.
pub async fn closing_waits_for_what_was_dropped(scene: &Scene) {
    let (client, other) = scene.two_clients().await;
    let mut held = Vec::new();
    for n in 0..20 {
        held.push(client.mutex(format!("x{n}")).unwrap().ttl(LONG).unwrap().lock().await.unwrap());
    }
    drop(held);
    in_time("it closes", client.close()).await.unwrap();
    for n in 0..20 {
        assert!(other.view(&format!("x{n}")).await.unwrap().is_free(), "nothing is held any more");
    }
}
