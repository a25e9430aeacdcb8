//! What happened in a run: the events that the checker reads, people read, and the run's hash is made of.
//!
//! One clock orders everything, and everything is written in the order in which it happened, so checking needs no search.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use tenure_core::{ClaimId, ErrorKind, Instant, Kind, LockName, Mode, Token};

/// A name, by its place in the plan.
pub(crate) type NameIx = usize;
/// One guard, numbered over the whole run.
pub(crate) type HoldIx = u32;
/// One claim, numbered in the order in which the store or a backend first saw it.
pub(crate) type ClaimIx = u32;

/// A task of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Who {
    /// Which client.
    pub(crate) client: u64,
    /// Which of its tasks.
    pub(crate) task: u32,
}

/// How a hold ended, as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ending {
    /// Released, or stepped back from.
    Released,
    /// Dropped: on purpose, by a cancelled task, or with its whole client.
    Dropped,
    /// Its owner was told that it was lost.
    Lost,
}

/// What a store keeps through a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Keeps {
    /// Everything.
    All,
    /// Holds, but not who waits.
    Holds,
    /// Nothing: not even the last tokens.
    Nothing,
}

/// What went wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// Every connection of a client breaks.
    Cut(u64),
    /// Nothing of a client gets through, either way, for so long.
    Isolated(u64, Duration),
    /// A client stands still; its clock does not.
    Frozen(u64, Duration),
    /// A client is gone for good.
    Vanished(u64),
    /// The store goes down.
    Down,
    /// The store is back, and kept this.
    Back(Keeps),
    /// Everybody stood still for so long.
    Jump(Duration),
    /// No more faults from here.
    Healed,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// A task asks for a name.
    Asks { who: Who, name: NameIx, mode: Mode },
    /// It was given a guard.
    Has { who: Who, hold: HoldIx, name: NameIx, mode: Mode, token: Token, until: Instant, asked: Instant },
    /// It was not given one in time.
    NotInTime { who: Who, name: NameIx },
    /// It was given an error.
    Failed { who: Who, name: NameIx, kind: ErrorKind },
    /// It gave up: the future was dropped.
    GaveUp { who: Who, name: NameIx },
    /// It steps down from writer to reader: it may not rely on being alone any more.
    StepsDown { hold: HoldIx },
    /// Its guard says that it is lost, and has been listened to since then.
    SawLoss { hold: HoldIx, until: Instant, listened: Instant },
    /// Its hold is over for it.
    Ended { hold: HoldIx, how: Ending, until: Instant },
    /// A write reached the fenced resource.
    Wrote { hold: HoldIx, name: NameIx, token: Token, accepted: bool },
    /// Somebody saw this leader.
    Observed { who: Who, name: NameIx, term: Token },

    /// The store answered an ask.
    Answered { claim: ClaimIx, name: NameIx, terms: Terms, answer: Answer },
    /// The store let a waiter in.
    LetIn { claim: ClaimIx, name: NameIx, token: Token },
    /// The store heard of a waiter.
    Heard { claim: ClaimIx, name: NameIx },
    /// And answered: whether it still waits, or is not in line.
    Told { claim: ClaimIx, name: NameIx, waits: bool },
    /// The store forgot a waiter that it had not heard of for too long.
    Forgot { claim: ClaimIx, name: NameIx },
    /// The store answered a renewal.
    Renewed { claim: ClaimIx, name: NameIx, held: bool },
    /// The store ended a claim.
    Ends { claim: ClaimIx, name: NameIx, min_hold: Duration },
    /// The store made a reader of a writer; or it was not held any more.
    Downgraded { claim: ClaimIx, name: NameIx, held: bool },
    /// A backend told its client that nothing came of the claim and nothing is left of it.
    NothingLeft { claim: ClaimIx },

    /// A fault.
    Fault(Fault),
}

/// What a claim was asked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Terms {
    /// The name's kind.
    pub(crate) kind: Kind,
    /// How the name is wanted.
    pub(crate) mode: Mode,
    /// How long a grant stands.
    pub(crate) ttl: Duration,
    /// How long one stands that was made to a waiter.
    pub(crate) handover_ttl: Duration,
    /// How long the name stays closed after a loss.
    pub(crate) lock_delay: Duration,
}

/// What the store answered to an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    /// Let in.
    Granted(Token),
    /// In line.
    Queued,
    /// Turned away.
    Busy,
}

/// All events of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// The names, in the plan's order.
    pub(crate) names: Vec<LockName>,
    /// What happened, in order.
    pub(crate) events: Vec<(Instant, Event)>,
    claims: HashMap<ClaimId, ClaimIx>, // looked up, never walked: its order is not ours
    holds: HoldIx,
}

impl History {
    pub(crate) fn of(names: Vec<LockName>) -> Self {
        History { names, ..History::default() }
    }

    pub(crate) fn write(&mut self, at: Instant, event: Event) {
        self.events.push((at, event));
    }

    pub(crate) fn claim(&mut self, id: ClaimId) -> ClaimIx {
        let next = self.claims.len() as ClaimIx;
        *self.claims.entry(id).or_insert(next)
    }

    pub(crate) fn next_hold(&mut self) -> HoldIx {
        self.holds += 1;
        self.holds
    }

    pub(crate) fn name(&self, name: &LockName) -> NameIx {
        self.names.iter().position(|known| known == name).expect("every name is planned")
    }

    /// A number that two runs share only if the same things happened at the same times in the same order.
    pub(crate) fn hash(&self) -> u64 {
        let mut hasher = Fnv(0xCBF2_9CE4_8422_2325);
        self.events.hash(&mut hasher);
        hasher.finish()
    }

    /// How many guards were given.
    pub(crate) fn holds(&self) -> u32 {
        self.holds
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, event) in &self.events {
            let (millis, rest) = (at.as_nanos() / 1_000_000, at.as_nanos() % 1_000_000 / 1000);
            writeln!(f, "{:>6}.{:03}.{rest:03}  {event:?}", millis / 1000, millis % 1000)?;
        }
        Ok(())
    }
}

/// FNV-1a: the same on every build, unlike the standard library's hasher.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3);
        }
    }
}
