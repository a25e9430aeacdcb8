//! Random histories: which claims there are, and what happens to them.

use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;

use proptest::prelude::*;
use tenure_core::record::ClientKey;
use tenure_core::{Kind, Mode};

pub(super) const NAMES: usize = 3;
pub(super) const CLAIMS: usize = 14;
pub(super) const CLIENTS: u64 = 2;

/// How a claim looks, but for its id.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) name: usize,
    pub(super) kind: Kind,
    pub(super) mode: Mode,
    pub(super) ttl: Duration,
    pub(super) handover_ttl: Duration,
    pub(super) lock_delay: Duration,
    pub(super) client: ClientKey,
}

/// Whom a verb is about: one of the history's claims, whatever became of it, or whoever is there in the line by then.
#[derive(Clone, Copy, Debug)]
pub(super) enum Who {
    Claim(usize),
    InLine { name: usize, place: usize },
}

/// One ask. `fresh`: as another claim than before, with a new id; else it may be a second ask. `short`: the short way first.
#[derive(Clone, Debug)]
pub(super) struct Asks {
    pub(super) claim: usize,
    pub(super) fresh: bool,
    pub(super) queue: Option<Duration>,
    pub(super) short: bool,
}

/// One request of a history. Claims and names are given by their places in the history's lists.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// One alone, or several in one transaction.
    Ask(Vec<Asks>),
    End(Vec<(Who, Duration, bool)>),
    Renew(Vec<Who>),
    /// `alive`: with a heartbeat.
    Touch {
        client: ClientKey,
        alive: Option<Duration>,
        whom: Vec<Who>,
    },
    Downgrade(Who),
    Request {
        name: usize,
    },
    /// All holds, or the one whose token this claim was last given.
    Break {
        name: usize,
        only: Option<usize>,
    },
    Cell {
        name: usize,
        current: bool,
        value: Option<u8>,
    },
    /// A name that nobody has used for so long.
    Tidy {
        name: usize,
        quiet: Duration,
    },
    Leftovers,
    Wait(Duration),
}

/// The claims of a history, and its steps.
pub(super) fn histories() -> impl Strategy<Value = (Vec<Shape>, Vec<Step>)> {
    (prop::collection::vec(shape(), CLAIMS), prop::collection::vec(step(), 60..120))
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

fn step() -> impl Strategy<Value = Step> {
    let claim = || 0..CLAIMS;
    let whom = || prop::collection::vec(who(), 1..4);
    let queue = prop_oneof![2 => Just(None), 2 => brief().prop_map(Some), 3 => millis(5_000..9_000).prop_map(Some)];
    let ask = (claim(), prop::bool::weighted(0.55), queue, any::<bool>()).prop_map(|(claim, fresh, queue, short)| Asks {
        claim,
        fresh,
        queue,
        short,
    });
    let min_hold = maybe(prop_oneof![millis(1..8), millis(2_000..3_000)]);
    let end = (who(), min_hold, prop::bool::weighted(0.2));
    prop_oneof![
        26 => several(ask).prop_map(Step::Ask),
        14 => several(end).prop_map(Step::End),
        8 => whom().prop_map(Step::Renew),
        6 => (0..CLIENTS, prop::option::weighted(0.4, brief()), prop::collection::vec(who(), 0..4))
            .prop_map(|(client, alive, whom)| Step::Touch { client, alive, whom }),
        5 => who().prop_map(Step::Downgrade),
        4 => (0..NAMES).prop_map(|name| Step::Request { name }),
        3 => (0..NAMES, prop::option::of(claim())).prop_map(|(name, only)| Step::Break { name, only }),
        2 => (0..NAMES, any::<bool>(), any::<Option<u8>>())
            .prop_map(|(name, current, value)| Step::Cell { name, current, value }),
        3 => (0..NAMES, prop_oneof![Just(Duration::ZERO), Just(Duration::from_secs(3_600))])
            .prop_map(|(name, quiet)| Step::Tidy { name, quiet }),
        1 => Just(Step::Leftovers),
        6 => (100u64..6_000).prop_map(|micros| Step::Wait(Duration::from_micros(micros))),
    ]
}

/// Mostly one.
fn several<T: std::fmt::Debug>(of: impl Strategy<Value = T> + Clone) -> impl Strategy<Value = Vec<T>> {
    prop_oneof![3 => prop::collection::vec(of.clone(), 1..2), 1 => prop::collection::vec(of, 2..4)]
}

/// Mostly somebody near the head of a line, where things happen.
fn who() -> impl Strategy<Value = Who> + Clone {
    let place = prop_oneof![4 => 0usize..1, 2 => 1usize..3, 1 => 3usize..9];
    prop_oneof![
        1 => (0..CLAIMS).prop_map(Who::Claim),
        2 => (0..NAMES, place).prop_map(|(name, place)| Who::InLine { name, place }),
    ]
}

/// Half of them so short that time ends things between two steps; some long enough for nothing to happen to them.
fn brief() -> impl Strategy<Value = Duration> + Clone {
    prop_oneof![3 => (300u64..8_000).prop_map(Duration::from_micros), 1 => millis(10..40), 2 => millis(20_000..90_000)]
}

fn millis(range: Range<u64>) -> impl Strategy<Value = Duration> + Clone {
    range.prop_map(Duration::from_millis)
}

fn maybe(of: impl Strategy<Value = Duration> + Clone) -> impl Strategy<Value = Duration> + Clone {
    prop_oneof![2 => Just(Duration::ZERO), 1 => of]
}

fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take: NonZeroU32::new(take).expect("not 0"), of: NonZeroU32::new(of).expect("not 0") }
}
