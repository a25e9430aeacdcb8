//! A fair mutex is given strictly in the order of asking.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::LONG;
use super::line::{entry, holder, keeps_its_order, queue, served};
use crate::{Scene, in_time};

/// P5: twenty waiters of two clients get in one after the other as they came.
pub async fn first_come_first_served(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    keeps_its_order(&one, async || {
        let held = holder(&one).await;
        let mut waiting = Vec::new();
        for place in 1..=20 {
            waiting.push(queue(scene, if place % 3 == 0 { &one } else { &other }, place).await);
        }
        let mut entered = vec![entry(&held)];
        held.release().await.unwrap();
        entered.extend(served(waiting).await);
        entered
    })
    .await;
}

/// F24: not even `try_lock` gets in ahead of somebody who waits.
pub async fn nobody_barges_in(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    keeps_its_order(&one, async || {
        let held = holder(&one).await;
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
                            return Some(entry(&held));
                        }
                        tokio::task::yield_now().await;
                    }
                    None
                })
            })
            .collect();
        held.release().await.unwrap();
        let mut entered = served(waiting).await;
        over.store(true, Ordering::Relaxed);
        let mut barged = Vec::new();
        for barging in barging {
            barged.extend(barging.await.unwrap());
        }
        barged.sort_by_key(|(_, at)| *at); // among themselves they may come as they like
        entered.extend(barged);
        entered
    })
    .await;
}

/// Those who give up are skipped, and the others keep their order.
pub async fn who_gives_up_is_skipped(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    keeps_its_order(&one, async || {
        let held = holder(&one).await;
        let mut waiting = Vec::new();
        for place in 1..=9 {
            waiting.push(queue(scene, if place % 2 == 0 { &one } else { &other }, place).await);
        }
        for gone in [6, 3, 0] {
            waiting.remove(gone).abort();
        }
        scene.line_is(&one, "x", 6).await;
        let mut entered = vec![entry(&held)];
        held.release().await.unwrap();
        entered.extend(served(waiting).await);
        entered
    })
    .await;
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
    keeps_its_order(&one, async || {
        let mutex = one.fair_mutex("x").unwrap().ttl(ttl).unwrap().keep(false);
        let held = in_time("it is free", mutex.lock()).await.unwrap();
        let waiting = vec![queue(scene, &other, 1).await, queue(scene, &one, 2).await];
        let entered = served(waiting).await;
        assert!(entered.iter().all(|(_, at)| *at > held.valid_until().as_nanos()), "nobody comes before the window is over");
        assert_eq!(held.check().unwrap_err().kind(), tenure_core::ErrorKind::Lost);
        entered
    })
    .await;
}
