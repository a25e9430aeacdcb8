//! Bounds in time, on a machine that may stand still.
//!
//! Only a bound in time may be repeated, and only where [`Stall`] measured that the machine stood still during the attempt that missed
//! it: such an attempt says nothing. Of the attempts on a machine that ran, the first one that keeps the bound is enough; after one
//! that misses it both of the next two must keep it. What is not about time (who holds, which token, what is left) an attempt asserts
//! by itself, and so it is asserted in every attempt.

use std::fs;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Measures how long this machine stands still, from when it is started until it is dropped: with threads and a clock of its own,
/// so that neither a store nor a blocked runtime can pass for a machine that stands still.
///
/// It measures in two ways, and the larger result counts. An echo between two threads finds a machine that is paused as a whole. The
/// scheduler prefers threads that mostly sleep, so the echo is prompt where servers wait for a processor or for the disk; the kernel's
/// own account of that ([pressure stall information]) is the second measure, on kernels that have it.
///
/// [pressure stall information]: https://docs.kernel.org/accounting/psi.html
#[derive(Debug)]
pub struct Stall {
    measured: Arc<Measured>,
    pressure_before: Duration,
}

/// What the threads have measured, in nanoseconds.
#[derive(Debug, Default)]
struct Measured {
    over: AtomicBool,
    longest: AtomicU64,
    total: AtomicU64,
}

impl Measured {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn saw(&self, stretch: Duration) {
        self.longest.fetch_max(stretch.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// How long the meter sleeps between two looks.
const TICK: Duration = Duration::from_millis(2);
/// What is shorter than this is a busy machine and not one that stands still.
const PAUSE: Duration = Duration::from_millis(5);
/// How often the kernel is asked for its account.
const ACCOUNT_EVERY: Duration = Duration::from_millis(20);

impl Stall {
    /// Starts to measure.
    pub fn start() -> Self {
        let measured = Arc::new(Measured::default());
        start_echo(&measured);
        let pressure_before = pressure();
        thread::spawn({
            let measured = Arc::clone(&measured);
            move || follow_pressure(&measured, pressure_before)
        });
        Stall { measured, pressure_before }
    }

    /// The longest time for which the machine stood still until now.
    pub fn longest(&self) -> Duration {
        Duration::from_nanos(self.measured.longest.load(Ordering::Relaxed))
    }

    /// For how long it stood still until now, all in all.
    pub fn total(&self) -> Duration {
        let echo = Duration::from_nanos(self.measured.total.load(Ordering::Relaxed));
        echo.max(pressure() - self.pressure_before)
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.measured.over.store(true, Ordering::Relaxed);
    }
}

fn start_echo(measured: &Arc<Measured>) {
    let (there, arrives) = sync_channel(1);
    let (back, returns) = sync_channel(1);
    let measured = Arc::clone(measured);
    thread::spawn(move || echo(&arrives, &back));
    thread::spawn(move || measure(&measured, &there, &returns));
}

/// Sleeps, and passes a word to another thread and back: what a message costs is then in the measure too.
fn measure(measured: &Measured, there: &SyncSender<()>, returns: &Receiver<()>) {
    let mut last = Instant::now();
    while !measured.is_over() {
        thread::sleep(TICK);
        if there.send(()).is_err() || returns.recv().is_err() {
            return;
        }
        let now = Instant::now();
        let stood = now.duration_since(last).saturating_sub(TICK);
        last = now;
        if stood >= PAUSE {
            measured.saw(stood);
            measured.total.fetch_add(stood.as_nanos() as u64, Ordering::Relaxed);
        }
    }
}

/// Finds the longest stretch in which some process waited for a processor or for the disk at nearly every moment.
fn follow_pressure(measured: &Measured, mut last: Duration) {
    let (mut at, mut stretch) = (Instant::now(), Duration::ZERO);
    while !measured.is_over() {
        thread::sleep(ACCOUNT_EVERY);
        let (now, pressed) = (Instant::now(), pressure());
        let (passed, stalled) = (now.duration_since(at), pressed - last);
        stretch = if stalled * 10 >= passed * 9 { stretch + passed } else { Duration::ZERO };
        measured.saw(stretch);
        (at, last) = (now, pressed);
    }
}

/// For how long, since the machine started, some process waited for a processor, and some for the disk. Zero where the kernel keeps
/// no such account.
fn pressure() -> Duration {
    ["/proc/pressure/cpu", "/proc/pressure/io"]
        .iter()
        .map(|path| stalled(&fs::read_to_string(path).unwrap_or_default()))
        .sum()
}

/// Reads `some avg10=0.00 avg60=0.00 avg300=0.00 total=MICROSECONDS`.
fn stalled(account: &str) -> Duration {
    let line = account.lines().find(|line| line.starts_with("some "));
    let micros = line.and_then(|line| line.rsplit_once("total=")?.1.parse().ok());
    Duration::from_micros(micros.unwrap_or(0))
}

fn echo(arrives: &Receiver<()>, back: &SyncSender<()>) {
    while arrives.recv().is_ok_and(|()| back.send(()).is_ok()) {}
}

/// What the attempt says took so long is within the bound. A longer time is excused if the machine stood still, all in all, for at least
/// as long as the attempt was late.
#[track_caller]
pub fn in_bound(what: &str, bound: Duration, mut attempt: impl AsyncFnMut() -> Duration) -> impl Future<Output = ()> {
    let mut attempts = Attempts::of(what);
    async move {
        loop {
            let stall = Stall::start();
            let took = attempt().await;
            let late = took.saturating_sub(bound);
            if attempts.is_settled(late.is_zero(), stall.total() >= late, &format!("{took:?}, not {bound:?}"), &stall) {
                return;
            }
        }
    }
}

/// What an attempt gives that did not miss its time. `None` says that it did, as only a machine that stands still for `excuse` at a
/// stretch explains: a hold that was lost though it is renewed, a message that came after all was over.
#[track_caller]
pub fn unless_stalled<T>(
    what: &str,
    excuse: Duration,
    mut attempt: impl AsyncFnMut() -> Option<T>,
) -> impl Future<Output = T> {
    let mut attempts = Attempts::of(what);
    async move {
        loop {
            let stall = Stall::start();
            let kept = attempt().await;
            let settled = attempts.is_settled(kept.is_some(), stall.longest() >= excuse, "it missed its time", &stall);
            if let (true, Some(kept)) = (settled, kept) {
                return kept;
            }
        }
    }
}

/// The same on a plain thread.
#[track_caller]
pub fn unless_stalled_blocking<T>(what: &str, excuse: Duration, mut attempt: impl FnMut() -> Option<T>) -> T {
    let mut attempts = Attempts::of(what);
    loop {
        let stall = Stall::start();
        let kept = attempt();
        let settled = attempts.is_settled(kept.is_some(), stall.longest() >= excuse, "it missed its time", &stall);
        if let (true, Some(kept)) = (settled, kept) {
            return kept;
        }
    }
}

/// The rule, written once.
struct Attempts<'a> {
    what: &'a str,
    caller: &'static Location<'static>,
    kept: u32,
    missed: u32,
    excused: u32,
}

/// A machine that stands still in so many attempts is not one to test on.
const EXCUSES: u32 = 100;

impl<'a> Attempts<'a> {
    #[track_caller]
    fn of(what: &'a str) -> Self {
        Attempts { what, caller: Location::caller(), kept: 0, missed: 0, excused: 0 }
    }

