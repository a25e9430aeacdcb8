//! Connections that never last, and connections that are not to be had.

use std::time::Duration;

use tenure_core::{Client, ErrorKind, Event, Instant, Phase};

use super::{Crowd, Database as _, LONG, Record, Stage, Store, Wish, client, leaves_nothing, line_is, patient};
use crate::history::expect_sound_but_order;
use crate::proxy::{Cut, Which};
use crate::suite::STANDS_STILL;
use crate::{Shape, eventually, eventually_async, in_time, unless_stalled};

/// The server ends every connection of every client, while some hold, some wait and some do both.
pub async fn the_server_ends_them_again_and_again<S: Store>() {
    let ttl = Duration::from_secs(15);
    let (server, record) = (S::Server::start(Wish::default()), Record::new());
    let clients = [client::<S>(&server.url()).await, client::<S>(&server.url()).await];
    let kept = clients[0].mutex("kept").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
    let mut events = kept.events();
    let waiting = tokio::spawn({
        let mutex = clients[1].mutex("kept").unwrap().ttl(LONG).unwrap().keep(false); // so it is let in for all of it
        async move { mutex.lock().await }
    });
    line_is(&clients[1], "kept", 1).await;
    let crowd = Crowd::start(&record, "x", Shape::FairMutex, &clients, 8, client::<S>(&server.url()).await);
    let (mut ended, mut rounds, began) = (0, 0, Instant::now());
    eventually_async("many connections were ended", async || {
        tokio::time::sleep(Duration::from_millis(50)).await;
        ended += server.end_connections();
        rounds += 1;
        rounds >= 40 && ended > 40
    })
    .await;
    crowd.has_had(&record, 20).await; // by then everybody has a connection again
    let took = Instant::now().since(began); // on a slow machine nothing gets through meanwhile
    crowd.stop().await;
    record.expect_sound_after(took);
    // A renewal gets through too; on a slow machine only when it is calm again, and half a ttl is left for that.
    let until = kept.valid_until();
    while kept.valid_until() == until && Instant::now() + ttl / 2 < until {
        tokio::time::sleep(Duration::from_millis(50)).await;
        server.end_connections();
    }
    let is_renewed = || kept.valid_until() > until && kept.phase() == Phase::Held;
    eventually("it is renewed, and there is nothing to fear: it is the same server", is_renewed).await;
    kept.release().await.unwrap();
    while let Some(event) = events.next().await {
        assert!(!matches!(event, Event::Lost(_)), "{event:?}");
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
    let server = S::Server::start(Wish { connections: Some(20), ..Wish::default() });
    let url = server.ordinary_url();
    // Who has no answer in time gives its connection up, and finds no other: where a machine stood still, that proves nothing.
    let holder = unless_stalled("it has all answers in time", STANDS_STILL, async || {
        let holder = let_in::<S>(&url).await;
        if keeps_its_own::<S>(&server, &url, &holder).await {
            return Some(holder);
        }
        let _ = in_time("it leaves", holder.close()).await; // and takes its connections along
        None
    })
    .await;
    let newcomer = let_in::<S>(&url).await;
    in_time("the lock", newcomer.mutex("kept").unwrap().lock()).await.unwrap().release().await.unwrap();
    leaves_nothing::<S>(&server, [holder, newcomer]).await;
}

/// Holds while others take all connections. Whether it had all answers in time.
async fn keeps_its_own<S: Store>(server: &S::Server, url: &str, holder: &Client) -> bool {
    let ttl = Duration::from_secs(9);
    let kept = holder.mutex("kept").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
    let mut events = kept.events();
    let taken = server.take_connections();
    for _ in 0..2 {
        let until = kept.valid_until();
        eventually("it is renewed", || kept.valid_until() > until || kept.phase() != Phase::Held).await;
    }
    // Whoever was on its way out when others came may leave a place: who finds it takes it, and the next one finds none.
    let (url, mut places) = (patient(url), Vec::new());
    let refused = loop {
        match in_time("an answer", S::open(&url)).await {
            Ok(backend) => places.push(backend),
            Err(refused) => break refused,
        }
        assert!(places.len() < 5, "others have all connections");
    };
    let asked = in_time("an answer", holder.mutex("kept").unwrap().try_lock()).await;
    let mut had_answers = asked.is_ok_and(|held| held.is_none()); // it can still ask
    drop((taken, places));
    had_answers &= kept.release().await.is_ok();
    while let Some(event) = events.next().await {
        had_answers &= !matches!(event, Event::Jeopardy { .. } | Event::Lost(_));
    }
    if had_answers {
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.to_string().contains("no connection left"), "{refused}");
    }
    had_answers
}

/// A client, as soon as there is a connection for it.
async fn let_in<S: Store>(url: &str) -> Client {
    let mut newcomer = None;
    eventually_async("who comes later is let in", async || {
        newcomer = S::open(&patient(url)).await.ok().map(crate::harness::client_of);
        newcomer.is_some()
    })
    .await;
    newcomer.unwrap()
}
