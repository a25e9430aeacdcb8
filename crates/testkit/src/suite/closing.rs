//! `close()` ends what was dropped, and nothing else.

use std::time::Duration;

use tenure_core::lease::ALIVE;
use tenure_core::{Instant, Kind};

use super::LONG;
use super::line::{holder, keeps_its_order, queue, served};
use crate::{Scene, in_time};

/// Holds of a client that is closed are held, kept, and let go as before.
pub async fn while_others_hold(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let ttl = Duration::from_secs(9);
    let held = one.mutex("x").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
    one.close().await.unwrap();
    let first = held.valid_until();
    crate::eventually("it is renewed", || held.valid_until() > first + ttl / 2).await;
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    other.ask("x", "please").await.unwrap();
    assert_eq!(in_time("it hears of an ask", held.asked()).await.reason.as_str(), "please");
    held.release().await.unwrap();
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_some());
    scene.leaves_nothing([one, other]).await;
}

/// Whoever waits goes on waiting, and is let in as fast as before.
pub async fn while_others_wait(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = other.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mutex = one.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    scene.line_is(&other, "x", 1).await;
    one.close().await.unwrap();
    held.release().await.unwrap();
    let held = in_time("the waiter is let in", waiting).await.unwrap().unwrap();
    held.release().await.unwrap();
    scene.leaves_nothing([one, other]).await;
}

/// Whoever has waited for longer than a place lasts by itself keeps it, too.
pub async fn while_others_have_waited(scene: &Scene) {
    if !scene.offers(Kind::FairMutex).await {
        return; // there is no order to keep
    }
    let (one, other) = scene.two_clients().await;
    keeps_its_order(&other, async || {
        let held = holder(&other).await;
        let waiting = vec![queue(scene, &one, 1).await, queue(scene, &other, 2).await];
        tokio::time::sleep(ALIVE + Duration::from_secs(1)).await;
        one.close().await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await; // both have looked how they stand
        held.release().await.unwrap();
        served(waiting).await
    })
    .await;
}

/// Nobody who asks at that moment is forgotten.
pub async fn while_others_ask(scene: &Scene) {
    let client = scene.client().await;
    let asking = tokio::spawn({
        let client = client.clone();
        async move {
            let end = Instant::now() + Duration::from_secs(30); // a slow store asks less often
            for _ in 0..2_000 {
                client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
                if Instant::now() > end {
                    break;
                }
            }
        }
    });
    while !asking.is_finished() {
        in_time("it closes", client.close()).await.unwrap();
    }
    in_time("everybody is answered", asking).await.unwrap();
    scene.leaves_nothing([client]).await;
}

/// A client that was closed can be used again, and closed again.
pub async fn twice_and_used_after(scene: &Scene) {
    let client = scene.client().await;
    client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
    client.close().await.unwrap();
    client.close().await.unwrap();
    let held = client.mutex("x").unwrap().lock().await.unwrap();
    held.check().unwrap();
    held.release().await.unwrap();
    scene.leaves_nothing([client]).await;
}
