//! A hold that is lost says so: by the local clock, before anybody else can get in, and in every way a holder may listen.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::{Client, ErrorKind, Event, Instant, Kind, Phase};

use super::{LONG, SHORT, STANDS_STILL};
use crate::{Rng, Scene, eventually, in_bound, in_time, unless_stalled};

/// `run` stops the future at the loss, and never polls it afterwards. Before that it does.
pub async fn run_stops_the_future(scene: &Scene) {
    let client = scene.client().await;
    let mutex = client.mutex("x").unwrap().ttl(SHORT).unwrap().keep(false);
    unless_stalled("it is polled before its hold is over", SHORT / 4, async || {
        let held = in_time("it is free", mutex.lock()).await.unwrap();
        let last = AtomicU64::new(0);
        let work = async {
            loop {
                last.store(Instant::now().as_nanos(), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let stopped: tenure_core::Result<()> = in_time("the future is stopped", held.run(work)).await;
        assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Lost);
        let polled = last.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(last.load(Ordering::Relaxed), polled, "nobody polls it any more");
        (polled > 0).then_some(())
    })
    .await;
}

/// `run` gives what the future gives, and leaves the lock held.
pub async fn run_gives_the_answer(scene: &Scene) {
    let client = scene.client().await;
    let held = client.mutex("x").unwrap().lock().await.unwrap();
    assert_eq!(held.run(async { 40 + 2 }).await.unwrap(), 42);
    held.check().unwrap();
    held.release().await.unwrap();
}

/// A future is not even begun under a hold that is lost already.
pub async fn run_begins_nothing_after_the_loss(scene: &Scene) {
    let client = scene.client().await;
    let held = client.mutex("x").unwrap().ttl(SHORT).unwrap().keep(false).lock().await.unwrap();
    eventually("the window ends", || Instant::now() >= held.valid_until()).await;
    let ran: tenure_core::Result<()> = held.run(async { panic!("polled without the lock") }).await;
    assert_eq!(ran.unwrap_err().kind(), ErrorKind::Lost);
}

/// P12: a check asks the clock and nobody else: it says `Lost` the moment the window is over, whether or not anything ran.
pub async fn check_needs_nobody(scene: &Scene) {
    let (client, faults) = scene.faulty_client().await;
    faults.fail_renewals(true);
    let held = client.mutex("x").unwrap().ttl(SHORT).unwrap().lock().await.unwrap();
    while Instant::now() < held.valid_until() {
        std::hint::spin_loop(); // this thread lets nothing else run on it
    }
    assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!((held.phase(), held.remaining()), (Phase::Lost, Duration::ZERO));
    in_time("the loss is told", held.lost()).await;
}

/// F47: an old guard of the same task can neither release nor renew the hold that came after it.
pub async fn an_old_guard_does_not_touch_a_new_hold(scene: &Scene) {
    let client = scene.client().await;
    let mutex = client.mutex("x").unwrap().ttl(SHORT).unwrap();
    let old = mutex.clone().keep(false).lock().await.unwrap();
    old.lost().await;
    let new = in_time("it can be had again", mutex.ttl(LONG).unwrap().keep(false).lock()).await.unwrap();
    let token = new.token();
    drop(old);
    client.close().await.unwrap(); // the old guard's ending has been done
    new.check().unwrap();
    let other = scene.client().await;
    let view = other.view("x").await.unwrap();
    assert_eq!(view.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [token]);
}

/// F8: a release at the very end of the window frees no one else's lock and is never in the way.
pub async fn a_release_at_the_end_of_the_window(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let rounds = (0..24).map(|round| {
        let (one, other, name) = (one.clone(), other.clone(), format!("x{round}"));
        async move {
            let mut rng = Rng::from_entropy();
            let held = one.mutex(&name).unwrap().ttl(SHORT).unwrap().keep(false).lock().await.unwrap();
            let mutex = other.mutex(&name).unwrap().ttl(LONG).unwrap().keep(false);
            let waiting = tokio::spawn(async move { mutex.lock().await });
            let left = held.valid_until().since(Instant::now());
            tokio::time::sleep((left + rng.up_to(Duration::from_millis(60))).saturating_sub(Duration::from_millis(10)))
                .await;
            match held.release().await {
                Ok(()) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::Lost),
            }
            let next = in_time("the waiter is let in", waiting).await.unwrap().unwrap();
            next.check().unwrap();
            assert!(one.mutex(&name).unwrap().try_lock().await.unwrap().is_none());
        }
    });
    let rounds: Vec<_> = rounds.map(tokio::spawn).collect();
    for round in rounds {
        round.await.unwrap();
    }
}

/// F2: a grant that arrives after its own end is no grant: nothing is returned, and nothing stays held. What comes in time is held.
pub async fn a_grant_that_comes_too_late_is_none(scene: &Scene) {
    let (client, faults) = scene.faulty_client().await;
    let ttl = Duration::from_secs(5);
    let late = ttl + Duration::from_secs(1);
    let mutex = client.mutex("x").unwrap().ttl(ttl).unwrap().keep(false);
    faults.delay_next_grant(late);
    assert!(mutex.try_lock().await.unwrap().is_none(), "never a dead guard");
    scene.is_free(&client, "x").await;
    unless_stalled("the second grant is in time", STANDS_STILL, async || {
        faults.delay_next_grant(late);
        let held = in_time("the second grant is in time", mutex.lock()).await.unwrap();
        let (checked, view) = (held.check(), client.view("x").await.unwrap());
        if Instant::now() < held.valid_until() {
            checked.unwrap();
            assert_eq!(view.holders.len(), 1);
        }
        held.release().await.map_err(|error| assert_eq!(error.kind(), ErrorKind::Lost, "{error}")).ok()
    })
    .await;
}

/// F10: the store granted, and the answer was lost: an error that may be retried, and nothing stays held.
pub async fn a_grant_whose_answer_is_lost_is_ended(scene: &Scene) {
    let (client, faults) = scene.faulty_client().await;
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
    for _ in 0..10 {
        faults.lose_grants(1);
        let error = mutex.try_lock().await.expect_err("the answer was lost");
        assert!(error.is_transient(), "{error}");
        in_time("nothing stays held", mutex.lock()).await.unwrap().release().await.unwrap();
    }
    faults.lose_grants(1);
    client.multi(["a", "b", "x"]).unwrap().ttl(LONG).unwrap().lock().await.expect_err("the first answer was lost");
    for name in ["a", "b", "x"] {
        scene.is_free(&client, name).await;
    }
}

/// A release that does not reach the store is an error to whoever waits for it, and is tried again in the background.
pub async fn a_release_that_is_lost_is_tried_again(scene: &Scene) {
    let (client, faults) = scene.faulty_client().await;
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
    let held = mutex.lock().await.unwrap();
    faults.lose_releases(3);
    held.release().await.expect_err("the store did not confirm");
    scene.is_free(&client, "x").await;
    let held = mutex.lock().await.unwrap();
    faults.lose_releases(3);
    drop(held);
    scene.is_free(&client, "x").await;
    scene.leaves_nothing([client]).await;
}

/// A hold that was broken is lost, also after somebody else has held the name: its check and its release say so. The first holder has
/// done nothing else through its client; the second one listens, since it has waited. Each is broken and followed by another
/// client, or by its own.
pub async fn a_broken_hold_cannot_be_released(scene: &Scene) {
    let other = scene.client().await;
    for has_waited in [false, true] {
        for by_itself in [false, true] {
            for is_told_first in [false, true] {
                let case = format!("has waited: {has_waited}, by itself: {by_itself}");
                in_bound(&case, TOLD_AT_ONCE, async || {
                    breaks_and_follows(scene, &other, &case, has_waited, by_itself, is_told_first).await
                })
                .await;
            }
        }
    }
}

/// After how long the first holder was told; no time where it does not wait for that, or is not told.
async fn breaks_and_follows(
    scene: &Scene,
    other: &Client,
    case: &str,
    has_waited: bool,
    by_itself: bool,
    is_told_first: bool,
) -> Duration {
    let client = scene.client().await;
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
    let held = if has_waited {
        let before = other.mutex("x").unwrap().lock().await.unwrap();
        let waiting = tokio::spawn(async move { mutex.lock().await });
        scene.line_is(other, "x", 1).await;
        before.release().await.unwrap();
        in_time("it is let in", waiting).await.unwrap().unwrap()
    } else {
        mutex.lock().await.unwrap()
    };
    let is_watched = Instant::now() + WATCHED_AFTER;
    let next = if by_itself { &client } else { other };
    assert_eq!(next.break_holds("x", None).await.unwrap(), 1, "{case}");
    let broken = Instant::now().max(is_watched);
    let following = in_time("the next is let in", next.mutex("x").unwrap().lock()).await.unwrap();
    assert!(following.token() > held.token(), "{case}");
    let mut told = Duration::ZERO;
    if is_told_first {
        in_time("the loss is told", held.lost()).await;
        told = Instant::now().since(broken);
        assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost, "{case}");
    }
    let released = held.release().await.map_err(|error| error.kind());
    // Of a request that was sent twice nobody knows whether the first one ended it.
    let is_lost = released == Err(ErrorKind::Lost) || !(is_told_first || scene.loses_nothing());
    assert!(is_lost, "{case}: {released:?}");
    following.check().unwrap();
    following.release().await.unwrap();
    scene.leaves_nothing([client]).await;
    if scene.tells_holders() { told } else { Duration::ZERO }
}

