//! Many readers or one writer, and neither starves the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::{Client, ErrorKind, Mode, RwLock};
use tokio::task::JoinSet;

use super::{LONG, SHORT};
use crate::{Scene, in_time};

pub use super::cancel::{read as cancelled_read, write as cancelled_write};
pub use super::check::each_reader as each_reader_has_a_standing_of_its_own;

fn make(client: &Client) -> RwLock {
    client.rw_lock("x").unwrap().ttl(LONG).unwrap()
}

/// Readers of any client are inside together, each with a token of its own.
pub async fn readers_share(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let a = make(&one).read().await.unwrap();
    let b = make(&one).try_read().await.unwrap().expect("readers share");
    let c = make(&other).try_read_for(LONG).await.unwrap().expect("readers share");
    assert!(a.token() < b.token() && b.token() < c.token());
    assert_eq!((a.mode(), one.view("x").await.unwrap().holders.len()), (Mode::Shared, 3));
}

/// A writer is alone.
pub async fn a_writer_excludes_everybody(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let writer = make(&one).write().await.unwrap();
    assert!(make(&other).try_read().await.unwrap().is_none());
    assert!(make(&one).try_write().await.unwrap().is_none());
    assert!(make(&other).try_read_for(Duration::from_millis(10)).await.unwrap().is_none());
    writer.release().await.unwrap();
    assert!(make(&other).try_read().await.unwrap().is_some());
}

/// Readers keep writers out, to the last of them.
pub async fn readers_exclude_a_writer(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let (a, b) = (make(&one).read().await.unwrap(), make(&other).read().await.unwrap());
    assert!(make(&one).try_write().await.unwrap().is_none());
    a.release().await.unwrap();
    assert!(make(&one).try_write().await.unwrap().is_none());
    b.release().await.unwrap();
    assert!(make(&one).try_write().await.unwrap().is_some());
}

/// F23: a reader that comes after a waiting writer waits behind it.
pub async fn a_reader_queues_behind_a_waiting_writer(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let reader = make(&one).read().await.unwrap();
    let lock = make(&other).keep(false);
    let writing = tokio::spawn(async move { lock.write().await });
    scene.line_is(&one, "x", 1).await;
    assert!(make(&one).try_read().await.unwrap().is_none(), "a writer waits");
    let lock = make(&one);
    let reading = tokio::spawn(async move { lock.read().await });
    scene.line_is(&one, "x", 2).await;
    reader.release().await.unwrap();
    let writer = in_time("the writer is let in", writing).await.unwrap().unwrap();
    let token = writer.token();
    writer.release().await.unwrap();
    assert!(in_time("the reader is let in", reading).await.unwrap().unwrap().token() > token);
}

/// A waiting writer that gives up lets the readers behind it in, while the first reader stays.
pub async fn a_writer_that_gives_up_lets_readers_in(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let first = make(&one).read().await.unwrap();
    let lock = make(&other);
    let writing = tokio::spawn(async move { lock.write().await });
    scene.line_is(&one, "x", 1).await;
    let lock = make(&other).keep(false);
    let reading = tokio::spawn(async move { lock.read().await });
    scene.line_is(&one, "x", 2).await;
    writing.abort();
    in_time("the reader is let in", reading).await.unwrap().unwrap().check().unwrap();
    first.check().unwrap();
}

/// A writer that leaves lets all waiting readers in together.
pub async fn a_writer_lets_all_readers_in(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let writer = make(&one).write().await.unwrap();
    let mut reading = JoinSet::new();
    for place in 1..=5 {
        let lock = make(&other).keep(false);
        reading.spawn(async move { lock.read().await.unwrap() });
        scene.line_is(&one, "x", place).await;
    }
    writer.release().await.unwrap();
    let readers = in_time("all readers are let in", reading.join_all()).await;
    readers.iter().for_each(|reader| reader.check().unwrap());
}

/// F23: sixteen readers in a loop, never all out at once, cannot keep a writer out.
pub async fn readers_do_not_starve_a_writer(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let over = Arc::new(AtomicBool::new(false));
    let mut reading = JoinSet::new();
    for reader in 0..16 {
        let (lock, over) = (make(if reader % 2 == 0 { &one } else { &other }).keep(false), Arc::clone(&over));
        reading.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let held = lock.read().await.unwrap();
                tokio::time::sleep(Duration::from_millis(1 + reader % 5)).await;
                held.release().await.unwrap();
            }
        });
    }
    for _ in 0..5 {
        in_time("the writer gets in", make(&one).keep(false).write()).await.unwrap().release().await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    in_time("the readers end", reading.join_all()).await;
}

/// Nor can writers keep a reader out.
pub async fn writers_do_not_starve_a_reader(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let over = Arc::new(AtomicBool::new(false));
    let mut writing = JoinSet::new();
    for writer in 0..6 {
        let (lock, over) = (make(if writer % 2 == 0 { &one } else { &other }).keep(false), Arc::clone(&over));
        writing.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let held = lock.write().await.unwrap();
                tokio::task::yield_now().await;
                held.release().await.unwrap();
            }
        });
    }
    for _ in 0..5 {
        in_time("the reader gets in", make(&other).keep(false).read()).await.unwrap().release().await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    in_time("the writers end", writing.join_all()).await;
}

/// A reader that is lost is in no writer's way.
pub async fn a_lost_reader_lets_the_writer_in(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let reader = make(&one).ttl(SHORT).unwrap().keep(false).read().await.unwrap();
    let writer = in_time("the writer is let in", make(&other).keep(false).write()).await.unwrap();
    assert!(reader.valid_until() < tenure_core::Instant::now());
    assert_eq!(reader.check().unwrap_err().kind(), ErrorKind::Lost);
    writer.check().unwrap();
}
