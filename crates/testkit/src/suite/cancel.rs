//! Cancel any future at any await: nothing stays behind.
//!
//! `lock` itself, contended and not, is cancelled at every poll for each kind in [`mutex`](super::mutex); here is the rest.

#![allow(clippy::async_yields_async)] // a case prepares, and then hands over the future that is going to be dropped

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use tenure_core::{Client, Guard, Owner};

use super::LONG;
use crate::polls::{Polled, at_most};
use crate::{Rng, Scene, in_time};

/// A waiter that is dropped is out of the line at once.
pub async fn while_queued(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = one.mutex("x").unwrap().lock().await.unwrap();
    let mutex = other.mutex("x").unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    scene.line_is(&one, "x", 1).await;
    waiting.abort();
    scene.line_is(&one, "x", 0).await;
    held.release().await.unwrap();
    scene.leaves_nothing([one, other]).await;
}

/// An ask for a free lock.
pub async fn try_lock(scene: &Scene) {
    at_every_poll(scene, async |clients: &[Client; 2], round| {
        let mutex = clients[1].mutex("x").unwrap().ttl(LONG).unwrap().keep(round % 2 == 0);
        async move { mutex.try_lock().await.map(drop) }
    })
    .await;
}

/// An ask that gives up by itself at about the moment at which it is dropped, or is granted, or both.
pub async fn try_lock_for(scene: &Scene) {
    at_every_poll(scene, async |clients: &[Client; 2], round| {
        let wait = Duration::from_micros(100) * (round % 20);
        let held = clients[0].mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        release_after(Duration::from_micros(50) * (round % 17), [held]);
        let mutex = clients[1].mutex("x").unwrap().ttl(LONG).unwrap().keep(round % 2 == 0);
        async move { mutex.try_lock_for(wait).await.map(drop) }
    })
    .await;
}

/// A reader behind a writer.
pub async fn read(scene: &Scene) {
    at_every_poll(scene, async |clients: &[Client; 2], round| {
        let held = clients[0].rw_lock("x").unwrap().ttl(LONG).unwrap().write().await.unwrap();
        release_after(Duration::from_micros(50) * (round % 17), [held]);
        let lock = clients[1].rw_lock("x").unwrap().ttl(LONG).unwrap().keep(round % 2 == 0);
        async move { lock.read().await.map(drop) }
    })
    .await;
}

/// A writer behind readers.
pub async fn write(scene: &Scene) {
    at_every_poll(scene, async |clients: &[Client; 2], round| {
        let readers = clients[0].rw_lock("x").unwrap().ttl(LONG).unwrap();
        let held = [readers.read().await.unwrap(), readers.read().await.unwrap()];
        release_after(Duration::from_micros(50) * (round % 17), held);
        let lock = clients[1].rw_lock("x").unwrap().ttl(LONG).unwrap().keep(round % 2 == 0);
        async move { lock.write().await.map(drop) }
    })
    .await;
}

/// Several permits, of which some are free and some become so.
pub async fn acquire(scene: &Scene) {
    at_every_poll(scene, async |clients: &[Client; 2], round| {
        let semaphore = clients[0].semaphore("x", 5).unwrap().ttl(LONG).unwrap();
        let held = [semaphore.acquire(1).await.unwrap(), semaphore.acquire(2).await.unwrap()];
        release_after(Duration::from_micros(50) * (round % 17), held);
        let semaphore = clients[1].semaphore("x", 5).unwrap().ttl(LONG).unwrap().keep(round % 2 == 0);
        async move { semaphore.acquire(4).await.map(drop) }
    })
    .await;
}

/// A candidate behind a leader.
pub async fn campaign(scene: &Scene) {
    at_every_poll(scene, async |clients: &[Client; 2], round| {
        let leader = clients[0].election("x").unwrap().ttl(LONG).unwrap().campaign().await.unwrap();
        release_after(Duration::from_micros(50) * (round % 17), [leader]);
        let election = clients[1].election("x").unwrap().ttl(LONG).unwrap().keep(round % 2 == 0);
        async move { election.campaign().await.map(drop) }
    })
    .await;
}

/// A multi-lock that has the first of its names and waits for the second.
pub async fn multi(scene: &Scene) {
    at_every_poll(scene, async |clients: &[Client; 2], round| {
        let held = clients[0].mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        release_after(Duration::from_micros(50) * (round % 17), [held]);
        let multi = clients[1].multi(["a", "x", "z"]).unwrap().ttl(LONG).unwrap().keep(round % 2 == 0);
        async move { multi.lock().await.map(drop) }
    })
    .await;
}

/// An owner that waits to enter, beside another task of the same owner.
pub async fn reenter(scene: &Scene) {
    at_every_poll(scene, async |clients: &[Client; 2], round| {
        let held = clients[0].mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        release_after(Duration::from_micros(50) * (round % 17), [held]);
        let mutex = clients[1].reentrant_mutex("x").unwrap().ttl(LONG).unwrap().keep(round % 2 == 0);
        let owner = Owner::new(&clients[1]);
        let (twin, same) = (mutex.clone(), owner.clone());
        if round % 3 == 0 {
            tokio::spawn(async move { twin.lock(&same).await.map(drop) });
        }
        async move { mutex.lock(&owner).await.map(drop) }
    })
    .await;
}

