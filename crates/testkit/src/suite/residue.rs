//! P16: in the end there is nothing in the store.

use std::time::Duration;

use tokio::task::JoinSet;

use super::LONG;
use crate::{Options as _, Scene, Shape, in_time};

/// F46: thousands of names, each used and let go of, leave nothing.
pub async fn thousands_of_names(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let client = if task % 2 == 0 { one.clone() } else { other.clone() };
        tasks.spawn(async move {
            for n in 0..400 {
                let mutex = client.mutex(format!("{task}/{n}")).unwrap().ttl(LONG).unwrap();
                let held = in_time("nobody else wants it", mutex.lock()).await.unwrap();
                if n % 2 == 0 { drop(held) } else { held.release().await.unwrap() }
            }
        });
    }
    tasks.join_all().await;
    scene.leaves_nothing([one, other]).await;
}

/// Names that were held by all kinds, tried in vain, waited for and given up leave nothing.
pub async fn every_kind(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    for (n, shape) in Shape::ALL.into_iter().filter(|shape| one.abilities().kinds.contains(&shape.kind())).enumerate() {
        let name = format!("x{n}");
        let (mine, yours) = (shape.make(&one, &name).unwrap().ttl(LONG).unwrap(), shape.make(&other, &name).unwrap());
        let held = mine.lock().await.unwrap();
        assert!(yours.try_lock().await.unwrap().is_none());
        assert!(yours.try_lock_for(Duration::from_millis(2)).await.unwrap().is_none());
        let waiting = tokio::spawn(async move { yours.lock().await });
        scene.line_is(&one, &name, 1).await;
        waiting.abort();
        drop(held);
    }
    scene.leaves_nothing([one, other]).await;
}

/// A holder that was never heard of again leaves nothing once its time is over, though nobody ever asks for that name: it is
/// enough that the store is used.
pub async fn what_only_time_ends(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    for n in 0..20 {
        let mutex = one.mutex(format!("x{n}")).unwrap().ttl(Duration::from_millis(100)).unwrap().keep(false);
        std::mem::forget(mutex.lock().await.unwrap()); // as if its process had stopped
    }
    scene.leaves_nothing_in_the_end([other]).await;
}

/// Asks that are refused leave nothing: mismatches, impossible numbers.
pub async fn what_was_refused(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = one.mutex("x").unwrap().lock().await.unwrap();
    for shape in Shape::ALL.into_iter().filter(|shape| shape.kind() != tenure_core::Kind::Mutex) {
        if let Ok(lock) = shape.make(&other, "x") {
            lock.try_lock().await.expect_err("it is in use as a mutex");
        }
    }
    held.release().await.unwrap();
    scene.leaves_nothing([one, other]).await;
}
