//! For how long a dead holder keeps others out. It is its ttl, and a second for the servers to notice; where the leader dies
//! with it another ttl and an election, since a new leader counts leases anew.

use std::time::Duration;

use tenure_core::{Client, Instant};
use tenure_testkit::servers::etcd::EtcdCluster;
use tenure_testkit::taker::{Taker, Wanted};
use tenure_testkit::{Shape, eventually_async, in_bound, in_time};

use crate::stage::{LONG, leaves_nothing, patient};

/// A machine that stands still does not outlast it before the next one is in line.
const TTL: Duration = Duration::from_secs(6);
/// What servers take to see that a lease is over, and to say so.
const NOTICED: Duration = Duration::from_secs(1);
/// What these servers take to elect a leader: twice the half second for which one may be silent.
const ELECTION: Duration = Duration::from_secs(1);

/// `kill -9` of a holder, and what else is hurt at that moment: how long it took until the next one held.
async fn next_after(cluster: &EtcdCluster, client: &Client, hurt: impl FnOnce()) -> Duration {
    let mut taker = Taker::start("faults::taker", &format!("{}?answer_limit=20s", cluster.url())).await;
    let (token, _) = taker.lock(1, &Wanted::new("x", Shape::Mutex).ttl(TTL)).await;
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap().keep(false); // it keeps its place, however slow the machine is
    let waiting = tokio::spawn(async move { (mutex.lock().await.unwrap(), Instant::now()) });
    let is_next = async || waiting.is_finished() || client.view("x").await.is_ok_and(|view| view.line.len() == 1);
    eventually_async("the next one waits", is_next).await;
    taker.kill();
    let killed = Instant::now();
    hurt();
    let (held, since) = in_time("the next one gets in", waiting).await.unwrap();
    assert!(held.token().get() > token);
    held.release().await.unwrap();
    let took = since.since(killed);
    eprintln!("a dead holder with a ttl of {TTL:?} kept others out for {took:?}");
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_its_ttl() {
    let cluster = EtcdCluster::start();
    let client = patient(&cluster).await;
    in_bound("a dead holder's ttl", TTL + NOTICED, async || next_after(&cluster, &client, || {}).await).await;
    leaves_nothing(&cluster, [client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_two_ttls_if_the_leader_dies_too() {
    let cluster = EtcdCluster::start();
    let client = patient(&cluster).await;
    in_bound("a dead holder's and a dead leader's ttl", 2 * TTL + ELECTION + NOTICED, async || {
        let leader = cluster.leader();
        let took = next_after(&cluster, &client, || cluster.member(leader).kill()).await;
        cluster.member(leader).restart();
        cluster.wait_healthy();
        took
    })
    .await;
    leaves_nothing(&cluster, [client]).await;
}
