//! What to run, what to do when the lock is lost, and how it ended. Plain data, no system calls.

use std::ffi::OsString;
use std::time::Duration;

use tenure::Instant;

/// A command to run under the lock.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// The program, looked up in `PATH` if it has no slash.
    pub(crate) program: OsString,
    /// Its arguments, without the program's own name.
    pub(crate) args: Vec<OsString>,
    /// Variables added to the environment it inherits.
    pub(crate) env: Vec<(OsString, OsString)>,
    /// How long it may take between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
    /// What to do with what it started, once it has ended by itself.
    pub(crate) leftovers: Leftovers,
}

/// What to do with processes that the command started and that are still there when it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Leftovers {
    /// Hold the lock until they have ended too; tell them of SIGINT and SIGTERM
    Wait,
    /// SIGTERM, then SIGKILL after --grace
    Term,
    /// Let them run on without the lock, and end at once
    Keep,
}

/// What to do with the command when its lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLost {
    /// SIGTERM, then SIGKILL after the grace or at the end of the lease, whichever is first.
    Term,
    /// SIGKILL at once.
    Kill,
    /// Nothing: the command finishes without its lock.
    Ignore,
}

/// The news that the lock is lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stop {
    /// What the user asked for in this case.
    pub(crate) policy: OnLost,
    /// The end of the lease: nothing may still run by then. `None` if it is unknown.
    pub(crate) deadline: Option<Instant>,
}

/// How the command itself ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It exited with this code.
    Exited(i32),
    /// A signal of this number ended it.
    Signaled(i32),
}

impl Ending {
    /// The exit code that tells a shell the same: 128 + n for a signal.
    pub(crate) fn code(self) -> i32 {
        match self {
            Ending::Exited(code) => code,
            Ending::Signaled(signal) => 128 + signal,
        }
    }
}

/// All that is worth telling after the command and everything it started are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// How the command ended.
    pub(crate) ending: Ending,
    /// Whether we ended it because its lock was lost.
    pub(crate) stopped_for_loss: bool,
    /// Whether Ctrl-C ended it while it had the terminal; see [`leave`](super::leave()).
    pub(crate) interrupted: bool,
}

impl Outcome {
    /// The exit code to hand on; see [`Ending::code`].
    pub(crate) fn code(self) -> i32 {
        self.ending.code()
    }
}

/// When SIGKILL is due, if SIGTERM is sent `now`.
///
/// A lease that ends sooner than the grace wins, and [`KILL_MARGIN`] before its end is when we act,
/// because the dead must be dead *inside* it.
pub(crate) fn kill_time(now: Instant, grace: Duration, deadline: Option<Instant>) -> Instant {
    let patient = now + grace;
    deadline.map_or(patient, |deadline| patient.min(deadline - KILL_MARGIN).max(now))
}

/// What waking up, sending SIGKILL and dying takes on a busy machine.
const KILL_MARGIN: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_a_shell() {
        assert_eq!(Ending::Exited(0).code(), 0);
        assert_eq!(Ending::Exited(3).code(), 3);
        assert_eq!(Ending::Signaled(9).code(), 137);
        assert_eq!(Ending::Signaled(15).code(), 143);
    }

    #[test]
    fn the_sooner_of_grace_and_lease_wins() {
        let now = Instant::now();
        let s = Duration::from_secs;
        assert_eq!(kill_time(now, s(5), None), now + s(5));
        assert_eq!(kill_time(now, s(5), Some(now + s(60))), now + s(5));
        assert_eq!(kill_time(now, s(5), Some(now + s(2))), now + s(2) - KILL_MARGIN);
    }

    #[test]
    fn a_lease_that_is_over_leaves_no_grace() {
        let now = Instant::now();
        let s = Duration::from_secs;
        assert_eq!(kill_time(now, s(5), Some(now)), now);
        assert_eq!(kill_time(now, s(5), Some(now - s(1))), now);
        assert_eq!(kill_time(now, Duration::ZERO, None), now);
    }

    #[test]
    fn an_absurd_grace_does_not_overflow() {
        let now = Instant::now();
        assert!(kill_time(now, Duration::MAX, None) > now);
        let soon = now + Duration::from_secs(1);
        assert!(kill_time(now, Duration::MAX, Some(soon)) < soon);
    }
}
