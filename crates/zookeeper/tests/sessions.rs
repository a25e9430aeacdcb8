//! What a session is to its claims: one for each ttl, cut down to what the servers grant, and gone when the client is.

#[path = "common/raw.rs"]
mod raw;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use raw::Raw;
use tenure_core::{Backend, Claim, Client, Environment, ErrorKind, Event, Instant, Kind, Renewal, Wait};
use tenure_testkit::servers::zookeeper::{Ensemble, ZooKeeper, ZooKeeperOptions};
use tenure_testkit::{claim, eventually, eventually_async, in_time, unless_stalled};

async fn open(url: &str) -> Client {
    Client::with_environment(store(url).await, Environment::real()).unwrap()
}

async fn store(url: &str) -> Arc<dyn Backend> {
    // A busy machine may take longer over an answer than a network would.
    let url = format!("{url}{}connect_limit=20s&answer_limit=20s", if url.contains('?') { '&' } else { '?' });
    tenure_zookeeper::connect(&url.parse().unwrap()).await.unwrap()
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
        assert!(!matches!(event, Event::Lost(_)), "{event:?}");
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

/// Polls once: whoever drops the future then has sent what it sends first.
async fn once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

/// The nodes of readers and of writers of a name.
fn readers_and_writers(server: &ZooKeeper, path: &str) -> (usize, usize) {
    let mut raw = Raw::connect(server.address());
    raw.sync(path);
    let nodes = raw.children(path).unwrap_or_default();
    let count = |what: &str| nodes.iter().filter(|node| node.starts_with(what)).count();
    (count("rw.r-"), count("rw.w-"))
}

/// A writer steps down and does not wait to hear of it: it goes on as a reader, by its new node,
/// and that is watched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downgrade_that_was_dropped_is_done() {
    let server = ZooKeeper::start(ZooKeeperOptions::new());
    let (one, other) = (open(&server.url()).await, open(&server.url()).await);
    for is_watched in [true, false] {
        let mut held = one.rw_lock("x").unwrap().write().await.unwrap();
        if is_watched {
            eventually("its node is watched", || server.count("zk_watch_count") >= 1).await;
        }
        if let Some(done) = once(pin!(held.downgrade())).await {
            done.unwrap(); // the machine held this task up: as good, but nothing was dropped
        }
        let second = in_time("readers share", other.rw_lock("x").unwrap().read()).await.unwrap();
        assert_eq!(readers_and_writers(&server, "/tenure/x"), (2, 0));
        held.check().unwrap();
        assert_eq!(one.view("x").await.unwrap().holders[0].token, held.token());
        assert_eq!(other.break_holds("x", Some(held.token())).await.unwrap(), 1);
        in_time("the break is told", held.lost()).await;
        second.release().await.unwrap();
    }
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

/// Nobody renews a hold, and nobody lets go of it: it is over at its ttl, and not when its session is, which lives on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_was_left_to_expire_is_ended() {
    let server = ZooKeeper::start(ZooKeeperOptions::new().arg("minSessionTimeout", "20000"));
    let (store, other) = (store(&server.url()).await, open(&server.url()).await);
    let left = Claim { ttl: Duration::from_secs(1), ..claim(Kind::Mutex, 1) };
    // Without a client there is nobody else who would end it.
    let grant = store.acquire(&left, Wait::Forever).await.unwrap().unwrap();
    let next = in_time("the next one gets in", other.mutex("x").unwrap().lock()).await.unwrap();
    assert!(Instant::now() >= grant.until && next.token() > grant.token);
    assert!(matches!(store.renew(&[left]).await[..], [Ok(Renewal::Lost)]), "what is over stays over");
    next.release().await.unwrap();
}

/// Somebody of another kind stands in front, refused by a holder that has gone since, and is about to leave: nobody else is refused
/// because of it. (Where a machine stands still, it takes too long over that.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_about_to_leave_decides_nothing() {
    let server = ZooKeeper::start(ZooKeeperOptions::new());
    let client = open(&server.url()).await;
    let raw = || Raw::connect(server.address());
    let held = client.mutex("x").unwrap().lock().await.unwrap(); // so that there is a root
    raw().create("/tenure/y", b"").unwrap();
    held.release().await.unwrap();
    let refused_soon = "/tenure/y/fair-0000000000000007-0000000000";
    let is_let_in = async || {
        raw().create(refused_soon, b"").unwrap();
        let mutex = client.mutex("y").unwrap();
        let asking = tokio::spawn(async move { mutex.lock().await });
        let in_line = || raw().children("/tenure/y").unwrap().len() == 2;
        eventually("it is in line, or refused", || in_line() || asking.is_finished()).await;
        raw().delete(refused_soon).unwrap();
        match in_time("an answer", asking).await.unwrap() {
            Ok(held) => {
                held.release().await.unwrap();
                Some(())
            }
            Err(refused) => {
                assert_eq!(refused.kind(), ErrorKind::Mismatch, "{refused}");
                None
            }
        }
    };
    unless_stalled("nobody is refused for somebody who leaves", Duration::from_millis(50), is_let_in).await;
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
