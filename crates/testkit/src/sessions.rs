//! What stores have in common whose server has locks of its own, each waiter with a session.

use std::time::Duration;

use tenure_core::{Client, ErrorKind};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::in_time;

/// How many ask at once.
const TASKS: usize = 8;

/// A client that has room for one session besides the shared one, and holds on that: what it asks for next it gets all the same, once
/// that is free. Whoever has the room may wait for just that.
pub async fn whoever_has_no_room_gets_in(one: &Client, other: &Client) {
    let mut held = Vec::new();
    for name in ["x", "y"] {
        let in_the_way = other.mutex(name).unwrap().lock().await.unwrap();
        let mutex = one.mutex(name).unwrap();
        let mut asking = tokio::spawn(async move { mutex.lock().await });
        assert!(timeout(Duration::from_millis(100), &mut asking).await.is_err(), "{name} is not free");
        in_the_way.release().await.unwrap();
        held.push(in_time("it is let in", asking).await.unwrap().unwrap());
    }
    for held in held {
        held.release().await.unwrap();
    }
}

/// A server that nobody can reach any more: whoever needs a new session is told so, and nobody waits for all who came before.
pub async fn an_unreachable_server_is_told(client: &Client, cut: impl FnOnce()) {
    client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
    cut();
    let mut asking = JoinSet::new();
    for task in 0..TASKS {
        // With another ttl it needs another session.
        let mutex = client.mutex(format!("y{task}")).unwrap().ttl(Duration::from_secs(600)).unwrap();
        asking.spawn(async move { mutex.try_lock().await });
    }
    for told in in_time("all are told", asking.join_all()).await {
        assert_eq!(told.map(|held| held.is_some()).unwrap_err().kind(), ErrorKind::Unavailable);
    }
}
