//! min-hold and lock-delay: a name that stays closed though nobody holds it.

use std::time::Duration;

use tenure_core::{ErrorKind, Instant};

pub use super::check::closed_name as a_closed_name_is_no_hold;

use super::cancel::granted_and_dropped;
use super::{LONG, SHORT};
use crate::{Options as _, Scene, Shape, in_time};

/// Released earlier than its minimum hold, the name stays closed until then, for every kind.
pub async fn min_hold_keeps_the_name_closed(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    for shape in Shape::ALL.into_iter().filter(|shape| one.abilities().kinds.contains(&shape.kind())) {
        let lock = shape.make(&one, "x").unwrap().min_hold(SHORT).unwrap();
        let before = Instant::now();
        lock.lock().await.unwrap().release().await.unwrap();
        let view = other.view("x").await.unwrap();
        if Instant::now() < before + SHORT {
            assert!(view.holders.iter().all(|holder| holder.closing) && view.holders.len() == 1, "{shape:?}: {view:?}");
        }
        let next = in_time("it opens", shape.make(&other, "x").unwrap().keep(false).lock()).await.unwrap();
        assert!(Instant::now() >= before + SHORT, "{shape:?} opened too early");
        next.release().await.unwrap();
        scene.is_free(&one, "x").await;
    }
}

/// Held for longer than that, it costs nothing.
pub async fn min_hold_that_is_over_costs_nothing(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = one.mutex("x").unwrap().min_hold(Duration::from_millis(50)).unwrap().lock().await.unwrap();
    tokio::time::sleep(Duration::from_millis(60)).await;
    held.release().await.unwrap();
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_some());
}

/// A name that is only closed can be opened by force.
pub async fn a_closed_name_can_be_broken_open(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    one.mutex("x").unwrap().ttl(LONG).unwrap().min_hold(LONG).unwrap().lock().await.unwrap().release().await.unwrap();
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    assert_eq!(other.break_holds("x", None).await.unwrap(), 1);
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_some());
}

/// What a multi-lock took in vain nobody has used: it closes nothing.
pub async fn min_hold_of_a_multi_lock_that_failed(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = other.mutex("b").unwrap().lock().await.unwrap();
    let multi = one.multi(["a", "b"]).unwrap().min_hold(LONG).unwrap();
    assert!(multi.try_lock().await.unwrap().is_none());
    assert!(other.mutex("a").unwrap().try_lock().await.unwrap().is_some(), "nobody has held it");
    held.release().await.unwrap();
}

/// A hold that has expired closes nothing any more, however late it is let go.
pub async fn min_hold_of_a_hold_that_has_expired(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mutex = one.mutex("x").unwrap().ttl(SHORT).unwrap().keep(false).min_hold(LONG).unwrap();
    let held = mutex.lock().await.unwrap();
    in_time("others get in", other.mutex("x").unwrap().keep(false).lock()).await.unwrap().release().await.unwrap();
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_some());
}

/// Letting go of what is lost already does not cut its lock-delay short, in whatever way it is let go.
pub async fn lock_delay_outlives_the_guard(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let delay = Duration::from_millis(600);
    for drops in [true, false] {
        let before = Instant::now();
        let mutex = one.mutex("x").unwrap().ttl(SHORT).unwrap().keep(false).lock_delay(delay).unwrap();
        let held = mutex.lock().await.unwrap();
        in_time("the hold ends", held.lost()).await;
        if drops {
            drop(held);
        } else {
            assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Lost);
        }
        let next = in_time("it opens", other.mutex("x").unwrap().keep(false).lock()).await.unwrap();
        assert!(Instant::now() >= before + SHORT + delay, "closed for the ttl and the delay");
        next.release().await.unwrap();
    }
}

/// To its holder a break is a loss, so the lock-delay holds; a second break opens the name.
pub async fn lock_delay_after_a_break(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = one.mutex("x").unwrap().ttl(LONG).unwrap().lock_delay(LONG).unwrap().lock().await.unwrap();
    assert_eq!(other.break_holds("x", None).await.unwrap(), 1);
    in_time("the holder is told", held.lost()).await;
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    assert_eq!(other.break_holds("x", None).await.unwrap(), 1);
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_some());
}

/// After a loss the name stays closed for the lock-delay.
pub async fn lock_delay_after_a_loss(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let delay = Duration::from_millis(600);
    let before = Instant::now();
    let mutex = one.mutex("x").unwrap().ttl(SHORT).unwrap().keep(false).lock_delay(delay).unwrap();
    let held = mutex.lock().await.unwrap();
    let ttl = SHORT.max(one.abilities().shortest_ttl);
    assert!(held.valid_until() < Instant::now() + ttl, "the delay is not for the holder");
    let next = in_time("it opens", other.mutex("x").unwrap().keep(false).lock()).await.unwrap();
    assert!(Instant::now() >= before + SHORT + delay, "closed for the ttl and the delay");
    assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
    next.check().unwrap();
}

/// After a release it does not, whoever was next.
pub async fn no_lock_delay_after_a_release(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mutex = one.mutex("x").unwrap().ttl(LONG).unwrap().keep(false).lock_delay(LONG).unwrap();
    mutex.lock().await.unwrap().release().await.unwrap();
    let held = other.mutex("x").unwrap().try_lock().await.unwrap().expect("a release costs no delay");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    scene.line_is(&other, "x", 1).await;
    held.release().await.unwrap();
    let held = in_time("the waiter is let in", waiting).await.unwrap().unwrap();
    drop(held);
    in_time("nor does a drop", other.mutex("x").unwrap().keep(false).lock()).await.unwrap().release().await.unwrap();
}

/// The store has granted, and the waiter is dropped before it looks: nobody has held it, so nothing is closed for its sake.
pub async fn at_the_instant_of_the_grant_with_a_minimum_hold(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mutex = other.mutex("x").unwrap().ttl(LONG).unwrap().min_hold(LONG).unwrap();
    granted_and_dropped(scene, &one, mutex).await;
    scene.is_free(&one, "x").await;
}

/// A release that does not reach the store, or that nobody waits for any more, is tried again in the background: the holder has let
/// go, so the name opens at once and not after the ttl and the lock-delay.
pub async fn a_release_that_is_lost_or_cancelled_is_tried_again(scene: &Scene) {
    let (client, faults) = scene.faulty_client().await;
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap().lock_delay(LONG).unwrap();
    let held = mutex.lock().await.unwrap();
    faults.lose_releases(1);
    held.release().await.expect_err("the store did not confirm");
    scene.is_free(&client, "x").await;
    for polls in 0..4 {
        let held = mutex.lock().await.unwrap();
        drop(crate::polls::at_most(polls, Duration::ZERO, held.release()).await);
        scene.is_free(&client, "x").await;
    }
    scene.leaves_nothing([client]).await;
}
