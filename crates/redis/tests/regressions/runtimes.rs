//! Runtimes that stand still while another one is used: connections that live on one must not cost the other an answer.

use std::time::Duration;

use tenure_core::Instant;
use tenure_testkit::servers::redis::{Redis, RedisOptions};
use tokio::runtime::{Builder, Runtime};

use crate::stage::client;

/// Longer than anything takes but an answer that does not come.
const SLOW: Duration = Duration::from_millis(1500);

/// A machine that stands still makes another turn slow; what is always slow is so five times.
#[test]
fn a_client_that_two_runtimes_use_in_turn_is_slow_once() {
    let server = Redis::start(RedisOptions::new());
    let mut slow = Vec::new();
    while slow.len() < 5 {
        match slow_turns(&server) {
            turns if turns.len() <= 1 => return,
            turns => slow.push(turns),
        }
    }
    panic!("{slow:?}");
}

/// The turns that were slow, with a new client.
fn slow_turns(server: &Redis) -> Vec<(usize, Duration)> {
    let runtime = || -> Runtime { Builder::new_current_thread().enable_all().build().unwrap() };
    let runtimes = [runtime(), runtime()];
    let client = runtimes[0].block_on(client(&server.url()));
    let mutex = client.mutex("x").unwrap();
    let mut slow = Vec::new();
    for turn in 0..6 {
        let begun = Instant::now();
        runtimes[turn % 2].block_on(async { mutex.lock().await.unwrap().release().await.unwrap() });
        let took = Instant::now().since(begun);
        if took > SLOW {
            slow.push((turn, took));
        }
    }
    slow
}

/// Nor does a guard depend on the runtime that it was had on: it is renewed while that stands still.
#[test]
fn a_hold_outlives_the_turn_of_its_runtime() {
    let ttl = Duration::from_secs(9);
    let server = Redis::start(RedisOptions::new());
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(client(&server.url()));
    let held = runtime.block_on(client.mutex("x").unwrap().ttl(ttl).unwrap().lock()).unwrap();
    let begun = Instant::now();
    // Nobody drives the runtime meanwhile.
    while Instant::now() < begun + ttl + ttl / 3 && held.check().is_ok() {
        std::thread::sleep(Duration::from_millis(10));
    }
    held.check().expect("it is renewed");
    runtime.block_on(held.release()).unwrap();
}
