//! A cluster whose slots move, and one on which a client went deaf.

use std::time::Duration;

use tenure_core::{Client, ErrorKind, Event, Guard};
use tenure_testkit::proxy::{Fault, Proxy, Toward, Which};
use tenure_testkit::servers::redis::RedisCluster;
use tenure_testkit::{eventually_async, in_time};
use tokio::task::{JoinHandle, JoinSet};

use crate::stage::{LONG, client, line_is};

/// The bucket of a name, as all programs must agree on it.
fn bucket(name: &str) -> u64 {
    let mix = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, mix) % 256
}

/// Another name in the slot of `x`.
fn neighbour() -> String {
    (0..).map(|number| format!("beside-x-{number}")).find(|name| bucket(name) == bucket("x")).expect("there are many")
}

/// A cluster of two, and where the slot of `x` is.
struct Moved {
    cluster: RedisCluster,
    slot: u16,
    from: usize,
}

impl Moved {
    fn start() -> Self {
        let cluster = RedisCluster::start(2, 0);
        let slot = cluster.slot_of(&format!("{{{}}}", bucket("x")));
        let from = cluster.node_of(slot);
        Moved { cluster, slot, from }
    }

    async fn client(&self) -> Client {
        client(&self.cluster.url()).await
    }

    /// A client that loses patience soon, and knows its way to `x`, which somebody holds.
    async fn hasty(&self) -> Client {
        let client = client(&format!("{}?answer_limit=1s", self.cluster.url())).await;
        eventually_async("it was there", async || client.mutex("x").unwrap().try_lock().await.is_ok()).await;
        client
    }

    /// Whether a node has the record of `x`.
    fn has_x(&self, node: usize) -> bool {
        !self.cluster.nodes()[node].command(&["KEYS", "*:lock:x"]).list().is_empty()
    }
}

fn waiter(client: &Client, name: &str) -> JoinHandle<Guard> {
    // Not kept, so that it has all of its ttl from the hand-over on.
    let mutex = client.mutex(name).unwrap().ttl(LONG).unwrap().keep(false);
    tokio::spawn(async move { mutex.lock().await.unwrap() })
}

/// Nobody can have it, and who asks is told why. An ask whose time was up while an answer was on its way tells of that instead.
async fn is_on_its_way(client: &Client, name: &str) {
    let mutex = client.mutex(name).unwrap();
    eventually_async("it says that the slot is being moved", async || {
        let refused = mutex.try_lock().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        refused.to_string().contains("slot is being moved")
    })
    .await;
}

/// While a slot is on its way nobody can ask for its names, wherever their keys are, and afterwards all is as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_and_waited_for_outlives_a_move() {
    let stage = Moved::start();
    let (holder, others, free) = (stage.client().await, stage.client().await, neighbour());
    let held = holder.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let (until, token, mut events) = (held.valid_until(), held.token(), held.events());
    let (waiting, hasty) = (waiter(&others, "x"), stage.hasty().await);
    line_is(&holder, "x", 1).await;
    assert!(stage.has_x(stage.from));

    let moving = stage.cluster.begin_move(stage.slot, 1 - stage.from);
    for carried in [0, 1, usize::MAX] {
        moving.carry_keys(carried);
        tokio::join!(is_on_its_way(&hasty, "x"), is_on_its_way(&hasty, &free));
        held.check().expect("its window goes on");
    }
    moving.finish();
    assert!(stage.has_x(1 - stage.from));
    let beside = in_time("another name of the slot", others.mutex(&free).unwrap().lock()).await.unwrap();
    assert!(beside.token() > token, "tokens rise");
    beside.release().await.unwrap();
    assert!(others.mutex("x").unwrap().try_lock().await.unwrap().is_none(), "still held");
    // Its client hears that the slot has gone, and asks there at once: the next renewal is minutes away.
    let doubted = in_time("it is in doubt", events.next()).await;
    assert!(matches!(doubted, Some(Event::Jeopardy { .. })), "{doubted:?}");
    assert_eq!(in_time("it is safe again", events.next()).await, Some(Event::Safe));
    assert!(held.valid_until() > until && held.token() == token);
    line_is(&holder, "x", 1).await;
    held.release().await.unwrap();
    let next = in_time("the waiter's turn", waiting).await.unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
    for client in [holder, others] {
        client.close().await.unwrap();
    }
}

/// A move takes longer than a ttl: that hold is lost by its own clock. A release that meets it is done when it is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_move_costs_short_holds_and_delays_releases() {
    let stage = Moved::start();
    let (holder, others, brief) = (stage.client().await, stage.client().await, neighbour());
    let held = holder.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let short = holder.mutex(&brief).unwrap().ttl(Duration::from_secs(6)).unwrap().lock().await.unwrap();
    let waiting = [waiter(&others, "x"), waiter(&others, &brief)];
    line_is(&holder, "x", 1).await;
    line_is(&holder, &brief, 1).await;

    let moving = stage.cluster.begin_move(stage.slot, 1 - stage.from);
    in_time("the short one's window is over", short.lost()).await;
    let tokens = [held.token(), short.token()];
    let refused = held.release().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    moving.carry_keys(usize::MAX);
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    moving.finish();
    for (waiting, token) in waiting.into_iter().zip(tokens) {
        let next = in_time("the waiter's turn", waiting).await.unwrap();
        assert!(next.token() > token);
        next.check().unwrap();
        next.release().await.unwrap();
    }
    drop(short);
    for client in [holder, others] {
        client.close().await.unwrap();
    }
}

/// A node that forgot is heard of at once in a cluster too, by somebody who only holds: a renewal that came by itself would
/// put nobody in doubt before. (A node that has just started serves nobody for two seconds.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_only_holds_hears_of_a_node_that_forgot() {
    let cluster = RedisCluster::start(1, 0);
    let client = client(&cluster.url()).await;
    let held = client.mutex("x").unwrap().ttl(Duration::from_secs(60)).unwrap().lock().await.unwrap();
    let mut events = held.events();
    cluster.nodes()[0].kill();
    cluster.nodes()[0].restart();
    let doubted = in_time("it is in doubt", events.next()).await;
    assert!(matches!(doubted, Some(Event::Jeopardy { .. })), "{doubted:?}");
    assert!(matches!(in_time("it is told", events.next()).await, Some(Event::Lost(_))));
}

/// The connection that listens falls silent: waiters look, and whoever asks for names on which it never listened gets another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deaf_client_goes_on() {
    let cluster = RedisCluster::start(1, 0);
    let node = &cluster.nodes()[0];
    let holder = client(&cluster.url()).await;
    let held = holder.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    // From now on the node is known by the address of a proxy.
    let proxy = Proxy::start(node.address());
    node.command(&["CONFIG", "SET", "cluster-announce-port", &proxy.port().to_string()]);
    let client = client(&format!("redis+cluster://{}", proxy.address())).await;
    assert!(client.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    // The newest connection is the one that listens; what is made in its place works.
    proxy.set(Which::Newest, Fault::Blackhole(Toward::Both));
    let waiting = waiter(&client, "x");
    line_is(&holder, "x", 1).await;
    held.release().await.unwrap();
    in_time("the waiter's turn", waiting).await.unwrap().release().await.unwrap();
    assert!(proxy.counters().lost > 0, "it was told, and did not hear");
    let mut asking = JoinSet::new();
    for number in 0..20 {
        let mutex = client.mutex(format!("new-{number}")).unwrap();
        asking.spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() });
    }
    while let Some(served) = in_time("everybody is served", asking.join_next()).await {
        served.unwrap();
    }
    for client in [holder, client] {
        client.close().await.unwrap();
    }
}
