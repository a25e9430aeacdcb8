//! F42, to the letter: each key of a record that a full server may throw away, and each shape of a record that must end on
//! one that throws nothing away.

use std::time::Duration;

use tenure_core::Client;
use tenure_testkit::proxy::{Fault, Toward, Which};
use tenure_testkit::servers::redis::{Redis, RedisOptions};
use tenure_testkit::{eventually, in_time};

use self::line::Line;
use self::stage::{LONG, Stage, client, is_free, leaves_nothing, marks, new_mark};

#[path = "faults/line.rs"]
mod line;
// The same stage as the faults', of which this binary uses a part.
#[expect(dead_code, reason = "the faults use the rest")]
#[path = "faults/stage.rs"]
mod stage;

async fn start() -> (Redis, Client) {
    let server = Redis::start(RedisOptions::new());
    let client = client(&server.url()).await;
    (server, client)
}

fn throw_away(server: &Redis, part: &str) {
    assert_eq!(server.command(&["DEL", &format!("tenure:{{0}}:{part}:x")]).int(), 1, "there is a {part}");
}

/// Readers that hold are found again, and keep writers out to the last of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_whose_set_is_gone_still_read() {
    let (server, client) = start().await;
    let lock = client.rw_lock("x").unwrap().ttl(LONG).unwrap();
    let readers = [lock.read().await.unwrap(), lock.read().await.unwrap(), lock.read().await.unwrap()];
    throw_away(&server, "held");
    assert!(lock.try_write().await.unwrap().is_none(), "three read");
    assert_eq!(server.command(&["ZCARD", "tenure:{0}:held:x"]).int(), 3);
    for reader in readers {
        assert!(lock.try_write().await.unwrap().is_none(), "somebody reads");
        reader.check().unwrap();
        reader.release().await.unwrap();
    }
    lock.try_write().await.unwrap().expect("nobody reads").release().await.unwrap();
    leaves_nothing(&server, [client]).await;
}

/// Nobody renews or ends them: time does, and the next ones get in, with all permits there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_that_died_and_whose_set_is_gone_end_with_their_time() {
    let stage = Stage::new();
    let (dead, client) = (stage.proxied().await, stage.direct().await);
    let short = Duration::from_secs(2); // and yet the machine is quicker
    let (lock, semaphore) = (client.rw_lock("x").unwrap(), client.semaphore("x", 3).unwrap());
    let mut holds = Vec::new();
    for _ in 0..2 {
        holds.push(dead.rw_lock("x").unwrap().ttl(short).unwrap().keep(false).read().await.unwrap());
    }
    let gone = stage.proxy.set(Which::All, Fault::Blackhole(Toward::Both));
    throw_away(&stage.server, "held");
    in_time("the writer gets in", lock.write()).await.unwrap().release().await.unwrap();
    is_free(&client, "x").await;
    stage.proxy.lift(gone);

    for _ in 0..2 {
        holds.push(dead.semaphore("x", 3).unwrap().ttl(short).unwrap().keep(false).acquire(1).await.unwrap());
    }
    stage.proxy.set(Which::All, Fault::Blackhole(Toward::Both));
    throw_away(&stage.server, "held");
    in_time("all permits come back", semaphore.acquire(3)).await.unwrap().release().await.unwrap();
    leaves_nothing(&stage.server, [client]).await;
    stage.proxy.heal();
}

/// Waiters whose line is gone stand in it again as soon as they are heard of, in the same order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_whose_line_is_gone_stand_in_it_again() {
    let (server, client) = start().await;
    let held = client.fair_mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut line = Line::behind(0, &client);
    for _ in 0..3 {
        line.comes(&client).await;
    }
    throw_away(&server, "line");
    let key = "tenure:{0}:line:x";
    eventually("they stand in line again", || server.command(&["ZCARD", key]).int() == 3).await;
    assert_ne!(server.command(&["PTTL", key]).int(), -1, "and not for ever");
    let token = held.token();
    held.release().await.unwrap();
    line.served_in_order(token).await;
    leaves_nothing(&server, [client]).await;
}

/// Whatever a claim left, it can be ended on a server that takes nothing more: alone and with others, with and without a
/// minimum hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_ends_on_a_full_server() {
    let (server, client) = start().await;
    for (others, min_hold) in [(0, false), (0, true), (2, false), (2, true)] {
        let lock = client.rw_lock("x").unwrap().ttl(LONG).unwrap();
        let held = if min_hold { lock.clone().min_hold(LONG).unwrap() } else { lock.clone() }.read().await.unwrap();
        let mut with = Vec::new();
        for _ in 0..others {
            with.push(lock.read().await.unwrap());
        }
        fill(&server, true);
        let ended = in_time("an answer", held.release()).await;
        ended.unwrap_or_else(|error| panic!("with {others} others, a minimum hold: {min_hold}: {error}"));
        let view = client.view("x").await.unwrap();
        assert_eq!(view.holders.iter().filter(|holder| holder.closing).count(), usize::from(min_hold));
        assert_eq!(view.holders.iter().filter(|holder| !holder.closing).count(), others);
        fill(&server, false);
        for reader in with {
            reader.release().await.unwrap();
        }
        client.break_holds("x", None).await.unwrap(); // what is closing
        is_free(&client, "x").await;
    }
    leaves_nothing(&server, [client]).await;
}

/// An ask that nobody answered is given up: nothing is there but the mark to leave, and that is left too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_is_left_on_a_full_server() {
    let stage = Stage::new();
    let client = stage.proxied().await;
    let marks = marks(&stage.server);
    fill(&stage.server, true);
    let stuck = stage.proxy.set(Which::All, Fault::Hold(Toward::Server));
    let requests = stage.proxy.counters().requests;
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
    let asking = tokio::spawn(async move { mutex.lock().await });
    eventually("it asks", || stage.proxy.counters().requests > requests).await;
    asking.abort();
    assert!(asking.await.unwrap_err().is_cancelled());
    stage.proxy.lift(stuck);
    in_time("the end of the claim", client.close()).await.unwrap();
    new_mark(&stage.server, &marks);
    fill(&stage.server, false);
    leaves_nothing(&stage.server, [client]).await;
}

/// Whether the server takes nothing more.
fn fill(server: &Redis, full: bool) {
    server.command(&["CONFIG", "SET", "maxmemory", if full { "100kb" } else { "0" }]); // less than it needs to start
}
