//! What is measured: each line of the report with its unit, what it is divided by, and its goal where there is one.

/// A measurement: what `--only` names, and what one visit in a repetition does.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Measure {
    /// One task: acquire + release beside the raw round trip
    Pair,
    /// 64 tasks on 64 names
    Many,
    /// 16 tasks on one mutex
    Mutex,
    /// 16 tasks on one fair mutex
    Fair,
    /// Hand-over between two processes
    Handover,
    /// The same while 50 other processes wait
    Crowd,
    /// CPU used by 50 waiting processes
    Waiting,
    /// Holding 1,000 locks
    Holding,
    /// kill -9 of a holder
    Recovery,
    /// A fence, which is measured alone
    #[value(skip)]
    Fence,
}

/// How many tasks and names `many` has.
pub(super) const MANY: usize = 64;
/// How many tasks share one name.
pub(super) const CONTENDERS: usize = 16;
/// How many processes wait while two others hand over.
pub(super) const CROWD: usize = 50;
/// How many locks are held at once.
pub(super) const HELD: usize = 1000;

impl Measure {
    /// All of them, in the order of the report.
    pub(super) const ALL: [Measure; 10] = [
        Measure::Pair,
        Measure::Many,
        Measure::Mutex,
        Measure::Fair,
        Measure::Handover,
        Measure::Crowd,
        Measure::Waiting,
        Measure::Holding,
        Measure::Recovery,
        Measure::Fence,
    ];

    /// The heading above its lines.
    pub(super) fn title(self) -> &'static str {
        match self {
            Measure::Pair => "one task, one name",
            Measure::Many => "64 tasks, 64 names",
            Measure::Mutex => "16 tasks, one mutex",
            Measure::Fair => "16 tasks, one fair mutex",
            Measure::Handover => "two processes, one mutex",
            Measure::Crowd => "52 processes, one mutex",
            Measure::Waiting => "50 processes waiting",
            Measure::Holding => "1,000 locks held",
            Measure::Recovery => "holder killed with kill -9",
            Measure::Fence => "one task, one fence",
        }
    }

    pub(super) fn needs_processes(self) -> bool {
        self.helpers() > 0
    }

    /// How many other processes it needs.
    pub(super) fn helpers(self) -> usize {
        match self {
            Measure::Pair | Measure::Many | Measure::Mutex | Measure::Fair | Measure::Holding | Measure::Fence => 0,
            Measure::Recovery => 1, // and a victim of its own each time
            Measure::Handover => 2,
            Measure::Crowd => CROWD + 2,
            Measure::Waiting => CROWD,
        }
    }
}

/// One line of the report.
#[derive(Debug)]
pub(super) struct Line {
    /// Its name in the JSON document.
    pub(super) key: &'static str,
    /// The measurement that yields it.
    pub(super) measure: Measure,
    /// Its label, to be read under the measurement's title.
    pub(super) label: &'static str,
    /// The unit of its values.
    pub(super) unit: Unit,
    /// What it is divided by.
    pub(super) base: Base,
}

/// A unit; values are kept in it unscaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    /// Shown as ns, µs, ms or s.
    Seconds,
    /// So many a second.
    PerSecond,
    /// A plain factor.
    Factor,
    /// CPU seconds a second: 1 is a whole core.
    Cores,
}

/// What a line is divided by, always of the same repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Base {
    /// Nothing: it is a factor or a share already.
    Nothing,
    /// The raw round trip.
    Trip,
    /// The raw pair: what an acquire and a release cost if the lock cost nothing.
    Pair,
    /// Raw pairs a second of as many tasks.
    Rate,
    /// A raw write of the fence's store.
    Write,
}

impl Base {
    /// The line that holds it.
    pub(super) fn key(self) -> Option<&'static str> {
        match self {
            Base::Nothing => None,
            Base::Trip => Some("raw_trip"),
            Base::Pair => Some("raw_pair"),
            Base::Rate => Some("many_raw"),
            Base::Write => Some("raw_write"),
        }
    }

    /// What follows the ratio's number.
    pub(super) fn words(self) -> &'static str {
        match self {
            Base::Nothing => "",
            Base::Trip => "× raw trip",
            Base::Pair => "× raw pair",
            Base::Rate => "of raw rate",
            Base::Write => "× raw write",
        }
    }
}

