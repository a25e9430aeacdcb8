//! Which verbs random histories have: one alone, or several in one transaction.

use std::time::Duration;

use proptest::prelude::*;
use tenure_testkit::histories::{CLAIMS, NAMES, Who, brief, min_hold, queue, who};

/// One verb of a history. Claims and names are given by their places in the history's lists.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// `fresh`: as another claim than before, with a new id; else it may be a second ask.
    Ask {
        claim: usize,
        fresh: bool,
        queue: Option<Duration>,
    },
    End {
        who: Who,
        min_hold: Duration,
        mark: bool,
    },
    Renew(Vec<Who>),
    Touch(Vec<Who>, Duration),
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

pub(super) fn step() -> impl Strategy<Value = Step> {
    let claim = || 0..CLAIMS;
    let whom = || prop::collection::vec(who(), 1..4);
    prop_oneof![
        26 => (claim(), prop::bool::weighted(0.55), queue())
            .prop_map(|(claim, fresh, queue)| Step::Ask { claim, fresh, queue }),
        14 => (who(), min_hold(), prop::bool::weighted(0.2))
            .prop_map(|(who, min_hold, mark)| Step::End { who, min_hold, mark }),
        4 => whom().prop_map(Step::Renew),
        5 => (whom(), brief()).prop_map(|(whom, alive)| Step::Touch(whom, alive)),
        5 => who().prop_map(Step::Downgrade),
        4 => (0..NAMES).prop_map(|name| Step::Request { name }),
        3 => (0..NAMES, prop::option::of(claim())).prop_map(|(name, only)| Step::Break { name, only }),
        2 => (0..NAMES, any::<bool>(), any::<Option<u8>>())
            .prop_map(|(name, current, value)| Step::Cell { name, current, value }),
        2 => (0u64..40_000).prop_map(|by| Step::Raise { by }),
        1 => Just(Step::Raise { by: 30 * 24 * 3_600_000_000 }), // a clock was ahead for a while
        1 => Just(Step::Tidy),
        6 => (100u64..6_000).prop_map(|micros| Step::Wait(Duration::from_micros(micros))),
    ]
}
