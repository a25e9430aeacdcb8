//! F10, F12: the cluster has done what was asked, and its reply is lost. The same request again, by the same id, finds it done.

use std::time::Duration;

use tenure_core::Standing;
use tenure_testkit::proxy::{After, Fault, Toward, Which};
use tenure_testkit::{eventually, in_time};

use crate::stage::{LONG, Stage, leaves_nothing, lets_go, line_is, marks};

const BOTH: [After; 2] = [After::Silence, After::Reset];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_is_found_again() {
    for after in BOTH {
        let stage = Stage::new();
        let client = stage.proxied(LONG).await;
        let marked = marks(&stage.cluster); // a slow machine may have asked for the first one twice, too
        stage.proxy.set(Which::All, Fault::Lose(Toward::Client, 1, after));
        let held = in_time("the lock", client.mutex("x").unwrap().ttl(LONG).unwrap().lock()).await.unwrap();
        assert!(stage.proxy.counters().lost > 0, "the reply was lost");
        held.check().unwrap();
        let view = client.view("x").await.unwrap();
        assert_eq!((view.holders.len(), view.line.len(), view.holders[0].token), (1, 0, held.token()), "granted once");
        held.release().await.unwrap();
        assert_eq!(marks(&stage.cluster), marked + 1, "a copy of the ask may still be on its way");
        leaves_nothing(&stage.cluster, [client]).await;
        assert_eq!(marks(&stage.cluster), 0, "they go with the lease, on which nothing can be put any more");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_in_line_is_found_again() {
    for after in BOTH {
        let stage = Stage::new();
        let (holder, client) = (stage.direct().await, stage.proxied(LONG).await);
        let held = holder.fair_mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        stage.proxy.set(Which::All, Fault::Lose(Toward::Client, 1, after));
        let mutex = client.fair_mutex("x").unwrap().ttl(LONG).unwrap();
        let waiting = tokio::spawn(async move { mutex.lock().await });
        eventually("the reply is lost", || stage.proxy.counters().lost >= 1).await;
        line_is(&holder, "x", 1).await;
        held.release().await.unwrap();
        lets_go(in_time("the waiter gets in", waiting).await.unwrap().unwrap().release().await);
        leaves_nothing(&stage.cluster, [holder, client]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_confirmed_in_the_end() {
    for after in BOTH {
        let stage = Stage::new();
        let client = stage.proxied(LONG).await;
        let held = client.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        stage.proxy.set(Which::All, Fault::Lose(Toward::Client, 1, after));
        in_time("the release", held.release()).await.unwrap();
        assert!(stage.proxy.counters().lost > 0, "the reply was lost");
        leaves_nothing(&stage.cluster, [client]).await;
    }
}

/// An ask is stuck in the network, its caller gives up, and its end overtakes it: when the ask arrives, it grants nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ask_that_arrives_after_its_end_grants_nothing() {
    let stage = Stage::new();
    let (client, other) = (stage.proxied(LONG).await, stage.direct().await);
    let beside = client.mutex("beside").unwrap().ttl(LONG).unwrap().lock().await.unwrap(); // the lease of the ask lives on
    let (marked, before) = (marks(&stage.cluster), stage.proxy.counters().bytes_to_server);
    let stuck = stage.proxy.set(Which::Present, Fault::Hold(Toward::Server));
    let note = "n".repeat(1_000); // so that it is known from anything else that is sent
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap().note(&note).unwrap();
    let asking = tokio::spawn(async move { mutex.lock().await });
    eventually("it asks", || stage.proxy.counters().bytes_to_server >= before + 1_000).await;
    asking.abort();
    assert!(asking.await.unwrap_err().is_cancelled());
    eventually("its end left a mark", || marks(&stage.cluster) == marked + 1).await;
    stage.proxy.lift(stuck);
    let held = in_time("it is free", other.mutex("x").unwrap().lock()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await; // whatever was stuck has arrived
    assert_eq!(other.view("x").await.unwrap().line.len(), 0);
    assert_eq!(marks(&stage.cluster), marked + 1, "it is there for as long as anything could arrive");
    held.release().await.unwrap();
    beside.release().await.unwrap();
    leaves_nothing(&stage.cluster, [client, other]).await;
}

/// A release is stuck in the network and sent again. Its first copy may arrive at any time, when the client's next hold may have the
/// same key, and ends nothing: it compares the revision at which that key was made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_arrives_late_ends_no_other_hold() {
    let stage = Stage::new();
    let client = stage.proxied(LONG).await;
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
    let held = mutex.lock().await.unwrap();
    let stuck = stage.proxy.set(Which::Present, Fault::Hold(Toward::Server));
    in_time("the release", held.release()).await.unwrap();
    let next = in_time("the next lock", mutex.lock()).await.unwrap();
    stage.proxy.lift(stuck);
    assert_eq!(client.view("x").await.unwrap().holders[0].token, next.token());
    next.check().unwrap();
    next.release().await.unwrap();
    leaves_nothing(&stage.cluster, [client]).await;
}

/// A release is stuck in the network while another task of the same client waits. The waiter holds only after the cluster has deleted
/// the key of the first holder: at no time are the sequencers of both current.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_under_way_lets_nobody_in() {
    let stage = Stage::new();
    let (client, other) = (stage.proxied(LONG).await, stage.direct().await);
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
    let held = mutex.lock().await.unwrap();
    let first = held.sequencer();
    let waiting = tokio::spawn(async move { mutex.keep(false).lock().await }); // not renewed, so a pause loses nothing
    line_is(&other, "x", 1).await;
    stage.proxy.set(Which::Present, Fault::Hold(Toward::Server));
    let releasing = tokio::spawn(held.release());
    let next = in_time("the waiter gets in", waiting).await.unwrap().unwrap();
    assert_ne!(other.check(&first).await.unwrap(), Standing::Current, "the next one holds");
    assert_eq!(other.check(&next.sequencer()).await.unwrap(), Standing::Current);
    in_time("the release", releasing).await.unwrap().unwrap();
    next.release().await.unwrap();
    leaves_nothing(&stage.cluster, [client, other]).await;
}
