//! Which verbs random histories have: one alone, or several in one transaction.

use std::time::Duration;

use proptest::prelude::*;
use tenure_core::record::ClientKey;
use tenure_testkit::histories::{CLAIMS, CLIENTS, NAMES, Who, brief, min_hold, queue, who};

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

pub(super) fn step() -> impl Strategy<Value = Step> {
    let claim = || 0..CLAIMS;
    let claims = prop_oneof![4 => prop::collection::vec(claim(), 1), 1 => prop::collection::vec(claim(), 2..5)];
    let whom = || prop::collection::vec(who(), 1..4);
    prop_oneof![
        26 => (claims, prop::bool::weighted(0.55), queue())
            .prop_map(|(claims, fresh, queue)| Step::Ask { claims, fresh, queue }),
        14 => (who(), min_hold(), prop::bool::weighted(0.2))
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
