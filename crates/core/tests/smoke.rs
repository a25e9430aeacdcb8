//! A few steps through the public door; the promises are held by the conformance suite in `tenure-testkit`.

use std::time::{Duration, Instant};

use futures_core::Stream as _;
use tenure_core::memory::Memory;
use tenure_core::{Backend as _, Client, Clock, ErrorKind, Event, HANDOVER_TTL, Kind, LossReason, Token, Wait};
use tenure_testkit::{claim, in_bound, in_time};

fn client() -> (Memory, Client) {
    let store = Memory::new();
    let client = Client::new(store.backend()).unwrap();
    (store, client)
}

#[tokio::test]
async fn a_waiter_is_woken_by_the_release() {
    let (store, client) = client();
    let mutex = client.mutex("x").unwrap();
    let guard = mutex.lock().await.unwrap();
    let first = guard.token();
    let waiting = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await.unwrap() }
    });
    while client.view("x").await.unwrap().line.is_empty() {
        tokio::task::yield_now().await;
    }
    guard.release().await.unwrap();
    let second = waiting.await.unwrap();
    assert!(second.token() > first);
    drop(second);
    client.close().await.unwrap();
    assert_eq!(store.residue(), 0);
}

/// Whoever waits for the loss is told when the store says so, and not when the window ends.
#[tokio::test(start_paused = true)]
async fn a_loss_wakes_whoever_waits_for_it() {
    let (_store, client) = client();
    let guard = client.mutex("x").unwrap().ttl(Duration::from_secs(600)).unwrap().keep(false).lock().await.unwrap();
    let lost = guard.lost();
    tokio::pin!(lost);
    assert!(tokio::time::timeout(Duration::from_millis(1), &mut lost).await.is_err(), "it is held");
    assert_eq!(client.break_holds("x", None).await.unwrap(), 1);
    in_time("it is told", lost).await;
}

/// Whoever comes within one tick of the clock gets a higher token all the same, also if the name's record is gone by then.
#[tokio::test(start_paused = true)]
async fn tokens_rise_while_the_clock_stands_still() {
    let store = Memory::with_clock(Clock::Simulated { origin: tokio::time::Instant::now() });
    let backend = store.backend();
    let mut last = Token::new(0);
    for number in 0..3 {
        let claim = claim(Kind::Mutex, number);
        let grant = backend.acquire(&claim, Wait::No).await.unwrap().expect("it is free");
        assert!(grant.token > last, "{} after {last}", grant.token);
        last = grant.token;
        backend.release(&claim).await.unwrap();
        assert_eq!(store.residue(), 0, "nothing is left but the last token");
    }
}

#[tokio::test]
async fn a_hold_that_is_not_kept_is_lost() {
    let (_store, client) = client();
    let guard = client.mutex("x").unwrap().ttl(Duration::from_secs(2)).unwrap().keep(false).lock().await.unwrap();
    guard.check().unwrap();
    guard.lost().await;
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    assert!(client.mutex("x").unwrap().try_lock_for(Duration::from_secs(60)).await.unwrap().is_some());
}

#[tokio::test]
async fn a_kept_hold_outlives_its_ttl() {
    let (_store, client) = client();
    let ttl = Duration::from_secs(6);
    let guard = client.mutex("x").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
    let first = guard.valid_until();
    while guard.valid_until() <= first + ttl {
        guard.check().unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    guard.release().await.unwrap();
}

#[test]
fn a_guard_may_be_dropped_without_a_runtime() {
    let (store, client) = client();
    let guard = client.block_on(client.mutex("x").unwrap().lock()).unwrap();
    drop(guard);
    client.block_on(client.close()).unwrap();
    assert_eq!(store.residue(), 0);
}

#[tokio::test]
async fn events_are_a_stream() {
    let (_store, client) = client();
    let guard = client.mutex("x").unwrap().lock().await.unwrap();
    let mut events = std::pin::pin!(guard.events());
    let mut next = async || std::future::poll_fn(|context| events.as_mut().poll_next(context)).await;
    client.ask("x", "please").await.unwrap();
    assert!(matches!(next().await, Some(Event::Asked(ask)) if ask.reason.as_str() == "please"));
    let (told, broken) = tokio::join!(next(), client.break_holds("x", None)); // it waits when it happens
    assert_eq!((told, broken.unwrap()), (Some(Event::Lost(LossReason::Refused)), 1));
    assert_eq!((next().await, next().await), (None, None));
}

#[tokio::test]
async fn a_loss_says_why() {
    let (_store, client) = client();
    let ttl = Duration::from_secs(2);
    let held = client.mutex("x").unwrap().lock().await.unwrap();
    assert_eq!(held.loss_reason(), None);
    let mut events = held.events();
    assert_eq!(client.announce_break("x", "it hangs").await.unwrap(), 1);
    held.check().expect("an announcement ends nothing");
    client.break_holds("x", None).await.unwrap();
    let Some(Event::Lost(LossReason::Broken(ask))) = events.next().await else { panic!("it is no ask, and a loss") };
    assert_eq!((ask.reason.as_str(), ask.by.pid), ("it hangs", std::process::id()));
    assert_eq!(held.loss_reason(), Some(LossReason::Broken(ask)));
    assert!(held.check().unwrap_err().to_string().contains("broke it: it hangs"));
    drop(held);

    let held =
        client.mutex("x").unwrap().ttl(ttl).unwrap().max_hold(Duration::from_millis(200)).unwrap().lock().await.unwrap();
    held.lost().await;
    assert_eq!(held.loss_reason(), Some(LossReason::MaxHold));
    let held = client.mutex("y").unwrap().ttl(ttl).unwrap().keep(false).lock().await.unwrap();
    held.lost().await;
    assert_eq!(held.loss_reason(), Some(LossReason::Expired));
}

/// A waiter's first window is two seconds, and its keeper renews it at once, not when a third of that is over.
#[tokio::test]
async fn a_hold_that_was_waited_for_is_renewed_at_once() {
    let ttl = Duration::from_secs(3600);
    in_bound("its whole ttl", Duration::from_millis(400), async || {
        let (_store, client) = client();
        let mutex = client.mutex("x").unwrap().ttl(ttl).unwrap();
        let first = mutex.lock().await.unwrap();
        let (waited, released) = tokio::join!(mutex.lock(), async {
            while client.view("x").await.unwrap().line.is_empty() {
                tokio::task::yield_now().await;
            }
            first.release().await
        });
        let (waited, (), granted) = (waited.unwrap(), released.unwrap(), Instant::now());
        assert!(waited.remaining() <= HANDOVER_TTL || waited.remaining() > ttl / 2);
        while waited.remaining() <= HANDOVER_TTL {
            waited.renewed().await.expect("in time");
        }
        assert!(waited.remaining() > ttl / 2);
        granted.elapsed()
    })
    .await;
}
