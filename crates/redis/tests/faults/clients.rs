//! P7, F20: clients that are killed. How long that keeps others waiting is bounded, and said. (That a holder which was
//! stopped for longer than its ttl is lost and fenced when it goes on is shown for every store by the suite.)

use std::time::Duration;

use tenure_core::{HANDOVER_TTL, Instant};
use tenure_testkit::servers::redis::{Redis, RedisOptions};
use tenure_testkit::taker::{Order, Taker, Wanted};
use tenure_testkit::{Shape, in_time};

use crate::line::Line;
use crate::stage::{ALIVE, LONG, client, leaves_nothing, line_is};

/// The name of the test that is a second process.
const TAKER: &str = "faults::taker";
/// What a busy machine may add to any bound. Less than the ttl by default, or ten minutes: whoever waits for those is seen.
const SLOWNESS: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_costs_its_ttl() {
    let ttl = Duration::from_secs(9); // which a machine that stands still does not outlast before the next one is in line
    let server = Redis::start(RedisOptions::new());
    let client = client(&server.url()).await;
    let mut taker = Taker::start(TAKER, &server.url()).await;
    let (token, _) = taker.lock(1, &Wanted::new("x", Shape::Mutex).ttl(ttl)).await;
    let mutex = client.mutex("x").unwrap().keep(false); // so it is let in for all of its ttl
    let waiting = tokio::spawn(async move { (mutex.lock().await.unwrap(), Instant::now()) });
    line_is(&client, "x", 1).await;
    taker.kill();
    let killed = Instant::now();
    let (held, granted) = in_time("the waiter gets in", waiting).await.unwrap();
    let took = granted.since(killed);
    eprintln!("after kill -9 of a holder with a ttl of {ttl:?} the next one got in after {took:?}");
    assert!(took < ttl + SLOWNESS, "{took:?}");
    assert!(held.token().get() > token);
    held.release().await.unwrap();
    leaves_nothing(&server, [client]).await;
}

/// Fifty wait for five clients, ten for each, and the first of these is a process that is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_killed_waiters_cost_no_more_than_one() {
    const EACH: usize = 10;
    let server = Redis::start(RedisOptions::new());
    let observer = client(&server.url()).await;
    let held = observer.fair_mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut killed = Taker::start(TAKER, &server.url()).await;
    for slot in 0..EACH {
        killed.tell(Order::Begin(slot as u32, Wanted::new("x", Shape::FairMutex))).await;
        line_is(&observer, "x", slot + 1).await;
    }
    let mut line = Line::behind(EACH, &observer);
    let mut living = Vec::new();
    for _ in 0..4 {
        let client = client(&server.url()).await;
        for _ in 0..EACH {
            line.comes(&client).await;
        }
        living.push(client);
    }
    killed.kill();
    let token = held.token();
    held.release().await.unwrap();
    let released = Instant::now();
    let took = line.served_in_order(token).await.since(released);
    eprintln!("with ten killed waiters before it the first live one got in after {took:?}");
    // The first dead one may have been heard of a moment before, and is let in; the others are skipped with it.
    assert!(took < ALIVE.max(HANDOVER_TTL) + HANDOVER_TTL + SLOWNESS, "{took:?}");
    leaves_nothing(&server, living.into_iter().chain([observer])).await;
}
