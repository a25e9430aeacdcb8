//! A multi-lock has all of its names or none.

use std::time::Duration;

use tenure_core::{Client, ErrorKind, Multi};
use tokio::task::JoinSet;

use super::{LONG, SHORT};
use crate::{Scene, in_time};

fn make(client: &Client, names: &[&str]) -> Multi {
    client.multi(names).unwrap().ttl(LONG).unwrap()
}

/// Names are sorted and taken once; each is the mutex of that name to everybody else.
pub async fn names_are_sorted_and_taken_once(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let multi = make(&one, &["c", "a", "b", "a", "c"]);
    assert_eq!(multi.names().map(|name| name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    let held = multi.lock().await.unwrap();
    assert_eq!(held.tokens().count(), 3);
    assert_eq!(held.valid_until(), held.guards().iter().map(|guard| guard.valid_until()).min().unwrap());
    for name in ["a", "b", "c"] {
        assert!(other.mutex(name).unwrap().try_lock().await.unwrap().is_none(), "{name}");
    }
    held.release().await.unwrap();
    for name in ["a", "b", "c"] {
        assert!(other.mutex(name).unwrap().try_lock().await.unwrap().is_some(), "{name}");
    }
    scene.leaves_nothing([one, other]).await;
}

/// There is no lock on nothing, and one bad name spoils all.
pub async fn names_must_be_names(scene: &Scene) {
    let client = scene.client().await;
    assert_eq!(client.multi([""; 0]).unwrap_err().kind(), ErrorKind::BadName);
    assert_eq!(client.multi(["a", "\n"]).unwrap_err().kind(), ErrorKind::BadName);
}

/// F27: if one name cannot be had, none is held.
pub async fn all_or_nothing(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    for taken in ["a", "b", "c"] {
        let held = other.mutex(taken).unwrap().lock().await.unwrap();
        assert!(make(&one, &["a", "b", "c"]).try_lock().await.unwrap().is_none());
        assert!(make(&one, &["a", "b", "c"]).try_lock_for(Duration::from_millis(10)).await.unwrap().is_none());
        for free in ["a", "b", "c"].into_iter().filter(|name| *name != taken) {
            scene.is_free(&one, free).await;
        }
        held.release().await.unwrap();
    }
    assert!(make(&one, &["a", "b", "c"]).try_lock().await.unwrap().is_some());
}

/// F26: multi-locks named in opposite orders do not wait for each other in a circle.
pub async fn opposite_orders_do_not_deadlock(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let mut tasks = JoinSet::new();
    for task in 0..6 {
        let client = if task % 2 == 0 { &one } else { &other };
        let multi = make(client, [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"]][task % 3].as_slice()).keep(false);
        tasks.spawn(async move {
            for _ in 0..20 {
                let held = in_time("everybody is served", multi.lock()).await.unwrap();
                tokio::task::yield_now().await;
                held.release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
}

/// What is held while the last name is waited for is kept, however long that takes.
pub async fn what_is_held_is_kept_while_waiting(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let ttl = Duration::from_secs(9);
    let held = other.mutex("b").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let multi = make(&one, &["a", "b"]).ttl(ttl).unwrap();
    let waiting = tokio::spawn(async move { multi.lock().await?.check() });
    scene.line_is(&one, "b", 1).await;
    tokio::time::sleep(ttl * 3 / 2).await;
    assert!(other.mutex("a").unwrap().try_lock().await.unwrap().is_none(), "still held after its ttl");
    held.release().await.unwrap();
    in_time("the rest is had", waiting).await.unwrap().unwrap();
}

/// The weakest speaks for all: one that is lost is the loss of all.
pub async fn one_that_is_lost_is_the_loss_of_all(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = make(&one, &["a", "b", "c"]).ttl(Duration::from_secs(30)).unwrap().lock().await.unwrap();
    held.check().unwrap();
    assert_eq!(other.break_holds("b", None).await.unwrap(), 1);
    in_time("the loss is told", held.lost()).await;
    assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(held.run(async {}).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Lost);
    for name in ["a", "b", "c"] {
        scene.is_free(&one, name).await;
    }
}

/// A multi-lock that is not kept ends as a whole.
pub async fn not_kept_it_ends(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = make(&one, &["a", "b"]).ttl(SHORT).unwrap().keep(false).lock().await.unwrap();
    let next = in_time("it can be had again", make(&other, &["b", "a"]).keep(false).lock()).await.unwrap();
    assert!(held.valid_until() < tenure_core::Instant::now());
    assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
    next.check().unwrap();
}

/// Somebody who asks for one of the names asks for all of them.
pub async fn asked_for_one_of_them(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = make(&one, &["a", "b"]).ttl(Duration::from_secs(30)).unwrap().lock().await.unwrap();
    assert_eq!(other.ask("b", "deploy").await.unwrap(), 1);
    assert_eq!(in_time("the ask is heard", held.asked()).await.reason.as_str(), "deploy");
    held.check().unwrap();
}
