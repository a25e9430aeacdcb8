//! min-hold, max-hold, lock-delay, notes.

use std::time::Duration;

use tenure_core::{ErrorKind, Instant};

use super::{LONG, SHORT};
use crate::{Harness, Options as _, Scene, Shape, eventually, in_time};

/// Released earlier than its minimum hold, the name stays closed until then, for every kind.
pub async fn min_hold_keeps_the_name_closed<H: Harness>(scene: &Scene<H>) {
    let (one, other) = scene.two_clients().await;
    for shape in Shape::ALL.into_iter().filter(|shape| one.abilities().kinds.contains(&shape.kind())) {
        let lock = shape.make(&one, "x").unwrap().min_hold(SHORT).unwrap();
        let before = Instant::now();
        lock.lock().await.unwrap().release().await.unwrap();
        let view = other.view("x").await.unwrap();
        if Instant::now() < before + SHORT {
            assert!(view.holders.iter().all(|holder| holder.closing) && view.holders.len() == 1, "{shape:?}: {view:?}");
        }
        let next = in_time("it opens", shape.make(&other, "x").unwrap().lock()).await.unwrap();
        assert!(Instant::now() >= before + SHORT, "{shape:?} opened too early");
        next.release().await.unwrap();
        scene.is_free(&one, "x").await;
    }
}

/// Held for longer than that, it costs nothing.
pub async fn min_hold_that_is_over_costs_nothing<H: Harness>(scene: &Scene<H>) {
    let (one, other) = scene.two_clients().await;
    let held = one.mutex("x").unwrap().min_hold(Duration::from_millis(50)).unwrap().lock().await.unwrap();
    tokio::time::sleep(Duration::from_millis(60)).await;
    held.release().await.unwrap();
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_some());
}

/// A name that is only closed can be opened by force.
pub async fn a_closed_name_can_be_broken_open<H: Harness>(scene: &Scene<H>) {
    let (one, other) = scene.two_clients().await;
    one.mutex("x").unwrap().ttl(LONG).unwrap().min_hold(LONG).unwrap().lock().await.unwrap().release().await.unwrap();
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    assert_eq!(other.break_holds("x", None).await.unwrap(), 1);
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_some());
}

/// Renewal stops at the maximum hold, and the hold is lost there: after the ttl, and not after the maximum.
pub async fn max_hold_ends_the_hold<H: Harness>(scene: &Scene<H>) {
    let (one, other) = scene.two_clients().await;
    let (ttl, max) = (Duration::from_millis(600), Duration::from_millis(1_500));
    let before = Instant::now();
    let held = one.mutex("x").unwrap().ttl(ttl).unwrap().max_hold(max).unwrap().lock().await.unwrap();
    let after = Instant::now();
    in_time("the hold ends", held.lost()).await;
    assert!(held.valid_until() <= after + max, "trusted beyond its maximum");
    assert!(held.valid_until() >= before + ttl, "it was renewed until then");
    assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
    let next = in_time("others get in, though the guard is still there", other.mutex("x").unwrap().lock()).await.unwrap();
    assert!(next.token() > held.token());
}

/// A maximum that is shorter than the ttl is the window.
pub async fn max_hold_shorter_than_the_ttl<H: Harness>(scene: &Scene<H>) {
    let client = scene.client().await;
    let held = client.mutex("x").unwrap().ttl(LONG).unwrap().max_hold(SHORT).unwrap().lock().await.unwrap();
    assert!(held.valid_until() <= Instant::now() + SHORT);
    in_time("the hold ends", held.lost()).await;
    drop(held);
    scene.is_free(&client, "x").await;
}

/// A hold at its maximum is no work for the keeper: holds beside it are renewed, and new ones are taken.
pub async fn max_hold_costs_its_neighbours_nothing<H: Harness>(scene: &Scene<H>) {
    let client = scene.client().await;
    let neighbour = client.mutex("neighbour").unwrap().ttl(Duration::from_millis(900)).unwrap().lock().await.unwrap();
    let capped =
        client.mutex("x").unwrap().ttl(Duration::from_secs(3)).unwrap().max_hold(Duration::from_millis(2_500)).unwrap();
    let capped = capped.lock().await.unwrap();
    in_time("the hold ends", capped.lost()).await;
    neighbour.check().expect("it was renewed all the while");
    in_time("others are taken", client.mutex("y").unwrap().lock()).await.unwrap().release().await.unwrap();
    neighbour.release().await.unwrap();
}