/// Every line, in the order of the report.
#[rustfmt::skip] // it is a table
pub(super) const LINES: &[Line] = &[
    line("raw_trip",           Measure::Pair,     "raw round trip",                     Unit::Seconds,   Base::Nothing),
    line("raw_pair",           Measure::Pair,     "raw pair",                           Unit::Seconds,   Base::Trip),
    line("pair",               Measure::Pair,     "acquire + release",                  Unit::Seconds,   Base::Pair),
    line("many_raw",           Measure::Many,     "raw pairs",                          Unit::PerSecond, Base::Pair),
    line("many",               Measure::Many,     "acquire + release",                  Unit::PerSecond, Base::Rate),
    line("mutex_handovers",    Measure::Mutex,    "hand-overs",                         Unit::PerSecond, Base::Pair),
    line("mutex_wait_p99",     Measure::Mutex,    "wait, p99",                          Unit::Seconds,   Base::Trip),
    line("mutex_unfairness",   Measure::Mutex,    "most ÷ least served task",           Unit::Factor,    Base::Nothing),
    line("fair_handovers",     Measure::Fair,     "hand-overs",                         Unit::PerSecond, Base::Pair),
    line("fair_wait_p99",      Measure::Fair,     "wait, p99",                          Unit::Seconds,   Base::Trip),
    line("fair_unfairness",    Measure::Fair,     "most ÷ least served task",           Unit::Factor,    Base::Nothing),
    line("handover",           Measure::Handover, "release called → next one runs",     Unit::Seconds,   Base::Trip),
    line("handover_p99",       Measure::Handover, "the same, p99",                      Unit::Seconds,   Base::Trip),
    line("crowd_handover",     Measure::Crowd,    "release called → next one runs",     Unit::Seconds,   Base::Trip),
    line("crowd_handover_p99", Measure::Crowd,    "the same, p99",                      Unit::Seconds,   Base::Trip),
    line("waiting_cpu",        Measure::Waiting,  "CPU of all 50",                      Unit::Cores,     Base::Nothing),
    line("holding_acquire",    Measure::Holding,  "acquiring each",                     Unit::Seconds,   Base::Trip),
    line("holding_cpu",        Measure::Holding,  "CPU of renewing all",                Unit::Cores,     Base::Nothing),
    line("recovery",           Measure::Recovery, "killed → waiter elsewhere holds",    Unit::Seconds,   Base::Trip),
    line("raw_write",          Measure::Fence,    "raw write",                          Unit::Seconds,   Base::Nothing),
    line("fence_rise",         Measure::Fence,    "a higher token",                     Unit::Seconds,   Base::Write),
    line("fence_again",        Measure::Fence,    "the same token again",               Unit::Seconds,   Base::Write),
    line("fence_late",         Measure::Fence,    "a token that comes too late",        Unit::Seconds,   Base::Write),
];

const fn line(key: &'static str, measure: Measure, label: &'static str, unit: Unit, base: Base) -> Line {
    Line { key, measure, label, unit, base }
}

/// What a line's median should keep to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    /// The value itself, at most.
    AtMost(f64),
    /// The value itself, at least.
    AtLeast(f64),
    /// The ratio, at most.
    RatioAtMost(f64),
    /// The ratio, at least.
    RatioAtLeast(f64),
}

/// What was promised for this line on this store, where anything was.
pub(super) fn goal(store: &str, key: &str) -> Option<Goal> {
    Some(match (store, key) {
        ("memory", "pair") => Goal::AtMost(3e-6),
        ("memory", "mutex_handovers") => Goal::AtLeast(300_000.0),
        ("sqlite", "pair") => Goal::RatioAtMost(1.5),
        ("sqlite", "crowd_handover") => Goal::AtMost(2e-3),
        ("sqlite", "waiting_cpu") => Goal::AtMost(0.02),
        ("sqlite", "recovery") => Goal::AtMost(0.1),
        ("postgres" | "mysql", "pair") => Goal::RatioAtMost(1.3),
        ("postgres session", "pair") => Goal::RatioAtMost(1.5),
        ("postgres" | "mysql" | "postgres session", "many") => Goal::RatioAtLeast(0.7),
        ("etcd" | "zookeeper", "pair") => Goal::RatioAtMost(1.2),
        ("etcd" | "zookeeper", "handover") => Goal::RatioAtMost(1.5),
        // What the best of the others comes to there, or more; see `bench/peers`.
        ("etcd", "mutex_handovers") => Goal::AtLeast(1_000.0),
        ("zookeeper", "mutex_handovers") => Goal::AtLeast(650.0),
        ("fence", "fence_rise" | "fence_again") => Goal::RatioAtMost(1.2),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measure_has_lines_and_every_base_is_one() {
        for measure in Measure::ALL {
            assert!(LINES.iter().any(|line| line.measure == measure), "{measure:?}");
        }
        for key in LINES.iter().filter_map(|line| line.base.key()) {
            assert!(LINES.iter().any(|line| line.key == key), "{key}");
        }
    }

    #[test]
    fn keys_are_unique() {
        let mut keys: Vec<_> = LINES.iter().map(|line| line.key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), LINES.len());
    }
}
