//! What was run and what was found, as a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::fault::{Cell, Fault};
use super::site::Store;
use super::verdict::Verdict;

/// What was run of each pair.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pairs: BTreeMap<(Store, Fault), Tally>,
}

/// What came of one store under one fault.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// How many histories.
    pub histories: usize,
    /// In how many of them bounds in time were judged, too.
    pub timed: usize,
    /// How many asks were granted.
    pub grants: usize,
    /// How many violations of what is promised.
    pub broken: usize,
    /// How many overlaps and the like where nothing is promised.
    pub unpromised: usize,
    /// How many late writes were refused.
    pub refused: usize,
    /// How many operations ended with neither yes nor no.
    pub unknown: usize,
    /// The longest time, once the fault was over, for which somebody waited and nobody held.
    pub longest_gap: Duration,
    /// The first seed and the last.
    pub seeds: Option<(u64, u64)>,
}

impl Tally {
    /// What came of one history.
    pub(super) fn of(seed: u64, verdict: &Verdict) -> Self {
        Tally {
            histories: 1,
            timed: usize::from(verdict.timed),
            grants: verdict.grants,
            broken: verdict.broken.len(),
            unpromised: verdict.unpromised.len(),
            refused: verdict.refused,
            unknown: verdict.unknown,
            longest_gap: verdict.longest_gap,
            seeds: Some((seed, seed)),
        }
    }

    pub(super) fn plus(&self, other: &Tally) -> Tally {
        Tally {
            histories: self.histories + other.histories,
            timed: self.timed + other.timed,
            grants: self.grants + other.grants,
            broken: self.broken + other.broken,
            unpromised: self.unpromised + other.unpromised,
            refused: self.refused + other.refused,
            unknown: self.unknown + other.unknown,
            longest_gap: self.longest_gap.max(other.longest_gap),
            seeds: match (self.seeds, other.seeds) {
                (Some(one), Some(two)) => Some((one.0.min(two.0), one.1.max(two.1))),
                (one, two) => one.or(two),
            },
        }
    }
}

impl Summary {
    /// What was run of a pair so far.
    pub fn tally(&self, store: Store, fault: Fault) -> Tally {
        self.pairs.get(&(store, fault)).cloned().unwrap_or_default()
    }

    pub(super) fn add(&mut self, store: Store, fault: Fault, tally: &Tally) {
        let sum = self.tally(store, fault).plus(tally);
        self.pairs.insert((store, fault), sum);
    }

    /// All pairs together.
    pub fn total(&self) -> Tally {
        self.pairs.values().fold(Tally::default(), |sum, tally| sum.plus(tally))
    }

    /// How many histories there are of the pair that was run least, of all that can occur.
    pub fn fewest(&self) -> usize {
        let pairs = Store::ALL.into_iter().flat_map(|store| Fault::ALL.map(|fault| (store, fault)));
        let occur = pairs.filter(|(store, fault)| !matches!(fault.cell(*store), Cell::DoesNotApply(_)));
        occur.map(|(store, fault)| self.tally(store, fault).histories).min().unwrap_or_default()
    }

    /// A row for each pair of these stores and faults that can occur, and then those that cannot, with the reason.
    pub fn table(&self, stores: &[Store], faults: &[Fault]) -> String {
        let mut rows = "| store | fault | histories | with bounds in time | grants | violations | overlaps where exclusion is not promised \
            | late writes refused | no answer | longest gap | seeds |\n|---|---|---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
        let mut absent = String::new();
        for (store, fault) in stores.iter().flat_map(|store| faults.iter().map(move |fault| (*store, *fault))) {
            let (name, what) = (store.words().0, fault.words().0);
            let tally = self.tally(store, fault);
            let Tally { histories, timed, grants, broken, refused, unknown, .. } = tally;
            let unpromised = match fault.cell(store) {
                Cell::DoesNotApply(why) => {
                    writeln!(absent, "- {name} under {what}: {why}").expect("a String takes everything");
                    continue;
                }
                Cell::FenceOnly(why) => format!("{}: {why}", tally.unpromised),
                Cell::Exclusion => "promised".to_owned(),
            };
            let seeds = tally.seeds.map_or("–".to_owned(), |(first, last)| format!("{first} to {last}"));
            let gap = tally.longest_gap.as_secs_f64();
            let row = format!(
                "| {name} | {what} | {histories} | {timed} | {grants} | {broken} | {unpromised} | {refused} | {unknown} | {gap:.2} s | {seeds} |"
            );
            writeln!(rows, "{row}").expect("a String takes everything");
        }
        if absent.is_empty() { rows } else { format!("{rows}\nDoes not apply:\n\n{absent}") }
    }
}
