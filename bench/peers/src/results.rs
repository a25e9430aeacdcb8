//! What was measured: every figure of every repetition, and what it came to.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::catalogue::Entry;
use crate::lines::{Figure, Line};
use crate::stats::Summary;
use crate::store::Store;

/// The figures of one visit, by key.
pub(crate) type Reading = BTreeMap<&'static str, f64>;

/// One contender on one line: an entry a repetition, `Err` where there is no figure.
#[derive(Clone, Debug, Default)]
pub(crate) struct Visits {
    pub(crate) readings: Vec<Result<Reading, String>>,
    /// Requests the server counted, by name, over all repetitions; only where requests are counted.
    pub(crate) commands: BTreeMap<String, u64>,
}

impl Visits {
    pub(crate) fn values(&self, figure: &str) -> Vec<f64> {
        self.readings.iter().flatten().filter_map(|reading| reading.get(figure).copied()).collect()
    }

    pub(crate) fn summary(&self, figure: &str) -> Option<Summary> {
        Summary::of(self.values(figure))
    }

    pub(crate) fn failure(&self) -> Option<&str> {
        self.readings.iter().find_map(|reading| reading.as_ref().err()).map(String::as_str)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) visits: BTreeMap<(Line, &'static str), Visits>,
}

impl Results {
    pub(crate) fn of(&self, line: Line, key: &'static str) -> Option<&Visits> {
        self.visits.get(&(line, key))
    }

    /// One contender's figure as a multiple of another's, repetition by repetition: both met the same weather.
    pub(crate) fn ratios(&self, line: Line, figure: &Figure, key: &'static str, to: &'static str) -> Vec<f64> {
        let (Some(own), Some(other)) = (self.of(line, key), self.of(line, to)) else { return Vec::new() };
        let pairs = own.readings.iter().zip(&other.readings).filter_map(|pair| match pair {
            (Ok(own), Ok(other)) => Some((*own.get(figure.key)?, *other.get(figure.key)?)),
            _ => None,
        });
        // Infinity of infinity is no number, and nothing of nothing neither; here they are alike.
        pairs.map(|(own, other)| if own == other { 1.0 } else { own / other }).collect()
    }

    pub(crate) fn ratio(&self, line: Line, figure: &Figure, key: &'static str, to: &'static str) -> Option<Summary> {
        Summary::of(self.ratios(line, figure, key, to))
    }
}

/// For programs: what the table shows, and every repetition.
pub(crate) fn json(results: &Results, entries: &[&Entry], circumstances: &Circumstances) -> serde_json::Value {
    let lines: Vec<_> = Line::ALL
        .iter()
        .filter(|line| results.visits.keys().any(|(there, _)| there == *line))
        .map(|line| {
            let contenders: Vec<_> = entries
                .iter()
                .filter_map(|entry| {
                    let visits = results.of(*line, entry.key)?;
                    let figures: BTreeMap<_, _> = line
                        .figures()
                        .iter()
                        .filter_map(|figure| {
                            let of_base = results.ratio(*line, figure, entry.key, (entry.base)(*line));
                            let summary = visits.summary(figure.key)?;
                            let all = visits.values(figure.key);
                            Some((figure.key, serde_json::json!({ "summary": finite(summary), "times_base": of_base.map(finite), "repetitions": all })))
                        })
                        .collect();
                    Some(serde_json::json!({
                        "contender": entry.key,
                        "base": (entry.base)(*line),
                        "figures": figures,
                        "extra": extra(*line, visits),
                        "commands": visits.commands,
                        "failure": visits.failure(),
                    }))
                })
                .collect();
            serde_json::json!({ "line": line, "title": line.title(), "contenders": contenders })
        })
        .collect();
    let contenders: Vec<_> = entries
        .iter()
        .map(|entry| {
            serde_json::json!({
                "key": entry.key, "what": entry.what, "waits": entry.waits, "leaves_out": entry.leaves_out,
                "polls_ms": entry.polls_ms, "cannot": entry.cannot,
            })
        })
        .collect();
    serde_json::json!({ "circumstances": circumstances, "contenders": contenders, "lines": lines })
}

/// Figures that have no column of their own.
fn extra(line: Line, visits: &Visits) -> BTreeMap<&'static str, Vec<f64>> {
    let shown: Vec<&str> = line.figures().iter().map(|figure| figure.key).collect();
    let mut extra: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    for (key, value) in visits.readings.iter().flatten().flatten() {
        if !shown.contains(key) {
            extra.entry(key).or_default().push(*value);
        }
    }
    extra
}