    /// Whether enough attempts have kept the bound; panics when it is missed.
    fn is_settled(&mut self, is_kept: bool, is_excused: bool, says: &str, stall: &Stall) -> bool {
        match (is_kept, is_excused) {
            (true, _) => self.kept += 1,
            (false, true) => self.excused += 1,
            (false, false) => self.missed += 1,
        }
        let Attempts { what, caller, missed, excused, .. } = self;
        if !is_kept {
            let (longest, total) = (stall.longest(), stall.total());
            eprintln!("{what}: {says}; the machine stood still for {longest:?} at a stretch, {total:?} in all");
            assert!(*missed < 2, "{what}: {says}, the second time on a machine that ran (asked at {caller})");
            assert!(*excused < EXCUSES, "{what}: {says}, and the machine stood still {excused} times (asked at {caller})");
        }
        self.kept > self.missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept at once is enough; one miss is outvoted by two that keep it.
    #[tokio::test]
    async fn two_of_three_are_enough() {
        for (takes, attempts) in [(vec![1], 1), (vec![9, 1, 1], 3)] {
            let mut takes = takes.into_iter().map(Duration::from_secs);
            let mut made = 0;
            in_bound("a made-up time", Duration::from_secs(2), async || {
                made += 1;
                takes.next().expect("no more attempts than it takes")
            })
            .await;
            assert_eq!(made, attempts);
        }
    }

    /// Two misses are too many, whatever comes between them.
    #[test]
    fn two_misses_are_one_too_many() {
        for takes in [vec![None, None], vec![None, Some(()), None]] {
            let mut takes = takes.into_iter();
            let tried =
                || unless_stalled_blocking("made up", Duration::MAX, || takes.next().expect("no more than it takes"));
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(tried)).expect_err("it is missed");
        }
    }

    /// What a standing machine explains is no miss, and no proof either.
    #[test]
    fn an_excused_attempt_says_nothing() {
        let mut takes = [None, None, None, Some(7)].into_iter();
        let kept = unless_stalled_blocking("made up", Duration::ZERO, || takes.next().expect("no more than it takes"));
        assert_eq!(kept, 7);
    }

    #[test]
    fn the_kernel_s_account_is_read() {
        let account =
            "some avg10=1.50 avg60=0.70 avg300=0.20 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(stalled(account), Duration::from_millis(2500));
        assert_eq!(stalled(""), Duration::ZERO);
    }

    /// A thread that is busy is no machine that stands still.
    #[test]
    fn a_busy_thread_is_no_excuse() {
        let measured = Arc::default();
        start_echo(&measured);
        let end = Instant::now() + Duration::from_millis(300);
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        let longest = Duration::from_nanos(measured.longest.load(Ordering::Relaxed));
        measured.over.store(true, Ordering::Relaxed);
        assert!(longest < Duration::from_millis(300), "{longest:?}");
    }
}
