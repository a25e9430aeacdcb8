//! What a session is to its claims: one for each ttl, cut down to what the servers grant, and gone when the client is.

#[path = "common/raw.rs"]
mod raw;

use std::time::Duration;

use raw::Raw;
use tenure_core::{Client, Environment, Event, Instant};
use tenure_testkit::servers::zookeeper::{Ensemble, ZooKeeper, ZooKeeperOptions};
use tenure_testkit::{eventually, eventually_async, in_time};

async fn open(url: &str) -> Client {
    // A busy machine may take longer over an answer than a network would.
    let url = format!("{url}{}connect_limit=20s&answer_limit=20s", if url.contains('?') { '&' } else { '?' });
    let backend = tenure_zookeeper::connect(&url.parse().unwrap()).await.unwrap();
    Client::with_environment(backend, Environment::real()).unwrap()
}

/// The servers grant twelve seconds at most. A hold for ten minutes is trusted for less than that, and renewed in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_beyond_what_is_granted_is_cut_down_and_kept() {
    let server = ZooKeeper::start(ZooKeeperOptions::new().arg("maxSessionTimeout", "12000"));
    let (one, other) = (open(&server.url()).await, open(&server.url()).await);
    let granted = Duration::from_secs(12);
    let held = one.mutex("x").unwrap().ttl(Duration::from_secs(600)).unwrap().lock().await.unwrap();
    let first = held.valid_until();
    assert!(first < Instant::now() + granted, "no more is trusted than is granted");
    let mut events = held.events();
    eventually("it is renewed for longer than that", || held.valid_until() > first + granted).await;
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    held.release().await.unwrap();
    while let Some(event) = events.next().await {
        assert_ne!(event, Event::Lost);
    }
    let findings = one.examine().await.unwrap();
    let says = |what: &str| findings.iter().find(|finding| finding.what == what).map(|finding| finding.says.clone());
    assert!(says("session timeout").unwrap().contains("12s"), "{findings:?}");
    assert!(says("ensemble").unwrap().contains("one server"), "{findings:?}");
}

/// Any number of locks with one ttl is one session; another ttl is another; and when the client is gone, so are they.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_for_each_ttl() {
    let server = ZooKeeper::start(ZooKeeperOptions::new());
    let sessions = || server.count("zk_global_sessions");
    let client = open(&server.url()).await;
    let one = sessions();
    assert_eq!(one, 1);
    let mut held = Vec::new();
    for n in 0..20 {
        held.push(client.mutex(format!("x{n}")).unwrap().lock().await.unwrap());
    }
    assert_eq!(sessions(), one);
    for n in 0..20 {
        let short = client.mutex(format!("y{n}")).unwrap().ttl(Duration::from_secs(20)).unwrap();
        held.push(short.lock().await.unwrap());
    }
    assert_eq!(sessions(), 2);
    drop((held, client));
    eventually("it leaves no session", || sessions() == 0).await;
}

/// Whose waiting node somebody deletes by hand asks anew, at the end of the line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_node_was_taken_away_asks_anew() {
    let ensemble = Ensemble::shared();
    let client = open(&format!("{}?root=/taken-away", ensemble.url())).await;
    let make = || client.mutex("x").unwrap();
    let held = make().lock().await.unwrap();
    let middle = tokio::spawn({
        let mutex = make();
        async move { mutex.lock().await }
    });
    let line_is = async |long| client.view("x").await.unwrap().line.len() == long;
    eventually_async("one waits", async || line_is(1).await).await;
    let other = open(&format!("{}?root=/taken-away", ensemble.url())).await;
    let last = tokio::spawn({
        let mutex = other.mutex("x").unwrap();
        async move { mutex.lock().await }
    });
    eventually_async("two wait", async || line_is(2).await).await;
    let mut raw = Raw::connect(ensemble.member(0).address());
    raw.sync("/taken-away/x");
    let mut children = raw.children("/taken-away/x").unwrap();
    children.sort_by_key(|child| child.rsplit('-').next().unwrap().to_owned());
    // The last one's, which watches and is not watched: nobody takes its going for a grant.
    raw.delete(&format!("/taken-away/x/{}", children[2])).unwrap();
    held.release().await.unwrap();
    let middle = in_time("the first is let in", middle).await.unwrap().unwrap();
    let token = middle.token();
    middle.release().await.unwrap();
    let last = in_time("the one whose node went is let in, too", last).await.unwrap().unwrap();
    assert!(last.token() > token);
    assert_eq!(client.view("x").await.unwrap().holders[0].token, last.token(), "by a node that is there");
    last.release().await.unwrap();
}

/// A claim that moved to a short session while it waited has its first place's token, also when it has said that it is in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permit_that_moved_keeps_its_token() {
    let server = ZooKeeper::start(ZooKeeperOptions::new());
    let (one, other) = (open(&server.url()).await, open(&server.url()).await);
    let permits = |client: &Client| client.semaphore("x", 1).unwrap().ttl(Duration::from_secs(60)).unwrap();
    let first = permits(&one).acquire(1).await.unwrap();
    let waiting = tokio::spawn({
        let permits = permits(&other);
        async move { permits.acquire(1).await }
    });
    eventually_async("one waits", async || one.view("x").await.unwrap().line.len() == 1).await;
    first.release().await.unwrap();
    let held = in_time("it is let in", waiting).await.unwrap().unwrap();
    // On the session that it waited with, and so after whatever it has said there.
    other.mutex("y").unwrap().lock().await.unwrap().release().await.unwrap();
    assert_eq!(one.view("x").await.unwrap().holders[0].token, held.token());
    held.release().await.unwrap();
}

/// A hold is dropped while the server is away, for longer than anybody tries to end it. Its session outlives that, and so would its
/// node: it is ended when the server is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_dropped_while_nobody_was_there_is_ended() {
    let server = ZooKeeper::start(ZooKeeperOptions::new().arg("minSessionTimeout", "20000"));
    let (one, other) = (open(&server.url()).await, open(&server.url()).await);
    let ttl = Duration::from_secs(1);
    let held = one.mutex("x").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
    server.kill();
    drop(held);
    tokio::time::sleep(ttl * 4).await; // the fault itself is a length of time
    server.restart();
    in_time("it is free", other.mutex("x").unwrap().lock()).await.unwrap().release().await.unwrap();
    // On the same session, for as long as that lasts: a pause in the answer does not make it too late.
    let again = one.mutex("y").unwrap().ttl(Duration::from_secs(20)).unwrap();
    drop(again.try_lock().await.unwrap().expect("the client goes on"));
}

/// The server comes back with shorter timeouts, and counts by those from then on: whoever has trusted the longer one is told before
/// that can matter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_that_became_shorter_is_a_loss() {
    let server = ZooKeeper::start(ZooKeeperOptions::new().arg("maxSessionTimeout", "40000"));
    let (one, other) = (open(&server.url()).await, open(&server.url()).await);
    let held = one.mutex("x").unwrap().ttl(Duration::from_secs(40)).unwrap().lock().await.unwrap();
    let file = server.dir().join("zoo.cfg");
    let lines = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{lines}maxSessionTimeout=10000\n")).unwrap();
    server.kill();
    server.restart();
    in_time("the loss is told", held.lost()).await;
    let next = in_time("the next one gets in", other.mutex("x").unwrap().lock()).await.unwrap();
    assert!(next.token() > held.token() && held.check().is_err());
}
