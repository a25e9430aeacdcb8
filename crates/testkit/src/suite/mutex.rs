//! What every kind promises that can be held alone: one holder, whoever asks and however.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::{Backoff, Client, ErrorKind, Instant};
use tokio::task::JoinSet;

use super::{LONG, SHORT, STANDS_STILL};
use crate::history::Recorder;
use crate::polls::{Polled, at_most};
use crate::stress::{self, Plan};
use crate::{Held, Lock, Options as _, Rng, Scene, Shape, in_time, unless_stalled};

fn make(shape: Shape, client: &Client) -> Lock {
    shape.make(client, "x").and_then(|lock| lock.ttl(LONG)).expect("the kind is offered")
}

async fn lock(lock: &Lock) -> Held {
    in_time("the lock is free", lock.lock()).await.expect("the store works")
}

/// Whoever asks while it is held gets a plain no, and gets in afterwards.
pub async fn excludes_another_client(scene: &Scene, shape: Shape) {
    let (one, other) = scene.two_clients().await;
    let held = lock(&make(shape, &one)).await;
    assert!(make(shape, &other).try_lock().await.unwrap().is_none(), "busy is no error");
    held.check().unwrap();
    held.release().await.unwrap();
    let held = make(shape, &other).try_lock().await.unwrap().expect("it is free again");
    assert!(make(shape, &one).try_lock().await.unwrap().is_none());
    drop(held);
}

/// F25: a client, a connection or a session is nobody: two tasks of one client exclude each other.
pub async fn excludes_another_task_of_its_own_client(scene: &Scene, shape: Shape) {
    let client = scene.client().await;
    let held = lock(&make(shape, &client)).await;
    let other = make(shape, &client.clone());
    assert!(tokio::spawn(async move { other.try_lock().await }).await.unwrap().unwrap().is_none());
    assert!(make(shape, &client).try_lock().await.unwrap().is_none(), "nor is this task somebody");
    drop(held);
}

/// A waiter is woken by the release, though nothing ever expires.
pub async fn a_waiter_is_let_in_by_the_release(scene: &Scene, shape: Shape) {
    let (one, other) = scene.two_clients().await;
    let held = lock(&make(shape, &one)).await;
    let waiter = make(shape, &other).keep(false);
    let waiting = tokio::spawn(async move { waiter.lock().await });
    scene.line_is(&one, "x", 1).await;
    let token = held.token();
    held.release().await.unwrap();
    let held = in_time("the waiter is let in", waiting).await.unwrap().unwrap();
    assert!(held.token() > token);
    held.check().unwrap();
}

/// The same when the guard is only dropped.
pub async fn a_waiter_is_let_in_by_the_drop(scene: &Scene, shape: Shape) {
    let (one, other) = scene.two_clients().await;
    let held = lock(&make(shape, &one)).await;
    let waiter = make(shape, &other).keep(false);
    let waiting = tokio::spawn(async move { waiter.lock().await });
    scene.line_is(&one, "x", 1).await;
    drop(held);
    in_time("the waiter is let in", waiting).await.unwrap().unwrap().check().unwrap();
}

/// A wait that is over gives `None`, not before its time, and leaves no place in line.
pub async fn a_wait_that_is_too_short_gives_up(scene: &Scene, shape: Shape) {
    let (one, other) = scene.two_clients().await;
    let held = lock(&make(shape, &one)).await;
    for wait in [0, 1, 60].map(Duration::from_millis) {
        let begun = Instant::now();
        let asked = in_time("the wait ends", make(shape, &other).try_lock_for(wait)).await.unwrap();
        assert!(asked.is_none());
        assert!(Instant::now().since(begun) >= wait, "gave up before {wait:?} were over");
        scene.line_is(&one, "x", 0).await;
    }
    held.check().unwrap();
}

