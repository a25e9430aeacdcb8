//! What it costs the cluster, counted by the servers themselves and never timed: requests and events per hand-over, requests per
//! renewal. Times are printed, since somebody will ask.

use std::time::Duration;

use tenure_core::{Client, Environment, ErrorKind, Guard, Instant};
use tenure_testkit::servers::etcd::EtcdCluster;
use tenure_testkit::{eventually, eventually_async, in_time, unless_stalled};
use tokio::task::JoinSet;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

async fn client(cluster: &EtcdCluster) -> Client {
    let backend = tenure_etcd::connect(&format!("{}?answer_limit=20s", cluster.url()).parse().unwrap()).await.unwrap();
    Client::with_environment(backend, Environment::real()).unwrap()
}

/// What the members have counted so far.
#[derive(Clone, Copy, Debug)]
struct Counts {
    /// Calls that were answered, of whatever sort but streams.
    requests: u64,
    /// Keepalives: a stream each.
    keepalives: u64,
    /// Events that were sent to watchers.
    events: u64,
}

fn count(cluster: &EtcdCluster) -> Counts {
    let handled = |method: &str| {
        let of = |code: &str| format!("grpc_server_handled_total{{grpc_code=\"{code}\",grpc_method=\"{method}\"");
        cluster.count(&of("OK")) + cluster.count(&of("NotFound")) + cluster.count(&of("Unavailable"))
    };
    let methods = ["Range", "Put", "DeleteRange", "Txn", "LeaseGrant", "LeaseRevoke", "LeaseTimeToLive"];
    Counts {
        requests: methods.iter().map(|method| handled(method)).sum(),
        keepalives: cluster.count("grpc_server_started_total{grpc_method=\"LeaseKeepAlive\""),
        events: cluster.count("etcd_debugging_mvcc_events_total"),
    }
}

/// Two hundred wait for one name, in one client and in ten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_is_two_requests_and_two_events_at_most() {
    for clients in [1, 10] {
        unless_stalled("a hand-over is two requests and two events", STANDS_STILL, async || hand_overs(clients).await).await;
    }
}

async fn hand_overs(clients: usize) -> Option<()> {
    const WAITERS: usize = 200;
    let cluster = EtcdCluster::start();
    let holder = client(&cluster).await;
    let held = holder.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut waiting = JoinSet::new();
    let mut crowd = Vec::new();
    for _ in 0..clients {
        crowd.push(client(&cluster).await);
    }
    for number in 0..WAITERS {
        let mutex = crowd[number % clients].mutex("x").unwrap().ttl(LONG).unwrap();
        waiting.spawn(async move { mutex.lock().await.unwrap().release().await });
    }
    let line = async || holder.view("x").await.unwrap().line.len() == WAITERS;
    eventually_async("all wait", line).await;
    // Each has looked at whom it waits for, which writes its key a second time.
    let settled = || {
        let keys = cluster.ctl(&["get", "--prefix", "--sort-by", "CREATE", "-w", "fields", "tenure/lock/x "]);
        keys.lines().filter_map(|line| line.strip_prefix("\"Version\" : ")).skip(1).all(|version| version != "1")
    };
    eventually("all have looked", settled).await;
    let before = count(&cluster);
    let began = Instant::now();
    held.release().await.unwrap();
    let mut lost = 0;
    while let Some(served) = in_time("the next one is served", waiting.join_next()).await {
        if let Err(error) = served.unwrap() {
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            lost += 1;
        }
    }
    let (took, after) = (Instant::now().since(began), count(&cluster));
    let requests = after.requests - before.requests;
    let events = after.events - before.events;
    eprintln!("{WAITERS} hand-overs over {clients} clients in {took:?}: {requests} requests, {events} events, {lost} lost");
    // Each client also keeps the lease of its waiters alive, with a question each time, and makes sure that its member can still tell it
    // something: that is two requests a second, and there is time for twice that.
    let beats = (clients as u64 + 1) * 4;
    let few_requests = requests <= 2 * WAITERS as u64 + 2 + beats;
    // The owner of a key and the one who waits behind it may be two clients: each hears of its end.
    let few_events = events <= 2 * (WAITERS as u64 + 1);
    (few_requests && few_events && lost == 0).then_some(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_locks_are_renewed_with_one_keepalive() {
    const ROUNDS: u64 = 3;
    let cluster = EtcdCluster::start();
    let client = client(&cluster).await;
    let is_cheap = async || {
        let held = hold(&client, 1_000, Duration::from_secs(9)).await;
        for _ in 0..2 {
            a_round(&held[0]).await; // by now they go together
        }
        let before = count(&cluster);
        for _ in 0..ROUNDS {
            a_round(&held[0]).await;
        }
        let after = count(&cluster);
        let (requests, keepalives) = (after.requests - before.requests, after.keepalives - before.keepalives);
        eprintln!("1,000 holds: {requests} requests and {keepalives} keepalives in {ROUNDS} rounds");
        let beats = 2; // every ten seconds, and the rounds last for nine
        // Each keepalive is followed by two questions; the keeper may come in two batches while they drift together.
        let are_held = held.iter().all(|guard| guard.check().is_ok());
        for held in held {
            let _ = held.release().await; // one that was lost is none any more
        }
        (are_held && keepalives <= 2 * ROUNDS && requests <= 4 * ROUNDS + beats).then_some(())
    };
    unless_stalled("a thousand locks are renewed together", STANDS_STILL, is_cheap).await;
}

/// An uncontended lock is one request, and so is its release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_lock_is_one_request_each_way() {
    let cluster = EtcdCluster::start();
    let client = client(&cluster).await;
    let lock = |name: String| client.mutex(name).unwrap().ttl(LONG).unwrap();
    lock("first".to_owned()).lock().await.unwrap().release().await.unwrap();
    let is_cheap = async || {
        let before = count(&cluster);
        for number in 0..50 {
            lock(format!("x{number}")).lock().await.unwrap().release().await.unwrap();
            let held = lock(format!("y{number}")).try_lock().await.unwrap().expect("it is free");
            assert!(lock(format!("y{number}")).try_lock().await.unwrap().is_none());
            held.release().await.unwrap();
        }
        let requests = count(&cluster).requests - before.requests;
        eprintln!("{requests} requests for 100 locks, 100 releases and 50 tries in vain");
        (requests <= 50 * 5 + 3).then_some(()) // one more where something is watched
    };
    unless_stalled("a free lock is one request each way", STANDS_STILL, is_cheap).await;
}

/// A machine that stands still for so long may cost an answer that is asked for again, an election, or what was handed over.
const STANDS_STILL: Duration = Duration::from_millis(250);

/// Takes so many locks.
async fn hold(client: &Client, many: usize, ttl: Duration) -> Vec<Guard> {
    let mut held = Vec::new();
    for number in 0..many {
        held.push(client.mutex(format!("name {number}")).unwrap().ttl(ttl).unwrap().lock().await.unwrap());
    }
    held
}

/// Waits until a hold is renewed.
async fn a_round(guard: &Guard) {
    let until = guard.valid_until();
    in_time("a renewal", async {
        while guard.valid_until() == until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}