/// What a multi-lock took in vain nobody has used: it closes nothing.
pub async fn min_hold_of_a_multi_lock_that_failed<H: Harness>(scene: &Scene<H>) {
    let (one, other) = scene.two_clients().await;
    let held = other.mutex("b").unwrap().lock().await.unwrap();
    let multi = one.multi(["a", "b"]).unwrap().min_hold(LONG).unwrap();
    assert!(multi.try_lock().await.unwrap().is_none());
    assert!(other.mutex("a").unwrap().try_lock().await.unwrap().is_some(), "nobody has held it");
    held.release().await.unwrap();
}

/// A hold that has expired closes nothing any more, however late it is let go.
pub async fn min_hold_of_a_hold_that_has_expired<H: Harness>(scene: &Scene<H>) {
    let (one, other) = scene.two_clients().await;
    let mutex = one.mutex("x").unwrap().ttl(SHORT).unwrap().keep(false).min_hold(LONG).unwrap();
    let held = mutex.lock().await.unwrap();
    in_time("others get in", other.mutex("x").unwrap().lock()).await.unwrap().release().await.unwrap();
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_some());
}

/// Letting go of what is lost already does not cut its lock-delay short, in whatever way it is let go.
pub async fn lock_delay_outlives_the_guard<H: Harness>(scene: &Scene<H>) {
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
        let next = in_time("it opens", other.mutex("x").unwrap().lock()).await.unwrap();
        assert!(Instant::now() >= before + SHORT + delay, "closed for the ttl and the delay");
        next.release().await.unwrap();
    }
}

/// To its holder a break is a loss, so the lock-delay holds; a second break opens the name.
pub async fn lock_delay_after_a_break<H: Harness>(scene: &Scene<H>) {
    let (one, other) = scene.two_clients().await;
    let held = one.mutex("x").unwrap().ttl(LONG).unwrap().lock_delay(LONG).unwrap().lock().await.unwrap();
    assert_eq!(other.break_holds("x", None).await.unwrap(), 1);
    in_time("the holder is told", held.lost()).await;
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    assert_eq!(other.break_holds("x", None).await.unwrap(), 1);
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_some());
}

/// After a loss the name stays closed for the lock-delay.
pub async fn lock_delay_after_a_loss<H: Harness>(scene: &Scene<H>) {
    let (one, other) = scene.two_clients().await;
    let delay = Duration::from_millis(600);
    let before = Instant::now();
    let mutex = one.mutex("x").unwrap().ttl(SHORT).unwrap().keep(false).lock_delay(delay).unwrap();
    let held = mutex.lock().await.unwrap();
    assert!(held.valid_until() < Instant::now() + SHORT, "the delay is not for the holder");
    let next = in_time("it opens", other.mutex("x").unwrap().lock()).await.unwrap();
    assert!(Instant::now() >= before + SHORT + delay, "closed for the ttl and the delay");
    assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
    next.check().unwrap();
}

/// After a release it does not, whoever was next.
pub async fn no_lock_delay_after_a_release<H: Harness>(scene: &Scene<H>) {
    let (one, other) = scene.two_clients().await;
    let mutex = one.mutex("x").unwrap().ttl(LONG).unwrap().lock_delay(LONG).unwrap();
    mutex.lock().await.unwrap().release().await.unwrap();
    let held = other.mutex("x").unwrap().try_lock().await.unwrap().expect("a release costs no delay");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    scene.line_is(&other, "x", 1).await;
    held.release().await.unwrap();
    let held = in_time("the waiter is let in", waiting).await.unwrap().unwrap();
    drop(held);
    in_time("nor does a drop", other.mutex("x").unwrap().lock()).await.unwrap().release().await.unwrap();
}

/// Notes are shown as they were given: by holders, by waiters, by nobody.
pub async fn notes_are_shown<H: Harness>(scene: &Scene<H>) {
    let (one, other) = scene.two_clients().await;
    let long = "é'\"%{}".repeat(100);
    let held = one.mutex("x").unwrap().note(&long).unwrap().lock().await.unwrap();
    let mutex = other.mutex("x").unwrap().note("next, please").unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    scene.line_is(&one, "x", 1).await;
    let view = other.view("x").await.unwrap();
    assert_eq!((view.holders[0].note.as_str(), view.line[0].note.as_str()), (long.as_str(), "next, please"));
    waiting.abort();
    held.release().await.unwrap();
    drop(waiting); // an abort in the middle of a poll may come too late, and then the handle has a guard
    let held = one.mutex("x").unwrap().lock().await.unwrap();
    eventually("a hold without a note shows none", || held.check().is_ok()).await;
    assert_eq!(one.view("x").await.unwrap().holders[0].note.as_str(), "");
}