/// A wait that is long enough gets the lock when it becomes free.
pub async fn a_wait_that_is_long_enough_gets_in(scene: &Scene, shape: Shape) {
    let (one, other) = scene.two_clients().await;
    let held = lock(&make(shape, &one)).await;
    let waiter = make(shape, &other).keep(false);
    let waiting = tokio::spawn(async move { waiter.try_lock_for(LONG).await });
    scene.line_is(&one, "x", 1).await;
    held.release().await.unwrap();
    let held = in_time("the waiter is let in", waiting).await.unwrap().unwrap();
    held.expect("it waited long enough").check().unwrap();
}

/// Every grant has a higher token, whichever client has it and however the one before ended.
pub async fn tokens_rise(scene: &Scene, shape: Shape) {
    let (one, other) = scene.two_clients().await;
    let mut last = 0;
    for round in 0..50 {
        let held = lock(&make(shape, if round % 2 == 0 { &one } else { &other })).await;
        assert!(held.token().get() > last, "round {round}: {} after {last}", held.token());
        assert!(held.token().get() <= i64::MAX as u64, "tokens fit the integers of databases");
        last = held.token().get();
        if round % 3 == 0 { drop(held) } else { held.release().await.unwrap() }
    }
}

/// Tasks of two clients count together, and no count is lost.
pub async fn many_tasks_take_turns(scene: &Scene, shape: Shape) {
    const TASKS: u64 = 8;
    const ROUNDS: u64 = 25;
    let (one, other) = scene.two_clients().await;
    let count = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        // Nobody renews it, so whoever waited has it for the whole ttl too: nothing else protects the count.
        let lock = make(shape, if task % 2 == 0 { &one } else { &other }).keep(false);
        let count = Arc::clone(&count);
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let held = in_time("everybody is served", lock.lock()).await.unwrap();
                let before = count.load(Ordering::Relaxed);
                tokio::task::yield_now().await; // everybody else may run now, and must not get in
                count.store(before + 1, Ordering::Relaxed);
                held.release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(count.load(Ordering::Relaxed), TASKS * ROUNDS);
    scene.is_free(&one, "x").await;
}

/// A waiter that is dropped is in nobody's way.
pub async fn a_cancelled_waiter_leaves_the_line(scene: &Scene, shape: Shape) {
    let (one, other) = scene.two_clients().await;
    let held = lock(&make(shape, &one)).await;
    let mut waiting = Vec::new();
    for waiter in [&one, &other, &other].map(|client| make(shape, client).keep(false)) {
        waiting.push(tokio::spawn(async move { waiter.lock().await }));
        scene.line_is(&one, "x", waiting.len()).await;
    }
    waiting[0].abort();
    scene.line_is(&one, "x", 2).await;
    waiting[1].abort();
    scene.line_is(&one, "x", 1).await;
    held.release().await.unwrap();
    in_time("the last waiter is let in", waiting.remove(2)).await.unwrap().unwrap().check().unwrap();
}

/// F17: dropped after any number of polls, with the grant on its way or not, an ask leaves no hold and no ticket.
pub async fn cancelled_at_any_poll_it_leaves_nothing(scene: &Scene, shape: Shape) {
    let (one, other) = scene.two_clients().await;
    let mut rng = Rng::from_entropy();
    let (mut polls, mut done, mut dropped) = (0, 0, 0);
    for round in 0..120 {
        // Not kept, a leaked grant would stand for ten minutes; kept, only for the short first ttl.
        let asks = make(shape, &other).keep(round % 2 == 0);
        let contended = round % 3 != 0;
        let holder = if contended { Some(lock(&make(shape, &one)).await) } else { None };
        let (nap, linger) = (rng.up_to(Duration::from_millis(1)), rng.up_to(Duration::from_millis(2)));
        let leaving = tokio::spawn(async move {
            tokio::time::sleep(nap).await;
            if let Some(held) = holder {
                held.release().await.unwrap();
            }
        });
        let linger = if rng.one_in(2) { linger } else { Duration::ZERO };
        match in_time("it is woken or done", at_most(polls, linger, asks.lock())).await {
            Polled::Done(held, _) => {
                held.unwrap().check().unwrap();
                (done, polls) = (done + 1, 0);
            }
            Polled::Dropped => (dropped, polls) = (dropped + 1, polls + 1),
        }
        leaving.await.unwrap();
        scene.is_free(&one, "x").await;
    }
    assert!(done > 0 && dropped > 0, "{done} done, {dropped} dropped");
    scene.leaves_nothing([one, other]).await;
}

