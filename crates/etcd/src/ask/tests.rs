//! A claim that asks again: it finds that it is in, or is ended before it has found out. And what a refusal leaves, which is nothing.

use std::num::NonZeroU32;
use std::time::Duration;

use tenure_testkit::eventually_async;

use super::*;
use crate::scene::{claim, client, holds, key, mutex, read, waits};

fn permits(take: u32, of: u32) -> Claim {
    let number = |number| NonZeroU32::new(number).unwrap();
    claim(Kind::Semaphore, Mode::Permits { take: number(take), of: number(of) }, "permits")
}

/// Let in by its second ask, since the answer to the first was not waited for: the one behind it is told, as ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_ask_that_is_let_in_tells_the_next() {
    let (one, other) = (client(), client());
    let (before, first) = (permits(2, 3), permits(2, 3));
    holds(&one, &before).await;
    let asking = tokio::spawn({
        let (other, first) = (Arc::clone(&other), first.clone());
        async move { other.acquire(&first, Wait::Forever).await }
    });
    waits(&other, &first).await;
    asking.abort();
    assert!(asking.await.unwrap_err().is_cancelled());
    one.end(&before, Duration::ZERO).await.unwrap();
    let written = key(&other, &first).await.mod_revision;
    other.acquire(&first, Wait::Forever).await.unwrap().expect("it is in");
    eventually_async("its key is written anew", async || key(&other, &first).await.mod_revision > written).await;
    other.end(&first, Duration::ZERO).await.unwrap();
}

/// In line, it asks again, is refused since it is there, and is dropped before it has heard why: its end takes its key along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_ask_that_is_dropped_halfway_leaves_no_key() {
    let (one, other) = (client(), client());
    let (before, claim) = (mutex("asked twice"), mutex("asked twice"));
    holds(&one, &before).await;
    let asking = tokio::spawn({
        let (other, claim) = (Arc::clone(&other), claim.clone());
        async move { other.acquire(&claim, Wait::Forever).await }
    });
    waits(&other, &claim).await;
    asking.abort();
    assert!(asking.await.unwrap_err().is_cancelled());
    let (on, stale) = other.lease(&claim).await.unwrap();
    let key = other.enter(&claim, &on);
    let (compare, success) = (other.conditions(&claim, &key, []), vec![other.put(&claim, &key, &on)]);
    let answer = other.send(&claim, &on, stale, TxnRequest { compare, success, failure: Vec::new() }).await.unwrap();
    assert!(!answer.expect("its lease lasts").succeeded, "it is in line already");
    assert!(read(&other, &key).await.is_some());
    other.end(&claim, Duration::ZERO).await.unwrap();
    assert_eq!(read(&other, &key).await, None);
    one.end(&before, Duration::ZERO).await.unwrap();
}

/// Refused, for want of room or for its kind, a claim has nothing to be ended, and no mark says that it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_leaves_no_mark() {
    let inner = client();
    let held = mutex("refused");
    holds(&inner, &held).await;
    let busy = mutex("refused");
    assert!(inner.acquire(&busy, Wait::No).await.unwrap().is_none());
    let mut refused = vec![busy];
    for wait in [Wait::No, Wait::Forever] {
        let other = claim(Kind::RwLock, Mode::Shared, "refused");
        assert_eq!(inner.acquire(&other, wait).await.unwrap_err().kind(), ErrorKind::Mismatch);
        inner.end(&other, Duration::ZERO).await.unwrap();
        refused.push(other);
    }
    for claim in refused {
        assert!(!inner.table().claims.contains_key(&claim.id));
        assert_eq!(read(&inner, &inner.schema.ended(claim.id)).await, None);
    }
    inner.end(&held, Duration::ZERO).await.unwrap();
}
