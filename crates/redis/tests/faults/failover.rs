//! F30: a failover to a replica that had not heard of a grant. Exclusion is seen to break, and the fence holds; with
//! `min_replicas` such a grant is never given.

use std::time::Duration;

use tenure_core::{Client, ErrorKind, Event, Guard, Mutex, Phase};
use tenure_testkit::proxy::{Cut, Fault, Proxy, Toward, Which};
use tenure_testkit::servers::redis::{Redis, RedisOptions};
use tenure_testkit::{Options as _, Shape, eventually, in_time};

use crate::stage::{LONG, Record, client, leaves_nothing, line_is, residue};

/// A master and its replica. Both the replica's link and the clients' way to whoever is master go through a proxy.
struct Pair {
    master: Redis,
    replica: Redis,
    link: Proxy,
    way: Proxy,
}

impl Pair {
    fn start() -> Self {
        let (master, replica) = (Redis::start(RedisOptions::new()), Redis::start(RedisOptions::new()));
        let (link, way) = (Proxy::start(master.address()), Proxy::start(master.address()));
        replica.command(&["REPLICAOF", "127.0.0.1", &link.port().to_string()]);
        Pair { master, replica, link, way }
    }

    /// Waits until the replica follows.
    async fn follows(&self) {
        eventually("the replica follows", || {
            let master = self.master.info("replication");
            self.replica.info("replication")["master_link_status"] == "up" && master["connected_slaves"] == "1"
        })
        .await;
    }

    /// The replica hears nothing any more, and its master not of it.
    fn lags(&self) {
        self.link.set(Which::All, Fault::Blackhole(Toward::Both));
    }

    /// The master is gone, its replica takes over, and clients find it where the master was.
    fn fail_over(&self) {
        self.master.kill();
        self.replica.command(&["REPLICAOF", "NO", "ONE"]);
        self.way.retarget(self.replica.address());
        self.way.cut(Which::All, Cut::Reset);
    }

    /// Locks as soon as a replica confirms in time, which a busy machine may put off.
    async fn confirmed(mutex: &Mutex) -> Guard {
        let locking = async {
            loop {
                match mutex.lock().await {
                    Ok(guard) => return guard,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
                }
            }
        };
        in_time("a grant that is confirmed", locking).await
    }

    async fn client(&self, parameters: &str) -> Client {
        client(&format!("redis://{}{parameters}", self.way.address())).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusion_is_seen_to_break_at_a_lagging_replica() {
    let (pair, record) = (Pair::start(), Record::new());
    pair.follows().await;
    // The holder has a way of its own, so that it hears of the failover when we say so.
    let its_way = Proxy::start(pair.master.address());
    let (one, other) = (client(&format!("redis://{}", its_way.address())).await, pair.client("").await);
    pair.lags();
    let old = record.lock(&Shape::Mutex.make(&one, "x").unwrap().ttl(LONG).unwrap(), "x").await;
    assert!(old.writes());
    its_way.set(Which::All, Fault::Hold(Toward::Both));
    pair.fail_over();
    let new = record.lock(&Shape::Mutex.make(&other, "x").unwrap().ttl(LONG).unwrap(), "x").await;
    assert!(old.checks() && new.checks(), "both trust their windows");
    assert!(new.token() > old.token(), "tokens go on rising");
    assert!(new.writes());
    assert!(!old.writes(), "the resource knows better");
    record.expect_only_exclusion_broken();
    // As soon as the old holder's client talks to the new master, it learns.
    its_way.retarget(pair.replica.address());
    its_way.cut(Which::All, Cut::Reset);
    its_way.heal();
    in_time("an answer", one.view("x")).await.unwrap();
    old.is_lost().await;
    new.releases().await.unwrap();
    drop(old);
    leaves_nothing(&pair.replica, [one, other]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_no_replica_has_is_given_back() {
    let pair = Pair::start();
    pair.follows().await;
    let (strict, plain) = (pair.client("?min_replicas=1&replica_wait=300ms").await, pair.client("").await);
    let mutex = strict.mutex("x").unwrap().ttl(LONG).unwrap();
    Pair::confirmed(&mutex).await.release().await.unwrap();
    pair.lags();
    // Also one that waits for longer than any other request may take.
    let patient = pair.client("?min_replicas=1&replica_wait=2500ms").await;
    for client in [&strict, &patient] {
        let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
        let refused = in_time("an answer", mutex.lock()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains("0 of 1 replicas"), "{refused}");
        client.close().await.unwrap();
        assert!(residue(&pair.master).is_empty(), "nothing is left of it");
    }

    // The same for a grant that a waiter is handed.
    let held = plain.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    line_is(&plain, "x", 1).await;
    held.release().await.unwrap();
    let refused = in_time("an answer", waiting).await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    strict.close().await.unwrap();
    assert!(residue(&pair.master).is_empty(), "nothing is left of it");

    pair.link.heal();
    pair.follows().await;
    Pair::confirmed(&mutex).await.release().await.unwrap();
    leaves_nothing(&pair.master, [strict, patient, plain]).await;
}

/// What a replica has confirmed survives the failover: the holder is in doubt for a moment, and nobody else gets in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_a_replica_has_survives() {
    let pair = Pair::start();
    pair.follows().await;
    let (strict, other) = (pair.client("?min_replicas=1").await, pair.client("").await);
    let held = Pair::confirmed(&strict.mutex("x").unwrap().ttl(Duration::from_secs(60)).unwrap()).await;
    let mut events = held.events();
    pair.fail_over();
    assert!(in_time("an answer", other.mutex("x").unwrap().try_lock()).await.unwrap().is_none());
    let doubted = in_time("the holder is in doubt", events.next()).await;
    assert!(matches!(doubted, Some(Event::Jeopardy { .. })), "{doubted:?}");
    // The new master has no replica itself, so nothing can be confirmed until it has one.
    assert_eq!(held.phase(), Phase::Jeopardy);
    let third = Redis::start(RedisOptions::new());
    third.command(&["REPLICAOF", "127.0.0.1", &pair.replica.port().to_string()]);
    assert_eq!(in_time("it is safe again", events.next()).await, Some(Event::Safe));
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    held.release().await.unwrap();
    leaves_nothing(&pair.replica, [strict, other]).await;
}
