//! What was measured: every repetition of every line, and what they came to.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tenure::backend::Finding;
use tenure::{Client, Result};

use super::lines::{Base, Goal, LINES, Line, Measure, Unit, goal};
use super::machine::Machine;
use super::stats::Summary;

/// One line's value in one repetition.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    /// The line's key.
    pub(super) key: &'static str,
    /// The value in the line's unit; `None` if there was nothing to measure.
    pub(super) value: Option<f64>,
    /// How many single events stand behind it.
    pub(super) samples: u64,
}

/// What the run was told.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Settings {
    /// How often each line was measured.
    pub(super) repetitions: u32,
    /// Whether it was the short form.
    pub(super) quick: bool,
    /// Threads of the runtime.
    pub(super) threads: usize,
    /// Whether the store was made for this run.
    pub(super) temporary_store: bool,
}

/// A whole run.
pub(super) struct Results {
    /// Where.
    pub(super) machine: Machine,
    /// How.
    pub(super) settings: Settings,
    /// The store's word, for goals.
    pub(super) store: &'static str,
    /// The store in words.
    pub(super) describe: String,
    /// What the store says about itself.
    pub(super) findings: Vec<Finding>,
    /// How long it took.
    pub(super) took: Duration,
    started: Instant,
    skipped: BTreeMap<&'static str, String>,
    repetitions: Vec<BTreeMap<&'static str, Reading>>,
}

impl Results {
    pub(super) async fn new(client: &Client, settings: Settings) -> Result<Self> {
        let findings = client.examine().await?;
        let store = client.abilities().store;
        Ok(Results { findings, ..Results::of_fence(store, client.describe(), settings) })
    }

    /// A run on a fence, which says nothing about itself.
    pub(super) fn of_fence(store: &'static str, describe: String, settings: Settings) -> Self {
        Results {
            machine: Machine::look(),
            settings,
            store,
            describe,
            findings: Vec::new(),
            took: Duration::ZERO,
            started: Instant::now(),
            skipped: BTreeMap::new(),
            repetitions: Vec::new(),
        }
    }

    /// These lines are not measured, and this is why.
    pub(super) fn skip(&mut self, measure: Measure, why: &str) {
        let lines = LINES.iter().filter(|line| line.measure == measure);
        self.skipped.extend(lines.map(|line| (line.key, why.to_owned())));
    }

    pub(super) fn begin_repetition(&mut self) {
        self.repetitions.push(BTreeMap::new());
    }

    pub(super) fn add(&mut self, readings: Vec<Reading>) {
        let repetition = self.repetitions.last_mut().expect("a repetition has begun");
        for reading in readings {
            debug_assert!(LINES.iter().any(|line| line.key == reading.key), "{} is no line", reading.key);
            repetition.insert(reading.key, reading);
        }
    }

    pub(super) fn finish(&mut self) {
        self.took = self.started.elapsed();
    }

    /// The lines that were asked for, in the order of the report.
    pub(super) fn rows(&self) -> Vec<Row> {
        let asked_for = |line: &&Line| {
            self.skipped.contains_key(line.key) || self.repetitions.iter().any(|all| all.contains_key(line.key))
        };
        LINES.iter().filter(asked_for).map(|line| self.row(line)).collect()
    }

    /// The store's version, as far as it tells one.
    pub(super) fn store_version(&self) -> Option<&str> {
        let finding = self.findings.iter().find(|finding| finding.what.to_lowercase().contains("version"))?;
        finding.says.split([',', ';', ' ']).next() // what follows is about what the version is good for
    }

    fn row(&self, line: &'static Line) -> Row {
        let readings =
            |key: &str| self.repetitions.iter().map(|all| all.get(key).and_then(|it| it.value)).collect::<Vec<_>>();
        let values = readings(line.key);
        let trips = readings("raw_trip");
        let bases = line.base.key().map(readings);
        let ratio = |(value, base): (&Option<f64>, &Option<f64>)| Some(line.ratio((*value)?, (*base)?));
        let ratios: Vec<_> = bases.iter().flat_map(|bases| values.iter().zip(bases).map(ratio)).collect();
        let in_trips = values.iter().zip(&trips).map(|(value, trip)| line.in_trips((*value)?, (*trip)?)).collect();
        let samples = self.repetitions.iter().map(|all| all.get(line.key).map_or(0, |it| it.samples)).collect();
        Row {
            line,
            summary: Summary::of(values.iter().copied().flatten()),
            ratio: Summary::of(ratios.iter().copied().flatten()),
            goal: goal(self.store, line.key),
            skipped: self.skipped.get(line.key).cloned(),
            values,
            ratios,
            in_trips,
            samples,
        }
    }
}