/// JSON knows no infinity: it becomes `null`.
fn finite(summary: Summary) -> serde_json::Value {
    serde_json::json!({ "median": summary.median, "min": summary.min, "max": summary.max })
}

/// Where and how it was measured: a figure without its machine is a rumour.
#[derive(Debug, Serialize)]
pub(crate) struct Circumstances {
    /// The commit of this repository.
    pub(crate) commit: Option<String>,
    pub(crate) store: Store,
    /// Its version, and what it does with a write.
    pub(crate) server: String,
    pub(crate) python: Option<String>,
    pub(crate) node: Option<String>,
    pub(crate) java: Option<String>,
    pub(crate) go: Option<String>,
    pub(crate) cores: usize,
    pub(crate) processor: Option<String>,
    pub(crate) kernel: Option<String>,
    /// How many processes wanted to run during the minute before.
    pub(crate) load_before: Option<f64>,
    pub(crate) repetitions: usize,
    pub(crate) quick: bool,
    pub(crate) debug_build: bool,
    pub(crate) ttl_seconds: u64,
}

impl Circumstances {
    pub(crate) fn look(store: Store, server: String, repetitions: usize, quick: bool) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let processor = read("/proc/cpuinfo").and_then(|info| {
            let line = info.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        let on = |stores: &[Store], command: &str, ask: &str| {
            if stores.contains(&store) { says(command, &[ask]) } else { None }
        };
        let python = std::env::var("PEERS_PYTHON").ok();
        Circumstances {
            commit: says("git", &["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "--short", "HEAD"]),
            store,
            server,
            python: python.and_then(|python| on(&[Store::Redis, Store::ZooKeeper], &python, "--version")),
            node: on(&[Store::Redis], "node", "--version").map(|version| format!("Node {version}")),
            java: on(&[Store::ZooKeeper], "java", "--version"),
            go: on(&[Store::Etcd], "go", "version"),
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            processor,
            kernel: read("/proc/sys/kernel/osrelease").map(|release| release.trim().to_owned()),
            load_before: read("/proc/loadavg").and_then(|load| load.split_whitespace().next()?.parse().ok()),
            repetitions,
            quick,
            debug_build: cfg!(debug_assertions),
            ttl_seconds: crate::contenders::TTL.as_secs(),
        }
    }

    /// Whether others were using the machine already.
    pub(crate) fn was_busy(&self) -> bool {
        self.load_before.is_some_and(|load| load > self.cores as f64 / 2.0)
    }
}

/// The first line of what a command says, if it can be asked.
fn says(command: &str, arguments: &[&str]) -> Option<String> {
    let output = std::process::Command::new(command).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_a_repetition() {
        let visits = |values: &[f64]| Visits {
            readings: values.iter().map(|value| Ok(Reading::from([("pair", *value)]))).collect(),
            ..Visits::default()
        };
        let mut results = Results::default();
        results.visits.insert((Line::Solo, "raw-evalsha"), visits(&[1.0, 10.0, 2.0]));
        results.visits.insert((Line::Solo, "tenure"), visits(&[2.0, 20.0, 4.0]));
        let pair = &Line::Solo.figures()[0];
        let ratio = results.ratio(Line::Solo, pair, "tenure", "raw-evalsha").unwrap();
        assert_eq!((ratio.min, ratio.median, ratio.max), (2.0, 2.0, 2.0));
        assert!(results.ratio(Line::Many, pair, "tenure", "raw-evalsha").is_none());
    }
}
