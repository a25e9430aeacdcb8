//! `--once-per`: a command that was run within a period is not run again, by any host.
//!
//! The last run stands beside the lock, in the store's cell `NAME/last-run`. It is read and written under the lock: of two hosts that
//! start at the same minute, the second waits for the first, and then sees its run. A run that was stopped because the lock was
//! lost, or that was killed together with `tenure`, is not written, and is made up for by the next.
//!
//! A period counts from the start of the last run, by the wall clock of the host that ran it, and is compared with the wall clock of the
//! host that asks. A start that lies further ahead than a period is a clock that was wrong, and does not count.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::{Client, ErrorKind, LockName, Result};

use super::holds::Holds;
use crate::duration;
use crate::failure::Failure;
use crate::print::{clean, wall_ms};

/// A run that came to its end.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct LastRun {
    started_ms: u64,
    ended_ms: u64,
    host: String,
    pid: u32,
    code: i32,
}

impl LastRun {
    /// What the store has, if it keeps such a thing, and what is there is ours.
    pub(crate) async fn read(client: &Client, name: &str) -> Option<Self> {
        let cell = client.cell(cell(name)).ok()?;
        serde_json::from_slice(&cell.get().await.ok()?.0?).ok()
    }

    /// When, where, and how it ended.
    pub(crate) fn describe(&self) -> String {
        let ago = duration::show(Duration::from_millis(wall_ms().saturating_sub(self.started_ms)));
        let took = duration::show(Duration::from_millis(self.ended_ms.saturating_sub(self.started_ms)));
        format!("{ago} ago on {}, took {took}, exit code {}", clean(&self.host), self.code)
    }

    /// How much of a period is left now.
    fn left(&self, period: Duration, now_ms: u64) -> Option<Duration> {
        let period_ms = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        let ends = self.started_ms.saturating_add(period_ms);
        let counts = self.started_ms.abs_diff(now_ms) < period_ms;
        counts.then(|| Duration::from_millis(ends - now_ms))
    }
}

/// Where the last run of a name is kept, and how long it counts.
pub(super) struct OncePer {
    cell: tenure::Cell,
    period: Duration,
}

/// Whether it is time.
pub(super) enum Turn {
    Due(Run),
    /// It ran, and this much of the period is left.
    Ran(LastRun, Duration),
}

/// A run that is about to start.
pub(super) struct Run {
    version: u64,
    started_ms: u64,
}

impl OncePer {
    pub(super) fn new(client: &Client, name: &LockName, period: Duration) -> Result<Self, Failure> {
        let cell = client.cell(cell(name.as_str())).map_err(|error| match error.kind() {
            ErrorKind::Unsupported => Failure::from(error).with_hint("Every store but redlock has what --once-per needs"),
            _ => error.into(),
        })?;
        Ok(OncePer { cell, period })
    }

    /// Looks at the last run. Only under the lock.
    pub(super) async fn turn(&self) -> Result<Turn, Failure> {
        let (value, version) = self.cell.get().await?;
        let run = Run { version, started_ms: wall_ms() };
        let Some(value) = value else { return Ok(Turn::Due(run)) };
        let last: LastRun = serde_json::from_slice(&value)
            .map_err(|error| Failure::new(format!("the store's last run is not one that tenure wrote: {error}")))?;
        Ok(match last.left(self.period, run.started_ms) {
            Some(left) => Turn::Ran(last, left),
            None => Turn::Due(run),
        })
    }

    /// Writes down a run that ended, while the lock is still held. Says what went wrong.
    pub(super) async fn record(&self, run: Run, code: i32, holds: &Holds<'_>) -> Result<(), String> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let last = LastRun { started_ms: run.started_ms, ended_ms: wall_ms(), host, pid: std::process::id(), code };
        let value = serde_json::to_vec(&last).map_err(|error| error.to_string())?;
        holds.check().map_err(|_| "the lock was lost".to_owned())?;
        // Of the version that was read: a write that arrives late overwrites nothing that was written since.
        let written = async {
            let is_written = self.cell.set_if(run.version, &value).await?.is_some();
            // Refused, it may still be ours: sent twice, because the first answer was lost.
            Ok::<_, tenure::Error>(is_written || self.cell.get().await?.0 == Some(value))
        };
        match tokio::time::timeout(super::PATIENCE, written).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err("another run was written down meanwhile".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the store did not answer".to_owned()),
        }
    }
}

fn cell(name: &str) -> String {
    format!("{name}/last-run")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_counts_from_the_start_and_forgives_a_wrong_clock() {
        let hour = Duration::from_secs(3_600);
        let left = |started_ms, now_ms| {
            LastRun { started_ms, ended_ms: started_ms, host: String::new(), pid: 1, code: 0 }.left(hour, now_ms)
        };
        let (start, ms) = (10_000_000, 3_600_000);
        assert_eq!(left(start, start), Some(hour));
        assert_eq!(left(start, start + ms - 1), Some(Duration::from_millis(1)));
        assert_eq!(left(start, start + ms), None);
        assert_eq!(left(start, start - 1), Some(hour + Duration::from_millis(1)), "a clock that is a little ahead");
        assert_eq!(left(start, start - ms), None, "a clock that was far ahead closes nothing for years");
    }
}
