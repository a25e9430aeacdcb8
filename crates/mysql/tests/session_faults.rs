//! Session mode on bad days: waits that end at the very moment of the grant, hosts that vanish, sessions that are killed, a
//! cluster whose nodes do not share locks.

use std::time::Duration;

use tenure_core::{Client, Environment, ErrorKind, Instant};
use tenure_testkit::proxy::{Fault, Proxy, Toward, Which};
use tenure_testkit::servers::mariadb::{Galera, MariaDb, MariaDbOptions};
use tenure_testkit::{
    Rng, a_long_hold_goes_to_the_line, an_unreachable_server_is_told, eventually, eventually_async, in_time, tasks_in_turn,
    whoever_has_no_room_gets_in,
};

async fn client(url: &str) -> Client {
    let backend = tenure_mysql::connect(&url.parse().unwrap()).await.expect("the server is there");
    Client::with_environment(backend, Environment::real()).unwrap()
}

fn url(server: &MariaDb) -> String {
    format!("{}?liveness=session", server.url())
}

fn waiting(server: &MariaDb) -> Vec<Vec<String>> {
    server.sql("SELECT ID FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'")
}

/// It is let go of in the server once it was had for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_not_passed_on_for_long() {
    let server = MariaDb::start(MariaDbOptions::new());
    a_long_hold_goes_to_the_line(client(&url(&server)).await, client(&url(&server)).await).await;
}

/// A session's lock goes from task to task without the server, and nobody else is kept from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_passed_on_and_others_get_their_turn() {
    let server = MariaDb::start(MariaDbOptions::new());
    tasks_in_turn(client(&url(&server)).await, client(&url(&server)).await).await;
    eventually("nothing is shown", || server.sql("SELECT COUNT(*) FROM tenure_session") == [["0"]]).await;
}

/// F16: a wait that ends, by its own limit or because nobody wants it any more, at about the moment of the grant: whatever came
/// of it, nothing stays locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_at_the_moment_of_the_grant() {
    let server = MariaDb::start(MariaDbOptions::new());
    let (holder, waiter) = (client(&url(&server)).await, client(&url(&server)).await);
    let (mut granted, mut given_up, mut dropped) = (0, 0, 0);
    let mut rng = Rng::from_entropy();
    for round in 0..2_000 {
        let held = in_time("nothing stays locked", holder.mutex("x").unwrap().lock()).await.unwrap();
        let patience = Duration::from_micros(1_500) + rng.up_to(Duration::from_micros(1_500));
        let mutex = waiter.mutex("x").unwrap();
        let waiting = tokio::spawn(async move {
            if round % 2 == 0 {
                return Some(mutex.try_lock_for(patience).await.unwrap());
            }
            tokio::time::timeout(patience, mutex.lock()).await.ok().map(|held| Some(held.unwrap()))
        });
        tokio::time::sleep(Duration::from_micros(1_000) + rng.up_to(Duration::from_micros(2_000))).await;
        held.release().await.unwrap();
        match waiting.await.unwrap() {
            Some(Some(held)) => {
                held.release().await.unwrap();
                granted += 1;
            }
            Some(None) => given_up += 1,
            None => dropped += 1,
        }
    }
    assert!(granted > 0 && given_up > 0 && dropped > 0, "{granted} {given_up} {dropped}");
    waiter.close().await.unwrap();
    eventually("nothing is shown", || server.sql("SELECT COUNT(*) FROM tenure_session") == [["0"]]).await;
    assert!(in_time("it can be had", holder.mutex("x").unwrap().try_lock()).await.unwrap().is_some());
}

/// F34: a host that vanishes without a word frees its locks within the ttl, rounded up; and knows before. So it is with what it waited
/// for: the server gives it that when its turn comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_vanishes() {
    let server = MariaDb::start(MariaDbOptions::new());
    let ttl = Duration::from_secs(2);
    let mut times = Vec::new();
    // A machine that stands still at the wrong moment is late once, and what is always late is late five times.
    while times.last().is_none_or(|took| *took >= ttl * 4) {
        assert!(times.len() < 5, "freed so long after it vanished: {times:?}");
        times.push(freed_after(&server, ttl).await);
    }
}

/// Whether so many stand in line where they will stay: after the first moment each goes to its end.
fn are_seen_to_wait(server: &MariaDb, many: usize) -> bool {
    let seen = server.sql("SELECT COUNT(*) FROM tenure_session WHERE token IS NULL");
    waiting(server).len() == many && seen == [[many.to_string()]]
}

/// How many of that host wait.
const OTHERS: usize = 6;

