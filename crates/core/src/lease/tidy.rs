//! Nothing is left: a name that nobody needs any more disappears a moment later, whoever used it last, living or dead.
//!
//! A client does not remember names. It sweeps the store: when it begins, a moment after it has ended a claim, and when it is closed.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::tries::Tries;
use super::{Desk, Failure, Inner, QUIET};
use crate::{Instant, LockName, Result};

/// How many names one request looks at. Each that it removes is a lock or two in the server until all of them are.
const NAMES_AT_ONCE: usize = 256;
/// How many requests one sweep makes at most; the next one goes on from there.
const MAX_REQUESTS: usize = 64;
/// The same for a client that is being closed: somebody waits for that.
const MAX_REQUESTS_AT_CLOSE: usize = 16;
/// A client sweeps for one part in so many of its time at most, however many names there are.
const REST: u32 = 50;
/// It rests no longer than this: a sweep that took long may have waited for a busy server, and what it missed must go soon.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// How long a client rests from a sweep that took so long.
fn rest(took: Duration) -> Duration {
    took.saturating_mul(REST).min(LONGEST_REST)
}

/// When this client sweeps.
#[derive(Default)]
pub(crate) struct Sweeps {
    times: Mutex<Times>,
    /// The name that the last sweep ended at, before the last one of all. Whoever sweeps has it.
    after: tokio::sync::Mutex<Option<LockName>>,
}

#[derive(Default)]
struct Times {
    /// When the next sweep is.
    due: Option<Instant>,
    /// When the last claim ended.
    last_end: Option<Instant>,
    /// No sweep before this.
    rest_until: Option<Instant>,
}

impl Sweeps {
    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Desk> Inner<D> {
    /// A claim has ended, and its name may be idle.
    pub(crate) fn may_be_idle(&self) {
        let now = Instant::now();
        let mut times = self.sweeps.times();
        times.last_end = Some(now);
        if times.due.is_none() {
            drop(times);
            self.sweep_at(now + QUIET * 2);
        }
    }

    /// The next sweep is then, or when the last one has been rested from.
    pub(crate) fn sweep_at(&self, at: Instant) {
        let mut times = self.sweeps.times();
        let due = times.rest_until.map_or(at, |rest| rest.max(at));
        times.due = Some(due);
        drop(times);
        self.ear.chores_at(due);
    }

    /// Ends what could not be ended before, and removes what has been idle for a while.
    pub(crate) async fn do_chores(&self) {
        self.end_again().await;
        let started = Instant::now();
        let due = self.sweeps.times().due.take();
        match due {
            None => return,
            Some(due) if due > started => return self.sweep_at(due), // these chores were the others
            Some(_) => {}
        }
        let is_done = self.sweep().await.unwrap_or_else(|_| {
            self.ear.may_have_missed_mail(); // a sweep fetches it too
            false // nothing hurts meanwhile: later, then
        });
        let now = Instant::now();
        let mut times = self.sweeps.times();
        times.rest_until = Some(now + rest(now.since(started)));
        // What has ended only just before was not idle for long enough.
        let was_early = times.last_end.is_some_and(|end| end + QUIET > started);
        drop(times);
        if !is_done || was_early {
            self.sweep_at(now + QUIET * 2);
        }
    }

    /// Removes idle names, from where the last sweep ended. Whether it came to the last name.
    async fn sweep(&self) -> Result<bool, Failure> {
        let Ok(mut after) = self.sweeps.after.try_lock() else { return Ok(true) };
        for _ in 0..MAX_REQUESTS {
            *after = self.desk.tidy_after(after.as_ref(), NAMES_AT_ONCE, QUIET).await?.value;
            if after.is_none() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The client is about to end: what it leaves in the store besides its holds goes now, and so does all else that is idle.
    pub(crate) async fn leave(&self) -> Result<()> {
        let mut after = None;
        for _ in 0..MAX_REQUESTS_AT_CLOSE {
            let tidied = || self.desk.tidy_after(after.as_ref(), NAMES_AT_ONCE, Duration::ZERO);
            after = Tries::of(&self.desk).insist(tidied).await?.value;
            if after.is_none() {
                break;
            }
        }
        Tries::of(&self.desk).insist(|| self.desk.leave()).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_server_does_not_keep_what_is_idle_for_minutes() {
        assert_eq!(rest(Duration::from_millis(2)), Duration::from_millis(100));
        assert_eq!(rest(Duration::from_secs(2)), LONGEST_REST);
        assert_eq!(rest(Duration::MAX), LONGEST_REST);
    }
}
