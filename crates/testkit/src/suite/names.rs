//! Two different names never meet, whatever is in them.

use std::collections::BTreeSet;

use tenure_core::{Client, ErrorKind, LockName};
use tokio::task::JoinSet;

use super::LONG;
use crate::names::refused;
use crate::{Scene, Shape, in_time};

/// Locks every name of the corpus, with its number as a note.
async fn lock_all(client: &Client, names: &[String]) -> Vec<tenure_core::Guard> {
    let mut held = Vec::new();
    let numbered: Vec<(usize, &String)> = names.iter().enumerate().collect();
    // Not all at once: a slow machine may take longer over hundreds of answers than each of them may take.
    for some in numbered.chunks(50) {
        let mut locking = JoinSet::new();
        for (number, name) in some.iter().copied() {
            let mutex = client.mutex(name).unwrap().ttl(LONG).unwrap().note(number.to_string()).unwrap();
            locking.spawn(async move { (number, mutex.try_lock().await.unwrap()) });
        }
        held.extend(in_time("all are asked for", locking.join_all()).await);
    }
    held.sort_by_key(|(number, _)| *number);
    let name = |number: usize| &names[number];
    held.into_iter().map(|(number, held)| held.unwrap_or_else(|| panic!("{:?} meets another name", name(number)))).collect()
}

/// F44: every one of more than five hundred names is a lock of its own, and comes back as it was given.
pub async fn all_are_different_and_come_back_intact(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let names = scene.names();
    let held = lock_all(&one, &names).await;
    for (number, name) in names.iter().enumerate() {
        assert!(other.mutex(name).unwrap().try_lock().await.unwrap().is_none(), "{name:?} is held");
        let view = other.view(name).await.unwrap();
        assert_eq!((view.name.as_str(), view.holders.len()), (name.as_str(), 1));
        assert_eq!(view.holders[0].note.as_str(), number.to_string(), "{name:?}");
        assert_eq!(held[number].sequencer().to_string().parse::<tenure_core::Sequencer>().unwrap().name.as_str(), name);
    }
    // Freeing every second one frees exactly those.
    for (number, guard) in held.into_iter().enumerate() {
        if number % 2 == 0 {
            guard.release().await.unwrap();
        } else {
            std::mem::forget(guard);
        }
    }
    for (number, name) in names.iter().enumerate() {
        assert_eq!(other.view(name).await.unwrap().is_free(), number % 2 == 0, "{name:?}");
    }
}

/// Listing gives them all, intact, in byte order, whole or page by page.
pub async fn a_listing_has_them_all_in_order(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    if !scene.lists(&one).await {
        return;
    }
    let names = scene.names();
    let held = lock_all(&one, &names).await;
    let whole: Vec<String> = listed(&other, "", None, usize::MAX).await;
    assert_eq!(whole, names);
    let (mut pages, mut after) = (Vec::new(), None);
    loop {
        let page = listed(&other, "", after.as_ref(), 37).await;
        assert!(page.len() <= 37);
        let Some(last) = page.last() else { break };
        after = Some(LockName::new(last).unwrap());
        pages.extend(page);
    }
    assert_eq!(pages, names);
    drop(held);
    scene.leaves_nothing([one, other]).await;
}

/// A prefix is a prefix, and never a pattern.
pub async fn a_prefix_is_no_pattern(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    if !scene.lists(&one).await {
        return;
    }
    let names = scene.names();
    let held = lock_all(&one, &names).await;
    for prefix in [
        "a", "A", "a/", "a/b", "%", "_", "*", "?", "[", "\\", "'", "\"", "{", "k", "é", "e", "🔒", "p", " ", ".", "nothing",
        "~",
    ] {
        let expected: Vec<String> = names.iter().filter(|name| name.starts_with(prefix)).cloned().collect();
        assert_eq!(listed(&other, prefix, None, usize::MAX).await, expected, "{prefix:?}");
    }
    drop(held);
}

async fn listed(client: &Client, prefix: &str, after: Option<&LockName>, limit: usize) -> Vec<String> {
    let views = client.list(prefix, after, limit).await.unwrap();
    views.into_iter().map(|view| view.name.as_str().to_owned()).collect()
}

/// What is no name is refused at the door, by everything that takes one, and says why.
pub async fn what_is_no_name_is_refused(scene: &Scene) {
    let client = scene.client().await;
    let kinds = client.abilities().kinds;
    for bad in refused() {
        for shape in Shape::ALL.into_iter().filter(|shape| kinds.contains(&shape.kind())) {
            assert_eq!(shape.make(&client, &bad).unwrap_err().kind(), ErrorKind::BadName, "{shape:?} of {bad:?}");
        }
        assert_eq!(client.view(&bad).await.unwrap_err().kind(), ErrorKind::BadName);
        assert_eq!(client.watch(&bad).unwrap_err().kind(), ErrorKind::BadName);
        assert_eq!(client.ask(&bad, "").await.unwrap_err().kind(), ErrorKind::BadName);
        assert_eq!(client.break_holds(&bad, None).await.unwrap_err().kind(), ErrorKind::BadName);
        if client.abilities().cells {
            assert_eq!(client.cell(&bad).unwrap_err().kind(), ErrorKind::BadName);
        }
    }
    scene.leaves_nothing([client]).await;
}

/// All kinds share one space: a name in use as one kind is a mismatch for another, and free for it afterwards.
pub async fn kinds_share_one_space(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let kinds = one.abilities().kinds;
    let shapes: Vec<Shape> = Shape::ALL.into_iter().filter(|shape| kinds.contains(&shape.kind())).collect();
    let mut last = BTreeSet::new();
    for held_as in &shapes {
        let held = held_as.make(&one, "x").unwrap().lock().await.unwrap();
        for asked_as in shapes.iter().filter(|shape| shape.kind() != held_as.kind()) {
            let lock = asked_as.make(&other, "x").unwrap();
            assert_eq!(lock.try_lock().await.unwrap_err().kind(), ErrorKind::Mismatch, "{asked_as:?} while {held_as:?}");
            assert_eq!(in_time("it says so", lock.lock()).await.unwrap_err().kind(), ErrorKind::Mismatch);
        }
        assert!(last.last().is_none_or(|last| *last < held.token()), "tokens rise over all kinds");
        last.insert(held.token());
        held.release().await.unwrap();
        scene.is_free(&one, "x").await;
    }
}
