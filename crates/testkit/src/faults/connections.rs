//! Connections that never last, and connections that are not to be had.

use std::time::Duration;

use tenure_core::{ErrorKind, Event, Instant, Phase};

use super::{Crowd, Database as _, LONG, Record, Stage, Store, Wish, client, leaves_nothing, line_is};
use crate::history::expect_sound_but_order;
use crate::proxy::{Cut, Which};
use crate::{Shape, eventually, eventually_async, in_time};

/// The server ends every connection of every client, while some hold, some wait and some do both.
pub async fn the_server_ends_them_again_and_again<S: Store>() {
    let (server, record) = (S::Server::start(Wish::default()), Record::new());
    let clients = [client::<S>(&server.url()).await, client::<S>(&server.url()).await];
    let kept = clients[0].mutex("kept").unwrap().ttl(Duration::from_secs(3)).unwrap().lock().await.unwrap();
    let mut events = kept.events();
    let waiting = tokio::spawn({
        let mutex = clients[1].mutex("kept").unwrap().ttl(LONG).unwrap();
        async move { mutex.lock().await }
    });
    line_is(&clients[1], "kept", 1).await;
    let crowd = Crowd::start(&record, "x", Shape::FairMutex, &clients, 8, client::<S>(&server.url()).await);
    let (mut ended, began) = (0, Instant::now());
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        ended += server.end_connections();
    }
    assert!(ended > 40, "{ended} connections were ended");
    let took = Instant::now().since(began); // on a slow machine nothing gets through meanwhile
    crowd.has_had(&record, 20).await;
    crowd.stop().await;
    record.expect_sound_after(took);
    assert_eq!(kept.phase(), Phase::Held, "the same server: nothing to fear");
    kept.release().await.unwrap();
    while let Some(event) = events.next().await {
        assert!(!matches!(event, Event::Lost), "{event:?}");
    }
    in_time("whoever waited through it gets in", waiting).await.unwrap().unwrap().release().await.unwrap();
    leaves_nothing::<S>(&server, clients).await;
}

/// Every connection is cut every 50 ms, under load, whatever is on its way.
pub async fn a_storm_of_resets_breaks_nothing<S: Store>() {
    for shape in [Shape::Mutex, Shape::FairMutex] {
        let (stage, record) = (Stage::<S>::new(Wish::default()).await, Record::new());
        let clients = [stage.proxied().await, stage.proxied().await];
        let kept = clients[0].mutex("kept").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        let crowd = Crowd::start(&record, "x", shape, &clients, 8, stage.direct().await);
        let mut cut = 0;
        eventually_async("there was a storm", async || {
            tokio::time::sleep(Duration::from_millis(50)).await;
            cut += stage.proxy.cut(Which::All, Cut::Reset);
            cut > 50
        })
        .await;
        crowd.has_had(&record, 20).await;
        crowd.stop().await;
        // Who asked first may well be heard later: order is that of the asks that got through.
        expect_sound_but_order(&record.history());
        assert_eq!(kept.phase(), Phase::Held, "the same server: nothing to fear");
        kept.release().await.unwrap();
        leaves_nothing::<S>(&stage.server, clients).await;
    }
}

/// F41: others have all connections. Whoever has its own keeps what it holds, from the grant on; who comes new is told why not.
pub async fn others_take_all_of_them<S: Store>() {
    let ttl = Duration::from_millis(1500);
    let server = S::Server::start(Wish { connections: Some(20), ..Wish::default() });
    let url = server.ordinary_url();
    let holder = client::<S>(&url).await;
    let kept = holder.mutex("kept").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
    let mut events = kept.events();
    let taken = server.take_connections();
    for _ in 0..3 {
        let until = kept.valid_until();
        eventually("it is renewed", || kept.valid_until() > until || kept.phase() == Phase::Lost).await;
        assert_eq!(kept.phase(), Phase::Held);
    }
    let refused = in_time("an answer", S::open(&url)).await.err().expect("there is no connection for it");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("no connection left"), "{refused}");
    assert!(holder.mutex("kept").unwrap().try_lock().await.unwrap().is_none(), "it can still ask");
    drop(taken);
    let mut newcomer = None;
    eventually_async("who comes later is let in", async || {
        newcomer = S::open(&url).await.ok().map(crate::harness::client_of);
        newcomer.is_some()
    })
    .await;
    kept.release().await.unwrap();
    while let Some(event) = events.next().await {
        assert!(!matches!(event, Event::Lost), "{event:?}");
    }
    let newcomer = newcomer.unwrap();
    in_time("the lock", newcomer.mutex("kept").unwrap().lock()).await.unwrap().release().await.unwrap();
    leaves_nothing::<S>(&server, [holder, newcomer]).await;
}
