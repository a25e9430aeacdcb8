//! What was run and what was found, as a table.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::fault::{Cell, Fault};
use super::site::Store;
use super::verdict::Verdict;

/// What was run of each pair.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pairs: BTreeMap<(Store, Fault), Tally>,
}

/// What came of one store under one fault.
#[derive(Clone, Debug, Default)]
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

impl Summary {
    /// What was run of a pair so far.
    pub fn tally(&mut self, store: Store, fault: Fault) -> &mut Tally {
        self.pairs.entry((store, fault)).or_default()
    }

    pub(super) fn add(&mut self, store: Store, fault: Fault, seed: u64, verdict: &Verdict) {
        let tally = self.tally(store, fault);
        tally.histories += 1;
        tally.timed += usize::from(verdict.timed);
        tally.grants += verdict.grants;
        tally.unpromised += verdict.unpromised.len();
        tally.refused += verdict.refused;
        tally.unknown += verdict.unknown;
        tally.longest_gap = tally.longest_gap.max(verdict.longest_gap);
        let (first, last) = tally.seeds.unwrap_or((seed, seed));
        tally.seeds = Some((first.min(seed), last.max(seed)));
    }

    /// All pairs together.
    pub fn total(&self) -> Tally {
        self.pairs.values().fold(Tally::default(), |sum, tally| Tally {
            histories: sum.histories + tally.histories,
            timed: sum.timed + tally.timed,
            grants: sum.grants + tally.grants,
            broken: sum.broken + tally.broken,
            unpromised: sum.unpromised + tally.unpromised,
            refused: sum.refused + tally.refused,
            unknown: sum.unknown + tally.unknown,
            longest_gap: sum.longest_gap.max(tally.longest_gap),
            seeds: None,
        })
    }

    /// The pair that was run least.
    pub fn fewest(&self) -> Option<(Store, Fault, usize)> {
        let (pair, tally) = self.pairs.iter().min_by_key(|(_, tally)| tally.histories)?;
        Some((pair.0, pair.1, tally.histories))
    }

    /// A row for each pair of these stores and faults that can occur, and then those that cannot, with the reason.
    pub fn table(&self, stores: &[Store], faults: &[Fault]) -> String {
        let mut rows = "| store | fault | histories | with bounds in time | grants | violations | overlaps where exclusion is not promised \
            | late writes refused | no answer | longest gap | seeds |\n|---|---|---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
        let mut absent = String::new();
        for (store, fault) in stores.iter().flat_map(|store| faults.iter().map(move |fault| (*store, *fault))) {
            let (name, what) = (store.words().0, fault.words().0);
            let tally = self.pairs.get(&(store, fault)).cloned().unwrap_or_default();
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
