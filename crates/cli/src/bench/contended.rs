//! 16 tasks on one name, an empty critical section: how often the lock changes hands, how evenly, and how long one waits.
//!
//! An acquisition by the task that had it last is no hand-over and is not counted as one: a lock that its last holder takes
//! again and again is fast and useless. Inside, each task checks that it is alone and that its token is the highest yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use tenure::{FairMutex, Guard, Kind, Mutex, Result};

use super::lines::CONTENDERS;
use super::results::Reading;
use super::window::{Stage, Window, crew};
use super::{Bench, broken, stats};

pub(super) async fn measure(bench: &Bench, kind: Kind) -> Result<Vec<Reading>> {
    let room = Arc::new(Room::default());
    let contender = |lock: Lock| {
        let room = Arc::clone(&room);
        move |number: usize, window| contend(number as u32 + 1, lock.clone(), Arc::clone(&room), window)
    };
    let (fair, lock) = match kind {
        Kind::FairMutex => (true, Lock::Fair(bench.client.fair_mutex(bench.name("fair"))?)),
        _ => (false, Lock::Mutex(bench.client.mutex(bench.name("mutex"))?)),
    };
    let (tasks, counted) = crew(CONTENDERS, bench.pace, contender(lock)).await?;

    let handovers: u64 = tasks.iter().map(|task| task.handovers).sum();
    let served = tasks.iter().map(|task| task.waits.len());
    let (most, least) = (served.clone().max().unwrap_or(0), served.min().unwrap_or(0));
    let mut waits: Vec<u64> = tasks.into_iter().flat_map(|task| task.waits).collect();
    let samples = waits.len() as u64;
    let p99 = stats::percentile(&mut waits, 0.99).map(|nanos| nanos as f64 / 1e9);
    let keys = match fair {
        true => ["fair_handovers", "fair_wait_p99", "fair_unfairness"],
        false => ["mutex_handovers", "mutex_wait_p99", "mutex_unfairness"],
    };
    Ok(vec![
        Reading { key: keys[0], value: Some(handovers as f64 / counted.as_secs_f64()), samples: handovers },
        Reading { key: keys[1], value: p99, samples },
        // Nobody served at all is no unfairness; somebody never served is an infinite one.
        Reading { key: keys[2], value: (most > 0).then(|| most as f64 / least as f64), samples },
    ])
}

/// What the lock protects.
#[derive(Default)]
struct Room {
    inside: AtomicU32,
    last_holder: AtomicU32,
    last_token: AtomicU64,
}

impl Room {
    /// Goes in, looks around, and says whether the last one inside was another.
    fn enter(&self, me: u32, token: u64) -> Result<bool> {
        let others = self.inside.fetch_add(1, Ordering::AcqRel);
        if others != 0 {
            return Err(broken(format!("{others} other task(s) were inside with a task that held it")));
        }
        let before = self.last_token.swap(token, Ordering::AcqRel);
        if before >= token {
            return Err(broken(format!("token {token} was granted after token {before}")));
        }
        Ok(self.last_holder.swap(me, Ordering::AcqRel) != me)
    }

    fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What one task saw while it counted.
#[derive(Default)]
struct Seen {
    handovers: u64,
    /// In nanoseconds.
    waits: Vec<u64>,
}

async fn contend(me: u32, lock: Lock, room: Arc<Room>, window: Arc<Window>) -> Result<Seen> {
    let mut seen = Seen::default();
    while window.stage() != Stage::Over {
        let asked = Instant::now();
        let guard = lock.lock().await?;
        let waited = asked.elapsed();
        let handed_over = room.enter(me, guard.token().get())?;
        if window.stage() == Stage::Counting {
            seen.handovers += u64::from(handed_over);
            seen.waits.push(waited.as_nanos() as u64);
        }
        room.leave();
        guard.release().await?;
    }
    Ok(seen)
}

/// Either kind, as one.
#[derive(Clone)]
enum Lock {
    Mutex(Mutex),
    Fair(FairMutex),
}

impl Lock {
    async fn lock(&self) -> Result<Guard> {
        match self {
            Lock::Mutex(mutex) => mutex.lock().await,
            Lock::Fair(mutex) => mutex.lock().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_inside_is_an_error() {
        let room = Room::default();
        assert!(room.enter(1, 1).unwrap());
        assert!(room.enter(2, 2).unwrap_err().to_string().contains("BROKEN"));
    }

    #[test]
    fn a_token_that_does_not_rise_is_an_error() {
        let room = Room::default();
        room.enter(1, 5).unwrap();
        room.leave();
        assert!(room.enter(2, 5).is_err());
    }

    #[test]
    fn only_another_holder_is_a_handover() {
        let room = Room::default();
        let turns = [(1, 1), (1, 2), (2, 3), (1, 4)];
        let changed = turns.map(|(me, token)| {
            let changed = room.enter(me, token).unwrap();
            room.leave();
            changed
        });
        assert_eq!(changed, [true, false, true, true]);
    }
}
