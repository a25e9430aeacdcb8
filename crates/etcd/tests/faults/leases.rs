//! F7: a lease whose keepalive is answered with yes proves nothing: the key does. The server of Debian has that bug.

use std::time::Duration;

use tenure_core::{Instant, Phase};
use tenure_testkit::proxy::{Fault, Toward, Which};
use tenure_testkit::{eventually, in_time};

use crate::stage::{LONG, Stage, change, leaves_nothing};

/// A key that somebody removed while its lease lives: every keepalive says yes, and the holder is told all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_whose_key_is_gone_is_lost() {
    let stage = Stage::new();
    let client = stage.direct().await;
    let held = client.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let other = client.mutex("y").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    change(&stage.cluster, &["del", "--prefix", "tenure/lock/x "]).await;
    in_time("the holder is told", held.lost()).await;
    assert!(Instant::now() < held.valid_until(), "by the store, not by its own clock");
    assert_eq!((held.phase(), other.phase()), (Phase::Lost, Phase::Held));
    drop((held, other));
    leaves_nothing(&stage.cluster, [client]).await;
}

/// Somebody ends the lease: everything on it is lost, and the next ask makes another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_revoked_is_lost() {
    let stage = Stage::new();
    let client = stage.direct().await;
    let held = client.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let key = stage.cluster.ctl(&["get", "--prefix", "tenure/lock/x ", "-w", "fields"]);
    let lease: u64 =
        key.lines().find_map(|line| line.strip_prefix("\"Lease\" : ")).expect("it is on a lease").parse().unwrap();
    change(&stage.cluster, &["lease", "revoke", &format!("{lease:x}")]).await;
    in_time("the holder is told", held.lost()).await;
    assert!(Instant::now() < held.valid_until(), "by the store, not by its own clock");
    drop(held);
    let again = client.mutex("x").unwrap().ttl(LONG).unwrap();
    in_time("another lease", again.lock()).await.unwrap().release().await.unwrap();
    leaves_nothing(&stage.cluster, [client]).await;
}

/// Keepalives that arrive at the very moment at which the lease ends, again and again: whoever gets in next finds no holder that
/// still trusts its hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keepalives_at_the_end_of_the_lease() {
    let stage = std::sync::Arc::new(Stage::new());
    let ttl = Duration::from_secs(2);
    let mut rounds = tokio::task::JoinSet::new();
    for number in 0..6u32 {
        let stage = std::sync::Arc::clone(&stage);
        rounds.spawn(async move {
            let proxy = tenure_testkit::proxy::Proxy::start(stage.cluster.member(0).address());
            let one = crate::stage::client(&format!("etcd://{}?answer_limit=12s", proxy.address())).await;
            let other = stage.direct().await;
            for round in 0..3 {
                let name = format!("x{number}");
                let held = one.mutex(&name).unwrap().ttl(ttl).unwrap().lock().await.unwrap();
                let mutex = other.mutex(&name).unwrap().ttl(LONG).unwrap();
                let waiting = tokio::spawn(async move {
                    let next = mutex.lock().await.unwrap();
                    (Instant::now(), next)
                });
                // What is sent meanwhile arrives when the lease is about to end, or has just ended.
                let late = proxy.set(Which::All, Fault::Hold(Toward::Server));
                let at = ttl + Duration::from_millis(u64::from(number * 3 + round) * 60);
                tokio::time::sleep(at).await;
                proxy.lift(late);
                proxy.cut(Which::All, tenure_testkit::proxy::Cut::Reset);
                if held.check().is_ok() {
                    drop(held);
                    crate::stage::lets_go(in_time("the next", waiting).await.unwrap().1.release().await);
                    continue;
                }
                let (since, next) = in_time("the next", waiting).await.unwrap();
                assert!(since >= held.valid_until(), "the holder might have trusted its hold");
                crate::stage::lets_go(next.release().await);
            }
            one.close().await.unwrap();
            other.close().await.unwrap();
        });
    }
    while let Some(round) = in_time("all rounds", rounds.join_next()).await {
        round.unwrap();
    }
    eventually("nothing is left", || crate::stage::residue(&stage.cluster).is_empty()).await;
}
