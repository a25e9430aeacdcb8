//! Where it ran: a figure without its machine is a rumour. And how much CPU a process has used.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The machine and the moment.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Machine {
    /// How many cores this process may use.
    pub(super) cores: usize,
    /// The processor's name, where the system tells it.
    pub(super) processor: Option<String>,
    /// The kernel's name and release.
    pub(super) kernel: String,
    /// How many processes wanted to run during the minute before: on a busy machine every figure is noisy.
    pub(super) load_before: Option<f64>,
    /// When it began, in UTC.
    pub(super) date: String,
}

impl Machine {
    pub(super) fn look() -> Self {
        let uname = rustix::system::uname();
        let kernel = [uname.sysname(), uname.release()].map(|part| part.to_string_lossy().into_owned()).join(" ");
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
        Machine { cores: cores(), processor: processor(), kernel, load_before: load(), date: date(seconds) }
    }

    /// Whether others were using the machine already.
    pub(super) fn was_busy(&self) -> bool {
        self.load_before.is_some_and(|load| load > self.cores as f64 / 2.0)
    }
}

pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// CPU time that the running threads of a process have used so far; `None` where the system does not tell.
///
/// Counted by the scheduler in nanoseconds: the ticks of `/proc/PID/stat` are 10 ms long, and fifty sleeping processes that
/// use a millisecond each would show nothing, or everything.
pub(super) fn cpu_time(pid: u32) -> Option<Duration> {
    let mut used = Duration::ZERO;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        // A thread that ended since the listing has taken its count with it.
        let Ok(counts) = std::fs::read_to_string(thread.ok()?.path().join("schedstat")) else { continue };
        used += Duration::from_nanos(counts.split_whitespace().next()?.parse().ok()?);
    }
    Some(used)
}

fn processor() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn load() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// Seconds since 1970 as `2026-03-21 14:05 UTC`, by Howard Hinnant's `civil_from_days`.
fn date(seconds: u64) -> String {
    let (days, minutes) = (seconds / 86_400 + 719_468, seconds / 60 % 1440);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100); // from the first of March
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_827_696), "2000-02-29 12:34 UTC");
        assert_eq!(date(1_767_225_599), "2025-12-31 23:59 UTC");
        assert_eq!(date(1_767_225_600), "2026-01-01 00:00 UTC");
    }

    #[test]
    fn work_shows_and_sleep_does_not() {
        let own = std::process::id();
        let Some(before) = cpu_time(own) else { return }; // a system without /proc
        // Not for a fixed time: a busy machine may not let it work meanwhile, and threads that end take their counts along.
        let started = std::time::Instant::now();
        while cpu_time(own).unwrap() <= before {
            assert!(started.elapsed() < Duration::from_secs(60), "it works, and nothing shows");
        }
    }
}
