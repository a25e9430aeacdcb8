//! Many seeds, on all cores.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::mutant::Mutant;
use crate::run::{Run, run};

/// What came of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Swept {
    /// How many were run.
    pub runs: u64,
    /// How many guards were given in all of them.
    pub holds: u64,
    /// How many events there were in all of them.
    pub events: u64,
    /// Those that failed, in the order of their seeds.
    pub failed: Vec<Run>,
}

/// Runs seeds on so many threads, and stops soon after so many failures. Each run has a thread to itself from its first
/// to its last step, so that what others do cannot matter to it.
pub fn sweep(seeds: Range<u64>, mutant: Option<Mutant>, threads: usize, failures: usize) -> Swept {
    let next = AtomicU64::new(seeds.start);
    let swept = Mutex::new(Swept::default());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || swept.lock().expect("no panics here").failed.len() >= failures {
                        return;
                    }
                    let run = run(seed, mutant);
                    let mut swept = swept.lock().expect("no panics here");
                    swept.runs += 1;
                    swept.holds += u64::from(run.holds);
                    swept.events += run.events as u64;
                    if !run.violations.is_empty() {
                        swept.failed.push(run);
                    }
                }
            });
        }
    });
    let mut swept = swept.into_inner().expect("no panics here");
    swept.failed.sort_by_key(|run| run.seed);
    swept
}
