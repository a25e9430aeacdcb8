//! What a seed decides before anything runs: who there is, what they lock, and what may go wrong.
//!
//! Faults are drawn per seed, each with its own chance of being absent: a world in which everything fails at once hides
//! the bugs that need one thing to fail and another to work.

use std::time::Duration;

use tenure_core::{Kind, LockName};

use crate::history::Keeps;
use crate::rng::Rng;

/// One seed's world.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// How many clients.
    pub(crate) clients: u64,
    /// How many tasks each has.
    pub(crate) tasks: u32,
    /// How many locks each task takes.
    pub(crate) rounds: u32,
    /// What they take.
    pub(crate) names: Vec<Name>,
    /// How long faults go on.
    pub(crate) trouble: Duration,
    /// Whether clients and store read one clock, as they do on one host.
    pub(crate) one_clock: bool,
    /// Whether the store tells waiters that they were let in.
    pub(crate) wakes: bool,
    /// How long a waiter may be silent before it counts as dead.
    pub(crate) alive: Duration,
    /// How long a backend waits for one answer.
    pub(crate) patience: Duration,
    /// How slow the network is at most on a good day, in milliseconds.
    pub(crate) latency_ms: u64,
    /// Whether messages of one connection keep their order.
    pub(crate) in_order: bool,
    /// Of a thousand requests, how many are lost.
    pub(crate) requests_lost: u64,
    /// Of a thousand replies, how many are lost.
    pub(crate) replies_lost: u64,
    /// Of a thousand requests, how many arrive twice.
    pub(crate) repeated: u64,
    /// Of a thousand messages, how many are late, by up to `late_ms`.
    pub(crate) late: u64,
    /// How late they are at most.
    pub(crate) late_ms: u64,
    /// What happens from time to time.
    pub(crate) mishaps: Vec<Mishap>,
}

/// A name and what it is.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    /// The name.
    pub(crate) name: LockName,
    /// Its kind.
    pub(crate) kind: Kind,
    /// For a semaphore, how many permits.
    pub(crate) permits: u32,
}

/// Something that happens from time to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// A client's connections break.
    Cut,
    /// A client is isolated for a while.
    Isolate,
    /// A client stands still for a while.
    Freeze,
    /// A client goes for good.
    Vanish,
    /// The store restarts, and keeps this.
    Restart(Keeps),
    /// Everybody stands still for a while.
    Jump,
}

/// The longest ttl that tasks choose, and with it how long a dead holder can matter.
pub(crate) const LONGEST_TTL_MS: u64 = 6_000;

impl Plan {
    /// The plan of a seed.
    pub(crate) fn of(seed: u64) -> Plan {
        let mut rng = Rng::new(seed, 1);
        let rng = &mut rng;
        let troubled = !rng.chance(60); // some worlds are peaceful: what fails there fails for everybody
        let sometimes = |rng: &mut Rng, most: u64| if troubled && rng.chance(550) { rng.range(5, most) } else { 0 };
        let (requests_lost, replies_lost) = (sometimes(rng, 150), sometimes(rng, 150));
        let (repeated, late) = (sometimes(rng, 300), sometimes(rng, 200));
        let all = [
            Mishap::Cut,
            Mishap::Isolate,
            Mishap::Freeze,
            Mishap::Vanish,
            Mishap::Jump,
            Mishap::Restart(Keeps::All),
            Mishap::Restart(Keeps::Holds),
            Mishap::Restart(Keeps::Nothing),
        ];
        // Forgetting everything voids one of the promises, so it gets fewer seeds than what must keep them all.
        let chance = |mishap: &Mishap| if *mishap == Mishap::Restart(Keeps::Nothing) { 60 } else { 220 };
        let mishaps = all.into_iter().filter(|mishap| troubled && rng.chance(chance(mishap))).collect();
        let clients = rng.range(2, 4);
        Plan {
            clients,
            tasks: rng.range(1, 3) as u32,
            rounds: rng.range(2, 5) as u32,
            names: names(rng),
            trouble: rng.millis(3_000, 12_000),
            one_clock: rng.chance(300),
            wakes: rng.chance(750),
            alive: rng.millis(900, 3_000),
            patience: rng.millis(60, 400),
            latency_ms: rng.pick(&[1, 2, 5, 20]),
            in_order: rng.chance(300),
            requests_lost,
            replies_lost,
            repeated,
            late,
            late_ms: rng.pick(&[100, 800, 3_000, 8_000]),
            mishaps,
        }
    }
}

/// One to three names, so that there is a crowd at each.
fn names(rng: &mut Rng) -> Vec<Name> {
    let kinds = [
        Kind::Mutex,
        Kind::Mutex,
        Kind::FairMutex,
        Kind::RwLock,
        Kind::RwLock,
        Kind::Semaphore,
        Kind::Semaphore,
        Kind::Election,
    ];
    let count = rng.pick(&[1, 1, 2, 3]);
    let name = |place: u64| {
        let kind = rng.pick(&kinds);
        let text = format!("{}/{place}", kind.as_str().replace(' ', "-"));
        Name { name: LockName::new(text).expect("it is a good name"), kind, permits: rng.range(2, 4) as u32 }
    };
    (0..count).map(name).collect()
}
