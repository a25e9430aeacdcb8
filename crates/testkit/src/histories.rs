//! What random histories are made of, with which a server that repeats the entry rule is held to core's
//! [`Record`]: which claims there are, whom a verb is about, and for how long. Which verbs there are is each
//! store's own.

use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;

use proptest::prelude::*;
use tenure_core::record::{ClientKey, Moment, Record, Stage, Ticket};
use tenure_core::{ClaimId, Instant, Kind, Mode};

/// How many names a history has.
pub const NAMES: usize = 3;
/// How many claims.
pub const CLAIMS: usize = 14;
/// How many clients.
pub const CLIENTS: u64 = 2;

/// How a claim looks, but for its id.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Its name, by its place in the history's list.
    pub name: usize,
    /// As this kind.
    pub kind: Kind,
    /// In this mode.
    pub mode: Mode,
    /// For so long.
    pub ttl: Duration,
    /// For so long if it was let in while it waited.
    pub handover_ttl: Duration,
    /// For so long the name stays closed after it was lost.
    pub lock_delay: Duration,
    /// Whose it is.
    pub client: ClientKey,
}

/// Whom a verb is about: one of the history's claims, whatever became of it, or whoever is there in the line by then.
#[derive(Clone, Copy, Debug)]
pub enum Who {
    /// The claim in this place of the history's list.
    Claim(usize),
    /// Whoever stands there.
    InLine {
        /// In the line of this name.
        name: usize,
        /// In this place of it.
        place: usize,
    },
}

/// The claims of a history, and its steps.
pub fn histories<S: std::fmt::Debug>(step: impl Strategy<Value = S>) -> impl Strategy<Value = (Vec<Shape>, Vec<S>)> {
    (prop::collection::vec(shape(), CLAIMS), prop::collection::vec(step, 60..120))
}

/// A name mostly has one kind; now and then somebody is wrong about it, or asks for more than there is.
fn shape() -> impl Strategy<Value = Shape> {
    let kind = prop_oneof![
        4 => Just((0, Kind::RwLock, Mode::Exclusive)),
        6 => Just((0, Kind::RwLock, Mode::Shared)),
        7 => (1u32..=3).prop_map(|take| (1, Kind::Semaphore, permits(take, 3))),
        1 => Just((1, Kind::Semaphore, permits(4, 3))),
        1 => Just((1, Kind::Semaphore, permits(1, 4))),
        10 => Just((2, Kind::FairMutex, Mode::Exclusive)),
        1 => Just((2, Kind::Mutex, Mode::Exclusive)),
        1 => Just((0, Kind::Election, Mode::Exclusive)),
    ];
    let delay = maybe(millis(1..6));
    (kind, brief(), brief(), delay, 0..CLIENTS).prop_map(|((name, kind, mode), ttl, handover, lock_delay, client)| {
        let handover_ttl = handover.min(ttl);
        Shape { name, kind, mode, ttl, handover_ttl, lock_delay, client }
    })
}

/// For how long a name stays closed after an early release: mostly not at all.
pub fn min_hold() -> impl Strategy<Value = Duration> + Clone {
    maybe(prop_oneof![millis(1..8), millis(2_000..3_000)])
}

/// For how long a waiter's place is kept, if it may wait at all.
pub fn queue() -> impl Strategy<Value = Option<Duration>> + Clone {
    prop_oneof![2 => Just(None), 2 => brief().prop_map(Some), 3 => millis(5_000..9_000).prop_map(Some)]
}

/// Mostly somebody near the head of a line, where things happen.
pub fn who() -> impl Strategy<Value = Who> + Clone {
    let place = prop_oneof![4 => 0usize..1, 2 => 1usize..3, 1 => 3usize..9];
    prop_oneof![
        1 => (0..CLAIMS).prop_map(Who::Claim),
        2 => (0..NAMES, place).prop_map(|(name, place)| Who::InLine { name, place }),
    ]
}

/// Half of them so short that time ends things between two steps; some long enough for nothing to happen to them.
pub fn brief() -> impl Strategy<Value = Duration> + Clone {
    prop_oneof![3 => (300u64..8_000).prop_map(Duration::from_micros), 1 => millis(10..40), 2 => millis(20_000..90_000)]
}

/// So many milliseconds.
pub fn millis(range: Range<u64>) -> impl Strategy<Value = Duration> + Clone {
    range.prop_map(Duration::from_millis)
}

/// Mostly nothing.
pub fn maybe(of: impl Strategy<Value = Duration> + Clone) -> impl Strategy<Value = Duration> + Clone {
    prop_oneof![2 => Just(Duration::ZERO), 1 => of]
}

fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take: NonZeroU32::new(take).expect("not 0"), of: NonZeroU32::new(of).expect("not 0") }
}

/// A moment of the server's clock, which shows microseconds.
pub fn moment(now: u64) -> Moment {
    Moment { now: Instant::from_nanos(now * 1_000), wall_micros: now }
}

/// Whether a ticket waits.
pub fn waits(ticket: &Ticket) -> bool {
    matches!(ticket.stage, Stage::Waiting { .. })
}

/// When time alone ends a ticket.
pub fn ends(stage: &Stage) -> Instant {
    match stage {
        Stage::Waiting { alive_until } => *alive_until,
        Stage::Held { expires, .. } | Stage::Closing { expires, .. } => *expires,
    }
}

/// What is left of a holder's window: its ticket's, which need not be its claim's.
pub fn left(record: &Record, id: ClaimId, at: Moment) -> Duration {
    let ticket = record.line.iter().find(|ticket| ticket.id == id).expect("it was let in");
    (ends(&ticket.stage) - ticket.lock_delay).since(at.now)
}

/// When time alone may let somebody in: the earliest end of a hold.
pub fn change_in(record: &Record, at: Moment) -> Option<Duration> {
    let holds = record.line.iter().filter(|ticket| !waits(ticket));
    holds.map(|ticket| ends(&ticket.stage).since(at.now)).min()
}
