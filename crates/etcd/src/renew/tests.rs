//! The first renewal after a hand-over: done twice, come late, while the member that others ask is silent, and to a lease that is gone.

use tenure_core::{Address, Renewal};
use tenure_testkit::in_time;

use super::*;
use crate::leases::{OnLease, waiting_seconds};
use crate::scene::{LONG, client, client_at, handed_over, key, mutex, read};

fn on(inner: &Inner, claim: &Claim) -> OnLease {
    inner.table().claims[&claim.id].on.clone().expect("it is on a lease")
}

/// The first time was done and not answered: the second time finds it done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_without_an_answer_is_found() {
    let (inner, claim) = (client(), mutex("moved twice"));
    handed_over(&inner, &claim).await;
    let short = on(&inner, &claim);
    assert_eq!(short.lease().seconds, waiting_seconds(&claim));
    inner.move_back(&claim, &inner.keep).await.unwrap();
    let long = on(&inner, &claim).lease().id;
    assert_eq!(key(&inner, &claim).await.lease, long);
    if let Some(entry) = inner.table().claims.get_mut(&claim.id) {
        entry.on = Some(short);
    }
    inner.move_back(&claim, &inner.keep).await.unwrap();
    assert_eq!(on(&inner, &claim).lease().id, long, "it is there already");
    assert!(matches!(inner.renew(std::slice::from_ref(&claim)).await[..], [Ok(Renewal::Held { .. })]));
    inner.end(&claim, std::time::Duration::ZERO).await.unwrap();
}

/// A copy arrives after the hold was broken: what keeps the name closed ends when it should, and not with the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_copy_leaves_a_closed_name_alone() {
    let (inner, other) = (client(), client());
    let claim = Claim { lock_delay: LONG, ..mutex("moved late") };
    handed_over(&inner, &claim).await;
    let to = inner.lasting_lease(seconds(&claim), &inner.keep).await.unwrap();
    let copy = moving(&inner.table().claims[&claim.id], to.lease()).expect("it stands on the short one");
    let broken = key(&inner, &claim).await.key;
    assert_eq!(other.break_holds(&claim.name, None).await.unwrap(), 1);
    let closed = read(&inner, &broken).await.expect("it stays closed");
    assert!(!inner.asks.txn("renewing a hold", copy).await.unwrap().value.succeeded);
    assert_eq!(read(&inner, &broken).await.expect("it stays closed"), closed);
    assert_eq!(other.break_holds(&claim.name, None).await.unwrap(), 1);
}

/// The member that is asked for locks falls silent: renewals, the first one too, go another way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_renewal_does_not_wait_for_the_others() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap(); // connections are made, and that is all
    let server = tenure_testkit::servers::etcd::Etcd::shared().address();
    let inner = client_at(&format!("etcd://{server},{}", silent.local_addr().unwrap()));
    let is_at_server = |link: &Link| {
        let address = &link.settings.members[link.number() as usize % 2];
        *address == Address::new(server.ip().to_string(), server.port())
    };
    for link in [&inner.asks, &inner.keep] {
        if !is_at_server(link) {
            link.leave(link.number());
        }
    }
    let claim = mutex("renewed beside a silent member");
    handed_over(&inner, &claim).await;
    inner.asks.leave(inner.asks.number());
    assert!(!inner.leases.unused().is_empty(), "another lease is to be made");
    let making = inner.asks.making.lock().await; // somebody makes one, of the silent member
    assert!(is_at_server(&inner.keep) && !is_at_server(&inner.asks));
    let renewed = in_time("the renewal", inner.renew(std::slice::from_ref(&claim))).await;
    assert!(matches!(renewed[..], [Ok(Renewal::Held { .. })]), "{renewed:?}");
    assert_eq!(on(&inner, &claim).lease().seconds, seconds(&claim), "it has its whole ttl");
    drop(making);
    let number = inner.asks.number(); // read first: whoever listens may find it silent, too, and move on by itself
    if !is_at_server(&inner.asks) {
        inner.asks.leave(number);
    }
    inner.end(&claim, std::time::Duration::ZERO).await.unwrap();
}

/// Dropped on its way, a move may have been done: nobody revokes the lease that the hold may be on.
#[tokio::test]
async fn a_lease_that_a_hold_may_be_on_is_used() {
    let (inner, claim) = (client(), mutex("moved without an answer"));
    handed_over(&inner, &claim).await;
    let to = inner.lasting_lease(seconds(&claim), &inner.keep).await.unwrap().lease().id;
    tokio::select! {
        biased;
        moved = inner.move_back(&claim, &inner.keep) => panic!("nobody had the time to answer: {:?}", moved.is_ok()),
        () = std::future::ready(()) => {}
    }
    assert!(inner.leases.unused().iter().all(|lease| lease.id != to));
    inner.move_back(&claim, &inner.keep).await.unwrap();
    assert_eq!(on(&inner, &claim).lease().id, to);
    assert!(inner.table().claims[&claim.id].moving_to.is_none());
    inner.end(&claim, std::time::Duration::ZERO).await.unwrap();
}

/// Somebody has ended the lease that a hold is moved to, and nobody was on it to tell: it moves to another, and is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_gone_is_not_moved_to() {
    let (inner, claim) = (client(), mutex("moved to another"));
    handed_over(&inner, &claim).await;
    let gone = inner.lasting_lease(seconds(&claim), &inner.keep).await.unwrap();
    inner.revoke(gone.lease().id).await.unwrap();
    let renewed = inner.renew(std::slice::from_ref(&claim)).await;
    assert!(matches!(renewed[..], [Ok(Renewal::Held { .. })]), "{renewed:?}");
    let now = on(&inner, &claim);
    assert_eq!(now.lease().seconds, seconds(&claim), "it has its whole ttl");
    assert!(gone.lease().is_dead() && now.lease().id != gone.lease().id);
    assert_eq!(key(&inner, &claim).await.lease, now.lease().id);
    inner.end(&claim, std::time::Duration::ZERO).await.unwrap();
}