/// Without renewal a hold ends with its window, the holder knows before anybody else gets in, and releasing says so.
pub async fn a_hold_that_is_not_kept_ends(scene: &Scene, shape: Shape) {
    let (one, other) = scene.two_clients().await;
    let held = lock(&make(shape, &one).ttl(SHORT).unwrap().keep(false)).await;
    let next = lock(&make(shape, &other).keep(false)).await;
    let since = Instant::now();
    assert!(held.valid_until() < since, "the next holder came in before the window was over");
    assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
    in_time("the loss is told", held.lost()).await;
    assert!(next.token() > held.token());
    assert_eq!(held.release().await.unwrap_err().kind(), ErrorKind::Lost);
    next.check().unwrap();
    assert!(make(shape, &one).try_lock().await.unwrap().is_none(), "a stale release frees nobody else's lock");
}

/// With renewal it does not. Whether it is lost or not: nobody else is let in while it may be trusted.
pub async fn a_hold_that_is_kept_outlives_its_ttl(scene: &Scene, shape: Shape) {
    let (one, other) = scene.two_clients().await;
    let ttl = Duration::from_secs(2);
    unless_stalled("it is renewed in time", STANDS_STILL, async || {
        let held = lock(&make(shape, &one).ttl(ttl).unwrap()).await;
        let first = held.valid_until();
        crate::eventually("the first ttl is over, in the store too", || Instant::now() > first + ttl / 2).await;
        let tried = make(shape, &other).try_lock().await.unwrap();
        assert!(tried.is_none() || held.check().is_err(), "somebody else was let in");
        match held.release().await {
            Ok(()) => {
                assert!(tried.is_none(), "somebody else was let in");
                Some(())
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                None
            }
        }
    })
    .await;
}

/// Spinning waits without a place in line, and gets in.
pub async fn spinning_gets_in(scene: &Scene, shape: Shape) {
    let (one, other) = scene.two_clients().await;
    let held = lock(&make(shape, &one)).await;
    let spinner = make(shape, &other).spin(Backoff::default());
    assert!(spinner.try_lock_for(Duration::from_millis(30)).await.unwrap().is_none());
    let spinning = tokio::spawn(async move { spinner.lock().await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(one.view("x").await.unwrap().line.is_empty(), "a spinner stands in no line");
    held.release().await.unwrap();
    in_time("the spinner gets in", spinning).await.unwrap().unwrap().release().await.unwrap();
    scene.is_free(&one, "x").await;
}

/// P16: held, waited for, given up, expired: in the end there is nothing in the store.
pub async fn leaves_nothing(scene: &Scene, shape: Shape) {
    let (one, other) = scene.two_clients().await;
    let held = lock(&make(shape, &one)).await;
    assert!(make(shape, &other).try_lock_for(Duration::from_millis(5)).await.unwrap().is_none());
    held.release().await.unwrap();
    let expiring = lock(&make(shape, &other).ttl(Duration::from_millis(100)).unwrap().keep(false)).await;
    expiring.lost().await;
    drop(expiring);
    scene.leaves_nothing([one, other]).await;
}

/// Everything at once, on record: P1, P2, P5, P9, P10, P11, P12, P14, whichever apply.
pub async fn a_stress_is_sound(scene: &Scene, shape: Shape) {
    let clients = [scene.client().await, scene.client().await];
    let recorder = Recorder::in_memory();
    let plan = Plan { shape, name: "x".to_owned(), tasks: 12, rounds: 40, ttl: Duration::from_secs(60) };
    stress::run(&clients, &recorder, &plan).await;
    scene.expect_sound(recorder.history());
    scene.is_free(&clients[0], "x").await;
    scene.leaves_nothing(clients).await;
}
