//! P7, F20: clients that are killed or stopped. How long that keeps others waiting is bounded, and so is how short.

use std::time::Duration;

use tenure_core::{HANDOVER_TTL, Instant};

use super::{Database as _, LONG, Stage, Store, Wish, client, leaves_nothing, line_is, second};
use crate::proxy::{Fault, Toward, Which};
use crate::taker::{Order, Reply, Wanted};
use crate::{Shape, in_time};

const TTL: Duration = Duration::from_secs(2);
/// What a busy machine may add to any bound.
const SLOWNESS: Duration = Duration::from_secs(8);

/// `kill -9` of a holder.
pub async fn a_killed_holder_costs_its_ttl<S: Store>() {
    let server = S::Server::start(Wish::default());
    let client = client::<S>(&server.url()).await;
    let mut taker = second(&server.url());
    taker.ready().await;
    let (token, _) = taker.lock(1, &Wanted::new("x", Shape::Mutex).ttl(TTL)).await;
    let mutex = client.mutex("x").unwrap().keep(false); // so it is let in for all of its ttl
    let waiting = tokio::spawn(async move { (mutex.lock().await.unwrap(), Instant::now()) });
    line_is(&client, "x", 1).await;
    taker.kill();
    let killed = Instant::now();
    let (held, granted) = in_time("the waiter gets in", waiting).await.unwrap();
    let took = granted.since(killed);
    eprintln!("after kill -9 of a holder with a ttl of {TTL:?} the next one got in after {took:?}");
    assert!(took < TTL + SLOWNESS, "{took:?}");
    assert!(held.token().get() > token);
    held.release().await.unwrap();
    leaves_nothing::<S>(&server, [client]).await;
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

/// Twenty wait in four processes, five each, and the first process is killed.
pub async fn killed_waiters_are_skipped<S: Store>() {
    let server = S::Server::start(Wish::default());
    let client = client::<S>(&server.url()).await;
    let held = client.fair_mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut takers: Vec<_> = (0..4).map(|_| second(&server.url())).collect();
    for taker in &mut takers {
        taker.ready().await;
    }
    let mut line = 0;
    for (number, taker) in takers.iter_mut().enumerate() {
        for slot in 0..5 {
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
        for slot in 0..5 {
            taker.send(Order::Await(slot));
            let (token, at) = taker.granted().await;
            if (number, slot) == (0, 0) {
                let took = Instant::from_nanos(at).since(released);
                eprintln!("with five killed waiters before it the first live one got in after {took:?}");
                // The first dead one may have been heard of a moment before, and is let in; the others are skipped with it.
                assert!(took < tenure_core::lease::ALIVE.max(HANDOVER_TTL) + HANDOVER_TTL + SLOWNESS, "{took:?}");
            }
            assert!(token > last, "in order");
            last = token;
            assert_eq!(taker.tell(Order::Release(slot)).await, Reply::Done);
        }
    }
    drop(takers);
    leaves_nothing::<S>(&server, [client]).await;
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
