//! A stream whose login is over, one whose user may not look, and one whose past is compacted.

use super::*;
use crate::proto::WatchEvent;

/// A stream with one watch on it, and somebody who waits for what it tells.
fn watching() -> (Arc<Ear>, Subscription, UnboundedReceiver<WatchRequest>) {
    let ear = Arc::new(Ear::default());
    let requests = ear.opened();
    let subscription = ear.subscribe(b"x", b"", None);
    (ear, subscription, requests)
}

/// What is asked for next.
fn create(requests: &mut UnboundedReceiver<WatchRequest>) -> WatchCreateRequest {
    match requests.try_recv().ok().and_then(|request| request.watching) {
        Some(Watching::Create(create)) => create,
        other => panic!("a watch was to be made, not {other:?}"),
    }
}

/// The same: which key, and under which number.
fn next(requests: &mut UnboundedReceiver<WatchRequest>) -> (Vec<u8>, i64) {
    let create = create(requests);
    (create.key, create.watch_id)
}

fn number(requests: &mut UnboundedReceiver<WatchRequest>) -> i64 {
    next(requests).1
}

fn created(watch_id: i64) -> WatchResponse {
    WatchResponse { watch_id, created: true, ..Default::default() }
}

fn refused(watch_id: i64) -> WatchResponse {
    WatchResponse { canceled: true, cancel_reason: "no".to_owned(), ..created(watch_id) }
}

/// Old servers say which watch they refuse, new ones say -1.
#[test]
fn the_first_refusal_ends_the_stream_and_the_second_is_told() {
    for says_which in [true, false] {
        let (ear, mut subscription, mut requests) = watching();
        let id = |number| if says_which { number } else { -1 };
        assert!(ear.hear(refused(id(number(&mut requests))), true).is_none(), "its login may be over");
        ear.closed();
        let mut requests = ear.opened();
        assert!(subscription.told.try_recv().is_err(), "nobody has been told anything");
        assert!(ear.hear(refused(id(number(&mut requests))), true).is_some());
        assert!(matches!(subscription.told.try_recv(), Ok(Told::Refused(_))));
    }
}

#[test]
fn with_a_new_login_it_is_live() {
    let (ear, mut subscription, mut requests) = watching();
    number(&mut requests);
    assert!(ear.hear(refused(-1), true).is_none());
    ear.closed();
    let mut requests = ear.opened();
    assert!(ear.hear(created(number(&mut requests)), true).is_some());
    assert!(matches!(subscription.told.try_recv(), Ok(Told::Live)));
    ear.closed();
    let mut requests = ear.opened();
    number(&mut requests);
    assert!(ear.hear(refused(-1), true).is_none(), "what was refused long ago does not count");
}

/// What is refused to a login that was replaced meanwhile says nothing, however often.
#[test]
fn an_old_login_proves_nothing() {
    let (ear, mut subscription, mut requests) = watching();
    for _ in 0..3 {
        number(&mut requests);
        assert!(ear.hear(refused(-1), false).is_none());
        ear.closed();
        requests = ear.opened();
    }
    assert!(subscription.told.try_recv().is_err());
}

/// A login that users and roles have changed since is no reason to refuse anybody, however often they change.
#[test]
fn a_login_that_is_over_proves_nothing() {
    let (ear, mut subscription, mut requests) = watching();
    for _ in 0..3 {
        number(&mut requests);
        let cancel_reason = "rpc error: code = InvalidArgument desc = etcdserver: revision of auth store is old".to_owned();
        assert!(ear.hear(WatchResponse { cancel_reason, ..refused(-1) }, true).is_none());
        ear.closed();
        requests = ear.opened();
    }
    assert!(subscription.told.try_recv().is_err());
}

/// Answers come in the order of what was asked: whoever is not told anything else is the one who was refused.
#[test]
fn who_is_refused_is_known_by_the_order() {
    let (ear, mut first, mut requests) = watching();
    let mut second = ear.subscribe(b"y", b"", None);
    for is_over in [true, false] {
        let heard: Vec<_> = (0..2)
            .map(|_| match next(&mut requests) {
                (key, number) if key == b"x" => ear.hear(created(number), true),
                _ => ear.hear(refused(-1), true),
            })
            .collect();
        assert_eq!(heard.iter().any(Option::is_none), is_over);
        ear.closed();
        requests = ear.opened();
    }
    let told =
        |subscription: &mut Subscription| std::iter::from_fn(|| subscription.told.try_recv().ok()).collect::<Vec<_>>();
    assert!(matches!(told(&mut first)[..], [Told::Live, Told::Live]));
    assert!(matches!(told(&mut second)[..], [Told::Refused(_)]));
}

/// Who comes to wait where nobody did is heard of at once: the stream must be looked after more often.
#[tokio::test]
async fn the_first_who_waits_rings() {
    let ear = Arc::new(Ear::default());
    let _requests = ear.opened();
    let rings = async || {
        tokio::select! {
            biased;
            () = ear.bell.notified() => true,
            () = std::future::ready(()) => false,
        }
    };
    for _ in 0..2 {
        let _first = ear.subscribe(b"x", b"", None);
        assert!(rings().await);
        let _second = ear.subscribe(b"y", b"", None);
        assert!(!rings().await);
    }
}

/// What happened before a watch was there is compacted away: it is watched from now on, and whoever may have missed something looks.
#[test]
fn what_is_forgotten_is_looked_at() {
    let (ear, id) = (Arc::new(Ear::default()), ClaimId::from_bytes([7; 16]));
    let mut requests = ear.opened();
    ear.own(b"x", id, 41);
    let mut behind = ear.subscribe(b"x", b"", Some(41));
    ear.due(Instant::NEVER);
    let first = create(&mut requests);
    assert_eq!(first.start_revision, 42);
    assert!(ear.hear(created(first.watch_id), true).is_some_and(|own| own.is_empty()));
    assert!(matches!(behind.told.try_recv(), Ok(Told::Live)));
    let compacted = WatchResponse { canceled: true, compact_revision: 50, watch_id: first.watch_id, ..Default::default() };
    assert!(ear.hear(compacted, true).is_some_and(|own| own.is_empty()), "it is no refusal");
    assert!(behind.told.try_recv().is_err());
    let again = create(&mut requests);
    assert_eq!((again.key, again.start_revision), (first.key, 0));
    let own = ear.hear(created(again.watch_id), true).expect("it is no refusal");
    assert!(matches!(own[..], [Own::Look(looks)] if looks == id));
    assert!(matches!(behind.told.try_recv(), Ok(Told::Live)), "whoever waits looks, too");
    let gone = WatchEvent { kind: GONE, kv: Some(KeyValue { mod_revision: 60, ..Default::default() }) };
    let response = WatchResponse { watch_id: again.watch_id, events: vec![gone], ..Default::default() };
    let own = ear.hear(response, true).expect("it is no refusal");
    assert!(matches!(own[..], [Own::Told(told, Told::Gone(60))] if told == id));
    assert!(matches!(behind.told.try_recv(), Ok(Told::Gone(60))));
}