/// A store that watches each hold, or looks after it, begins with that when it is so old: a shorter one costs it nothing.
const WATCHED_AFTER: Duration = Duration::from_millis(50);

/// Within this time a holder is told that its hold was broken.
const TOLD_AT_ONCE: Duration = Duration::from_millis(50);

/// Renewals that fail are jeopardy, which is seen and does nothing by itself; one that works makes it safe again.
pub async fn jeopardy_is_seen_and_passes(scene: &Scene) {
    let (client, faults) = scene.faulty_client().await;
    let mutex = client.mutex("x").unwrap().ttl(Duration::from_secs(9)).unwrap();
    unless_stalled("a renewal comes through before the window ends", STANDS_STILL, async || {
        let held = in_time("it is free", mutex.lock()).await.unwrap();
        let mut events = held.events();
        faults.fail_renewals(true);
        let until_jeopardy = eventually("a renewal is overdue", || held.phase() != Phase::Held);
        let ran = held.run(until_jeopardy).await;
        assert!(ran.is_ok() || held.check().is_err(), "jeopardy stops nothing");
        faults.fail_renewals(false);
        eventually("a renewal comes through, or it is too late", || held.phase() != Phase::Jeopardy).await;
        if held.check().is_err() {
            assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Lost);
            return None;
        }
        assert!(matches!(in_time("it was told", events.next()).await, Some(Event::Jeopardy { .. })));
        assert_eq!(in_time("it was told", events.next()).await, Some(Event::Safe));
        held.release().await.unwrap();
        assert_eq!(in_time("it was told", events.next()).await, None);
        Some(())
    })
    .await;
}

