//! F29, F31: a server that is killed and comes back, with what it kept or with nothing; and one that was flushed.

use std::time::Duration;

use tenure_core::{Client, Event, Instant, Phase};
use tenure_testkit::proxy::{Fault, Toward, Which};
use tenure_testkit::servers::Backup;
use tenure_testkit::servers::redis::{Fsync, Redis, RedisOptions};
use tenure_testkit::{Options as _, Shape, Silence, eventually, in_time};

use crate::stage::{Crowd, LONG, Record, Stage, client, leaves_nothing, line_is};

/// So long that its end is not what a holder learns of its loss by, so short that a renewal comes soon.
const TTL: Duration = Duration::from_secs(9);

/// Kills it and starts it again.
fn reborn(server: &Redis) {
    server.kill();
    server.restart();
}

fn flushed(server: &Redis) {
    server.command(&["FLUSHALL"]);
}

/// Everything is forgotten: the waiter gets in, with a higher token; the holder is told at its next renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_was_forgotten_is_told_before_its_window_ends() {
    for forget in [reborn, flushed] {
        let server = Redis::start(RedisOptions::new());
        let (one, other) = (client(&server.url()).await, client(&server.url()).await);
        let held = one.mutex("x").unwrap().ttl(TTL).unwrap().lock().await.unwrap();
        let mut events = held.events();
        let waiting = waiter(&other);
        line_is(&other, "x", 1).await;
        forget(&server);
        let next = in_time("the waiter goes on", waiting).await.unwrap();
        assert!(next.token() > held.token(), "tokens go on rising");
        let last = loop {
            let event = in_time("the holder is told", events.next()).await.expect("it ends with a loss");
            if matches!(event, Event::Lost(_)) {
                break Instant::now();
            }
        };
        assert!(last < held.valid_until(), "by the store, not by its own clock");
        assert_eq!(held.phase(), Phase::Lost);
        drop(held);
        next.check().unwrap();
        next.release().await.unwrap();
        leaves_nothing(&server, [one, other]).await;
    }
}

/// Whoever cannot ask meanwhile goes on trusting its window, while somebody else is let in. The fence holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusion_is_seen_to_break_where_the_server_forgets() {
    for forget in [reborn, flushed] {
        let (stage, record) = (Stage::new(), Record::new());
        let (one, other) = (stage.proxied().await, stage.direct().await);
        let old = record.lock(&Shape::Mutex.make(&one, "x").unwrap().ttl(LONG).unwrap(), "x").await;
        assert!(old.writes());
        stage.proxy.set(Which::All, Fault::Hold(Toward::Both));
        forget(&stage.server);
        let new = record.lock(&Shape::Mutex.make(&other, "x").unwrap(), "x").await;
        assert!(old.checks() && new.checks(), "both trust their windows");
        assert!(new.token() > old.token());
        assert!(new.writes());
        assert!(!old.writes(), "the resource knows better");
        record.expect_only_exclusion_broken();
        new.releases().await.unwrap();
        stage.proxy.heal();
        let _ = in_time("an answer", old.releases()).await;
        leaves_nothing(&stage.server, [one, other]).await;
    }
}

/// With an append-only file nothing is forgotten, under load, and whoever holds is in doubt only for a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_keeps_its_file_breaks_nothing() {
    let (server, record) = (Redis::start(RedisOptions::new().aof(Fsync::Always)), Record::new());
    let clients = [client(&server.url()).await, client(&server.url()).await];
    let kept = clients[0].mutex("kept").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let (mut events, token) = (kept.events(), kept.token());
    let crowd = Crowd::start(&record, "x", Shape::FairMutex, &clients, 6, client(&server.url()).await);
    crowd.has_had(&record, 30).await;
    let mut longest = Duration::ZERO;
    for _ in 0..3 {
        let killed = Instant::now();
        reborn(&server);
        let doubted = in_time("the holder is in doubt", events.next()).await;
        assert!(matches!(doubted, Some(Event::Jeopardy { .. })), "{doubted:?}");
        assert_eq!(in_time("it is safe again", events.next()).await, Some(Event::Safe));
        assert_eq!((kept.phase(), kept.token()), (Phase::Held, token));
        crowd.has_had(&record, 30).await; // by then everybody has found it again
        longest = longest.max(Instant::now().since(killed));
    }
    crowd.stop().await;
    record.expect_sound_after(longest);
    kept.release().await.unwrap();
    leaves_nothing(&server, clients).await;
}

/// Load goes on while the server forgets everything, again and again: nobody hangs, and tokens never fall.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_outlives_a_server_that_forgets() {
    for forget in [reborn, flushed] {
        let (server, record) = (Redis::start(RedisOptions::new()), Record::new());
        let clients = [client(&server.url()).await, client(&server.url()).await];
        let crowd = Crowd::start(&record, "x", Shape::Mutex, &clients, 8, client(&server.url()).await);
        for _ in 0..5 {
            crowd.has_had(&record, 40).await;
            forget(&server);
        }
        crowd.has_had(&record, 40).await;
        crowd.stop().await;
        record.expect_fence_held();
        leaves_nothing(&server, clients).await;
    }
}

/// The scripts are forgotten in the middle of load: they are taught again, and nobody notices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_its_scripts_is_taught_again() {
    let (server, record) = (Redis::start(RedisOptions::new()), Record::new());
    let clients = [client(&server.url()).await, client(&server.url()).await];
    let kept = clients[0].mutex("kept").unwrap().ttl(TTL).unwrap().lock().await.unwrap();
    let observer = client(&server.url()).await;
    let silence = Silence::watched_by(&observer);
    let crowd = Crowd::start(&record, "x", Shape::FairMutex, &clients, 8, observer);
    let first = kept.valid_until();
    eventually("it is renewed", || kept.valid_until() > first).await;
    for _ in 0..10 {
        server.command(&["SCRIPT", "FLUSH"]);
        crowd.has_had(&record, 30).await;
    }
    let until = kept.valid_until();
    eventually("it is renewed without its script", || kept.valid_until() > until).await;
    crowd.stop().await;
    record.expect_sound_after(silence.longest().await);
    kept.release().await.unwrap();
    leaves_nothing(&server, clients).await;
}

fn waiter(client: &Client) -> tokio::task::JoinHandle<tenure_core::Guard> {
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
    tokio::spawn(async move { mutex.lock().await.unwrap() })
}

/// Somebody puts back what the server was an hour ago: it has forgotten every token since, and gives higher ones all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_backup_does_not_start_over() {
    let server = Redis::start(RedisOptions::new().aof(Fsync::Always));
    let take = async || {
        let client = client(&server.url()).await;
        let held = in_time("it is free", client.mutex("x").unwrap().lock()).await.unwrap();
        let token = held.token();
        held.release().await.unwrap();
        token
    };
    let first = take().await;
    server.kill();
    let backup = Backup::of(&server.dir().join("appendonlydir"));
    server.restart();
    let last = take().await;
    assert!(last > first);
    server.kill();
    backup.put_back();
    server.restart();
    assert!(take().await > last, "it goes on above what it has forgotten");
}
