//! Tasks of one client that take a mutex in turn, beside somebody else who wants it too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::{Client, Guard};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::{Rng, in_time};

const TASKS: usize = 8;
/// How often somebody else wants it.
const TIMES: usize = 25;
/// Each task has had it so often by then.
const TURNS: u32 = 50;

/// What the mutex protects.
#[derive(Default)]
struct Room {
    inside: AtomicU32,
    last: AtomicU64,
    is_over: AtomicBool,
}

impl Room {
    /// Goes in and out again, while nobody else is there; its token is the highest yet.
    async fn visit(&self, held: &Guard) {
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "somebody is in already");
        let before = self.last.swap(held.token().get(), Ordering::SeqCst);
        assert!(before < held.token().get(), "{} after {before}", held.token());
        tokio::task::yield_now().await;
        held.check().expect("it is held");
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Nobody is in with anybody else, tokens go up, whoever gives up leaves nothing in the way, and somebody else has its turns.
/// Both clients are closed in the end.
pub async fn tasks_in_turn(one: Client, other: Client) {
    let room = Arc::<Room>::default();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (mutex, room, mut rng) = (one.mutex("x").unwrap(), Arc::clone(&room), Rng::from_entropy());
        tasks.spawn(async move {
            let mut turns = 0;
            while turns < TURNS || !room.is_over.load(Ordering::SeqCst) {
                // Some give up, at any moment: as a caller that is dropped, or when its time is over.
                let patience = rng.up_to(Duration::from_millis(2));
                let held = match rng.below(8) {
                    0 => timeout(patience, mutex.lock()).await.ok().map(Result::unwrap),
                    1 => mutex.try_lock_for(patience).await.unwrap(),
                    2 => mutex.try_lock().await.unwrap(),
                    _ => Some(mutex.lock().await.unwrap()),
                };
                let Some(held) = held else { continue };
                room.visit(&held).await;
                if rng.one_in(4) {
                    drop(held)
                } else {
                    held.release().await.unwrap()
                }
                turns += 1;
            }
        });
    }
    let mutex = other.mutex("x").unwrap();
    for _ in 0..TIMES {
        let held = in_time("somebody else has its turn", mutex.lock()).await.unwrap();
        room.visit(&held).await;
        held.release().await.unwrap();
    }
    room.is_over.store(true, Ordering::SeqCst);
    in_time("all tasks have had theirs", tasks.join_all()).await;
    assert!(in_time("nobody has it", mutex.lock()).await.unwrap().check().is_ok());
    for client in [one, other] {
        client.close().await.unwrap();
    }
}
