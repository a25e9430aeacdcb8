//! How a lock is asked for and held: the same choices on every kind.

use std::time::Duration;

use crate::claim::{MAX_TTL, MIN_TTL};
use crate::{Error, ErrorKind, Note, Result};

/// How a lock is asked for and held. Every kind has a method for each of these.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) ttl: Duration,
    pub(crate) keep: bool,
    pub(crate) min_hold: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) lock_delay: Duration,
    pub(crate) note: Option<Note>,
    pub(crate) spin: Option<Backoff>,
}

/// The ttl where none is chosen.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

impl Default for Options {
    fn default() -> Self {
        Options {
            ttl: DEFAULT_TTL,
            keep: true,
            min_hold: Duration::ZERO,
            max_hold: None,
            lock_delay: Duration::ZERO,
            note: None,
            spin: None,
        }
    }
}

/// Between which bounds to pause when spinning: each pause is random, and its bound doubles from `min` to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub(crate) min: Duration,
    pub(crate) max: Duration,
}

impl Backoff {
    /// Pauses between `min` (at least 1 µs) and `max` (at most a minute).
    pub fn new(min: Duration, max: Duration) -> Result<Self> {
        if min < Duration::from_micros(1) || max < min || max > Duration::from_secs(60) {
            let what = format!("a backoff from {min:?} to {max:?} is not between 1µs and 60s, or runs backwards");
            return Err(Error::new(ErrorKind::BadOption, what));
        }
        Ok(Backoff { min, max })
    }
}

impl Default for Backoff {
    /// From 100 µs to 20 ms.
    fn default() -> Self {
        Backoff { min: Duration::from_micros(100), max: Duration::from_millis(20) }
    }
}

/// Checks a duration against its limits.
pub(crate) fn within(what: &str, given: Duration, low: Duration, high: Duration) -> Result<Duration> {
    if given < low || given > high {
        let what = format!("{what} must be between {low:?} and {high:?}, and is {given:?}");
        return Err(Error::new(ErrorKind::BadOption, what));
    }
    Ok(given)
}

pub(crate) fn ttl(given: Duration) -> Result<Duration> {
    within("a ttl", given, MIN_TTL, MAX_TTL)
}

pub(crate) fn max_hold(given: Duration) -> Result<Duration> {
    within("a maximum hold", given, MIN_TTL, MAX_TTL)
}

pub(crate) fn up_to_a_day(what: &str, given: Duration) -> Result<Duration> {
    within(what, given, Duration::ZERO, MAX_TTL)
}

/// Gives a kind the methods that set its [`Options`]; a kind of one name its name, too.
macro_rules! options {
    ($kind:ident) => {
        impl $kind {
            /// The name it locks.
            pub fn name(&self) -> &$crate::LockName {
                &self.ask.name
            }

            fn asker(&self) -> &$crate::client::Asker {
                &self.ask
            }

            fn set(mut self, set: impl Fn(&mut $crate::client::Asker)) -> Self {
                set(&mut self.ask);
                self
            }
        }
        $crate::options::options!($kind: setters);
    };
    ($kind:ident: setters) => {
        impl $kind {
            /// How long a grant lasts if nobody renews it: 100 ms to 24 h, 30 s unless told. It is also how long others
            /// wait after this holder's host has died.
            pub fn ttl(self, ttl: std::time::Duration) -> $crate::Result<Self> {
                let ttl = $crate::options::ttl(ttl)?;
                Ok(self.set(|ask| ask.options.ttl = ttl))
            }

            /// Whether the hold is renewed in the background, as it is unless told. Without, it ends after its ttl.
            pub fn keep(self, keep: bool) -> Self {
                self.set(|ask| ask.options.keep = keep)
            }

            /// Released earlier than this after the grant, the name stays closed until then: for jobs that are so short
            /// that two hosts with slightly different clocks would both run them.
            pub fn min_hold(self, min_hold: std::time::Duration) -> $crate::Result<Self> {
                let min_hold = self.asker().delay("a minimum hold", min_hold)?;
                Ok(self.set(|ask| ask.options.min_hold = min_hold))
            }

            /// A cap on the whole hold: renewal stops there, and the hold is lost.
            pub fn max_hold(self, max_hold: std::time::Duration) -> $crate::Result<Self> {
                let max_hold = $crate::options::max_hold(max_hold)?;
                Ok(self.set(|ask| ask.options.max_hold = Some(max_hold)))
            }

            /// How long the name stays closed after this holder was lost (not after a release): a grace for resources
            /// that cannot check tokens.
            pub fn lock_delay(self, lock_delay: std::time::Duration) -> $crate::Result<Self> {
                let lock_delay = self.asker().delay("a lock-delay", lock_delay)?;
                Ok(self.set(|ask| ask.options.lock_delay = lock_delay))
            }

            /// What others see in `tenure ls` beside this holder's host and process id.
            pub fn note(self, note: impl AsRef<str>) -> $crate::Result<Self> {
                let note = $crate::Note::new(note)?;
                Ok(self.set(|ask| ask.options.note = Some(note.clone())))
            }

            /// Waits by trying again and again instead of standing in line: for very short critical sections. A spinner
            /// has no place in line, so on a busy name it may wait longer than others.
            pub fn spin(self, backoff: $crate::Backoff) -> Self {
                self.set(|ask| ask.options.spin = Some(backoff))
            }
        }
    };
}
pub(crate) use options;
