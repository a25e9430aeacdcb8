//! Time: the only place that reads a clock.
//!
//! Trust is counted on `CLOCK_BOOTTIME`, which also runs while the machine sleeps: a laptop that wakes up after an hour
//! must not believe that its lease is fresh. The wall clock seeds tokens and is shown to people; it is never compared.

use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment on the clock that trust is counted on: nanoseconds since the machine started, sleep included.
///
/// Unlike [`std::time::Instant`] it goes on during suspend, and it means the same in every process of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// A moment that never comes.
    pub const NEVER: Instant = Instant(u64::MAX);

    /// The moment so many nanoseconds after the machine started.
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant(nanos)
    }

    /// Nanoseconds since the machine started.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Now, on the real clock.
    pub fn now() -> Self {
        Clock::Boot.now()
    }

    /// How much later this is than `earlier`; zero if it is not.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Stops at [`Instant::NEVER`] instead of overflowing.
    fn add(self, by: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    /// Stops at the machine's start instead of underflowing.
    fn sub(self, by: Duration) -> Instant {
        Instant(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Where time comes from: the machine, or a simulation's paused tokio clock.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// The machine's clock.
    Boot,
    /// tokio's clock, counted from `origin`: the clock of a deterministic simulation.
    Simulated {
        /// The simulated machine's start.
        origin: tokio::time::Instant,
    },
}

/// tokio's timers stand still while the machine sleeps, so a long sleep is cut into pieces and re-checked.
const LONGEST_NAP: Duration = Duration::from_millis(500);

impl Clock {
    /// Now.
    pub fn now(self) -> Instant {
        match self {
            Clock::Boot => boottime(),
            Clock::Simulated { origin } => Instant(origin.elapsed().as_nanos() as u64),
        }
    }

    /// Microseconds since 1970 by the wall clock: the seed of tokens, and what people are shown.
    pub fn wall_micros(self) -> u64 {
        match self {
            Clock::Boot => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_micros() as u64),
            Clock::Simulated { origin } => 1_700_000_000_000_000 + origin.elapsed().as_micros() as u64,
        }
    }

    /// Sleeps until then. Timers are hints; the clock decides.
    ///
    /// # Cancel safety
    /// Holds no state; dropping it forgets the sleep.
    pub async fn sleep_until(self, then: Instant) {
        if then == Instant::NEVER {
            return std::future::pending().await; // an idle keeper wakes for nothing
        }
        loop {
            let left = then.since(self.now());
            if left.is_zero() {
                return;
            }
            match self {
                Clock::Boot => tokio::time::sleep(left.min(LONGEST_NAP)).await,
                // tokio's timers have millisecond steps: round up, or a simulated clock would never arrive.
                Clock::Simulated { .. } => tokio::time::sleep(left.max(Duration::from_millis(1))).await,
            }
        }
    }

    /// Pauses for a spinner. Timers have millisecond steps, and a spinner means microseconds: it yields instead.
    pub(crate) async fn pause(self, nap: Duration) {
        match self {
            Clock::Boot if nap < Duration::from_millis(1) => {
                let end = self.now() + nap;
                while self.now() < end {
                    tokio::task::yield_now().await;
                }
            }
            _ => tokio::time::sleep(nap).await,
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn boottime() -> Instant {
    nanos(rustix::time::clock_gettime(rustix::time::ClockId::Boottime))
}

// Other systems have no such clock under this name; their monotonic clock stops in sleep on some of them, which
// GUARANTEES says.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn boottime() -> Instant {
    nanos(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic))
}

fn nanos(spec: rustix::time::Timespec) -> Instant {
    Instant(spec.tv_sec as u64 * 1_000_000_000 + spec.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_never_wraps() {
        assert_eq!(Instant::NEVER + Duration::from_secs(1), Instant::NEVER);
        assert_eq!(Instant::from_nanos(5) - Duration::from_secs(1), Instant::from_nanos(0));
        assert_eq!(Instant::from_nanos(5).since(Instant::from_nanos(9)), Duration::ZERO);
    }

    #[test]
    fn the_clock_runs() {
        let before = Instant::now();
        while Instant::now() == before {}
        assert!(Instant::now() > before);
    }
}
