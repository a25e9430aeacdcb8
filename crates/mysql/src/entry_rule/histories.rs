//! Which verbs random histories have: one alone, or several in one transaction.

use std::time::Duration;

use proptest::prelude::*;
use tenure_core::record::ClientKey;
use tenure_testkit::histories::{CLAIMS, CLIENTS, NAMES, Who, brief, min_hold, queue, who};

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

pub(super) fn step() -> impl Strategy<Value = Step> {
    let claim = || 0..CLAIMS;
    let whom = || prop::collection::vec(who(), 1..4);
    let ask = (claim(), prop::bool::weighted(0.55), queue(), any::<bool>()).prop_map(|(claim, fresh, queue, short)| Asks {
        claim,
        fresh,
        queue,
        short,
    });
    let end = (who(), min_hold(), prop::bool::weighted(0.2));
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
