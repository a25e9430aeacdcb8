//! A claim that asks again: it finds that it is in, or is ended before it has found out. What a refusal leaves, which is nothing. And asks
//! that arrive when their claim was ended, however late. On a lease that is old, and beside a machine with the same memory.

use std::num::NonZeroU32;
use std::time::Duration;

use tenure_core::Kind;
use tenure_testkit::eventually_async;

use super::*;
use crate::leases::{Lease, seconds};
use crate::scene::{claim, client, holds, key, mutex, read, waits};

fn permits(take: u32, of: u32) -> Claim {
    let number = |number| NonZeroU32::new(number).unwrap();
    claim(Kind::Semaphore, Mode::Permits { take: number(take), of: number(of) }, "permits")
}

/// What a claim asks.
fn ask(client: &Inner, claim: &Claim, key: &[u8], on: &OnLease) -> TxnRequest {
    let (compare, success) = (client.conditions(claim, key, []), vec![client.put(claim, key, on)]);
    TxnRequest { compare, success, failure: Vec::new() }
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
    let answer = other.send(&claim, &on, stale, ask(&other, &claim, &key, &on)).await.unwrap();
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

/// An ask arrives long after its claim was ended, while the lease lives that it names, since others are on it: it finds the mark, which
/// is on that lease too. And when the lease is gone it has nothing to put its key on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_ask_finds_a_mark_or_no_lease() {
    let (inner, claim) = (client(), mutex("asked late"));
    let (on, _) = inner.lease(&claim).await.unwrap();
    let key = inner.enter(&claim, &on);
    let late = ask(&inner, &claim, &key, &on);
    inner.end(&claim, Duration::ZERO).await.unwrap();
    let mark = inner.schema.ended(claim.id);
    assert_eq!(read(&inner, &mark).await.expect("nobody has answered the ask").lease, on.lease().id);
    assert!(!inner.asks.txn("asking for a lock", late.clone()).await.unwrap().value.succeeded);
    assert_eq!(read(&inner, &key).await, None);
    inner.revoke(on.lease().id).await.unwrap();
    assert_eq!(read(&inner, &mark).await, None, "it goes with the lease");
    let refused = inner.asks.txn("asking for a lock", late).await.err().expect("its lease is gone");
    assert_eq!(refused.next, Next::NoLease);
    assert_eq!(read(&inner, &key).await, None);
}

/// A claim that has moved to the short lease of those who wait, while a copy of its ask may arrive: that names the lease of its ttl, and so
/// there the mark is. Asked anew meanwhile, it asks on that one too, whatever others do by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_is_on_the_lease_of_the_ask() {
    let (one, other) = (client(), client());
    let (before, claim) = (mutex("marked"), mutex("marked"));
    holds(&one, &before).await;
    let asking = tokio::spawn({
        let (other, claim) = (Arc::clone(&other), claim.clone());
        async move { other.acquire(&claim, Wait::Forever).await }
    });
    waits(&other, &claim).await;
    asking.abort();
    assert!(asking.await.unwrap_err().is_cancelled());
    let long = OnLease::of(&Arc::new(other.grant(seconds(&claim), &other.asks).await.unwrap())); // nobody else uses it any more
    if let Some(entry) = other.table().claims.get_mut(&claim.id) {
        entry.copied = Some(long.clone());
    }
    assert_eq!(other.lease(&claim).await.unwrap().0.lease().id, long.lease().id);
    other.end(&claim, Duration::ZERO).await.unwrap();
    let mark = other.schema.ended(claim.id);
    assert_eq!(read(&other, &mark).await.expect("a copy may arrive").lease, long.lease().id);
    other.revoke(long.lease().id).await.unwrap();
    one.end(&before, Duration::ZERO).await.unwrap();
}

/// A claim whose lease is gone has no copy of an ask that could put anything: it is ended without a mark.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_lease_a_claim_is_ended_without_a_mark() {
    let (inner, claim) = (client(), mutex("ended without a lease"));
    let (on, _) = inner.lease(&claim).await.unwrap();
    inner.enter(&claim, &on);
    inner.revoke(on.lease().id).await.unwrap();
    inner.end(&claim, Duration::ZERO).await.unwrap();
    assert!(!inner.table().claims.contains_key(&claim.id));
    assert_eq!(read(&inner, &inner.schema.ended(claim.id)).await, None);
}

