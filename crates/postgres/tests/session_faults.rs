//! Session mode on bad days: limits that end at the very moment of the grant, hosts that vanish, sessions that are killed,
//! poolers in between.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Client, Environment, ErrorKind, Instant};
use tenure_testkit::proxy::{Fault, Proxy, Toward, Which};
use tenure_testkit::servers::postgres::{BouncerOptions, PgBouncer, PoolMode, Postgres, PostgresOptions};
use tenure_testkit::{Rng, eventually, eventually_async, in_time, tasks_in_turn};
use tokio::task::JoinSet;
use tokio::time::timeout;

async fn client(url: &str) -> Client {
    let backend = tenure_postgres::connect(&url.parse().unwrap()).await.expect("the server is there");
    Client::with_environment(backend, Environment::real()).unwrap()
}

fn url(server: &Postgres) -> String {
    format!("{}?liveness=session", server.url())
}

/// Advisory locks of any session.
fn locks(server: &Postgres) -> usize {
    server.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")[0][0].parse().unwrap()
}

/// F16: a wait that ends, by its own limit or because nobody wants it any more, at about the moment of the grant: 5,000 times,
/// and whatever came of it, nothing stays locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_at_the_moment_of_the_grant() {
    let server = Postgres::start(PostgresOptions::new());
    let (holder, waiter) = (client(&url(&server)).await, client(&url(&server)).await);
    let (mut granted, mut given_up, mut dropped) = (0, 0, 0);
    let mut rng = Rng::from_entropy();
    for round in 0..5_000 {
        let held = holder.mutex("x").unwrap().lock().await.unwrap();
        let patience = Duration::from_micros(1_500) + rng.up_to(Duration::from_micros(1_500));
        let mutex = waiter.mutex("x").unwrap();
        let waiting = tokio::spawn(async move {
            if round % 2 == 0 {
                return Some(mutex.try_lock_for(patience).await.unwrap());
            }
            timeout(patience, mutex.lock()).await.ok().map(|held| Some(held.unwrap()))
        });
        tokio::time::sleep(Duration::from_micros(1_000) + rng.up_to(Duration::from_micros(2_000))).await;
        held.release().await.unwrap();
        match waiting.await.unwrap() {
            Some(Some(held)) => {
                held.check().unwrap();
                held.release().await.unwrap();
                granted += 1;
            }
            Some(None) => given_up += 1,
            None => dropped += 1,
        }
    }
    assert!(granted > 0 && given_up > 0 && dropped > 0, "{granted} {given_up} {dropped}");
    eventually("nothing stays locked", || locks(&server) == 0).await;
    assert!(in_time("it can be had", holder.mutex("x").unwrap().try_lock()).await.unwrap().is_some());
}

/// A hold that has lasted for longer than locks are passed on goes to whoever stands in the server's line, though another task of
/// the holder's client has just asked for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_not_passed_on_for_long() {
    let server = Postgres::start(PostgresOptions::new());
    let (one, other) = (client(&url(&server)).await, client(&url(&server)).await);
    for _ in 0..20 {
        let held = one.mutex("x").unwrap().lock().await.unwrap();
        let mutex = other.mutex("x").unwrap();
        let first = tokio::spawn(async move { mutex.lock().await.unwrap() });
        eventually_async("somebody else waits", async || one.view("x").await.unwrap().line.len() == 1).await;
        tokio::time::sleep(Duration::from_millis(6)).await; // no less, and however much more
        let mutex = one.mutex("x").unwrap();
        let second = tokio::spawn(async move { mutex.lock().await.unwrap() });
        tokio::task::yield_now().await;
        held.release().await.unwrap();
        let first = in_time("whoever stood in line", first).await.unwrap();
        let token = first.token();
        first.release().await.unwrap();
        let second = in_time("whoever asked last", second).await.unwrap();
        assert!(token < second.token(), "{} was let in before {token}", second.token());
        second.release().await.unwrap();
    }
}

/// A session's lock goes from task to task without the server, and nobody else is kept from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_passed_on_and_others_get_their_turn() {
    let server = Postgres::start(PostgresOptions::new());
    tasks_in_turn(client(&url(&server)).await, client(&url(&server)).await).await;
    eventually("nothing stays locked", || locks(&server) == 0).await;
    eventually("nothing is shown", || server.sql("SELECT count(*) FROM tenure_session") == [["0"]]).await;
}

/// F34: a host that vanishes without a word frees its locks within the ttl, rounded up; and knows before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_vanishes() {
    let server = Postgres::start(PostgresOptions::new());
    let ttl = Duration::from_secs(2);
    let mut times = Vec::new();
    // A machine that stands still at the wrong moment is late once, and what is always late is late five times.
    while times.last().is_none_or(|took| *took >= ttl * 4) {
        assert!(times.len() < 5, "freed so long after it vanished: {times:?}");
        times.push(freed_after(&server, ttl).await);
    }
}

