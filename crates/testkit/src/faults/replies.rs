//! F10: the server has done what was asked, and its reply is lost. The same request again, by the same id, finds it done.

use std::time::Duration;

use tenure_core::{Event, Instant, Phase};

use super::{Database as _, LONG, Stage, Store, Wish, leaves_nothing};
use crate::proxy::{After, Fault, Toward, Which};
use crate::{eventually, in_time};

const BOTH: [After; 2] = [After::Silence, After::Reset];

/// The connection that has carried this verb.
fn carries(verb: &str) -> Which {
    Which::sent(&format!("tenure_{verb}"))
}

/// An ask that was granted.
pub async fn a_grant_is_found_again<S: Store>() {
    for after in BOTH {
        let stage = Stage::<S>::new(Wish::default()).await;
        let (client, observer) = (stage.proxied().await, stage.direct().await);
        let marks = stage.server.marks();
        stage.proxy.set(carries("ask"), Fault::Lose(Toward::Client, 1, after));
        let held = in_time("the lock", client.mutex("x").unwrap().ttl(LONG).unwrap().lock()).await.unwrap();
        assert!(stage.proxy.counters().lost >= 1, "the reply was lost");
        let view = observer.view("x").await.unwrap();
        assert_eq!(view.holders.len(), 1);
        assert_eq!(view.holders[0].token, held.token(), "it was granted once");
        held.check().unwrap();
        held.release().await.unwrap();
        assert_eq!(stage.server.marks(), marks + 1, "a copy of the ask may still be on its way");
        leaves_nothing::<S>(&stage.server, [client, observer]).await;
    }
}

/// An ask that was put in line: the line does not end with a place that nobody stands in.
pub async fn a_place_in_line_is_found_again<S: Store>() {
    for after in BOTH {
        let stage = Stage::<S>::new(Wish::default()).await;
        let (holder, client) = (stage.direct().await, stage.proxied().await);
        let held = holder.fair_mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        stage.proxy.set(carries("ask"), Fault::Lose(Toward::Client, 1, after));
        let waiting = tokio::spawn({
            let mutex = client.fair_mutex("x").unwrap().keep(false); // so it is let in for all of its ttl
            async move { mutex.lock().await }
        });
        eventually("the reply is lost", || stage.proxy.counters().lost >= 1).await;
        held.release().await.unwrap();
        in_time("the waiter gets in", waiting).await.unwrap().unwrap().release().await.unwrap();
        leaves_nothing::<S>(&stage.server, [holder, client]).await;
    }
}

/// A release.
pub async fn a_release_is_confirmed_in_the_end<S: Store>() {
    for after in BOTH {
        let stage = Stage::<S>::new(Wish::default()).await;
        let (other, client) = (stage.direct().await, stage.proxied().await);
        // Two are inside: who is alone there may be let go of in another way.
        let beside = other.rw_lock("x").unwrap().ttl(LONG).unwrap().read().await.unwrap();
        let held = client.rw_lock("x").unwrap().ttl(LONG).unwrap().read().await.unwrap();
        stage.proxy.set(carries("end"), Fault::Lose(Toward::Client, 1, after));
        in_time("the release", held.release()).await.unwrap();
        assert!(stage.proxy.counters().lost >= 1, "the reply was lost");
        beside.release().await.unwrap();
        leaves_nothing::<S>(&stage.server, [other, client]).await;
    }
}

/// A renewal.
pub async fn a_renewal_is_tried_again_in_time<S: Store>() {
    for after in BOTH {
        let stage = Stage::<S>::new(Wish::default()).await;
        let client = stage.proxied().await;
        let held = client.mutex("x").unwrap().ttl(Duration::from_secs(12)).unwrap().lock().await.unwrap();
        let mut events = held.events();
        let first = held.valid_until();
        eventually("it is renewed", || held.valid_until() > first).await;
        stage.proxy.set(carries("renew"), Fault::Lose(Toward::Client, 1, after));
        eventually("a reply is lost", || stage.proxy.counters().lost >= 1).await;
        let second = held.valid_until();
        eventually("it is renewed again", || held.valid_until() > second).await;
        assert_eq!(held.phase(), Phase::Held);
        held.release().await.unwrap();
        while let Some(event) = events.next().await {
            assert!(!matches!(event, Event::Lost(_)), "{event:?}");
        }
        leaves_nothing::<S>(&stage.server, [client]).await;
    }
}

/// F51: everything that was there freezes, as when TCP backs off; what is made anew passes. The hold outlives it.
pub async fn frozen_connections_are_replaced<S: Store>() {
    let ttl = Duration::from_secs(12);
    let stage = Stage::<S>::new(Wish::default()).await;
    let client = stage.proxied().await;
    let held = client.mutex("kept").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
    let mut events = held.events();
    let first = held.valid_until();
    eventually("it is renewed, so there is a connection for that", || held.valid_until() > first).await;
    let frozen = stage.proxy.set(Which::Present, Fault::Hold(Toward::Both));
    let at = Instant::now();
    eventually("it was renewed over a fresh connection", || held.valid_until() > at + ttl).await;
    // Asking works too, once the old connection counts as stuck.
    in_time("another lock", client.mutex("x").unwrap().lock()).await.unwrap().release().await.unwrap();
    held.check().unwrap();
    stage.proxy.lift(frozen);
    held.release().await.unwrap();
    while let Some(event) = events.next().await {
        assert!(!matches!(event, Event::Lost(_)), "{event:?}");
    }
    leaves_nothing::<S>(&stage.server, [client]).await;
}