/// A server may say yes to a keepalive of a lease that it is just revoking. A waiter whose key is gone is not let in by that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keepalive_alone_lets_nobody_in() {
    const TTL: Duration = Duration::from_secs(60);
    for is_there in [true, false] {
        let inner = client();
        let claim = Claim { ttl: TTL, handover_ttl: TTL, ..mutex("kept alive") };
        let (on, _) = inner.lease(&claim).await.unwrap();
        let key = inner.enter(&claim, &on);
        let answer = inner.send(&claim, &on, false, ask(&inner, &claim, &key, &on)).await.unwrap().expect("its lease lasts");
        // Nothing was heard of its lease for so long that it is kept alive before it is trusted.
        let since = Instant::from_nanos(on.lease().base().as_nanos().saturating_sub(TTL.as_nanos() as u64 * 2 / 3));
        let old = Lease::new(on.lease().id, on.lease().seconds, since);
        if let Some(entry) = inner.table().claims.get_mut(&claim.id) {
            (entry.revision, entry.stage, entry.on) = (answer.revision, Stage::Waiting, Some(OnLease::of(&Arc::new(old))));
        }
        if !is_there {
            let success = vec![delete(&key)];
            inner.asks.txn("a revocation", TxnRequest { success, ..Default::default() }).await.unwrap();
        }
        match inner.let_in(&claim).await {
            Some(Waited::Granted(_)) => assert!(is_there, "its key is gone"),
            Some(Waited::Gone) => assert!(!is_there, "its key is there"),
            _ => panic!("the server answers"),
        }
        inner.end(&claim, Duration::ZERO).await.unwrap();
    }
}

/// An ask on a lease that was not heard of for a while: its window counts from the keepalive that went ahead of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ask_on_an_old_lease_renews_it() {
    let (inner, claim) = (client(), mutex("on an old lease"));
    let (on, _) = inner.lease(&claim).await.unwrap();
    let key = inner.enter(&claim, &on);
    let before = Instant::now();
    let answer = inner.send(&claim, &on, true, ask(&inner, &claim, &key, &on)).await.unwrap();
    assert!(answer.expect("its lease lasts").succeeded);
    assert!(on.lease().base() >= before);
    inner.end(&claim, Duration::ZERO).await.unwrap();
}

/// Two machines that were restored from one snapshot, before either asks for anything.
fn twins() -> (Arc<Inner>, Arc<Inner>) {
    let (one, twin) = (client(), client());
    twin.table().be_twin_of(&one.table());
    (one, twin)
}

/// Twins have the same keys. One that finds the other's under its own leaves it alone, and takes another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_twin_waits_for_its_twin() {
    for wait in [Wait::No, Wait::Forever] {
        let (one, twin) = twins();
        let (held, next) = (mutex("twins"), mutex("twins"));
        holds(&one, &held).await;
        let before = key(&one, &held).await;
        let asking = tokio::spawn({
            let (twin, next) = (Arc::clone(&twin), next.clone());
            async move { twin.acquire(&next, wait).await }
        });
        if wait == Wait::Forever {
            waits(&twin, &next).await;
            assert_eq!(read(&one, &before.key).await.expect("its twin leaves it alone"), before);
            one.end(&held, Duration::ZERO).await.unwrap();
            assert!(asking.await.unwrap().unwrap().is_some());
            twin.end(&next, Duration::ZERO).await.unwrap();
        } else {
            assert!(asking.await.unwrap().unwrap().is_none(), "its twin holds");
            assert_eq!(read(&one, &before.key).await.expect("its twin leaves it alone"), before);
            one.end(&held, Duration::ZERO).await.unwrap();
        }
    }
}

/// An ask was dropped before it was answered, and nobody knows whether its key is there. What is there is a twin's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_ask_ends_no_hold_of_a_twin() {
    let (one, twin) = twins();
    let (held, dropped) = (mutex("dropped twin"), mutex("dropped twin"));
    holds(&one, &held).await;
    let before = key(&one, &held).await;
    let (on, _) = twin.lease(&dropped).await.unwrap();
    assert_eq!(twin.enter(&dropped, &on), before.key);
    twin.end(&dropped, Duration::ZERO).await.unwrap();
    assert_eq!(read(&one, &before.key).await.expect("its twin leaves it alone"), before);
    one.end(&held, Duration::ZERO).await.unwrap();
}

/// The answer to an ask was lost, and its key is there: its end finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_ask_that_arrived_leaves_no_key() {
    let (inner, claim) = (client(), mutex("unheard"));
    let (on, _) = inner.lease(&claim).await.unwrap();
    let key = inner.enter(&claim, &on);
    inner.asks.txn("asking for a lock", ask(&inner, &claim, &key, &on)).await.unwrap();
    assert!(read(&inner, &key).await.is_some());
    inner.end(&claim, Duration::ZERO).await.unwrap();
    assert_eq!(read(&inner, &key).await, None);
    assert!(read(&inner, &inner.schema.ended(claim.id)).await.is_some(), "a copy may arrive");
}

/// The id of a lease is taken by somebody else, who drew the same: it is not ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_of_somebody_else_is_not_used() {
    let (one, twin) = twins();
    let theirs = one.grant(60, &one.asks).await.unwrap();
    assert!(twin.grant_within(Duration::from_secs(60), theirs.id, 60, &twin.asks).await.is_err());
    one.revoke(theirs.id).await.unwrap();
}
