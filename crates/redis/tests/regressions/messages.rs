//! A message that was stuck somewhere says what once was, not what is.

use tenure_testkit::proxy::{Fault, Toward, Which};
use tenure_testkit::{eventually, in_time};

use crate::stage::{LONG, Stage, calls, leaves_nothing, line_is};

/// A waiter is let in and not told; its hand-over is over, and somebody else holds. It has learned so much and asks again;
/// then the message arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_grant_that_arrives_late_is_none() {
    let stage = Stage::new();
    let (others, client) = (stage.direct().await, stage.proxied().await);
    // Not kept, so that the others have all of their ttl from the hand-over on.
    let mutex = others.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
    let first = mutex.lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
        async move { mutex.lock().await.unwrap() }
    });
    line_is(&others, "x", 1).await;
    let next = tokio::spawn(async move { mutex.lock().await.unwrap() });
    line_is(&others, "x", 2).await;

    let stuck = stage.proxy.set(Which::sent("beacon"), Fault::Hold(Toward::Client));
    let cut_off = stage.proxy.set(Which::All, Fault::Hold(Toward::Both));
    first.release().await.unwrap();
    let second = in_time("the hand-over is over", next).await.unwrap();
    // It may look again, but not hear what it was told.
    stage.proxy.lift(cut_off);
    line_is(&others, "x", 1).await; // it has asked again, and waits for the answer
    stage.proxy.lift(stuck);
    in_time("what was stuck has arrived", client.view("x")).await.unwrap();
    let touched = calls(&stage.server, "evalsha");
    eventually("it goes on waiting", || calls(&stage.server, "evalsha") > touched).await;
    assert!(!waiting.is_finished(), "two would hold");
    second.check().unwrap();

    let token = second.token();
    second.release().await.unwrap();
    let third = in_time("its turn", waiting).await.unwrap();
    assert!(third.token() > token);
    third.check().unwrap();
    third.release().await.unwrap();
    leaves_nothing(&stage.server, [others, client]).await;
}
