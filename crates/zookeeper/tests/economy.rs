//! What it costs the servers, by their own counters: requests and watch events per hand-over, requests per renewal.

use std::time::Duration;

use tenure_core::{Client, Environment, Instant};
use tenure_testkit::servers::zookeeper::{Ensemble, ZooKeeperOptions};
use tenure_testkit::{eventually, eventually_async, in_time, unless_stalled};
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinSet;

/// Requests are counted for all of them, so these tests run one after the other.
async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

fn ensemble() -> Ensemble {
    Ensemble::start_with(ZooKeeperOptions::new().loopback().calm())
}

async fn client(ensemble: &Ensemble) -> Client {
    // A busy machine may take longer over an answer than a network would.
    let url = format!("{}?connect_limit=20s&answer_limit=20s", ensemble.url());
    let backend = tenure_zookeeper::connect(&url.parse().unwrap()).await.unwrap();
    Client::with_environment(backend, Environment::real()).unwrap()
}

/// Two hundred wait for one name, in one client and in ten: one watch fires for each hand-over, and there are two requests at
/// most, the one that lets go included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_is_two_requests_and_one_event() {
    let _alone = alone().await;
    const WAITERS: usize = 200;
    const TTL: Duration = Duration::from_secs(30);
    for clients in [1, 10] {
        let is_cheap = async || {
            let ensemble = ensemble();
            let holder = client(&ensemble).await;
            let held = holder.mutex("x").unwrap().ttl(TTL).unwrap().lock().await.unwrap();
            let mut waiting = JoinSet::new();
            for _ in 0..clients {
                let client = client(&ensemble).await;
                for _ in 0..WAITERS / clients {
                    let mutex = client.mutex("x").unwrap().ttl(TTL).unwrap();
                    waiting.spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() });
                }
            }
            let line = async || holder.view("x").await.unwrap().line.len() == WAITERS;
            eventually_async("all are in line", line).await;
            // Each watches one node; those of the holder's own are few. Watches are set a moment after the place is taken.
            eventually("all watch", || ensemble.count("zk_watch_count") >= WAITERS as u64).await;
            let before = Counts::of(&ensemble);
            let began = Instant::now();
            held.release().await.unwrap();
            while let Some(served) = in_time("the next one is served", waiting.join_next()).await {
                served.unwrap();
            }
            let took = Instant::now().since(began);
            let after = Counts::of(&ensemble);
            let (requests, events) = (after.requests - before.requests, after.events - before.events);
            eprintln!("{WAITERS} hand-overs over {clients} clients in {took:?}: {requests} requests, {events} events");
            // Each session may renew itself twice meanwhile, with a write and a ping. A hold that lasts for 50 ms has its own node
            // watched, too: so has the first one, and few others.
            let renewals = (clients as u64 + 1) * 4;
            let most = 2 * WAITERS as u64 + 2 + renewals + LASTING;
            (requests <= most && (WAITERS as u64..=WAITERS as u64 + 2 + LASTING).contains(&events)).then_some(())
        };
        unless_stalled("a hand-over is two requests and one event", LASTS, is_cheap).await;
    }
}

/// A thousand holds cost what one costs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_holds_cost_no_request_each() {
    let _alone = alone().await;
    const HOLDS: usize = 1_000;
    const TTL: Duration = Duration::from_secs(12);
    let ensemble = ensemble();
    let client = client(&ensemble).await;
    let mut held = Vec::new();
    for some in 0..HOLDS / 50 {
        // Not all at once: the last of a thousand would wait for its answer for as long as the servers need for all.
        let mut locking = JoinSet::new();
        for n in 0..50 {
            let mutex = client.mutex(format!("x{some}-{n}")).unwrap().ttl(TTL).unwrap();
            locking.spawn(async move { mutex.lock().await.unwrap() });
        }
        held.extend(in_time("all are taken", locking.join_all()).await);
    }
    eventually("their nodes are watched", || ensemble.count("zk_watch_count") >= HOLDS as u64).await;
    let (before, first) = (Counts::of(&ensemble), held.iter().map(|held| held.valid_until()).max().unwrap());
    let renewed = || held.iter().all(|held| held.valid_until() > first + TTL / 2);
    eventually("all are renewed, more than once", renewed).await;
    let requests = Counts::of(&ensemble).requests - before.requests;
    eprintln!("{HOLDS} holds renewed for more than their ttl: {requests} requests");
    assert!(requests < HOLDS as u64 / 5, "{requests}");
    held.iter().for_each(|held| held.check().unwrap());
}

/// An uncontended lock is a create, a list and a delete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_one_flight_and_a_release_one_request() {
    let _alone = alone().await;
    const PAIRS: u64 = 200;
    let ensemble = ensemble();
    let client = client(&ensemble).await;
    let mutex = client.mutex("x").unwrap();
    let is_cheap = async || {
        mutex.lock().await.unwrap().release().await.unwrap();
        let (before, began) = (Counts::of(&ensemble), Instant::now());
        for _ in 0..PAIRS {
            mutex.lock().await.unwrap().release().await.unwrap();
        }
        let (requests, took) = (Counts::of(&ensemble).requests - before.requests, Instant::now().since(began));
        eprintln!("{PAIRS} pairs in {took:?}: {requests} requests");
        // Twice a second the leader takes a name away that it finds empty, and whoever asks then makes it again, with five requests;
        // and the session renews itself. A hold that lasts for 50 ms has its own node looked at.
        (requests <= 3 * PAIRS + 40 + LASTING).then_some(())
    };
    unless_stalled("a lock is a flight of two requests, and a release is one", LASTS, is_cheap).await;
}

/// A hold that lasts for so long has its own node watched.
const LASTS: Duration = Duration::from_millis(50);
/// How many of those there may be on a machine that does not stand still.
const LASTING: u64 = 10;

struct Counts {
    requests: u64,
    events: u64,
}

impl Counts {
    fn of(ensemble: &Ensemble) -> Counts {
        // A word to count with is no packet. What a hand-over fires is the deletion of a node.
        let requests = ensemble.count("zk_packets_received");
        Counts { requests, events: ensemble.count("zk_sum_node_deleted_watch_count") }
    }
}
