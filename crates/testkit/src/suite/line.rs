//! The order of a line, on a machine that may stand still: what [`fair`](super::fair) and others measure it with.

use tenure_core::lease::ALIVE;
use tenure_core::{Client, Guard, Instant};
use tokio::task::JoinHandle;

use super::LONG;
use crate::{Scene, Silence, in_time};

/// That somebody was let in: the token, and when it had it at the latest, on the clock that all processes of a host share.
pub(super) type Entry = (u64, u64);

pub(super) fn entry(held: &Guard) -> Entry {
    (held.token().get(), Instant::now().as_nanos())
}

/// Somebody who holds the fair mutex, behind whom a line forms.
pub(super) async fn holder(client: &Client) -> Guard {
    let mutex = client.fair_mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
    in_time("it is free", mutex.lock()).await.unwrap()
}

/// Puts one more waiter in the line and waits until it stands there, as number `place`. Once it was let in it lets go by itself, in one
/// way or the other, so that nobody waits for the wrong one.
pub(super) async fn queue(scene: &Scene, client: &Client, place: usize) -> JoinHandle<Entry> {
    // Who is not renewed is let in for the whole ttl: a hand-over stands until it is found, however slow the machine is.
    let mutex = client.fair_mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
    let waiting = tokio::spawn(async move {
        let held = mutex.lock().await.unwrap();
        let entry = entry(&held);
        if place % 2 == 1 {
            held.release().await.unwrap()
        } else {
            drop(held)
        }
        entry
    });
    scene.line_is(client, "x", place).await;
    waiting
}

/// How they were let in, listed as they stood in line.
pub(super) async fn served(line: Vec<JoinHandle<Entry>>) -> Vec<Entry> {
    let mut entered = Vec::new();
    for waiting in line {
        entered.push(in_time("everybody is let in", waiting).await.unwrap());
    }
    entered
}

/// Those whom the attempt lists as they stood in line were let in in that order. Whoever waits is heard every second, and another may
/// come first only where it was not for [`ALIVE`]: on a machine that was measured to stand still for so long. Then it is tried again.
/// Tokens rise in any case.
pub(super) async fn keeps_its_order(observer: &Client, mut attempt: impl AsyncFnMut() -> Vec<Entry>) {
    for _ in 0..5 {
        let silence = Silence::watched_by(observer);
        let listed = attempt().await;
        let silence = silence.longest().await;
        let mut entered = listed.clone();
        entered.sort_by_key(|(_, at)| *at);
        assert!(entered.is_sorted_by(|(one, _), (next, _)| one < next), "tokens that do not rise: {entered:?}");
        if entered == listed {
            return;
        }
        assert!(silence >= ALIVE, "out of order after a silence of {silence:?}: {listed:?}");
    }
    panic!("the machine stands still every time");
}