/// Renewals that never work again are jeopardy and then loss, and the next holder comes after the window.
pub async fn jeopardy_ends_in_loss(scene: &Scene) {
    let (client, faults) = scene.faulty_client().await;
    let other = scene.client().await;
    let mutex = client.mutex("x").unwrap().ttl(Duration::from_secs(6)).unwrap();
    unless_stalled("there is jeopardy before the loss", STANDS_STILL, async || {
        faults.fail_renewals(true);
        let held = in_time("it is free", mutex.lock()).await.unwrap();
        let mut events = held.events();
        let next = in_time("the next is let in", other.mutex("x").unwrap().lock()).await.unwrap();
        assert!(held.valid_until() < Instant::now(), "the next holder came in before the window was over");
        assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
        assert!(next.token() > held.token());
        match in_time("it was told", events.next()).await {
            Some(Event::Jeopardy { .. }) => {}
            Some(Event::Lost(_)) => {
                faults.fail_renewals(false);
                return None;
            }
            told => panic!("{told:?}"),
        }
        assert!(matches!(in_time("it was told", events.next()).await, Some(Event::Lost(_))));
        assert_eq!(in_time("that was all", events.next()).await, None);
        faults.fail_renewals(false);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(held.phase(), Phase::Lost, "lost is final");
        Some(())
    })
    .await;
}

/// Every future of the API can be handed to another thread.
pub async fn every_future_can_be_spawned(scene: &Scene) {
    fn sendable<F: Future + Send>(future: F) -> F {
        future
    }
    if !scene.offers(Kind::RwLock).await {
        return; // it is the kind with the most futures
    }
    let client = scene.client().await;
    let mut held = sendable(client.rw_lock("x").unwrap().write()).await.unwrap();
    sendable(held.run(async {})).await.unwrap();
    drop(sendable(held.downgrade()));
    drop(sendable(held.lost()));
    drop(sendable(held.asked()));
    drop(sendable(held.events().next()));
    sendable(held.release()).await.unwrap();
    let multi = client.multi(["a", "b"]).unwrap();
    let held = sendable(multi.lock()).await.unwrap();
    assert_eq!(sendable(held.run(async { 7 })).await.unwrap(), 7);
    drop(sendable(held.lost()));
    sendable(held.release()).await.unwrap();
    if scene.offers(Kind::Election).await {
        let election = client.election("e").unwrap();
        sendable(election.resign(sendable(election.campaign()).await.unwrap())).await.unwrap();
        drop(sendable(election.observe().unwrap().next()));
    }
    drop(sendable(client.watch("x").unwrap().next()));
    sendable(client.close()).await.unwrap();
}

/// A hold that was handed over to somebody who does not keep it lapses long before the first holder's would have: the next
/// in line, who went to sleep in the first one's time, is let in all the same.
pub async fn a_hand_over_that_lapses_lets_in_the_next(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = one.mutex("x").unwrap().ttl(Duration::from_secs(3600)).unwrap().lock().await.unwrap();
    // Long enough to be found in time, also on a machine that stands still for a while.
    let lapses = other.mutex("x").unwrap().ttl(Duration::from_secs(6)).unwrap().keep(false);
    let lapsing = tokio::spawn(async move { lapses.lock().await });
    scene.line_is(&one, "x", 1).await;
    let next = one.mutex("x").unwrap().keep(false);
    let waiting = tokio::spawn(async move { next.lock().await });
    scene.line_is(&one, "x", 2).await;
    held.release().await.unwrap();
    let lapsing = in_time("the first is let in", lapsing).await.unwrap().unwrap();
    let next = in_time("and the second when it lapses", waiting).await.unwrap().unwrap();
    assert_eq!(lapsing.check().unwrap_err().kind(), ErrorKind::Lost);
    next.release().await.unwrap();
}
