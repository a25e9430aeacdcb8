//! P7, F20: clients that are killed or stopped. How long that keeps others waiting is bounded, and so is how short.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::lease::ALIVE;
use tenure_core::{HANDOVER_TTL, Instant};
use tokio::task::JoinSet;

use super::{Database as _, LONG, Stage, Store, Wish, client, leaves_nothing, line_is, second};
use crate::proxy::{Fault, Toward, Which};
use crate::taker::{Order, Reply, Wanted};
use crate::{Shape, Silence, in_bound, in_time};

const TTL: Duration = Duration::from_secs(2);
/// What is over is found by a look within so much.
const A_LOOK: Duration = Duration::from_secs(1);

/// `kill -9` of a holder.
pub async fn a_killed_holder_costs_its_ttl<S: Store>() {
    let ttl = Duration::from_secs(6); // which a machine that stands still does not outlast before the next one is in line
    let server = S::Server::start(Wish::default());
    in_bound("the next one gets in", ttl + A_LOOK, async || {
        let client = client::<S>(&server.url()).await;
        let mut taker = second(&server.url());
        taker.ready().await;
        let (token, _) = taker.lock(1, &Wanted::new("x", Shape::Mutex).ttl(ttl)).await;
        let mutex = client.mutex("x").unwrap().keep(false); // so it is let in for all of its ttl
        let waiting = tokio::spawn(async move { (mutex.lock().await.unwrap(), Instant::now()) });
        line_is(&client, "x", 1).await;
        let killed = Instant::now();
        taker.kill();
        let (held, granted) = in_time("the waiter gets in", waiting).await.unwrap();
        let took = granted.since(killed);
        eprintln!("after kill -9 of a holder with a ttl of {ttl:?} the next one got in after {took:?}");
        assert!(held.token().get() > token);
        held.release().await.unwrap();
        leaves_nothing::<S>(&server, [client]).await;
        took
    })
    .await;
}

/// SIGSTOP: its connections live, and nobody is behind them. The next one gets in after the ttl and not before.
pub async fn a_stopped_holder_is_lost_and_fenced<S: Store>() {
    let server = S::Server::start(Wish::default());
    let dir = tempfile::tempdir().unwrap();
    let client = client::<S>(&server.url()).await;
    let mut taker = second(&server.url());
    taker.ready().await;
    let asked = Instant::now();
    let (token, _) = taker.lock(1, &Wanted { keep: false, ..Wanted::new("x", Shape::Mutex).ttl(TTL) }).await;
    assert_eq!(taker.tell(Order::Write(1, dir.path().join("x"))).await, Reply::Accepted);
    taker.stop();
    let mutex = client.mutex("x").unwrap().keep(false); // so it is let in for all of its ttl
    let held = in_time("the next one gets in", mutex.lock()).await.unwrap();
    assert!(Instant::now() >= asked + TTL, "not before the ttl is over");
    assert!(held.token().get() > token);
    assert!(crate::fenced::FencedFile::at(dir.path().join("x")).write(held.token().get()).unwrap());
    taker.resume();
    assert_eq!(taker.tell(Order::Check(1)).await, Reply::Lost);
    assert_eq!(taker.tell(Order::Write(1, dir.path().join("x"))).await, Reply::Refused);
    held.check().unwrap();
    held.release().await.unwrap();
    drop(taker);
    leaves_nothing::<S>(&server, [client]).await;
}

/// Twenty wait for four clients, five for each, and the first of these is a process that is killed.
pub async fn killed_waiters_are_skipped<S: Store>() {
    // The first dead one may have been heard of a moment before, and is let in; the others are skipped with it.
    let bound = ALIVE.max(HANDOVER_TTL) + HANDOVER_TTL + A_LOOK;
    in_bound("the first live one gets in", bound, async || the_first_live_one_gets_in::<S>().await).await;
}

/// After how long.
async fn the_first_live_one_gets_in<S: Store>() -> Duration {
    const EACH: usize = 5;
    let server = S::Server::start(Wish::default());
    let observer = client::<S>(&server.url()).await;
    let held = observer.fair_mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut killed = second(&server.url());
    killed.ready().await;
    for slot in 0..EACH {
        killed.tell(Order::Begin(slot as u32, Wanted::new("x", Shape::FairMutex))).await;
        line_is(&observer, "x", slot + 1).await;
    }
    let silence = Silence::watched_by(&observer);
    let url = server.url();
    let living = [client::<S>(&url).await, client::<S>(&url).await, client::<S>(&url).await];
    let entered = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = JoinSet::new();
    for number in 0..living.len() * EACH {
        // Who lives is let in for all of its ttl, however slow the machine is; who is going to be killed is not.
        let mutex = living[number / EACH].fair_mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
        let entered = Arc::clone(&entered);
        waiting.spawn(async move {
            let held = mutex.lock().await.unwrap();
            entered.lock().unwrap().push((number, held.token(), Instant::now()));
            held.release().await.unwrap();
        });
        line_is(&observer, "x", EACH + number + 1).await;
    }
    killed.kill();
    let mut last = held.token();
    held.release().await.unwrap();
    let released = Instant::now();
    while let Some(served) = in_time("the next one gets in", waiting.join_next()).await {
        served.unwrap();
    }
    let silence = silence.longest().await;
    let entered = std::mem::take(&mut *entered.lock().unwrap());
    assert_eq!(entered.len(), living.len() * EACH);
    let took = entered[0].2.since(released);
    eprintln!("with five killed waiters before it the first live one got in after {took:?}");
    for (place, (number, token, _)) in entered.into_iter().enumerate() {
        assert!(token > last, "number {number}: {token} after {last}");
        last = token;
        // Whoever lives is heard every second. Unless a machine stood still, nobody thought it dead.
        assert!(number == place || silence >= ALIVE, "number {number} came in as {place}, after {silence:?}");
    }
    drop(killed);
    leaves_nothing::<S>(&server, living.into_iter().chain([observer])).await;
    took
}

/// A waiter gives up while nobody hears its client, for longer than anybody tries to end its claim. The client lives on and waits for something
/// else, which keeps all its places: this one is given back all the same.
pub async fn a_waiter_that_gives_up_unheard_leaves_the_line<S: Store>() {
    let ttl = Duration::from_millis(200);
    let stage = Stage::<S>::new(Wish::default()).await;
    let (holder, client) = (stage.direct().await, stage.proxied().await);
    let held = holder.rw_lock("x").unwrap().ttl(LONG).unwrap().read().await.unwrap();
    let beside = holder.mutex("y").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let stays = client.mutex("y").unwrap().ttl(LONG).unwrap().keep(false);
    let stays = tokio::spawn(async move { stays.lock().await });
    line_is(&holder, "y", 1).await;
    let gives_up = client.rw_lock("x").unwrap().ttl(ttl).unwrap();
    let gives_up = tokio::spawn(async move { gives_up.write().await });
    line_is(&holder, "x", 1).await;
    stage.proxy.set(Which::All, Fault::Blackhole(Toward::Both));
    gives_up.abort();
    tokio::time::sleep(ttl * 5).await; // the fault itself is a length of time
    stage.proxy.heal();
    line_is(&holder, "x", 0).await;
    held.release().await.unwrap();
    beside.release().await.unwrap();
    in_time("the other is let in", stays).await.unwrap().unwrap().release().await.unwrap();
    leaves_nothing::<S>(&stage.server, [holder, client]).await;
}
