//! So many permits and no more, and large requests get theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::{Client, ErrorKind, Semaphore};
use tokio::task::JoinSet;

use super::{LONG, SHORT};
use crate::{Scene, in_time};

pub use super::cancel::acquire as cancelled_acquire;
pub use super::check::each_permit as each_permit_has_a_standing_of_its_own;

fn make(client: &Client, permits: u32) -> Semaphore {
    client.semaphore("x", permits).unwrap().ttl(LONG).unwrap()
}

/// Permits are counted over all clients, and come back.
pub async fn permits_are_counted(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let a = make(&one, 3).acquire(1).await.unwrap();
    let b = make(&other, 3).acquire(2).await.unwrap();
    assert!(b.token() > a.token());
    assert!(make(&one, 3).try_acquire(1).await.unwrap().is_none());
    b.release().await.unwrap();
    assert!(make(&one, 3).try_acquire(3).await.unwrap().is_none());
    let c = make(&one, 3).try_acquire(2).await.unwrap().expect("two are free");
    a.release().await.unwrap();
    c.release().await.unwrap();
    assert!(make(&other, 3).try_acquire(3).await.unwrap().is_some(), "all came back");
}

/// Nobody can ask for none, or for more than there are; there is no semaphore without permits.
pub async fn impossible_numbers_are_refused(scene: &Scene) {
    let client = scene.client().await;
    assert_eq!(client.semaphore("x", 0).unwrap_err().kind(), ErrorKind::BadOption);
    for permits in [0, 4, u32::MAX] {
        assert_eq!(make(&client, 3).try_acquire(permits).await.unwrap_err().kind(), ErrorKind::BadOption);
        assert_eq!(make(&client, 3).acquire(permits).await.unwrap_err().kind(), ErrorKind::BadOption);
    }
    let all = make(&client, u32::MAX).try_acquire(u32::MAX).await.unwrap().expect("that many can be had");
    assert!(make(&client, u32::MAX).try_acquire(1).await.unwrap().is_none());
    all.release().await.unwrap();
}

/// Everybody must say the same number while it is in use; afterwards it may change.
pub async fn another_number_is_a_mismatch(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = make(&one, 3).acquire(1).await.unwrap();
    for permits in [2, 4] {
        assert_eq!(make(&other, permits).try_acquire(1).await.unwrap_err().kind(), ErrorKind::Mismatch);
        assert_eq!(make(&other, permits).acquire(1).await.unwrap_err().kind(), ErrorKind::Mismatch);
    }
    held.release().await.unwrap();
    scene.is_free(&one, "x").await;
    make(&other, 4).acquire(4).await.unwrap().release().await.unwrap();
    scene.leaves_nothing([one, other]).await;
}

/// A large request that waits is not overtaken by small ones that would still fit.
pub async fn a_large_request_is_not_overtaken(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = make(&one, 4).acquire(3).await.unwrap();
    let semaphore = make(&other, 4).keep(false);
    let large = tokio::spawn(async move { semaphore.acquire(4).await });
    scene.line_is(&one, "x", 1).await;
    assert!(make(&one, 4).try_acquire(1).await.unwrap().is_none(), "one is free, but somebody waits before");
    let semaphore = make(&one, 4);
    let small = tokio::spawn(async move { semaphore.acquire(1).await });
    scene.line_is(&one, "x", 2).await;
    held.release().await.unwrap();
    let large = in_time("the large one is let in", large).await.unwrap().unwrap();
    let token = large.token();
    large.release().await.unwrap();
    assert!(in_time("the small one is let in", small).await.unwrap().unwrap().token() > token);
}

/// F23 for permits: a stream of small requests does not starve a large one.
pub async fn small_requests_do_not_starve_a_large_one(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let over = Arc::new(AtomicBool::new(false));
    let mut small = JoinSet::new();
    for task in 0..8 {
        let (semaphore, over) = (make(if task % 2 == 0 { &one } else { &other }, 4).keep(false), Arc::clone(&over));
        small.spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let held = semaphore.acquire(1).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1 + task % 3)).await;
                held.release().await.unwrap();
            }
        });
    }
    for _ in 0..5 {
        in_time("the large one gets in", make(&one, 4).keep(false).acquire(4)).await.unwrap().release().await.unwrap();
    }
    over.store(true, Ordering::Relaxed);
    in_time("the small ones end", small.join_all()).await;
}

/// A large request that gives up lets the small ones behind it in.
pub async fn a_large_request_that_gives_up_makes_room(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let held = make(&one, 4).acquire(2).await.unwrap();
    let semaphore = make(&other, 4);
    let large = tokio::spawn(async move { semaphore.acquire(3).await });
    scene.line_is(&one, "x", 1).await;
    let mut small = JoinSet::new();
    for place in 2..=3 {
        let semaphore = make(&one, 4);
        small.spawn(async move { semaphore.acquire(1).await.unwrap() });
        scene.line_is(&one, "x", place).await;
    }
    large.abort();
    let small = in_time("both small ones are let in", small.join_all()).await;
    assert_eq!(small.len(), 2);
    held.check().unwrap();
}

/// F28: permits of a holder that is lost come back, and only those.
pub async fn lost_permits_come_back(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    let stays = make(&one, 4).acquire(1).await.unwrap();
    let goes = make(&other, 4).ttl(SHORT).unwrap().keep(false).acquire(3).await.unwrap();
    let next = in_time("three come back", make(&one, 4).keep(false).acquire(3)).await.unwrap();
    assert!(goes.valid_until() < tenure_core::Instant::now());
    assert!(make(&other, 4).try_acquire(1).await.unwrap().is_none());
    drop(goes); // too late to give anything back a second time
    assert!(make(&other, 4).try_acquire(1).await.unwrap().is_none());
    stays.check().unwrap();
    next.check().unwrap();
}
