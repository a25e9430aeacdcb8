//! P7, F20: clients that are killed. How long that keeps others waiting is bounded, and said. (That a holder which was
//! stopped for longer than its ttl is lost and fenced when it goes on is shown for every store by the suite.)

use std::time::Duration;

use tenure_core::{HANDOVER_TTL, Instant};
use tenure_testkit::servers::redis::{Redis, RedisOptions};
use tenure_testkit::taker::{Order, Reply, Taker, Wanted};
use tenure_testkit::{Shape, in_time};

use crate::stage::{ALIVE, LONG, client, leaves_nothing, line_is};

/// The name of the test that is a second process.
const TAKER: &str = "faults::taker";
/// What a busy machine may add to any bound.
const SLOWNESS: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_costs_its_ttl() {
    let ttl = Duration::from_secs(2);
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

/// Fifty wait in five processes, ten each, and the first process is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_killed_waiters_cost_no_more_than_one() {
    let server = Redis::start(RedisOptions::new());
    let client = client(&server.url()).await;
    let held = client.fair_mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut takers: Vec<Taker> = (0..5).map(|_| Taker::spawn(TAKER, &server.url())).collect();
    for taker in &mut takers {
        taker.ready().await;
    }
    let mut line = 0;
    for (number, taker) in takers.iter_mut().enumerate() {
        for slot in 0..10 {
            // Who lives is let in for all of its ttl, however slow the machine is; who is going to be killed is not.
            let wanted = Wanted { keep: number == 0, ..Wanted::new("x", Shape::FairMutex) };
            taker.tell(Order::Begin(slot, wanted)).await;
            line += 1;
            line_is(&client, "x", line).await;
        }
    }
    takers.remove(0).kill();
    let mut last = held.token().get();
    held.release().await.unwrap();
    let released = Instant::now();
    for (number, taker) in takers.iter_mut().enumerate() {
        for slot in 0..10 {
            taker.send(Order::Await(slot));
            let (token, at) = taker.granted().await;
            if (number, slot) == (0, 0) {
                let took = Instant::from_nanos(at).since(released);
                eprintln!("with ten killed waiters before it the first live one got in after {took:?}");
                // The first dead one may have been heard of a moment before, and is let in; the others are skipped with it.
                assert!(took < ALIVE.max(HANDOVER_TTL) + HANDOVER_TTL + SLOWNESS, "{took:?}");
            }
            assert!(token > last, "in order");
            last = token;
            assert_eq!(taker.tell(Order::Release(slot)).await, Reply::Done);
        }
    }
    drop(takers);
    leaves_nothing(&server, [client]).await;
}
