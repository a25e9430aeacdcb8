//! Requests of which one copy is stuck, or whose answer is lost.

use std::time::Duration;

use tenure_core::ErrorKind;
use tenure_testkit::proxy::{After, Fault, Toward, Which};
use tenure_testkit::{eventually, in_time};

use crate::stage::{LONG, Stage, calls, client, leaves_nothing, line_is, marks, new_mark, residue};

/// The second copy is answered: busy. The first one comes when nobody holds any more, and nobody knows of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_refused_try_is_granted_nothing() {
    let stage = Stage::new();
    let (holder, client) = (stage.direct().await, stage.proxied().await);
    let held = holder.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let marks = marks(&stage.server);
    let stuck = stage.proxy.set(Which::sent("beacon"), Fault::Hold(Toward::Server));
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
    assert!(in_time("an answer", mutex.try_lock()).await.unwrap().is_none());
    new_mark(&stage.server, &marks); // the copy will meet it
    held.release().await.unwrap();
    assert!(residue(&stage.server).is_empty());
    let before = calls(&stage.server, "evalsha");
    stage.proxy.lift(stuck);
    eventually("the copy arrives", || calls(&stage.server, "evalsha") > before).await;
    assert!(residue(&stage.server).is_empty(), "nobody would ever release it");
    assert!(holder.view("x").await.unwrap().is_free());
    leaves_nothing(&stage.server, [holder, client]).await;
}

/// Sent again it would ask whoever came after the one that it was meant for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_to_let_go_asks_one_holder() {
    let stage = Stage::new();
    let holders = stage.direct().await;
    // A connection is given up after two seconds of silence, so there is time for a second copy.
    let asker = client(&format!("redis://{}?answer_limit=4s", stage.proxy.address())).await;
    // Not kept, so that the second has all of its ttl from the hand-over on.
    let mutex = holders.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
    let first = mutex.lock().await.unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
    line_is(&holders, "x", 1).await;
    assert_eq!(asker.ask("nobody", "").await.unwrap(), 0); // now the server knows the script
    let lost = stage.proxy.set(Which::All, Fault::Lose(Toward::Client, 1, After::Silence));
    let asking = tokio::spawn({
        let asker = asker.clone();
        async move { asker.ask("x", "maintenance").await }
    });
    assert_eq!(in_time("the request", first.asked()).await.reason.as_str(), "maintenance");
    first.release().await.unwrap();
    let second = in_time("the next one gets in", waiting).await.unwrap();
    let refused = in_time("an answer", asking).await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    stage.proxy.lift(lost);
    let view = holders.view("x").await.unwrap();
    assert!(view.holders.iter().all(|holder| holder.token == second.token() && holder.asked.is_none()), "{view:?}");
    let asked = tokio::time::timeout(Duration::ZERO, second.asked()).await;
    assert!(asked.is_err(), "{asked:?}");
    // Asked on purpose it hears.
    assert_eq!(in_time("an answer", asker.ask("x", "again")).await.unwrap(), 1);
    in_time("the request", second.asked()).await;
    second.release().await.unwrap();
    leaves_nothing(&stage.server, [holders, asker]).await;
}
