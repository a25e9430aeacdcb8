//! Without a server: what comes of a claim whose key somebody wrote, and of asks that nobody answers.

use tenure_core::Wait;

use super::*;
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

/// A hold that is broken is lost, and nobody of this client has its key for as long as that may keep the name closed.
#[test]
fn a_broken_hold_leaves_its_key() {
    let inner = client_at("etcd://127.0.0.1:1");
    let (claim, next) = (mutex("x"), mutex("x"));
    let closed = held(&inner, &claim, 7);
    inner.own_value(claim.id, &closed);
    assert!(!inner.table().claims.contains_key(&claim.id), "it is lost");
    assert_ne!(held(&inner, &next, 9).key, closed.key);
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
