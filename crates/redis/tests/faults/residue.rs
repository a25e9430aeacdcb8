//! P16: what is left in a server after ten thousand asks, many of them given up somewhere on the way.

use std::time::Duration;

use tenure_core::Client;
use tenure_testkit::servers::redis::{Redis, RedisOptions};
use tenure_testkit::{LIMIT, Rng, eventually};
use tokio::time::timeout;

use crate::stage::{LONG, client, leaves_nothing};

const TASKS: usize = 20;
const ROUNDS: usize = 500;
const NAMES: u64 = 7;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_asks_leave_nothing() {
    let server = Redis::start(RedisOptions::new());
    let clients = [client(&server.url()).await, client(&server.url()).await];
    let tasks: Vec<_> = (0..TASKS).map(|task| tokio::spawn(work(clients[task % 2].clone()))).collect();
    let (mut granted, mut given_up) = (0, 0);
    for task in tasks {
        let (of_its, not) = task.await.unwrap();
        (granted, given_up) = (granted + of_its, given_up + not);
    }
    assert!(granted >= TASKS * ROUNDS / 4 && given_up > 0, "{granted} granted, {given_up} given up");
    leaves_nothing(&server, clients).await; // drops them too
    // What is left is a token, what is remembered of names, and the marks of those whose ask may still have been on its way. All of it goes by itself.
    let keys = server.command(&["KEYS", "*"]).texts();
    assert!(keys.iter().any(|key| key.ends_with(":token")));
    for key in &keys {
        // Gone since it was listed, or going.
        assert_ne!(server.command(&["PTTL", key]).int(), -1, "{key} stays for ever");
    }
    eprintln!("{granted} grants and {given_up} asks given up left {} keys for a minute", keys.len() - 1);
    eventually("every connection is closed", || server.command(&["CLIENT", "LIST"]).text().lines().count() == 1).await;
}

async fn work(client: Client) -> (usize, usize) {
    let mut rng = Rng::from_entropy();
    let (mut granted, mut given_up) = (0, 0);
    for round in 0..ROUNDS {
        // Not kept, so that whoever waited has all of its ttl too.
        let mutex = client.mutex(format!("name {}", rng.below(NAMES))).unwrap().ttl(LONG).unwrap().keep(false);
        // Some are served however busy the machine is.
        let patience = if round % 4 == 0 { LIMIT } else { rng.up_to(Duration::from_millis(5)) };
        match timeout(patience, mutex.lock()).await {
            Ok(held) => {
                granted += 1;
                let held = held.unwrap();
                if rng.one_in(2) {
                    held.release().await.unwrap();
                }
            }
            Err(_) => given_up += 1,
        }
    }
    (granted, given_up)
}
