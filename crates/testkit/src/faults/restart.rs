//! A server that is killed and comes back.

use std::time::Duration;

use tenure_core::fence::{Fence as _, MemoryFence, Rule};
use tenure_core::{Client, Event, Instant, LockName, Phase, Token};

use super::{Crowd, Database, LONG, Record, Store, Wish, client, leaves_nothing};
use crate::servers::Backup;
use crate::{Shape, eventually, in_time};

/// It waits for its disk at every commit, so nothing is forgotten, under load; whoever holds is in doubt only for a moment.
pub async fn nothing_is_forgotten<S: Store>() {
    let (server, record) = (S::Server::start(Wish { fsync: true, ..Wish::default() }), Record::new());
    let clients = [client::<S>(&server.url()).await, client::<S>(&server.url()).await];
    let kept = clients[0].mutex("kept").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let (mut events, token) = (kept.events(), kept.token());
    let crowd = Crowd::start(&record, "x", Shape::FairMutex, &clients, 6, client::<S>(&server.url()).await);
    let (mut kills, mut longest) = (Vec::new(), Duration::ZERO);
    for _ in 0..2 {
        crowd.has_had(&record, 30).await;
        eventually("it can be told apart", || server.is_told_apart()).await;
        let killed = Instant::now();
        server.kill();
        server.restart();
        kills.push(killed);
        crowd.has_had(&record, 12).await; // two rounds: by then everybody has found it again
        longest = longest.max(Instant::now().since(killed));
        let doubted = in_time("the holder is in doubt", events.next()).await;
        assert!(matches!(doubted, Some(Event::Jeopardy { .. })), "{doubted:?}");
        assert_eq!(in_time("it is safe again", events.next()).await, Some(Event::Safe));
        assert_eq!((kept.phase(), kept.token()), (Phase::Held, token));
    }
    crowd.has_had(&record, 30).await;
    crowd.stop().await;
    eprintln!("{} grants; everybody was back after {longest:?}", record.history().grants());
    record.expect_sound_after_kills(&kills, longest);
    kept.release().await.unwrap();
    leaves_nothing::<S>(&server, clients).await;
}

/// Somebody puts back what the server was an hour ago: it has forgotten every token since, and gives higher ones all the same.
pub async fn a_restored_backup_does_not_start_over<S: Store>() {
    let (server, fence) = (S::Server::start(Wish { fsync: true, ..Wish::default() }), MemoryFence::new());
    let first = shows(&client::<S>(&server.url()).await, &fence).await;
    server.kill();
    let backup = Backup::of(&server.dir().join("data"));
    server.restart();
    let client_since = client::<S>(&server.url()).await;
    let mut last = first;
    for _ in 0..10 {
        last = shows(&client_since, &fence).await;
    }
    drop(client_since);
    server.kill();
    backup.put_back();
    server.restart();
    let after = client::<S>(&server.url()).await;
    assert!(shows(&after, &fence).await > last, "it goes on above what it has forgotten");
    leaves_nothing::<S>(&server, [after]).await;
}

/// Takes a lock and shows its token to a fence that forgets nothing, and must accept it.
async fn shows(client: &Client, fence: &MemoryFence) -> Token {
    let held = in_time("it is free", client.mutex("x").unwrap().lock()).await.unwrap();
    let name = LockName::new("x").unwrap();
    let verdict = fence.advance(&name, held.token(), Rule::ANY).await.unwrap();
    assert!(verdict.is_accepted(), "{verdict:?} to {}", held.token());
    let token = held.token();
    held.release().await.unwrap();
    token
}
