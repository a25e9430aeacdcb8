//! A downgrade that is stuck in a connection until its holder is the writer again: it arrives, and does nothing. On one
//! server, and on each node of a Redlock.

use std::time::Duration;

use tenure_core::{Client, ErrorKind, Guard, Mode};
use tenure_testkit::proxy::{Fault, FaultId, Proxy, Toward, Which};
use tenure_testkit::servers::redis::{Redis, RedisOptions, independent};
use tenure_testkit::{eventually, in_time};

use self::stage::{LONG, calls, client, leaves_nothing};

// The same stage as the faults', of which this binary uses a part.
#[expect(dead_code, reason = "the faults use the rest")]
#[path = "faults/stage.rs"]
mod stage;

/// After this long without an answer a connection counts as stuck, and what is asked next takes another one.
const STUCK: Duration = Duration::from_millis(100);

/// Servers behind a proxy each, and a client of all of them.
struct Nodes {
    servers: Vec<Redis>,
    proxies: Vec<Proxy>,
    client: Client,
    /// Another one, which no fault meets.
    other: Client,
}

impl Nodes {
    async fn start(servers: Vec<Redis>, scheme: &str, parameters: &str) -> Self {
        let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(server.address())).collect();
        let url = |addresses: Vec<String>| format!("{scheme}://{}{parameters}", addresses.join(","));
        let proxied = client(&url(proxies.iter().map(|proxy| proxy.address().to_string()).collect())).await;
        let direct = client(&url(servers.iter().map(|server| server.address().to_string()).collect())).await;
        Nodes { servers, proxies, client: proxied, other: direct }
    }

    /// The writer. The connections that have asked for it have also sent `beacon`, which nobody else names.
    async fn writer(&self) -> Guard {
        self.client.rw_lock("beacon").unwrap().write().await.unwrap().release().await.unwrap();
        self.client.rw_lock("x").unwrap().ttl(LONG).unwrap().keep(false).write().await.unwrap()
    }

    /// The writer, who has begun a downgrade that is stuck on the way to every server and was given up. A machine that stood still
    /// may have cost it a connection, so that the downgrade went by another and was done: then it is begun anew.
    async fn stuck_writer(&self) -> (Guard, Vec<FaultId>) {
        for _ in 0..5 {
            let mut held = self.writer().await;
            let (stuck, is_done) = self.downgrade(&mut held).await;
            if !is_done {
                return (held, stuck);
            }
            self.proxies.iter().zip(stuck).for_each(|(proxy, stuck)| proxy.lift(stuck));
            in_time("the release", held.release()).await.unwrap();
        }
        panic!("nothing gets through, and yet it is done, five times");
    }

    /// Begins a downgrade, which gets stuck, and gives it up; also says whether it was done all the same.
    async fn downgrade(&self, held: &mut Guard) -> (Vec<FaultId>, bool) {
        let stuck = self.proxies.iter().map(|proxy| proxy.set(Which::sent("beacon"), Fault::Hold(Toward::Server))).collect();
        let sent: Vec<u64> = self.proxies.iter().map(|proxy| proxy.counters().requests).collect();
        let has_asked = || self.proxies.iter().zip(&sent).all(|(proxy, before)| proxy.counters().requests > *before);
        let done = tokio::select! {
            done = held.downgrade() => done,
            () = async {
                eventually("it asks", has_asked).await;
                tokio::time::sleep(STUCK).await;
            } => return (stuck, false),
        };
        // Whoever stood still for so long has given it up by itself.
        if let Err(error) = &done {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            eventually("it has asked", has_asked).await;
        }
        (stuck, done.is_ok())
    }

    /// What was stuck arrives at every server, and is done there.
    async fn arrives(&self, stuck: Vec<FaultId>) {
        let before: Vec<u64> = self.servers.iter().map(|server| calls(server, "evalsha")).collect();
        self.proxies.iter().zip(stuck).for_each(|(proxy, stuck)| proxy.lift(stuck));
        let arrived = || self.servers.iter().zip(&before).all(|(server, before)| calls(server, "evalsha") > *before);
        eventually("the downgrade arrives", arrived).await;
    }

    /// Once where the downgrade is tried again and done, and once where it is not.
    async fn a_late_downgrade_lets_nobody_in(self) {
        for tries_again in [true, false] {
            let (mut held, stuck) = self.stuck_writer().await;
            assert_eq!(held.mode(), Mode::Shared, "it may be that, and so it is");
            if tries_again {
                in_time("the downgrade", held.downgrade()).await.unwrap();
            }
            let token = held.token();
            assert!(in_time("the upgrade", held.try_upgrade()).await.unwrap(), "it is alone");
            assert!(held.token() > token);
            self.arrives(stuck).await;
            let reader = self.other.rw_lock("x").unwrap();
            assert!(reader.try_read().await.unwrap().is_none(), "the writer is inside");
            let view = self.other.view("x").await.unwrap();
            assert_eq!((view.holders.len(), view.holders[0].mode), (1, Mode::Exclusive));
            held.check().unwrap();
            // What it asks for itself is done all the same.
            in_time("the downgrade", held.downgrade()).await.unwrap();
            in_time("a reader", reader.read()).await.unwrap().release().await.unwrap();
            held.release().await.unwrap();
        }
        self.client.close().await.unwrap();
        self.other.close().await.unwrap();
        for server in &self.servers {
            leaves_nothing(server, []).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_one_server() {
    let nodes = Nodes::start(vec![Redis::start(RedisOptions::new())], "redis", "").await;
    nodes.a_late_downgrade_lets_nobody_in().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_every_node_of_a_redlock() {
    // They have just started and would have no vote for a while; and a busy machine may take long over an answer.
    let nodes = Nodes::start(independent(3), "redlock", "?durable=yes&node_limit=5s&fencing=majority").await;
    nodes.a_late_downgrade_lets_nobody_in().await;
}
