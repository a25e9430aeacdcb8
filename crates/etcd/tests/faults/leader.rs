//! F32, F33: the leader is killed, paused, or cut off, under load; clients that are left with the minority.

use std::time::Duration;

use tenure_core::{ErrorKind, Instant};
use tenure_testkit::faults::{Crowd, Record};
use tenure_testkit::history::expect_sound;
use tenure_testkit::servers::etcd::EtcdCluster;
use tenure_testkit::{Options as _, Shape, eventually, in_time};

use crate::stage::{LONG, client, leaves_nothing, line_is, patient};

/// Runs a crowd over three clients while the leader is hurt and mended; everybody is served, and nothing is broken.
async fn under_load(shape: Shape, hurt: fn(&EtcdCluster, usize), mend: fn(&EtcdCluster, usize)) {
    let (cluster, record) = (EtcdCluster::start(), Record::new());
    let clients = [patient(&cluster).await, patient(&cluster).await, patient(&cluster).await];
    let kept = clients[0].mutex("kept").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let crowd = Crowd::start(&record, "x", shape, &clients, 6, patient(&cluster).await);
    for _ in 0..2 {
        crowd.has_had(&record, 30).await;
        let leader = cluster.leader();
        hurt(&cluster, leader);
        cluster.leader_after(leader);
        crowd.has_had(&record, 30).await;
        mend(&cluster, leader);
        cluster.wait_healthy();
    }
    crowd.has_had(&record, 30).await;
    crowd.stop().await;
    expect_sound(&record.history());
    kept.check().expect("a long lease outlives it");
    kept.release().await.unwrap();
    leaves_nothing(&cluster, clients).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed() {
    under_load(
        Shape::FairMutex,
        |cluster, leader| cluster.member(leader).kill(),
        |cluster, leader| {
            cluster.member(leader).restart();
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_off() {
    under_load(Shape::FairMutex, |cluster, leader| cluster.cut(leader), |cluster, leader| cluster.heal(leader)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused() {
    under_load(
        Shape::Mutex,
        |cluster, leader| cluster.member(leader).pause(),
        |cluster, leader| {
            cluster.member(leader).resume();
        },
    )
    .await;
}

/// A client that knows one member only, which is cut off from the others: as a leader that does not know it yet, and as a
/// follower. It loses its hold by its own clock, before anybody on the other side gets in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_the_minority() {
    for leads in [true, false] {
        let (cluster, record) = (EtcdCluster::start(), Record::new());
        let number = if leads { cluster.leader() } else { cluster.follower() };
        let one = client(&cluster.member(number).url()).await;
        let other = patient(&cluster).await;
        let ttl = Duration::from_secs(3);
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
        assert_eq!(in_time("an answer", held.releases()).await.unwrap_err().kind(), ErrorKind::Lost);
        next.releases().await.unwrap();
        expect_sound(&record.history());
        leaves_nothing(&cluster, [other]).await;
    }
}
