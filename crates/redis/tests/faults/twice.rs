//! F11, P15: every request reaches the server twice, and has one effect.

use std::time::Duration;

use tenure_testkit::proxy::{After, Fault, Toward, Which};
use tenure_testkit::{Shape, Silence, eventually, in_time};

use crate::stage::{Crowd, LONG, Record, Stage, last_token, leaves_nothing, line_is};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_is_served_as_if_nothing_was() {
    for shape in [Shape::Mutex, Shape::FairMutex] {
        let (stage, record) = (Stage::new(), Record::new());
        let clients = [stage.proxied().await, stage.proxied().await];
        let observer = stage.direct().await;
        let silence = Silence::watched_by(&observer);
        stage.proxy.set(Which::All, Fault::Duplicate);
        let crowd = Crowd::start(&record, "x", shape, &clients, 8, observer.clone());
        crowd.has_had(&record, 300).await;
        crowd.stop().await;
        assert!(stage.proxy.counters().duplicated > 500);
        record.expect_sound_after(silence.longest().await);
        leaves_nothing(&stage.server, clients).await;
    }
}

/// Permits that were returned twice would let too many in; a reader counted twice would keep a writer out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_and_readers_are_counted_once() {
    let stage = Stage::new();
    let client = stage.proxied().await;
    stage.proxy.set(Which::All, Fault::Duplicate);
    let semaphore = client.semaphore("permits", 5).unwrap();
    let (two, three) = (semaphore.acquire(2).await.unwrap(), semaphore.acquire(3).await.unwrap());
    two.release().await.unwrap();
    assert!(semaphore.try_acquire(3).await.unwrap().is_none(), "two came back, not four");
    let again = semaphore.try_acquire(2).await.unwrap().expect("two came back");
    drop((three, again));

    let lock = client.rw_lock("read").unwrap();
    let mut one = lock.write().await.unwrap();
    one.downgrade().await.unwrap();
    let other = lock.try_read().await.unwrap().expect("readers share");
    assert_eq!(other.token().get(), last_token(&stage.server), "let in once");
    one.release().await.unwrap();
    assert!(lock.try_write().await.unwrap().is_none(), "one reads still");
    other.release().await.unwrap();
    leaves_nothing(&stage.server, [client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_and_a_heartbeat_are_the_same_twice() {
    let stage = Stage::new();
    let client = stage.proxied().await;
    stage.proxy.set(Which::All, Fault::Duplicate);
    let held = client.mutex("x").unwrap().ttl(Duration::from_secs(9)).unwrap().lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
        async move { mutex.lock().await }
    });
    line_is(&client, "x", 1).await;
    let first = held.valid_until();
    eventually("it is renewed", || held.valid_until() > first).await;
    held.release().await.unwrap();
    in_time("the waiter gets in", waiting).await.unwrap().unwrap().release().await.unwrap();
    leaves_nothing(&stage.server, [client]).await;
}

/// A reply that is lost makes the client send it again; the next holder must not be broken by that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_whose_reply_is_lost_breaks_nobody_else() {
    let stage = Stage::new();
    let (holders, breaker) = (stage.direct().await, stage.proxied().await);
    // Not kept, so that the second has all of its ttl from the hand-over on.
    let mutex = holders.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
    let first = mutex.lock().await.unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    line_is(&holders, "x", 1).await;
    breaker.break_holds("nobody", None).await.unwrap(); // now the server knows the script
    stage.proxy.set(Which::All, Fault::Lose(Toward::Client, 1, After::Reset));
    let _ = in_time("an answer", breaker.break_holds("x", None)).await;
    in_time("the loss", first.lost()).await;
    let second = in_time("the waiter gets in", waiting).await.unwrap().unwrap();
    assert!(holders.view("x").await.unwrap().holders.iter().any(|holder| holder.token == second.token()));
    second.check().unwrap();
    second.release().await.unwrap();
    drop(first);
    leaves_nothing(&stage.server, [holders, breaker]).await;
}
