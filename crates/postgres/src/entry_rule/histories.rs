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

/// One verb of a history. Claims and names are given by their places in the history's lists.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Those of these claims that are of the first one's client, in one request. `fresh`: as other claims than before, with
    /// new ids; else they may be second asks. `queue`: how long the client counts as alive if it waits.
    Ask {
        claims: Vec<usize>,
        fresh: bool,
        queue: Option<Duration>,
    },
    End {
        who: Who,
        min_hold: Duration,
        mark: bool,
    },
    Renew(Vec<Who>),
    /// Those who wait for the first one's name. With a beat the client is alive for so long.
    Touch {
        whom: Vec<Who>,
        client: ClientKey,
        beat: Option<Duration>,
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
    Raise {
        by: u64,
    },
    Tidy,
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
    let claims = prop_oneof![4 => prop::collection::vec(claim(), 1), 1 => prop::collection::vec(claim(), 2..5)];
    let whom = || prop::collection::vec(who(), 1..4);
    let queue = prop_oneof![2 => Just(None), 2 => brief().prop_map(Some), 3 => millis(5_000..9_000).prop_map(Some)];
    let min_hold = maybe(prop_oneof![millis(1..8), millis(2_000..3_000)]);
    prop_oneof![
        26 => (claims, prop::bool::weighted(0.55), queue)
            .prop_map(|(claims, fresh, queue)| Step::Ask { claims, fresh, queue }),
        14 => (who(), min_hold, prop::bool::weighted(0.2))
            .prop_map(|(who, min_hold, mark)| Step::End { who, min_hold, mark }),
        4 => whom().prop_map(Step::Renew),
        7 => (whom(), 0..CLIENTS, prop::option::of(brief()))
            .prop_map(|(whom, client, beat)| Step::Touch { whom, client, beat }),
        5 => who().prop_map(Step::Downgrade),
        4 => (0..NAMES).prop_map(|name| Step::Request { name }),
        3 => (0..NAMES, prop::option::of(claim())).prop_map(|(name, only)| Step::Break { name, only }),
        2 => (0..NAMES, any::<bool>(), any::<Option<u8>>())
            .prop_map(|(name, current, value)| Step::Cell { name, current, value }),
        2 => (0u64..40_000).prop_map(|by| Step::Raise { by }),
        1 => Just(Step::Tidy),
        6 => (100u64..6_000).prop_map(|micros| Step::Wait(Duration::from_micros(micros))),
    ]
}

/// Mostly somebody near the head of a line, where things happen.
fn who() -> impl Strategy<Value = Who> {
    let place = prop_oneof![4 => 0usize..1, 2 => 1usize..3, 1 => 3usize..9];
    prop_oneof![
        1 => (0..CLAIMS).prop_map(Who::Claim),
        2 => (0..NAMES, place).prop_map(|(name, place)| Who::InLine { name, place }),
    ]
}

/// Half of them so short that time ends things between two steps; some long enough for nothing to happen to them.
fn brief() -> impl Strategy<Value = Duration> {
    prop_oneof![3 => (300u64..8_000).prop_map(Duration::from_micros), 1 => millis(10..40), 2 => millis(20_000..90_000)]
}

fn millis(range: Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_millis)
}

fn maybe(of: impl Strategy<Value = Duration>) -> impl Strategy<Value = Duration> {
    prop_oneof![2 => Just(Duration::ZERO), 1 => of]
}

fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take: NonZeroU32::new(take).expect("not 0"), of: NonZeroU32::new(of).expect("not 0") }
}
