//! F19: the connection on which waiters are told fails, without a word or with one. Everybody gets in, in order.

use tenure_core::{Client, Guard};
use tenure_testkit::in_time;
use tenure_testkit::proxy::{Cut, Fault, Toward, Which};
use tokio::task::JoinHandle;

use crate::stage::{LONG, Stage, leaves_nothing, line_is};

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
    let mut waiting = Vec::new();
    for number in 1..=many {
        waiting.push(waiter(&client));
        line_is(&holder, "x", number).await;
    }
    fault(&stage);
    let mut last = held.token();
    held.release().await.unwrap();
    for waiter in waiting {
        let held = in_time("the next one gets in", waiter).await.unwrap();
        assert!(held.token() > last, "in order");
        last = held.token();
        held.check().unwrap();
        in_time("the release", held.release()).await.unwrap();
    }
    leaves_nothing(&stage.server, [holder, client]).await;
}

fn waiter(client: &Client) -> JoinHandle<Guard> {
    // Not kept, so that a hand-over stands until it is found, however slow the machine is.
    let mutex = client.fair_mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
    tokio::spawn(async move { mutex.lock().await.unwrap() })
}
