//! F19: the connection on which waiters are told fails, without a word or with one. Everybody gets in, in order.

use tenure_testkit::proxy::{Cut, Fault, Toward, Which};

use crate::line::Line;
use crate::stage::{LONG, Stage, leaves_nothing};

/// Half-open: the server speaks and nobody hears it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_went_deaf_gets_in() {
    served_in_order(20, |stage| {
        stage.proxy.set(Which::sent("beacon"), Fault::Blackhole(Toward::Client));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_was_cut_off_gets_in() {
    for cut in [Cut::Reset, Cut::Fin] {
        served_in_order(20, |stage| assert_eq!(stage.proxy.cut(Which::sent("beacon"), cut), 1)).await;
    }
}

/// The server cuts whoever listens, as an operator might.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_whose_subscription_was_killed_gets_in() {
    served_in_order(20, |stage| {
        // With RESP3 the connection for asks is the one that listens.
        let killed = stage.server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).int();
        assert!(killed >= 1, "somebody listens");
    })
    .await;
}

/// Nothing that is published ever arrives, and nobody notices that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_told_nothing_gets_in() {
    served_in_order(4, |stage| {
        stage.proxy.set(Which::All, Fault::Mute);
    })
    .await;
}

/// So many wait in one client when the fault sets in; then the holder, who is somebody else, lets go.
async fn served_in_order(many: usize, fault: impl FnOnce(&Stage)) {
    let stage = Stage::new();
    let (holder, client) = (stage.direct().await, stage.proxied().await);
    let held = holder.fair_mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let mut line = Line::behind(0, &holder);
    for _ in 0..many {
        line.comes(&client).await;
    }
    fault(&stage);
    let token = held.token();
    held.release().await.unwrap();
    line.served_in_order(token).await;
    leaves_nothing(&stage.server, [holder, client]).await;
}