/// How long after a host vanished its lock is somebody else's.
async fn freed_after(server: &MariaDb, ttl: Duration) -> Duration {
    let proxy = Proxy::start(server.address());
    let through = url(server).replace(&server.address().to_string(), &proxy.address().to_string());
    let (far, near) = (client(&through).await, client(&url(server)).await);
    let held = far.mutex("x").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
    let mut others = tokio::task::JoinSet::new();
    for _ in 0..OTHERS {
        let mutex = far.mutex("x").unwrap().ttl(ttl).unwrap();
        others.spawn(async move { mutex.lock().await });
    }
    eventually("they wait", || are_seen_to_wait(server, OTHERS)).await;
    let lock = near.mutex("x").unwrap();
    let asking = tokio::spawn(async move { lock.lock().await });
    eventually("it waits behind them", || are_seen_to_wait(server, OTHERS + 1)).await;
    proxy.set(Which::All, Fault::Blackhole(Toward::Both));
    let vanished = Instant::now();
    let next = in_time("the next is let in", asking).await.unwrap().unwrap();
    let took = Instant::now().since(vanished);
    assert!(held.valid_until() < Instant::now(), "the next holder came in before the window was over");
    assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
    assert!(next.token() > held.token());
    eprintln!("{took:?} after its host vanished the lock was another's");
    took
}

/// A session that the server ends is the loss of all its holds, at once; whoever waits goes on waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_are_killed() {
    let server = MariaDb::start(MariaDbOptions::new());
    let (one, other) = (client(&url(&server)).await, client(&url(&server)).await);
    let held = one.mutex("x").unwrap().ttl(Duration::from_secs(600)).unwrap().lock().await.unwrap();
    let lock = other.mutex("x").unwrap();
    let asking = tokio::spawn(async move { lock.lock().await });
    // Looked at again, it may be between two waits.
    let mut first = None;
    eventually("somebody waits", || {
        first = waiting(&server).into_iter().flatten().next();
        first.is_some()
    })
    .await;
    let first = first.unwrap();
    server.sql(&format!("KILL {first}"));
    eventually("it waits again", || waiting(&server).first().is_some_and(|row| row[0] != first)).await;
    let mut holder = None;
    eventually("the holder is shown", || {
        holder = server.sql("SELECT conn FROM tenure_session WHERE token IS NOT NULL").into_iter().flatten().next();
        holder.is_some()
    })
    .await;
    server.sql(&format!("KILL {}", holder.unwrap()));
    let next = in_time("the waiter is let in", asking).await.unwrap().unwrap();
    assert!(next.token() > held.token());
    in_time("the loss is told", held.lost()).await;
    next.release().await.unwrap();
}

/// A prefix is used in one way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_sessions_do_not_mix() {
    let server = MariaDb::start(MariaDbOptions::new());
    let _sessions = client(&url(&server)).await;
    let refused = tenure_mysql::connect(&server.url().parse().unwrap()).await;
    assert!(refused.err().expect("it is used for sessions").to_string().contains("liveness=session"));
}

/// F36: each node of a cluster has locks of its own, so both would grant: it is refused, with words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_galera_cluster_is_refused() {
    let cluster = Galera::start();
    let refused = tenure_mysql::connect(&url(&cluster.nodes()[0]).parse().unwrap()).await.err().expect("it is refused");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("Galera"), "{refused}");
}

/// A server stands still while an ask and every end of it are under way, for longer than anybody asks for the end. The ask is granted when the
/// server goes on, on a session that others of the client keep alive: it is ended all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_could_end_is_ended_later() {
    let server = MariaDb::start(MariaDbOptions::new());
    let (one, other) = (client(&url(&server)).await, client(&url(&server)).await);
    let ttl = Duration::from_millis(200);
    let make = |name| one.mutex(name).unwrap().ttl(ttl).unwrap();
    let (lost, used) = (make("x"), make("used"));
    // A slow machine may lose so short a hold before it is let go of, and then there is another.
    let was_used = async || match used.lock().await {
        Ok(held) => held.release().await.is_ok(),
        Err(_) => false,
    };
    eventually_async("its session is there, and idle", was_used).await;
    server.pause();
    assert!(tokio::time::timeout(ttl / 4, lost.try_lock()).await.is_err(), "nobody answers");
    tokio::time::sleep(ttl * 5).await; // the fault itself is a length of time
    server.resume();
    let using = tokio::spawn(async move {
        loop {
            let _ = used.try_lock().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    in_time("it is free", other.mutex("x").unwrap().lock()).await.unwrap().release().await.unwrap();
    using.abort();
}

/// `max_sessions` is about connections, and in nobody's way for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_for_one_session() {
    let server = MariaDb::start(MariaDbOptions::new());
    let (one, other) = (client(&format!("{}&max_sessions=1", url(&server))).await, client(&url(&server)).await);
    whoever_has_no_room_gets_in(&one, &other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_out_of_reach() {
    let server = MariaDb::start(MariaDbOptions::new());
    let proxy = Proxy::start(server.address());
    let through =
        format!("{}&answer_limit=2s", url(&server).replace(&server.address().to_string(), &proxy.address().to_string()));
    // A machine that stands still for so long is as bad as a network.
    let client = in_time("it is there", async {
        loop {
            if let Ok(backend) = tenure_mysql::connect(&through.parse().unwrap()).await {
                break Client::with_environment(backend, Environment::real()).unwrap();
            }
        }
    })
    .await;
    let cut = || {
        proxy.set(Which::All, Fault::Blackhole(Toward::Both));
    };
    an_unreachable_server_is_told(&client, cut).await;
}
