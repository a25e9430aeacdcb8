//! What is measured: the lines of the report, and the figures of each.

/// One measurement, and one table of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    Solo,
    Many,
    Handover,
    Contended,
    Crowd,
}

/// How many tasks there are where each has a name of its own.
pub(crate) const MANY: usize = 64;
/// How many tasks there are on one name.
pub(crate) const CONTENDERS: usize = 16;
/// How many want one name in a crowd: one holds, two hundred wait.
pub(crate) const CROWD: usize = 201;
/// How long each of a crowd holds, so that the others do wait, and pollers are not counted while nobody could get it.
pub(crate) const CROWD_HOLD_MS: u64 = 2;

impl Line {
    pub(crate) const ALL: &[Line] = &[Line::Solo, Line::Many, Line::Handover, Line::Contended, Line::Crowd];

    pub(crate) fn key(self) -> &'static str {
        match self {
            Line::Solo => "solo",
            Line::Many => "many",
            Line::Handover => "handover",
            Line::Contended => "contended",
            Line::Crowd => "crowd",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Line::Solo => "Nobody else there: one task acquires and releases",
            Line::Many => "64 tasks on 64 names",
            Line::Handover => "Two processes pass one lock to and fro: release called → the other holds",
            Line::Contended => "16 tasks of one process on one name, nothing to do inside",
            Line::Crowd => "200 wait for one name, each holds it for 2 ms",
        }
    }

    pub(crate) fn figures(self) -> &'static [Figure] {
        match self {
            Line::Solo => &[PAIR, PAIR_P99],
            Line::Many => &[PAIRS_PER_SECOND],
            Line::Handover => &[HANDOVER, HANDOVER_P99],
            Line::Contended => &[HANDOVERS_PER_SECOND, UNFAIRNESS, ACQUISITIONS_PER_SECOND],
            Line::Crowd => &[REQUESTS, REQUESTS_PER_HOLD, WAITER, WAITER_P99, HANDOVERS_PER_SECOND, NEVER_SERVED],
        }
    }
}

/// A column of a line's table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) key: &'static str,
    pub(crate) head: &'static str,
    pub(crate) unit: Unit,
    /// Which way is ahead; `None` where nobody is compared.
    pub(crate) better: Option<Better>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Better {
    Less,
    More,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Seconds,
    PerSecond,
    Factor,
    Count,
}

const fn figure(key: &'static str, head: &'static str, unit: Unit, better: Option<Better>) -> Figure {
    Figure { key, head, unit, better }
}

const LESS: Option<Better> = Some(Better::Less);
const MORE: Option<Better> = Some(Better::More);

const PAIR: Figure = figure("pair", "pair, p50", Unit::Seconds, LESS);
const PAIR_P99: Figure = figure("pair_p99", "pair, p99", Unit::Seconds, None);
const PAIRS_PER_SECOND: Figure = figure("pairs_per_second", "pairs", Unit::PerSecond, MORE);
const HANDOVER: Figure = figure("handover", "hand-over, p50", Unit::Seconds, LESS);
const HANDOVER_P99: Figure = figure("handover_p99", "hand-over, p99", Unit::Seconds, LESS);
const HANDOVERS_PER_SECOND: Figure = figure("handovers_per_second", "hand-overs", Unit::PerSecond, MORE);
const UNFAIRNESS: Figure = figure("unfairness", "most/least a task", Unit::Factor, LESS);
const ACQUISITIONS_PER_SECOND: Figure = figure("acquisitions_per_second", "acquisitions", Unit::PerSecond, None);
const REQUESTS: Figure = figure("requests_per_handover", "requests a hand-over", Unit::Count, LESS);
const REQUESTS_PER_HOLD: Figure = figure("requests_per_acquisition", "an acquisition", Unit::Count, None);
const WAITER: Figure = figure("waiter", "free → another holds", Unit::Seconds, LESS);
const WAITER_P99: Figure = figure("waiter_p99", "free → another, p99", Unit::Seconds, LESS);
const NEVER_SERVED: Figure = figure("never_served", "never served", Unit::Count, None);
