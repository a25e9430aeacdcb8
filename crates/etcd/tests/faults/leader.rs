//! F32, F33: the leader is killed, paused, or cut off, under load; clients that are left with the minority.
//!
//! A server before 3.4.31 or 3.5.13 that led, was stopped, and goes on may end leases that others have kept alive meanwhile (etcd's
//! issue 15247). Whoever stood on one of them may then act beside the next; tokens and the fence hold, and whoever holds is told.
//! Whether it happened is what the servers count: only then is less expected of them.

use std::time::Duration;

use tenure_core::{ErrorKind, Instant};
use tenure_testkit::faults::{Crowd, Record};
use tenure_testkit::history::expect_sound;
use tenure_testkit::servers::etcd::EtcdCluster;
use tenure_testkit::{Options as _, Shape, eventually, in_time};

use crate::stage::{LONG, client, ended_by_others, leaves_nothing, lets_go, line_is, patient, silence_after};

/// What a crowd has seen while the leader was hurt and mended.
struct Seen {
    record: Record,
    /// For how long nobody got in.
    silence: Duration,
    /// Whether one that led before has ended leases of the one that leads now.
    took_leases: bool,
}

/// Runs a crowd over three clients while the leader is hurt and mended; everybody is served, and nothing is left.
async fn under_load(shape: Shape, hurt: fn(&EtcdCluster, usize), mend: fn(&EtcdCluster, usize)) -> Seen {
    let (cluster, record) = (EtcdCluster::start(), Record::new());
    let hasty = format!("{}?answer_limit=6s", cluster.url()); // back before the leases of those who wait are over, if the machine lets it
    let clients = [client(&hasty).await, client(&hasty).await, client(&hasty).await];
    let keeper = patient(&cluster).await;
    let kept = keeper.mutex("kept").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let crowd = Crowd::start(&record, "x", shape, &clients, 6, patient(&cluster).await);
    let (mut silence, mut took_leases) = (Duration::ZERO, false);
    for _ in 0..2 {
        crowd.has_had(&record, 30).await;
        let leader = cluster.leader();
        silence = silence.max(silence_after(&crowd, &record, || hurt(&cluster, leader)).await);
        let next = cluster.member(cluster.leader_after(leader));
        crowd.has_had(&record, 30).await;
        let before = ended_by_others(next);
        mend(&cluster, leader);
        cluster.wait_healthy();
        crowd.has_had(&record, 30).await;
        took_leases |= ended_by_others(next) > before;
    }
    crowd.stop().await;
    kept.check().expect("a long lease outlives it");
    kept.release().await.unwrap();
    leaves_nothing(&cluster, clients.into_iter().chain([keeper])).await;
    Seen { record, silence, took_leases }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed() {
    let seen = under_load(
        Shape::FairMutex,
        |cluster, leader| cluster.member(leader).kill(),
        |cluster, leader| {
            cluster.member(leader).restart();
        },
    )
    .await;
    seen.record.expect_sound_after(seen.silence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_off() {
    let seen =
        under_load(Shape::FairMutex, |cluster, leader| cluster.cut(leader), |cluster, leader| cluster.heal(leader)).await;
    seen.record.expect_sound_after(seen.silence);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused() {
    let seen = under_load(
        Shape::Mutex,
        |cluster, leader| cluster.member(leader).pause(),
        |cluster, leader| {
            cluster.member(leader).resume();
        },
    )
    .await;
    if seen.took_leases {
        seen.record.expect_fence_held(); // it was away for longer than a waiter's lease lasts
    } else {
        seen.record.expect_sound_after(seen.silence);
    }
}

/// The leader is away for twice the ttl of a hold that is renewed through the others. When it comes back the hold is still there;
/// or it is not, if that server takes leases away that it has not heard of, and then its holder is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_for_longer_than_a_ttl() {
    let (cluster, record) = (EtcdCluster::start(), Record::new());
    let (one, other) = (patient(&cluster).await, patient(&cluster).await);
    let ttl = Duration::from_secs(15); // longer than an election on a machine that stands still as well
    let held = record.lock(&Shape::Mutex.make(&one, "x").unwrap().ttl(ttl).unwrap(), "x").await;
    let lock = Shape::Mutex.make(&other, "x").unwrap().ttl(LONG).unwrap();
    let waiting = record.lock(&lock, "x");
    let hurting = async {
        line_is(&other, "x", 1).await;
        let leader = cluster.leader();
        let changes = || cluster.member(leader).count("etcd_server_leader_changes_seen_total");
        let seen = changes();
        cluster.member(leader).pause();
        let next = cluster.member(cluster.leader_after(leader));
        let twice = Instant::now() + 2 * ttl;
        eventually("it is renewed through the others", || held.held.valid_until() > twice).await;
        let before = ended_by_others(next);
        cluster.member(leader).resume();
        cluster.wait_healthy();
        eventually("it has heard that another was elected", || changes() > seen).await;
        let view = other.view("x").await.unwrap();
        if !view.holders.iter().any(|holder| holder.token.get() == held.token()) {
            held.is_lost().await;
            assert!(!held.checks());
        }
        held.writes();
        let released = held.releases().await;
        if released.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost) {
            eventually("it is counted who took it away", || ended_by_others(next) > before).await;
        }
        (released, ended_by_others(next) > before)
    };
    let (next, (released, took_leases)) = tokio::join!(waiting, hurting);
    assert!(next.writes());
    lets_go(next.releases().await); // its lease may be among those that were taken
    match released {
        Err(error) if took_leases => assert_eq!(error.kind(), ErrorKind::Lost, "{error}"),
        released => released.expect("nobody has taken it away"),
    }
    if took_leases {
        record.expect_fence_held();
    } else {
        expect_sound(&record.history());
    }
    leaves_nothing(&cluster, [one, other]).await;
}

/// A client that knows one member only, which is cut off from the others: as a leader that does not know it yet, and as a
/// follower. It loses its hold by its own clock, before anybody on the other side gets in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_the_minority() {
    for leads in [true, false] {
        let (cluster, record) = (EtcdCluster::start(), Record::new());
        let number = if leads { cluster.leader() } else { cluster.follower() };
        let one = client(&format!("{}?answer_limit=10s", cluster.member(number).url())).await;
        let other = patient(&cluster).await;
        let ttl = Duration::from_secs(8);
        let held = record.lock(&Shape::Mutex.make(&one, "x").unwrap().ttl(ttl).unwrap(), "x").await;
        let first = held.held.valid_until();
        eventually("it is renewed", || held.held.valid_until() > first).await;
        let lock = Shape::Mutex.make(&other, "x").unwrap().ttl(LONG).unwrap();
        let waiting = async {
            let next = record.lock(&lock, "x").await;
            assert!(Instant::now() >= held.held.valid_until(), "the holder may still trust its hold");
            next
        };
        let hurting = async {
            line_is(&other, "x", 1).await;
            cluster.cut_peers(number);
            held.is_lost().await;
            assert!(!held.checks());
        };
        let (next, ()) = tokio::join!(waiting, hurting);
        assert!(next.token() > held.token());
        let refused = in_time("an answer", one.mutex("y").unwrap().try_lock()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        cluster.heal(number);
        cluster.wait_healthy();
        assert_eq!(in_time("an answer", held.releases()).await.unwrap_err().kind(), ErrorKind::Lost);
        lets_go(next.releases().await);
        expect_sound(&record.history());
        leaves_nothing(&cluster, [other]).await;
    }
}
