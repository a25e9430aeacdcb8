//! Without a server: what comes of a claim whose key somebody wrote, and of asks that nobody answers.

use tenure_core::{Ask, Note, Wait};

use super::*;
use crate::ask::Waited;
use crate::proto::KeyValue;
use crate::scene::{client_at, mutex};

/// A hold with this create revision, and its key when it keeps the name closed.
fn held(inner: &Inner, claim: &Claim, revision: i64) -> KeyValue {
    let mut table = inner.table();
    let seat = table.seat(claim);
    let key = inner.schema.key(claim, seat, 1);
    table.name(claim.id, &key);
    let entry = table.claims.get_mut(&claim.id).expect("it has a seat");
    (entry.revision, entry.stage, entry.expires) = (revision, Stage::Held { since: Instant::now() }, Instant::NEVER);
    let value = Value { closing: true, ..Value::of(claim) };
    KeyValue { key, create_revision: revision, mod_revision: revision + 1, value: value.encode(), lease: 2 }
}

/// A hold that is broken is lost, also where its key stays to keep the name closed.
#[test]
fn a_broken_hold_is_lost() {
    let inner = client_at("etcd://127.0.0.1:1");
    let claim = mutex("x");
    let closed = held(&inner, &claim, 7);
    inner.own_value(claim.id, &closed);
    assert!(!inner.table().claims.contains_key(&claim.id), "it is lost");
}

/// Released before its minimum hold is over: that its key closes the name is its own doing, and no loss.
#[tokio::test]
async fn what_a_release_closes_is_not_broken() {
    let inner = client_at("etcd://127.0.0.1:1");
    let claim = mutex("x");
    let closed = held(&inner, &claim, 7);
    let ending = inner.end(&claim, Duration::from_secs(60));
    tokio::select! {
        biased;
        _ = ending => panic!("there is nobody to answer"),
        () = std::future::ready(()) => {}
    }
    inner.own_value(claim.id, &closed);
    assert!(inner.table().claims.contains_key(&claim.id), "it opens the name when it is time");
}

/// Nobody answers: all who ask hear so within the limit for answers, and not one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_heard_by_all_at_once() {
    const CALLERS: u32 = 30;
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap(); // connections are made, and that is all
    for login in ["", "me:swordfish@"] {
        let url = format!("etcd://{login}{}?answer_limit=1s", silent.local_addr().unwrap());
        let inner = Inner::new(Settings::from_url(&url.parse().unwrap()).unwrap()).unwrap();
        let (began, mut asking) = (Instant::now(), tokio::task::JoinSet::new());
        for number in 0..CALLERS {
            let (inner, claim) = (Arc::clone(&inner), mutex(&format!("x{number}")));
            asking.spawn(async move { inner.acquire(&claim, Wait::No).await });
        }
        while let Some(asked) = asking.join_next().await {
            assert_eq!(asked.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
        }
        let took = Instant::now().since(began);
        assert!(took < Duration::from_secs(1) * CALLERS / 2, "it took {took:?}");
    }
}

/// The same, in line, on a lease that lasts.
fn waiting(inner: &Inner, claim: &Claim, revision: i64) -> KeyValue {
    let kv = held(inner, claim, revision);
    let on = inner.leases.expect(Lease::new(1, seconds(claim), Instant::now()), Instant::now());
    let mut table = inner.table();
    let entry = table.claims.get_mut(&claim.id).expect("it has a seat");
    (entry.stage, entry.on) = (Stage::Waiting, Some(on));
    kv
}

/// What is heard of the one in front grants nothing to whoever has lost its place.
#[tokio::test]
async fn a_waiter_whose_key_is_gone_is_not_let_in() {
    let inner = client_at("etcd://127.0.0.1:1");
    let (claim, other) = (mutex("x"), mutex("x"));
    for claim in [&claim, &other] {
        waiting(&inner, claim, 7);
    }
    inner.told(Own::Told(claim.id, Told::Gone(8)));
    assert!(inner.granted(&claim).is_none());
    assert!(matches!(inner.let_in(&claim).await, Some(Waited::Gone)));
    assert!(matches!(inner.let_in(&other).await, Some(Waited::Granted(_))), "that one is still there");
}

/// Asked to let go after it was let in and before it has heard so: that is not forgotten.
#[test]
fn a_waiter_that_is_asked_to_let_go_remembers() {
    let inner = client_at("etcd://127.0.0.1:1");
    let claim = mutex("x");
    let kv = waiting(&inner, &claim, 7);
    let ask = Ask { reason: Note::none(), by: claim.origin.clone() };
    let value = Value { asked: Some(ask), ..Value::of(&claim) };
    inner.own_value(claim.id, &KeyValue { value: value.encode(), ..kv });
    assert!(inner.table().claims[&claim.id].asked.is_some());
}

/// A read that found no key says nothing of one that was put later, or is another.
#[test]
fn a_read_says_nothing_of_what_came_later() {
    let inner = client_at("etcd://127.0.0.1:1");
    let claim = mutex("x");
    let KeyValue { key, .. } = held(&inner, &claim, 7);
    let entry = &inner.table().claims[&claim.id];
    for (key, revision, is_gone) in [(&key[..], 6, false), (&key, 7, true), (&key, 8, true), (b"another", 8, false)] {
        assert_eq!(was_there(entry, key, revision), is_gone, "{revision}");
    }
}

/// Where a key is named by its lease, another lease is another key: the first is watched no longer.
#[test]
fn a_key_that_was_left_is_not_watched() {
    let url = "etcd://127.0.0.1:1?layout=concurrency";
    let inner = Inner::new(Settings::from_url(&url.parse().unwrap()).unwrap()).unwrap();
    let claim = mutex("x");
    let lease = |id| OnLease::of(&Arc::new(Lease::new(id, seconds(&claim), Instant::now())));
    let first = inner.enter(&claim, &lease(1));
    inner.ear.own(&first, claim.id, 7);
    inner.ear.due(Instant::NEVER);
    assert!(inner.ear.wants().0);
    assert_ne!(inner.enter(&claim, &lease(2)), first);
    assert!(!inner.ear.wants().0);
}
