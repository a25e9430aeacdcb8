//! Many seeds, on all cores.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

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

/// A run takes milliseconds. One that takes this long never ends, and nothing can end it but the whole process.
const HANGS: Duration = Duration::from_secs(120);

/// Runs seeds on so many threads, and stops soon after so many failures. Each run has a thread to itself from its first
/// to its last step, so that what others do cannot matter to it.
///
/// # Panics
/// Ends the process, with the line that shows the seed again, if a run does not end.
pub fn sweep(seeds: Range<u64>, mutant: Option<Mutant>, threads: usize, failures: usize) -> Swept {
    let next = AtomicU64::new(seeds.start);
    let swept = Mutex::new(Swept::default());
    let running: Vec<Mutex<Option<(u64, Instant)>>> = (0..threads).map(|_| Mutex::default()).collect();
    let work = |mine: &Mutex<Option<(u64, Instant)>>| loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= seeds.end || swept.lock().expect("no panics here").failed.len() >= failures {
            return;
        }
        *mine.lock().expect("no panics here") = Some((seed, Instant::now()));
        let run = run(seed, mutant);
        *mine.lock().expect("no panics here") = None;
        swept.lock().expect("no panics here").add(run);
    };
    thread::scope(|scope| {
        let workers: Vec<_> = running.iter().map(|mine| scope.spawn(|| work(mine))).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            thread::sleep(Duration::from_millis(5));
            running.iter().for_each(|run| end_if_it_hangs(*run.lock().expect("no panics here")));
        }
    });
    let mut swept = swept.into_inner().expect("no panics here");
    swept.failed.sort_by_key(|run| run.seed);
    swept
}

fn end_if_it_hangs(running: Option<(u64, Instant)>) {
    if let Some((seed, _)) = running.filter(|(_, since)| since.elapsed() > HANGS) {
        eprintln!("seed {seed}: does not end; see it with: cargo run -p tenure-sim -- replay {seed}");
        std::process::exit(101);
    }
}

impl Swept {
    fn add(&mut self, run: Run) {
        self.runs += 1;
        self.holds += u64::from(run.holds);
        self.events += run.events as u64;
        if !run.violations.is_empty() {
            self.failed.push(run);
        }
    }
}
