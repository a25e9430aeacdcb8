//! A fair mutex is given strictly in the order of asking.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::{Client, Guard, Result};
use tokio::task::JoinHandle;

use super::LONG;
use crate::{Scene, in_time};

/// Puts one more waiter in the line and waits until it stands there, as number `place`.
async fn queue(scene: &Scene, client: &Client, place: usize) -> JoinHandle<Result<Guard>> {
    // Who is not renewed is let in for the whole ttl: a hand-over stands until it is found, however slow the machine is.
    let mutex = client.fair_mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    scene.line_is(client, "x", place).await;
    waiting
}

/// P5: twenty waiters of two clients get in one after the other as they came.
pub async fn first_come_first_served(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = one.fair_mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut waiting = Vec::new();
    for place in 1..=20 {
        waiting.push(queue(scene, if place % 3 == 0 { &one } else { &other }, place).await);
    }
    let mut last = held.token();
    held.release().await.unwrap();
    for (place, waiting) in waiting.into_iter().enumerate() {
        let held = in_time("the next is let in", waiting).await.unwrap().unwrap();
        assert!(held.token() > last, "waiter {place}");
        last = held.token();
        if place % 2 == 0 { held.release().await.unwrap() } else { drop(held) }
    }
}

/// F24: not even `try_lock` gets in ahead of somebody who waits.
pub async fn nobody_barges_in(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = one.fair_mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut waiting = Vec::new();
    for place in 1..=20 {
        waiting.push(queue(scene, if place % 2 == 0 { &one } else { &other }, place).await);
    }
    let over = Arc::new(AtomicBool::new(false));
    let barging: Vec<_> = (0..4)
        .map(|_| {
            let (mutex, over) = (other.fair_mutex("x").unwrap(), Arc::clone(&over));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    if let Some(held) = mutex.try_lock().await.unwrap() {
                        return Some(held.token());
                    }
                    tokio::task::yield_now().await;
                }
                None
            })
        })
        .collect();
    held.release().await.unwrap();
    let mut last = None;
    for waiting in waiting {
        let held = in_time("the next is let in", waiting).await.unwrap().unwrap();
        last = Some(held.token());
        held.release().await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    for barging in barging {
        let token = barging.await.unwrap();
        assert!(token.is_none() || token > last, "{token:?} came in ahead of {last:?}, who was in line");
    }
}

/// Those who give up are skipped, and the others keep their order.
pub async fn who_gives_up_is_skipped(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = one.fair_mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut waiting = Vec::new();
    for place in 1..=9 {
        waiting.push(queue(scene, if place % 2 == 0 { &one } else { &other }, place).await);
    }
    for gone in [6, 3, 0] {
        waiting.remove(gone).abort();
    }
    scene.line_is(&one, "x", 6).await;
    let mut last = held.token();
    held.release().await.unwrap();
    for waiting in waiting {
        let held = in_time("the next is let in", waiting).await.unwrap().unwrap();
        assert!(held.token() > last);
        last = held.token();
        held.release().await.unwrap();
    }
}

/// A wait that is over gives up its place; those behind it move up.
pub async fn who_waits_too_long_is_skipped(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = one.fair_mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mutex = other.fair_mutex("x").unwrap();
    let impatient = tokio::spawn(async move { mutex.try_lock_for(Duration::from_secs(6)).await });
    scene.line_is(&one, "x", 1).await;
    let patient = tokio::spawn({
        let mutex = one.fair_mutex("x").unwrap().keep(false);
        async move { mutex.lock().await }
    });
    assert!(in_time("the wait ends", impatient).await.unwrap().unwrap().is_none());
    scene.line_is(&one, "x", 1).await;
    held.release().await.unwrap();
    in_time("the patient one is let in", patient).await.unwrap().unwrap().check().unwrap();
}

/// A holder that is lost makes room for the first in line.
pub async fn a_lost_holder_is_followed_by_the_first_in_line(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let ttl = Duration::from_secs(10); // both are in line before it is over, also on a machine that stands still for a while
    let held = one.fair_mutex("x").unwrap().ttl(ttl).unwrap().keep(false).lock().await.unwrap();
    let first = queue(scene, &other, 1).await;
    let second = queue(scene, &one, 2).await;
    let first = in_time("the first is let in", first).await.unwrap().unwrap();
    assert_eq!(held.check().unwrap_err().kind(), tenure_core::ErrorKind::Lost);
    let token = first.token();
    first.release().await.unwrap();
    assert!(in_time("the second is let in", second).await.unwrap().unwrap().token() > token);
}
