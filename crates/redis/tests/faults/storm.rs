//! F51 and worse: connections that freeze while new ones pass, and connections that never last.

use std::time::Duration;

use tenure_core::{Event, Instant, Phase};
use tenure_testkit::proxy::{Cut, Fault, Toward, Which};
use tenure_testkit::{Shape, eventually, eventually_async, in_time};

use crate::stage::{Crowd, LONG, Record, Stage, leaves_nothing};

/// Everything that was there freezes, as when TCP backs off; what is made anew passes. The hold outlives it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_survives_frozen_connections() {
    let ttl = Duration::from_secs(9);
    let stage = Stage::new();
    let client = stage.proxied().await;
    let held = client.mutex("kept").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
    let first = held.valid_until();
    eventually("it is renewed, so there is a connection for that", || held.valid_until() > first).await;
    let mut events = held.events();
    // The one for renewals has named `kept` and nothing else; the one for asks `beacon`.
    let frozen = [Which::Newest, Which::sent("beacon")].map(|which| stage.proxy.set(which, Fault::Hold(Toward::Both)));
    let at = Instant::now();
    eventually("it was renewed over a fresh connection", || held.valid_until() > at + ttl).await;
    // Asking works too, once the old connection counts as stuck.
    in_time("another lock", client.mutex("x").unwrap().lock()).await.unwrap().release().await.unwrap();
    eventually("this went on for 0.8 ttl", || Instant::now() > at + ttl.mul_f64(0.8)).await;
    held.check().unwrap();
    frozen.into_iter().for_each(|fault| stage.proxy.lift(fault));
    held.release().await.unwrap();
    while let Some(event) = events.next().await {
        assert!(!matches!(event, Event::Lost(_)), "{event:?}");
    }
    leaves_nothing(&stage.server, [client]).await;
}

/// Every connection is cut every 50 ms, under load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_resets_breaks_nothing() {
    for shape in [Shape::Mutex, Shape::FairMutex] {
        let (stage, record) = (Stage::new(), Record::new());
        let clients = [stage.proxied().await, stage.proxied().await];
        let kept = clients[0].mutex("kept").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        let crowd = Crowd::start(&record, "x", shape, &clients, 8, stage.direct().await);
        let (mut resets, began) = (0, Instant::now());
        eventually_async("there was a storm", async || {
            tokio::time::sleep(Duration::from_millis(50)).await;
            stage.proxy.cut(Which::All, Cut::Reset);
            resets += 1;
            resets >= 40 && stage.proxy.counters().connections > 40
        })
        .await;
        crowd.has_had(&record, 20).await;
        let took = Instant::now().since(began); // on a slow machine nothing got through meanwhile
        crowd.stop().await;
        record.expect_sound_after(took);
        assert_eq!(kept.phase(), Phase::Held, "the same server: nothing to fear");
        kept.release().await.unwrap();
        leaves_nothing(&stage.server, clients).await;
    }
}