/// How long after a host vanished its lock is somebody else's.
async fn freed_after(server: &Postgres, ttl: Duration) -> Duration {
    let proxy = Proxy::start(server.address());
    let through = format!("postgres://postgres@{}/postgres?liveness=session", proxy.address());
    let (far, near) = (client(&through).await, client(&url(server)).await);
    let held = far.mutex("x").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
    let lock = near.mutex("x").unwrap();
    let waiting = tokio::spawn(async move { lock.lock().await });
    proxy.set(Which::All, Fault::Blackhole(Toward::Both));
    let stalled = Instant::now();
    let next = in_time("the next is let in", waiting).await.unwrap().unwrap();
    let took = Instant::now().since(stalled);
    assert!(held.valid_until() < Instant::now(), "the next holder came in before the window was over");
    assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
    assert!(next.token() > held.token());
    took
}

/// A session that the server ends is the loss of all its holds, at once; whoever waits goes on waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_are_killed() {
    let server = Postgres::start(PostgresOptions::new());
    let (one, other) = (client(&url(&server)).await, client(&url(&server)).await);
    let held: Vec<_> = {
        let mut held = Vec::new();
        for name in ["a", "b", "c"] {
            held.push(one.mutex(name).unwrap().ttl(Duration::from_secs(600)).unwrap().lock().await.unwrap());
        }
        held
    };
    let lock = other.mutex("a").unwrap();
    let waiting = tokio::spawn(async move { lock.lock().await });
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    eventually("somebody waits", || server.sql(waits) == [["1"]]).await;
    // The waiter's session first: it asks again on another.
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted");
    eventually("it waits again", || server.sql(waits) == [["1"]]).await;
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted");
    for held in &held {
        in_time("the loss is told", held.lost()).await;
    }
    in_time("the waiter is let in", waiting).await.unwrap().unwrap().release().await.unwrap();
    drop(held);
    eventually("nothing stays locked", || locks(&server) == 0).await;
    eventually_async("nor shown", async || server.sql("SELECT count(*) FROM tenure_session") == [["0"]]).await;
}

/// The server dies and comes back: whoever held knows, whoever waited gets in, tokens rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed() {
    let server = Postgres::start(PostgresOptions::new());
    let (one, other) = (client(&url(&server)).await, client(&url(&server)).await);
    let held = one.mutex("x").unwrap().ttl(Duration::from_secs(600)).unwrap().lock().await.unwrap();
    let lock = other.mutex("x").unwrap();
    let waiting = tokio::spawn(async move { lock.lock().await });
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    eventually("somebody waits", || server.sql(waits) == [["1"]]).await;
    server.kill();
    in_time("the loss is told", held.lost()).await;
    server.restart();
    let next = in_time("the waiter is let in", waiting).await.unwrap().unwrap();
    assert!(next.token() > held.token());
    next.release().await.unwrap();
}

/// A holder that was told to let go and stands still loses its session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_stands_still_is_broken() {
    let server = Postgres::start(PostgresOptions::new());
    let proxy = Proxy::start(server.address());
    let through = format!("postgres://postgres@{}/postgres?liveness=session", proxy.address());
    // Whoever breaks it waits for the holder to let go by itself first, and has time for that.
    let (far, near) = (client(&through).await, client(&format!("{}&answer_limit=60s", url(&server))).await);
    let held = far.mutex("x").unwrap().ttl(Duration::from_secs(600)).unwrap().lock().await.unwrap();
    let is_shown = async || near.view("x").await.unwrap().holders.first().is_some_and(|holder| holder.token == held.token());
    eventually_async("it is shown", is_shown).await;
    proxy.set(Which::All, Fault::Blackhole(Toward::Both));
    assert_eq!(in_time("it is broken", near.break_holds("x", None)).await.unwrap(), 1);
    assert!(near.mutex("x").unwrap().try_lock().await.unwrap().is_some());
}

/// F35: a pooler that lends sessions is refused, with words; one that does not is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poolers() {
    let server = Arc::new(Postgres::start(PostgresOptions::new()));
    for (mode, is_refused) in [(PoolMode::Transaction, true), (PoolMode::Session, false)] {
        let bouncer = PgBouncer::start(&server, BouncerOptions::new(mode));
        let url = format!("{}?liveness=session&prefix=p{}_", bouncer.url(), u8::from(is_refused));
        let connected = tenure_postgres::connect(&url.parse().unwrap()).await;
        match connected {
            Err(error) => {
                assert!(is_refused, "{error}");
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                assert!(error.to_string().contains("pooler"), "{error}");
            }
            Ok(_) => assert!(!is_refused, "a pooler in transaction mode was not noticed"),
        }
    }
}