/// One line and all that was measured of it.
pub(super) struct Row {
    pub(super) line: &'static Line,
    /// A value for each repetition, `None` where there was nothing to measure.
    pub(super) values: Vec<Option<f64>>,
    /// The same divided by the base of the same repetition; empty where the line has no base.
    pub(super) ratios: Vec<Option<f64>>,
    /// The same as time in raw round trips, for the plot.
    pub(super) in_trips: Vec<Option<f64>>,
    /// How many events stand behind each.
    pub(super) samples: Vec<u64>,
    pub(super) summary: Option<Summary>,
    pub(super) ratio: Option<Summary>,
    pub(super) goal: Option<Goal>,
    /// Why it was not measured.
    pub(super) skipped: Option<String>,
}

impl Row {
    /// Whether the median keeps to the goal, where there are both.
    pub(super) fn is_met(&self) -> Option<bool> {
        Some(match self.goal? {
            Goal::AtMost(most) => self.summary?.median <= most,
            Goal::AtLeast(least) => self.summary?.median >= least,
            Goal::RatioAtMost(most) => self.ratio?.median <= most,
            Goal::RatioAtLeast(least) => self.ratio?.median >= least,
        })
    }
}

impl Line {
    /// The value in units of its base: a time as a multiple, a rate as the time that one takes, or as a share of a rate.
    fn ratio(&self, value: f64, base: f64) -> f64 {
        match (self.unit, self.base) {
            (Unit::PerSecond, Base::Trip | Base::Pair) => 1.0 / value / base,
            _ => value / base,
        }
    }

    /// The value as time in raw round trips; `None` if it is none.
    fn in_trips(&self, value: f64, trip: f64) -> Option<f64> {
        match self.unit {
            Unit::Seconds => Some(value / trip),
            Unit::PerSecond => Some(1.0 / value / trip),
            Unit::Factor | Unit::Cores => None,
        }
    }
}

/// A made-up run with a value for every line.
#[cfg(test)]
pub(super) async fn example() -> Results {
    let client = tenure::connect("memory://").await.unwrap();
    let settings = Settings { repetitions: 3, quick: true, threads: 2, temporary_store: false };
    let mut results = Results::new(&client, settings).await.unwrap();
    for repetition in 0..3 {
        results.begin_repetition();
        let noise = 1.0 + f64::from(repetition) / 10.0;
        let reading = |line: &Line| {
            let value = match (line.key, line.unit) {
                ("raw_trip", _) => 1e-5,
                ("raw_pair", _) => 2e-5,
                (_, Unit::Seconds) => 4e-5,
                (_, Unit::PerSecond) => 25_000.0,
                (_, Unit::Factor) => 1.2,
                (_, Unit::Cores) => 0.015,
            };
            Reading { key: line.key, value: Some(value * noise), samples: 10 }
        };
        results.add(LINES.iter().map(reading).collect());
    }
    results.finish();
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ratios_are_of_the_same_repetition() {
        let rows = example().await.rows();
        let row = |key: &str| rows.iter().find(|row| row.line.key == key).unwrap();
        let near = |summary: Option<Summary>, expected: f64| (summary.unwrap().median - expected).abs() < 1e-9;
        // The noise hit the base as well, so nothing of it is left.
        let pair = row("pair");
        assert!(near(pair.ratio, 2.0) && near(pair.summary, 4.4e-5));
        assert!((pair.ratio.unwrap().max - pair.ratio.unwrap().min).abs() < 1e-9);
        assert!(near(row("many").ratio, 1.0), "a rate by a rate is a share");
        // 27,500 a second are 36.4 µs each, of raw pairs of 22 µs.
        assert!(near(row("mutex_handovers").ratio, 1.0 / 27_500.0 / 2.2e-5));
        assert!(row("waiting_cpu").ratio.is_none() && row("waiting_cpu").in_trips.iter().all(|it| it.is_none()));
    }

    #[tokio::test]
    async fn goals_are_kept_or_missed() {
        let rows = example().await.rows();
        let met = |key: &str| rows.iter().find(|row| row.line.key == key).unwrap().is_met();
        assert_eq!(met("pair"), Some(false), "44 µs are more than memory's 3");
        assert_eq!(met("many"), None, "nothing was promised");
        let rows = Results { store: "mysql", ..example().await }.rows();
        let met = |key: &str| rows.iter().find(|row| row.line.key == key).unwrap().is_met();
        assert_eq!((met("many"), met("pair")), (Some(true), Some(false)), "all of the raw rate, at twice the time");
    }

    #[tokio::test]
    async fn what_was_skipped_says_why() {
        let mut results = example().await;
        results.skip(Measure::Crowd, "not across processes");
        let rows = results.rows();
        let row = rows.iter().find(|row| row.line.key == "crowd_handover").unwrap();
        assert_eq!(row.skipped.as_deref(), Some("not across processes"));
    }
}
