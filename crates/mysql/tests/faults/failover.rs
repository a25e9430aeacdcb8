//! F30: a replica takes over. Where the primary waited for it (semi-synchronous), nothing is forgotten; where it did not,
//! exclusion is seen to break and the fence to hold. Clients find the new primary where the old one was.

use tenure_core::{Client, Event, Phase};
use tenure_testkit::faults::{LONG, Record, client, leaves_nothing};
use tenure_testkit::history::expect_sound;
use tenure_testkit::proxy::{Cut, Fault, Proxy, Toward, Which};
use tenure_testkit::servers::mariadb::{MariaDb, MariaDbOptions};
use tenure_testkit::{Options as _, Shape, eventually, in_time};

use crate::Lease;

/// A primary and its replica. Both the replica's link and the clients' way to whoever is primary go through a proxy.
struct Pair {
    primary: MariaDb,
    replica: MariaDb,
    link: Proxy,
    way: Proxy,
}

impl Pair {
    /// The tables are there on both. `waits`: whether the primary waits for the replica at every commit from now on.
    async fn start(waits: bool) -> Self {
        let primary = MariaDb::start(MariaDbOptions::new().binlog());
        client::<Lease>(&primary.url()).await.close().await.unwrap();
        let (link, way) = (Proxy::start(primary.address()), Proxy::start(primary.address()));
        let replica = primary.replica_through(link.address());
        replica.catch_up_with(&primary);
        if waits {
            replica.sql("SET GLOBAL rpl_semi_sync_slave_enabled = 1; STOP SLAVE; START SLAVE");
            primary.sql(
                "SET GLOBAL rpl_semi_sync_master_timeout = 600000, rpl_semi_sync_master_wait_point = AFTER_SYNC,
                 rpl_semi_sync_master_enabled = 1",
            );
            let status = "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_clients'";
            eventually("the primary waits for it", || primary.sql(status)[0][1] == "1").await;
        }
        Pair { primary, replica, link, way }
    }

    /// The URL of whoever is the primary, by this way.
    fn url_by(&self, way: &Proxy) -> String {
        self.primary.url().replacen(&self.primary.address().to_string(), &way.address().to_string(), 1)
    }

    /// A client on the way to whoever is the primary.
    async fn client(&self) -> Client {
        self.client_by(&self.way).await
    }

    async fn client_by(&self, way: &Proxy) -> Client {
        client::<Lease>(&self.url_by(way)).await
    }

    /// The replica hears nothing any more.
    fn lags(&self) {
        self.link.set(Which::All, Fault::Hold(Toward::Client));
    }

    /// The primary is gone, its replica takes over, and clients find it where the primary was.
    fn fail_over(&self) {
        self.primary.kill();
        self.replica.promote();
        self.way.retarget(self.replica.address());
        self.way.cut(Which::All, Cut::Reset);
    }
}

/// What a replica has that the primary waits for survives: the holder is in doubt for a moment, and nobody else gets in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_waited_for_forgets_nothing() {
    let (pair, record) = (Pair::start(true).await, Record::new());
    let (one, other) = (pair.client().await, pair.client().await);
    let holder = record.lock(&Shape::Mutex.make(&one, "x").unwrap().ttl(LONG).unwrap(), "x").await;
    let mut events = holder.held.guard().events();
    // It has got it, which is what the primary waits for. Before it is promoted it must also have done it, as whoever promotes sees to.
    pair.replica.catch_up_with(&pair.primary);
    pair.fail_over();
    assert!(in_time("an answer", other.mutex("x").unwrap().try_lock()).await.unwrap().is_none());
    let _ = in_time("an answer", one.view("x")).await; // its client notices when it next has something to say
    let doubted = in_time("the holder is in doubt", events.next()).await;
    assert!(matches!(doubted, Some(Event::Jeopardy { .. })), "{doubted:?}");
    assert_eq!(in_time("it is safe again", events.next()).await, Some(Event::Safe));
    assert_eq!(holder.held.guard().phase(), Phase::Held);
    assert!(holder.checks());
    let token = holder.token();
    holder.releases().await.unwrap();
    let next = record.lock(&Shape::Mutex.make(&other, "x").unwrap().ttl(LONG).unwrap(), "x").await;
    assert!(next.token() > token, "tokens go on rising");
    next.releases().await.unwrap();
    expect_sound(&record.history());
    leaves_nothing::<Lease>(&pair.replica, [one, other]).await;
}

/// A grant that the replica has not got is no grant, however often it is asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_a_waited_for_replica_has_not_got_is_none() {
    let pair = Pair::start(true).await;
    // The one that will have no answer does not wait for it too long.
    let one = client::<Lease>(&format!("{}?answer_limit=5s", pair.url_by(&pair.way))).await;
    let other = pair.client().await;
    one.mutex("first").unwrap().lock().await.unwrap().release().await.unwrap(); // every connection is there
    pair.lags();
    let refused = in_time("an answer", one.mutex("x").unwrap().ttl(LONG).unwrap().lock()).await;
    if let Ok(held) = &refused {
        held.check().unwrap();
    }
    pair.fail_over();
    let next = in_time("the lock", other.mutex("x").unwrap().ttl(LONG).unwrap().lock()).await.unwrap();
    assert!(refused.is_err(), "the new primary knows nothing of a grant that was given");
    next.release().await.unwrap();
    leaves_nothing::<Lease>(&pair.replica, [one, other]).await;
}

/// A replica that nobody waits for takes over without the last grants: two trust their windows, and the fence holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusion_is_seen_to_break_at_a_lagging_replica() {
    let (pair, record) = (Pair::start(false).await, Record::new());
    // The holder has a way of its own, so that it hears of the failover when we say so.
    let its_way = Proxy::start(pair.primary.address());
    let (one, other) = (pair.client_by(&its_way).await, pair.client().await);
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
    // As soon as the old holder's client talks to the new primary, it learns.
    its_way.retarget(pair.replica.address());
    its_way.cut(Which::All, Cut::Reset);
    its_way.heal();
    in_time("an answer", one.view("x")).await.unwrap();
    old.is_lost().await;
    new.releases().await.unwrap();
    drop(old);
    leaves_nothing::<Lease>(&pair.replica, [one, other]).await;
}