/// A prefix is used in one way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_and_sessions_do_not_mix() {
    let server = Postgres::start(PostgresOptions::new());
    let _sessions = client(&url(&server)).await;
    let refused = tenure_postgres::connect(&server.url().parse().unwrap()).await;
    assert_eq!(refused.err().expect("it is used for sessions").kind(), ErrorKind::Mismatch);
}

/// More waiters than sessions: they wait for their turn here, and all are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_waiters_than_sessions() {
    let server = Postgres::start(PostgresOptions::new());
    let client = client(&format!("{}&max_sessions=5", url(&server))).await;
    let held = client.mutex("x").unwrap().lock().await.unwrap();
    let waiting: Vec<_> = (0..40)
        .map(|_| {
            let mutex = client.mutex("x").unwrap();
            tokio::spawn(async move { mutex.lock().await.unwrap().release().await.unwrap() })
        })
        .collect();
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    eventually("five wait", || server.sql(waits) == [["5"]]).await;
    held.release().await.unwrap();
    for waiting in waiting {
        in_time("all are served", waiting).await.unwrap();
    }
}

/// The session ends while its hold is being made a reader's: whoever holds is told at once, and not by its next renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ends_while_a_mode_is_changed() {
    let server = Postgres::start(PostgresOptions::new());
    let one = client(&url(&server)).await;
    let mut held = one.rw_lock("x").unwrap().ttl(Duration::from_secs(600)).unwrap().write().await.unwrap();
    eventually("it is shown", || server.sql("SELECT count(*) FROM tenure_session") == [["1"]]).await;
    // What others see of it cannot be changed meanwhile, so that the change is under way.
    let (db, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    db.batch_execute("BEGIN; LOCK TABLE tenure_session IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let changing = tokio::spawn(async move { (held.downgrade().await, held) });
    let mut pid = None;
    eventually("it is under way", || {
        let waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%convert%' \
                     AND pid <> pg_backend_pid()";
        pid = server.sql(waits).into_iter().flatten().next();
        pid.is_some()
    })
    .await;
    server.sql(&format!("SELECT pg_terminate_backend({})", pid.unwrap()));
    db.batch_execute("ROLLBACK").await.unwrap();
    let (changed, held) = changing.await.unwrap();
    changed.unwrap_err();
    in_time("the loss is told", held.lost()).await;
}

/// A client that has room for one session besides the shared one, and holds on that: what it asks for next it gets all the same, once
/// that is free. Whoever has the room may wait for just that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_for_one_session() {
    let server = Postgres::start(PostgresOptions::new());
    let (one, other) = (client(&format!("{}&max_sessions=1", url(&server))).await, client(&url(&server)).await);
    let mut held = Vec::new();
    for name in ["x", "y"] {
        let in_the_way = other.mutex(name).unwrap().lock().await.unwrap();
        let mutex = one.mutex(name).unwrap();
        let mut asking = tokio::spawn(async move { mutex.lock().await });
        assert!(timeout(Duration::from_millis(100), &mut asking).await.is_err(), "{name} is not free");
        in_the_way.release().await.unwrap();
        held.push(in_time("it is let in", asking).await.unwrap().unwrap());
    }
    for held in held {
        held.release().await.unwrap();
    }
}

/// A server that nobody can reach any more: whoever needs a new session is told so, and nobody waits for all who came before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_out_of_reach() {
    let server = Postgres::start(PostgresOptions::new());
    let proxy = Proxy::start(server.address());
    let through = format!("postgres://postgres@{}/postgres?liveness=session&answer_limit=2s", proxy.address());
    // A machine that stands still for so long is as bad as a network.
    let client = in_time("it is there", async {
        loop {
            if let Ok(backend) = tenure_postgres::connect(&through.parse().unwrap()).await {
                break Client::with_environment(backend, Environment::real()).unwrap();
            }
        }
    })
    .await;
    client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
    proxy.set(Which::All, Fault::Blackhole(Toward::Both));
    let mut asking = JoinSet::new();
    for task in 0..8 {
        // With another ttl it needs another session.
        let mutex = client.mutex(format!("y{task}")).unwrap().ttl(Duration::from_secs(600)).unwrap();
        asking.spawn(async move { mutex.try_lock().await });
    }
    for told in in_time("all are told", asking.join_all()).await {
        assert_eq!(told.map(|held| held.is_some()).unwrap_err().kind(), ErrorKind::Unavailable);
    }
}
