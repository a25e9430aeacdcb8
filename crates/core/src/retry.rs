//! Trying again: the pauses of an optimistic write, and the pace of looking again.
//!
//! An optimistic write reads, thinks, and writes only if nobody wrote meanwhile. Anybody may come in between, so whoever is
//! overtaken does it all once more: after a pause at random, so that two do not overtake each other for ever, and a bounded
//! number of times, so that too many contenders are heard of and not waited for. [`Cell::update`](crate::Cell::update) does
//! that with a store's cell; [`Retries`] is for whatever you write yourself, such as a row with a version column.

use std::time::Duration;

use crate::{Environment, Error, ErrorKind, Result};

/// How often an optimistic write is tried.
pub const TRIES: u32 = 64;
/// The first pause is at most this long, each later one at most twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
/// No pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// The tries of one optimistic write, for a loop of your own: read, decide, write if the version is still the one you read;
/// if it is not, [`pause`](Retries::pause) and begin again. It pauses 63 times, for up to 50 µs at first and 20 ms in the end,
/// and then says that there are too many contenders.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// # use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
/// # let row = AtomicU64::new(7);
/// use tenure_core::retry::Retries;
///
/// let mut retries = Retries::new();
/// let doubled = loop {
///     let seen = row.load(SeqCst); // SELECT stock, version FROM …
///     match row.compare_exchange(seen, seen * 2, SeqCst, SeqCst) {
///         Ok(_) => break seen * 2, // UPDATE … WHERE id = … AND version = … has changed a row
///         Err(_) => retries.pause().await?,
///     }
/// };
/// assert_eq!(doubled, 14);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Retries {
    environment: Environment,
    conflicts: u32,
}

impl Default for Retries {
    fn default() -> Self {
        Retries::new()
    }
}

impl Retries {
    /// All of them.
    pub fn new() -> Self {
        Retries::within(&Environment::real())
    }

    /// In these surroundings.
    pub(crate) fn within(environment: &Environment) -> Self {
        Retries { environment: environment.clone(), conflicts: 0 }
    }

    /// Somebody else was faster: pauses, or says that this was the last time, with a
    /// [transient](Error::is_transient) error.
    ///
    /// # Cancel safety
    /// Only waits. The try counts.
    pub async fn pause(&mut self) -> Result<()> {
        let pause = self.next()?;
        self.environment.clock.pause(pause).await;
        Ok(())
    }

    /// The same on a thread that may wait.
    pub fn pause_blocking(&mut self) -> Result<()> {
        self.next().map(std::thread::sleep)
    }

    fn next(&mut self) -> Result<Duration> {
        let longest = (FIRST_PAUSE * (1 << self.conflicts.min(16))).min(LONGEST_PAUSE);
        self.conflicts += 1;
        if self.conflicts < TRIES {
            return Ok(self.environment.between(Duration::ZERO, longest));
        }
        let what = format!("{TRIES} times somebody else changed it between reading and writing");
        Err(Error::new(ErrorKind::Unavailable, what).with_hint("With this many contenders a lock is the better choice"))
    }
}

/// How long to pause before looking once more for something that nobody announces, after having waited so long: about an
/// eighth of it, so that looking adds little to a wait, and a long wait costs few looks. Between 1 and 100 ms, with jitter.
pub fn pace(waited: Duration) -> Duration {
    let pause = (waited / 8).clamp(Duration::from_millis(1), Duration::from_millis(100));
    Environment::real().between(pause - pause / 5, pause + pause / 5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_bounded_and_pauses_grow_to_their_limit() {
        let mut retries = Retries::new();
        let mut pauses = Vec::new();
        let error = loop {
            match retries.next() {
                Ok(pause) => pauses.push(pause),
                Err(error) => break error,
            }
        };
        assert!(error.is_transient() && error.hint().is_some(), "{error}");
        assert_eq!(pauses.len() as u32, TRIES - 1);
        assert!(pauses[0] <= FIRST_PAUSE);
        assert!(pauses.iter().all(|pause| *pause <= LONGEST_PAUSE));
        assert!(pauses.iter().any(|pause| *pause > LONGEST_PAUSE / 4), "63 draws, and all of them short: {pauses:?}");
        assert!(retries.next().is_err(), "used up is used up");
    }

    #[test]
    fn looking_again_is_bounded_both_ways() {
        for (waited, least, most) in [(0, 0, 2), (80, 8, 12), (3_600_000, 80, 120)] {
            let pause = pace(Duration::from_millis(waited)).as_millis();
            assert!((least..=most).contains(&pause), "{pause} ms after {waited} ms");
        }
    }
}
