//! F10: the server has done what was asked, and its reply is lost. The same request again, by the same id, finds it done.

use std::time::Duration;

use tenure_core::{ErrorKind, Event, Instant, Phase};
use tenure_testkit::proxy::{After, Fault, Toward, Which};
use tenure_testkit::{eventually, in_time};

use crate::stage::{LONG, Stage, last_token, leaves_nothing, marks, new_mark};

const BOTH: [After; 2] = [After::Silence, After::Reset];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_is_found_again() {
    for after in BOTH {
        let stage = Stage::new();
        let client = stage.proxied().await;
        let before = marks(&stage.server);
        stage.proxy.set(Which::All, Fault::Lose(Toward::Client, 1, after));
        let held = in_time("the lock", client.mutex("x").unwrap().ttl(LONG).unwrap().lock()).await.unwrap();
        assert!(stage.proxy.counters().lost >= 1, "the reply was lost");
        assert_eq!(held.token().get(), last_token(&stage.server), "it was granted once");
        held.check().unwrap();
        held.release().await.unwrap();
        new_mark(&stage.server, &before); // a copy of the ask may still be on its way
        leaves_nothing(&stage.server, [client]).await;
    }
}

/// The holder does not mind; nor does it end with a place in line that nobody stands in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_in_line_is_found_again() {
    for after in BOTH {
        let stage = Stage::new();
        let (holder, client) = (stage.direct().await, stage.proxied().await);
        let held = holder.fair_mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        stage.proxy.set(Which::All, Fault::Lose(Toward::Client, 1, after));
        let waiting = tokio::spawn({
            let mutex = client.fair_mutex("x").unwrap();
            async move { mutex.lock().await }
        });
        eventually("the reply is lost", || stage.proxy.counters().lost >= 1).await;
        held.release().await.unwrap();
        let held = in_time("the waiter gets in", waiting).await.unwrap().unwrap();
        // Found again after two seconds of silence, a hand-over may be all but over; then its holder is told so.
        if let Err(error) = held.release().await {
            assert_eq!((error.kind(), after), (ErrorKind::Lost, After::Silence), "{error}");
        }
        leaves_nothing(&stage.server, [holder, client]).await;
    }
}

/// A window counts from the sending of its request, since the server may have counted from then: a reply that comes late makes it no
/// longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_reply_makes_no_window_longer() {
    let (late, ttl) = (Duration::from_millis(500), Duration::from_secs(9));
    let stage = Stage::new();
    let client = stage.proxied().await;
    let held = client.mutex("x").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
    let renewed_after = async |until: Instant| eventually("it is renewed", || held.valid_until() > until).await;
    renewed_after(held.valid_until()).await; // so there is a connection for that
    stage.proxy.set(Which::All, Fault::Delay(Toward::Client, late));
    let other = in_time("a grant", client.mutex("y").unwrap().ttl(ttl).unwrap().lock()).await.unwrap();
    assert!(other.valid_until() <= Instant::now() - late + ttl, "what is heard now was asked for before that");
    renewed_after(held.valid_until()).await; // its reply may have been on its way already
    renewed_after(held.valid_until()).await;
    let until = held.valid_until();
    assert!(until <= Instant::now() - late + ttl, "what is heard now was asked for before that");
    other.release().await.unwrap();
    held.release().await.unwrap();
    leaves_nothing(&stage.server, [client]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_confirmed_in_the_end() {
    for after in BOTH {
        let stage = Stage::new();
        let client = stage.proxied().await;
        let held = client.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        stage.proxy.set(Which::All, Fault::Lose(Toward::Client, 1, after));
        in_time("the release", held.release()).await.unwrap();
        assert!(stage.proxy.counters().lost >= 1, "the reply was lost");
        leaves_nothing(&stage.server, [client]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_is_tried_again_in_time() {
    for after in BOTH {
        let stage = Stage::new();
        let client = stage.proxied().await;
        let held = client.mutex("x").unwrap().ttl(Duration::from_secs(9)).unwrap().lock().await.unwrap();
        let mut events = held.events();
        let first = held.valid_until();
        eventually("it is renewed", || held.valid_until() > first).await;
        stage.proxy.set(Which::All, Fault::Lose(Toward::Client, 1, after));
        eventually("a reply is lost", || stage.proxy.counters().lost >= 1).await;
        let second = held.valid_until();
        eventually("it is renewed again", || held.valid_until() > second).await;
        assert_eq!(held.phase(), Phase::Held);
        held.release().await.unwrap();
        while let Some(event) = events.next().await {
            assert!(!matches!(event, Event::Lost(_)), "{event:?}");
        }
        leaves_nothing(&stage.server, [client]).await;
    }
}
