//! Whoever only holds: it hears of a restart at once, and its renewals wait behind nobody's asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tenure_core::{ErrorKind, Event, Instant, Phase};
use tenure_testkit::proxy::{Fault, Proxy, Toward, Which};
use tenure_testkit::servers::redis::{Fsync, Redis, RedisOptions};
use tenure_testkit::{eventually, in_time};

use crate::stage::{LONG, client, leaves_nothing};

/// Its next renewal is minutes away, so that is not how it learns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_lost_with_a_server_that_forgot() {
    let server = Redis::start(RedisOptions::new());
    let client = client(&server.url()).await;
    let held = client.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut events = held.events();
    server.kill();
    server.restart();
    let doubted = in_time("it is in doubt", events.next()).await;
    assert!(matches!(doubted, Some(Event::Jeopardy { .. })), "{doubted:?}");
    assert!(matches!(in_time("it is told", events.next()).await, Some(Event::Lost(_))));
    assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
    drop(held);
    leaves_nothing(&server, [client]).await;
}

/// Twice: the second time it must be heard of too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_in_doubt_and_safe_again_with_a_server_that_did_not() {
    let server = Redis::start(RedisOptions::new().aof(Fsync::Always));
    let client = client(&server.url()).await;
    let held = client.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let (mut events, token) = (held.events(), held.token());
    for _ in 0..2 {
        server.kill();
        server.restart();
        let doubted = in_time("it is in doubt", events.next()).await;
        assert!(matches!(doubted, Some(Event::Jeopardy { .. })), "{doubted:?}");
        assert_eq!(in_time("it is safe again", events.next()).await, Some(Event::Safe));
        assert_eq!((held.phase(), held.token()), (Phase::Held, token));
    }
    held.release().await.unwrap();
    leaves_nothing(&server, [client]).await;
}

/// Thirty-two wait for a slow replica at a time, which on one connection takes longer than the ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_renewed_while_others_wait_for_replicas() {
    const ASKERS: u32 = 32;
    const SLOW: Duration = Duration::from_millis(300);
    const TTL: Duration = Duration::from_secs(9);
    const { assert!(SLOW.as_millis() * ASKERS as u128 > TTL.as_millis()) };
    let (master, replica) = (Redis::start(RedisOptions::new()), Redis::start(RedisOptions::new()));
    let link = Proxy::start(master.address());
    replica.command(&["REPLICAOF", "127.0.0.1", &link.port().to_string()]);
    eventually("the replica follows", || replica.follows() && master.info("replication")["connected_slaves"] == "1").await;
    let client = client(&format!("{}?min_replicas=1&replica_wait=5s", master.url())).await;
    link.set(Which::All, Fault::Delay(Toward::Client, SLOW));
    let (over, grants) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let askers: Vec<_> = (0..ASKERS)
        .map(|number| {
            let (mutex, over, grants) =
                (client.mutex(format!("other-{number}")).unwrap(), Arc::clone(&over), Arc::clone(&grants));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    mutex.lock().await.unwrap().release().await.unwrap();
                    grants.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    eventually("they are at it", || grants.load(Ordering::Relaxed) >= ASKERS).await;
    let mutex = client.mutex("x").unwrap().ttl(TTL).unwrap();
    let held = in_time("a grant within its window", mutex.lock()).await.unwrap();
    let (begun, others) = (Instant::now(), grants.load(Ordering::Relaxed));
    let is_over = || held.valid_until() > begun + TTL * 3 || held.phase() == Phase::Lost;
    eventually("three ttls", is_over).await;
    held.check().expect("it is renewed");
    assert!(grants.load(Ordering::Relaxed) > others + ASKERS, "and they were served");
    over.store(true, Ordering::Relaxed);
    for asker in askers {
        in_time("everybody is served", asker).await.unwrap();
    }
    held.release().await.unwrap();
    leaves_nothing(&master, [client]).await;
}
