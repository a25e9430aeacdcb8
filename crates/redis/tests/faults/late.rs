//! F2, F12: what arrives too late. A grant whose window is over is no guard, and an ask that arrives after its claim's end
//! is granted nothing.

use std::time::Duration;

use tenure_core::{Client, ErrorKind};
use tenure_testkit::proxy::{Fault, FaultId, Toward, Which};
use tenure_testkit::{eventually, in_time};

use crate::stage::{LONG, Stage, calls, is_free, last_token, leaves_nothing, line_is, marks, new_mark, residue};

/// After this long without an answer a connection counts as stuck, and the end of the claim takes another one.
const STUCK: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_beyond_its_window_is_no_guard() {
    let ttl = Duration::from_millis(300);
    for toward in [Toward::Server, Toward::Client] {
        let stage = Stage::new();
        // Everything is slow here, another connection too, which a machine that stands still makes necessary.
        let client = stage.proxied_with("?answer_limit=30s").await;
        let mutex = client.mutex("x").unwrap().ttl(ttl).unwrap();
        let slow = stage.proxy.set(Which::All, Fault::Delay(toward, ttl * 2));
        let before = calls(&stage.server, "evalsha");
        assert!(in_time("an answer", mutex.try_lock()).await.unwrap().is_none(), "never a dead guard");
        assert!(calls(&stage.server, "evalsha") > before, "it was granted, and ended");
        // Whoever waits gets in as soon as the network does better.
        let waiting = tokio::spawn(async move { mutex.lock().await });
        eventually("it asks", || calls(&stage.server, "evalsha") > before + 2).await;
        stage.proxy.lift(slow);
        let held = in_time("the lock", waiting).await.unwrap().unwrap();
        // A window as short as this may be over before anything is done with it; then its holder is told so.
        if let Err(error) = held.release().await {
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        }
        leaves_nothing(&stage.server, [client]).await;
    }
}

/// The ask is stuck in one connection; its claim is ended over another; then the ask arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ask_after_its_end_is_granted_nothing() {
    let stage = Stage::new();
    let (client, observer) = (stage.proxied().await, stage.direct().await);
    // With its mark taken away, the same ask is granted: the test can see what it is about.
    for marked in [true, false] {
        let (stuck, mark) = stuck_ask(&stage, &client).await;
        if !marked {
            stage.server.command(&["DEL", &mark]);
        }
        let (before, token) = (calls(&stage.server, "evalsha"), last_token(&stage.server));
        stage.proxy.lift(stuck);
        eventually("the ask arrives", || calls(&stage.server, "evalsha") > before).await;
        if marked {
            assert_eq!(last_token(&stage.server), token);
            assert!(residue(&stage.server).is_empty());
        } else {
            assert!(last_token(&stage.server) > token);
            assert!(!observer.view("x").await.unwrap().is_free());
        }
    }
    is_free(&observer, "x").await; // its ttl is over
}

/// Asks, and ends the claim while the ask is stuck; the mark that this leaves. A client that stood still for long has asked again on
/// another connection, and was let in: then once more.
async fn stuck_ask(stage: &Stage, client: &Client) -> (FaultId, String) {
    for _ in 0..5 {
        client.mutex("beacon").unwrap().lock().await.unwrap().release().await.unwrap();
        let mutex = client.mutex("x").unwrap().ttl(Duration::from_secs(9)).unwrap();
        let marks = marks(&stage.server);
        let stuck = stage.proxy.set(Which::sent("beacon"), Fault::Hold(Toward::Server));
        let requests = stage.proxy.counters().requests;
        let asking = tokio::spawn(async move { mutex.lock().await });
        eventually("it asks", || stage.proxy.counters().requests > requests).await;
        tokio::time::sleep(STUCK).await;
        asking.abort();
        let Err(ended) = asking.await else {
            stage.proxy.lift(stuck);
            in_time("its release", client.close()).await.unwrap();
            continue;
        };
        assert!(ended.is_cancelled());
        in_time("the end of the claim", client.close()).await.unwrap();
        return (stuck, new_mark(&stage.server, &marks));
    }
    panic!("five times the ask was not stuck");
}

/// The same for a waiter that the server forgot and that asks a second time: that its first ask was answered says nothing
/// about the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_ask_after_its_end_is_granted_nothing() {
    for _ in 0..5 {
        if second_ask_gets_stuck().await {
            return;
        }
    }
    panic!("five times the ask was not stuck");
}

/// `false` if a client that stood still for long has asked once more, on another connection, and was let in.
async fn second_ask_gets_stuck() -> bool {
    let stage = Stage::new();
    let (client, observer) = (stage.proxied().await, stage.direct().await);
    let held = observer.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    line_is(&observer, "x", 1).await;
    let asked = calls(&stage.server, "evalsha");
    eventually("it is touched", || calls(&stage.server, "evalsha") > asked).await;
    // From here on all that is sent are touches, which arrive, and the second ask, which does not. (The observer has asked without
    // the proxy, as often as it had to, so the number may be below zero.)
    let missing = || stage.proxy.counters().requests as i64 - calls(&stage.server, "evalsha") as i64;
    let none = missing();
    let stuck = stage.proxy.set(Which::sent("beacon"), Fault::Hold(Toward::Server));
    stage.server.command(&["FLUSHALL"]);
    eventually("it asks again", || missing() > none).await;
    tokio::time::sleep(STUCK).await;
    waiting.abort();
    let Err(ended) = waiting.await else { return false };
    assert!(ended.is_cancelled());
    in_time("the end of the claim", client.close()).await.unwrap();
    let before = calls(&stage.server, "evalsha");
    stage.proxy.lift(stuck);
    eventually("the ask arrives", || calls(&stage.server, "evalsha") > before).await;
    assert!(residue(&stage.server).is_empty(), "{:?}", residue(&stage.server));
    drop(held);
    leaves_nothing(&stage.server, [client, observer]).await;
    true
}
