//! The blocking API over a server: no thread of the caller's drives a runtime while nobody calls.
#![cfg(feature = "redis")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::{Instant, blocking};
use tenure_testkit::servers::redis::{Redis, RedisOptions};

#[test]
fn threads_exclude_each_other() {
    let server = Redis::start(RedisOptions::new());
    let clients = [0, 1].map(|_| blocking::connect(server.url()).unwrap());
    let (inside, sum) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for client in &clients {
            for _ in 0..2 {
                scope.spawn(|| {
                    // Not kept, so that whoever waited has all of its ttl from the start.
                    let mutex = client.mutex("x").unwrap().keep(false);
                    for _ in 0..50 {
                        let guard = mutex.lock().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        sum.fetch_add(1, Ordering::Relaxed);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        guard.release().unwrap();
                    }
                });
            }
        }
    });
    assert_eq!(sum.load(Ordering::Relaxed), 200);
    for client in clients {
        client.close().unwrap();
        assert!(client.view("x").unwrap().is_free());
    }
}

#[test]
fn a_thread_that_computes_keeps_its_lock() {
    let ttl = Duration::from_secs(9);
    let server = Redis::start(RedisOptions::new());
    let (client, other) = (blocking::connect(server.url()).unwrap(), blocking::connect(server.url()).unwrap());
    let guard = client.mutex("x").unwrap().ttl(ttl).unwrap().lock().unwrap();
    let (begun, token) = (Instant::now(), guard.token());
    while Instant::now() < begun + ttl + ttl / 3 {
        std::thread::sleep(Duration::from_millis(10)); // it calls nothing of ours
    }
    guard.check().unwrap();
    assert!(other.mutex("x").unwrap().try_lock().unwrap().is_none());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| other.mutex("x").unwrap().keep(false).lock().unwrap());
        while client.view("x").unwrap().line.is_empty() {
            std::thread::yield_now();
        }
        guard.release().unwrap();
        let next = waiting.join().unwrap();
        assert!(next.token() > token);
        next.release().unwrap();
    });
}
