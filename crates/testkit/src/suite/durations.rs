//! Durations and sizes at their limits, one below and one above.

use std::time::Duration;

use tenure_core::{Backoff, ErrorKind, Instant, MAX_TTL, MIN_TTL, Note};

use super::LONG;
use crate::{Options as _, Scene, Shape, in_time, unless_stalled};

const TICK: Duration = Duration::from_nanos(1);
/// A machine that stands still for so long may lose a hold of the shortest ttl.
const EXCUSE: Duration = Duration::from_millis(10);

/// F45: every option of every kind takes what is within its limits and refuses the rest, when it is set.
pub async fn options_are_checked_when_set(scene: &Scene) {
    let client = scene.client().await;
    for shape in Shape::ALL.into_iter().filter(|shape| client.abilities().kinds.contains(&shape.kind())) {
        let make = || shape.make(&client, "x").unwrap();
        for good in [MIN_TTL, MIN_TTL + TICK, MAX_TTL - TICK, MAX_TTL] {
            make().ttl(good).and_then(|lock| lock.max_hold(good)).unwrap();
        }
        for bad in [Duration::ZERO, TICK, MIN_TTL - TICK, MAX_TTL + TICK, Duration::MAX] {
            assert_eq!(make().ttl(bad).unwrap_err().kind(), ErrorKind::BadOption, "{shape:?} {bad:?}");
            assert_eq!(make().max_hold(bad).unwrap_err().kind(), ErrorKind::BadOption, "{shape:?} {bad:?}");
        }
        for good in [Duration::ZERO, TICK, MAX_TTL] {
            let set = make().min_hold(good).and_then(|lock| lock.lock_delay(good));
            if client.abilities().delays || good.is_zero() {
                set.unwrap();
            } else {
                assert_eq!(set.unwrap_err().kind(), ErrorKind::Unsupported, "{shape:?} {good:?}");
            }
        }
        for bad in [MAX_TTL + TICK, Duration::MAX] {
            assert_eq!(make().min_hold(bad).unwrap_err().kind(), ErrorKind::BadOption, "{shape:?} {bad:?}");
            assert_eq!(make().lock_delay(bad).unwrap_err().kind(), ErrorKind::BadOption, "{shape:?} {bad:?}");
        }
        make().note(&"é".repeat(Note::MAX_BYTES / 2)).unwrap();
        for bad in ["x".repeat(Note::MAX_BYTES + 1), "two\nlines".to_owned(), "\u{1b}[31m".to_owned()] {
            assert_eq!(make().note(&bad).unwrap_err().kind(), ErrorKind::BadOption, "{shape:?}");
        }
    }
}

/// The shortest and the longest ttl work, and the window is within what was asked for.
pub async fn ttls_at_their_limits_work(scene: &Scene) {
    let client = scene.client().await;
    for ttl in [MIN_TTL, MAX_TTL] {
        let granted = ttl.max(client.abilities().shortest_ttl);
        let mutex = client.mutex("x").unwrap().ttl(ttl).unwrap().keep(false);
        unless_stalled("a hold of this ttl is released in time", EXCUSE, async || {
            let before = Instant::now();
            let held = in_time("it is free", mutex.lock()).await.unwrap();
            let after = Instant::now();
            assert!(held.valid_until() > before + granted / 2, "{ttl:?}");
            assert!(held.valid_until() < after + granted, "{ttl:?}: less than the ttl is trusted");
            let released = held.release().await;
            let stalled = ttl == MIN_TTL && matches!(&released, Err(error) if error.kind() == ErrorKind::Lost);
            (!stalled).then(|| released.unwrap())
        })
        .await;
    }
    let delay = if client.abilities().delays { MAX_TTL } else { Duration::ZERO };
    let longest = client.mutex("y").unwrap().ttl(MAX_TTL).unwrap().lock_delay(delay).unwrap().max_hold(MAX_TTL).unwrap();
    longest.lock().await.unwrap().release().await.unwrap();
    scene.leaves_nothing([client]).await;
}

/// The shortest ttl can be kept.
pub async fn the_shortest_ttl_can_be_kept(scene: &Scene) {
    let client = scene.client().await;
    unless_stalled("it is renewed in time", EXCUSE, async || {
        let held = client.mutex("x").unwrap().ttl(MIN_TTL).unwrap().lock().await.unwrap();
        let first = held.valid_until();
        let renewed = crate::eventually("it is renewed", || held.valid_until() > first + MIN_TTL);
        let kept = match held.run(renewed).await {
            Ok(()) => held.release().await,
            lost => lost,
        };
        kept.map_err(|error| assert_eq!(error.kind(), ErrorKind::Lost, "{error}")).ok()
    })
    .await;
}

/// Any wait can be asked for: none, an instant, for as long as a `Duration` can say.
pub async fn any_wait_is_possible(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    for shape in Shape::ALL.into_iter().filter(|shape| one.abilities().kinds.contains(&shape.kind())) {
        let lock = shape.make(&one, "x").unwrap().ttl(LONG).unwrap();
        for wait in [TICK, Duration::from_millis(20), MAX_TTL * 1_000, Duration::MAX] {
            let held = in_time("it is free", lock.try_lock_for(wait.max(Duration::from_millis(500)))).await.unwrap();
            let held = held.unwrap_or_else(|| panic!("{shape:?} with {wait:?}"));
            let waiter = shape.make(&other, "x").unwrap().keep(false);
            let waiting = tokio::spawn(async move { waiter.try_lock_for(wait).await });
            if wait < MAX_TTL {
                assert!(in_time("the wait ends", waiting).await.unwrap().unwrap().is_none());
                held.release().await.unwrap();
            } else {
                scene.line_is(&one, "x", 1).await;
                held.release().await.unwrap();
                in_time("it is let in", waiting).await.unwrap().unwrap().expect("in time").release().await.unwrap();
            }
            scene.is_free(&one, "x").await;
        }
    }
}

/// A free lock is had by whoever is ready to wait for no time at all.
pub async fn no_time_is_enough_for_a_free_lock(scene: &Scene) {
    let client = scene.client().await;
    for shape in Shape::ALL.into_iter().filter(|shape| client.abilities().kinds.contains(&shape.kind())) {
        let lock = shape.make(&client, "x").unwrap().ttl(LONG).unwrap();
        for wait in [Duration::ZERO, TICK] {
            let held = lock.try_lock_for(wait).await.unwrap();
            held.unwrap_or_else(|| panic!("{shape:?} is free, and {wait:?} was not enough")).release().await.unwrap();
        }
    }
}

/// A backoff has limits too.
pub async fn backoffs_are_checked(_scene: &Scene) {
    let (micro, minute) = (Duration::from_micros(1), Duration::from_secs(60));
    Backoff::new(micro, minute).unwrap();
    Backoff::new(minute, minute).unwrap();
    for (min, max) in [(micro - TICK, minute), (micro, minute + TICK), (minute, micro), (Duration::ZERO, Duration::ZERO)] {
        assert_eq!(Backoff::new(min, max).unwrap_err().kind(), ErrorKind::BadOption, "{min:?} {max:?}");
    }
}