/// A release that nobody waits for the end of.
pub async fn release(scene: &Scene) {
    at_every_poll(scene, async |clients: &[Client; 2], _| {
        let held = clients[1].mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        async move { held.release().await }
    })
    .await;
}

/// A downgrade that is dropped under way leaves one hold, in one mode or the other, that ends with
/// its guard.
pub async fn downgrade(scene: &Scene) {
    at_every_poll(scene, async |clients: &[Client; 2], _| {
        let mut held = clients[1].rw_lock("x").unwrap().ttl(LONG).unwrap().write().await.unwrap();
        async move { held.downgrade().await }
    })
    .await;
}

/// F17: the store has granted, and the waiter is dropped before it looks.
pub async fn at_the_instant_of_the_grant(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    for _ in 0..20 {
        let mutex = other.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
        granted_and_dropped(scene, &one, mutex).await;
        scene.is_free(&one, "x").await;
    }
    scene.leaves_nothing([one, other]).await;
}

/// A task that is aborted while it holds a guard lets go.
pub async fn a_task_that_holds(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mutex = one.mutex("x").unwrap().ttl(LONG).unwrap();
    let (held, holding) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        let guard = mutex.lock().await.unwrap();
        held.send(()).unwrap();
        guard.run(std::future::pending::<()>()).await
    });
    holding.await.unwrap();
    task.abort();
    in_time("the lock is free", other.mutex("x").unwrap().keep(false).lock()).await.unwrap().release().await.unwrap();
}

/// Listening and looking can be dropped at will.
pub async fn lost_asked_and_watch(scene: &Scene) {
    let client = scene.client().await;
    let held = client.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut watch = client.watch("x").unwrap();
    watch.next().await.unwrap();
    for polls in 0..5 {
        let a_moment = Duration::from_millis(1);
        let _ = tokio::time::timeout(a_moment, at_most(polls, a_moment, held.lost())).await;
        let _ = tokio::time::timeout(a_moment, at_most(polls, a_moment, held.asked())).await;
        let _ = tokio::time::timeout(a_moment, at_most(polls, a_moment, watch.next())).await;
    }
    held.check().unwrap();
    client.ask("x", "please").await.unwrap();
    assert_eq!(in_time("the ask is heard", held.asked()).await.reason.as_str(), "please");
    held.release().await.unwrap();
    let gone = async { while !watch.next().await.unwrap().is_free() {} };
    in_time("the watch goes on", gone).await;
}

/// Drops what `ask` makes after 0, 1, 2 … polls until it completes, then begins again; a hundred rounds and more, however many polls
/// a slow store needs. After each of them every name is free, and in the end the store is empty.
async fn at_every_poll<T, F>(scene: &Scene, mut ask: impl AsyncFnMut(&[Client; 2], u32) -> F)
where
    F: Future<Output = tenure_core::Result<T>>,
{
    let clients = [scene.client().await, scene.client().await];
    let mut rng = Rng::from_entropy();
    let (mut round, mut polls, mut done, mut dropped) = (0, 0, 0, 0);
    while round < 120 || done == 0 {
        let asking = ask(&clients, round).await;
        let linger = if rng.one_in(2) { rng.up_to(Duration::from_millis(2)) } else { Duration::ZERO };
        match in_time("it is woken or done", at_most(polls, linger, asking)).await {
            Polled::Done(answer, _) => {
                answer.expect("the store works");
                (done, polls) = (done + 1, 0);
            }
            Polled::Dropped => (dropped, polls) = (dropped + 1, polls + 1),
        }
        for name in ["a", "x", "z"] {
            scene.is_free(&clients[0], name).await;
        }
        round += 1;
    }
    assert!(done > 0 && dropped > 0, "{done} done, {dropped} dropped");
    scene.leaves_nothing(clients).await;
}

fn release_after<const N: usize>(nap: Duration, held: [Guard; N]) {
    tokio::spawn(async move {
        tokio::time::sleep(nap).await;
        for guard in held {
            guard.release().await.unwrap();
        }
    });
}

/// Lets the waiter be granted in the store without looking again, and drops it.
pub(super) async fn granted_and_dropped(scene: &Scene, holder: &Client, waiter: tenure_core::Mutex) {
    let held = holder.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut waiting = pin!(waiter.lock());
    tokio::select! {
        biased;
        _ = &mut waiting => panic!("it is held by somebody else"),
        () = scene.line_is(holder, "x", 1) => {}
    }
    held.release().await.unwrap();
    // Where the store itself hands over, the waiter holds it now; where the waiter must look for itself, it never will.
    for _ in 0..20 {
        if !holder.view("x").await.unwrap().holders.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
