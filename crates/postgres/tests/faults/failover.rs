//! F30: a standby takes over. Where the primary waited for it, nothing is forgotten; where it did not, exclusion is seen to
//! break and the fence to hold. A client finds the new primary among the servers that its URL names.

use std::time::Duration;

use tenure_core::{Client, Event, Phase};
use tenure_testkit::faults::{LONG, Record, client, leaves_nothing};
use tenure_testkit::history::expect_sound;
use tenure_testkit::proxy::{Cut, Fault, Proxy, Toward, Which};
use tenure_testkit::servers::postgres::{Postgres, PostgresOptions};
use tenure_testkit::{Options as _, Shape, eventually, in_time};
use tokio::task::JoinSet;

use crate::Lease;

/// A primary and the standby that follows it through a proxy.
struct Pair {
    primary: Postgres,
    standby: Postgres,
    link: Proxy,
}

impl Pair {
    /// The tables are there on both. `waits`: whether the primary waits for the standby at every commit from now on.
    async fn start(waits: bool) -> Self {
        let primary = Postgres::start(PostgresOptions::new());
        client::<Lease>(&primary.url()).await.close().await.unwrap();
        let link = Proxy::start(primary.address());
        let standby = primary.replica_through(link.address());
        standby.catch_up_with(&primary);
        if waits {
            primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
            primary.sql("SELECT pg_reload_conf()");
            let is_waited_for = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            eventually("the primary waits for it", || primary.sql(is_waited_for) == [["1"]]).await;
        }
        Pair { primary, standby, link }
    }

    /// The URL of both: a client takes whichever is the primary.
    fn url(&self) -> String {
        let both = format!("{},{}", self.primary.address(), self.standby.address());
        self.primary.url().replacen(&self.primary.address().to_string(), &both, 1)
    }

    async fn client(&self) -> Client {
        client::<Lease>(&self.url()).await
    }

    /// A client that knows one way only.
    async fn client_by(&self, way: &Proxy) -> Client {
        client::<Lease>(&self.primary.url().replacen(&self.primary.address().to_string(), &way.address().to_string(), 1))
            .await
    }

    /// The standby hears nothing any more.
    fn lags(&self) {
        self.link.set(Which::All, Fault::Hold(Toward::Client));
    }

    /// The primary is gone, and its standby takes over.
    fn fail_over(&self) {
        self.primary.kill();
        self.standby.sql("ALTER SYSTEM RESET synchronous_standby_names");
        self.standby.promote();
    }
}

/// What a standby has that the primary waits for survives: the holder is in doubt for a moment, and nobody else gets in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_is_waited_for_forgets_nothing() {
    let (pair, record) = (Pair::start(true).await, Record::new());
    let (one, other) = (pair.client().await, pair.client().await);
    let holder = record.lock(&Shape::Mutex.make(&one, "x").unwrap().ttl(LONG).unwrap(), "x").await;
    let mut events = holder.held.guard().events();
    pair.fail_over();
    assert!(in_time("an answer", other.mutex("x").unwrap().try_lock()).await.unwrap().is_none());
    let doubted = in_time("the holder is in doubt", async {
        // Its client notices when it next has something to say.
        let _ = one.view("x").await;
        events.next().await
    });
    let doubted = doubted.await;
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
    leaves_nothing::<Lease>(&pair.standby, [one, other]).await;
}

/// A grant that the standby has not got is no grant, however often it is asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_a_waited_for_standby_has_not_got_is_none() {
    let pair = Pair::start(true).await;
    // The one that will have no answer does not wait for it too long.
    let one = client::<Lease>(&format!("{}?answer_limit=5s", pair.url())).await;
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
    leaves_nothing::<Lease>(&pair.standby, [one, other]).await;
}

/// A standby that nobody waits for takes over without the last grants: two trust their windows, and the fence holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusion_is_seen_to_break_at_a_lagging_standby() {
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
    its_way.retarget(pair.standby.address());
    its_way.cut(Which::All, Cut::Reset);
    its_way.heal();
    in_time("an answer", one.view("x")).await.unwrap();
    old.is_lost().await;
    new.releases().await.unwrap();
    drop(old);
    leaves_nothing::<Lease>(&pair.standby, [one, other]).await;
}

/// Whoever waits in line at a primary that goes away finds the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_finds_the_new_primary() {
    let pair = Pair::start(true).await;
    let (one, other) = (pair.client().await, pair.client().await);
    let held = one.fair_mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..3 {
        let mutex = other.fair_mutex("x").unwrap().ttl(LONG).unwrap().keep(false); // so each is let in for all of it
        waiting.spawn(async move { mutex.lock().await });
    }
    tenure_testkit::faults::line_is(&one, "x", 3).await;
    pair.fail_over();
    in_time("the release", held.release()).await.unwrap();
    // Whichever that is: a machine that takes its time over a failover costs all of them their places.
    while let Some(next) = in_time("the next one gets in", waiting.join_next()).await {
        next.unwrap().unwrap().release().await.unwrap();
    }
    leaves_nothing::<Lease>(&pair.standby, [one, other]).await;
}

/// The old primary lives on and answers whoever is connected to it, and the new one has never heard of the hold: once the client has
/// found that one, its renewals go there too, and not to the old one for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_finds_the_new_primary_takes_all_its_connections_along() {
    let (old, new) = (Postgres::start(PostgresOptions::new()), Postgres::start(PostgresOptions::new()));
    client::<Lease>(&new.url()).await.close().await.unwrap(); // its tables are there
    let way = Proxy::start(old.address());
    let both = format!("{},{}", way.address(), new.address());
    let client = client::<Lease>(&old.url().replacen(&old.address().to_string(), &both, 1)).await;
    let held = client.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();

    way.refuse(true); // whoever is there stays
    assert_eq!(way.cut(Which::SentBefore("tenure_ask".to_owned()), Cut::Reset), 1);
    let other = client.mutex("y").unwrap().ttl(Duration::from_secs(20)).unwrap();
    let other = in_time("it is asked for at the new one", other.lock()).await.unwrap();
    assert_eq!(new.sql("SELECT name FROM tenure_name WHERE held > 0"), [["y"]]);
    in_time("the hold is lost", held.lost()).await;

    let first = other.valid_until();
    eventually("what the new one gave is renewed there", || other.valid_until() > first).await;
    other.release().await.unwrap();
    client.close().await.unwrap();
}
