//! max-hold, notes.

use std::time::Duration;

use tenure_core::{ErrorKind, Instant};

use super::{LONG, SHORT, STANDS_STILL};
use crate::{Scene, eventually, in_time, unless_stalled};

/// Renewal stops at the maximum hold, and the hold is lost there: after the ttl, and not after the maximum.
pub async fn max_hold_ends_the_hold(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let (ttl, max) = (Duration::from_secs(2), Duration::from_secs(4));
    let mutex = one.mutex("x").unwrap().ttl(ttl).unwrap().max_hold(max).unwrap();
    unless_stalled("it is renewed until then", STANDS_STILL, async || {
        let held = in_time("it is free", mutex.lock()).await.unwrap();
        let after = Instant::now();
        let first = held.valid_until();
        in_time("the hold ends", held.lost()).await;
        assert!(held.valid_until() <= after + max, "trusted beyond its maximum");
        assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
        let theirs = other.mutex("x").unwrap();
        let next = in_time("others get in, though the guard is still there", theirs.lock()).await.unwrap();
        assert!(next.token() > held.token());
        (held.valid_until() > first).then_some(())
    })
    .await;
}

/// A maximum that is shorter than the ttl is the window.
pub async fn max_hold_shorter_than_the_ttl(scene: &Scene) {
    let client = scene.client().await;
    let held = client.mutex("x").unwrap().ttl(LONG).unwrap().max_hold(SHORT).unwrap().lock().await.unwrap();
    assert!(held.valid_until() <= Instant::now() + SHORT);
    in_time("the hold ends", held.lost()).await;
    drop(held);
    scene.is_free(&client, "x").await;
}

/// A hold at its maximum is no work for the keeper: holds beside it are renewed, and new ones are taken.
pub async fn max_hold_costs_its_neighbours_nothing(scene: &Scene) {
    let client = scene.client().await;
    let neighbour = client.mutex("neighbour").unwrap().ttl(Duration::from_secs(9)).unwrap().lock().await.unwrap();
    let capped =
        client.mutex("x").unwrap().ttl(Duration::from_secs(3)).unwrap().max_hold(Duration::from_millis(2_500)).unwrap();
    let capped = capped.lock().await.unwrap();
    in_time("the hold ends", capped.lost()).await;
    let until = neighbour.valid_until();
    eventually("it is renewed", || neighbour.valid_until() > until).await;
    in_time("others are taken", client.mutex("y").unwrap().lock()).await.unwrap().release().await.unwrap();
    neighbour.release().await.unwrap();
}

/// Notes are shown as they were given: by holders, by waiters, by nobody.
pub async fn notes_are_shown(scene: &Scene) {
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
    let held = one.mutex("x").unwrap().keep(false).lock().await.unwrap();
    assert_eq!(one.view("x").await.unwrap().holders[0].note.as_str(), "", "a hold without a note shows none");
    held.check().unwrap();
}
