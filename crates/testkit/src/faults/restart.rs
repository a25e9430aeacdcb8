//! A server that is killed and comes back.

use std::time::Duration;

use tenure_core::{Event, Instant, Phase};

use super::{Crowd, Database as _, LONG, Record, Store, Wish, client, leaves_nothing};
use crate::{Shape, eventually, in_time};

/// It waits for its disk at every commit, so nothing is forgotten, under load; whoever holds is in doubt only for a moment.
pub async fn nothing_is_forgotten<S: Store>() {
    let (server, record) = (S::Server::start(Wish { fsync: true, ..Wish::default() }), Record::new());
    let clients = [client::<S>(&server.url()).await, client::<S>(&server.url()).await];
    let kept = clients[0].mutex("kept").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let (mut events, token) = (kept.events(), kept.token());
    let crowd = Crowd::start(&record, "x", Shape::FairMutex, &clients, 6, client::<S>(&server.url()).await);
    let mut longest = Duration::ZERO;
    for _ in 0..2 {
        crowd.has_had(&record, 30).await;
        eventually("it can be told apart", || server.is_told_apart()).await;
        server.kill();
        let killed = Instant::now();
        server.restart();
        longest = longest.max(Instant::now().since(killed));
        let doubted = in_time("the holder is in doubt", events.next()).await;
        assert!(matches!(doubted, Some(Event::Jeopardy { .. })), "{doubted:?}");
        assert_eq!(in_time("it is safe again", events.next()).await, Some(Event::Safe));
        assert_eq!((kept.phase(), kept.token()), (Phase::Held, token));
    }
    crowd.has_had(&record, 30).await;
    crowd.stop().await;
    eprintln!("{} grants; it was away for {longest:?}", record.history().grants());
    record.expect_sound_after(longest);
    kept.release().await.unwrap();
    leaves_nothing::<S>(&server, clients).await;
}
