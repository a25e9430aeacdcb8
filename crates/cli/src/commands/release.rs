//! `tenure release NAME`

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use clap::Parser;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;
use tenure::{Client, Fingerprint, Wait};

use super::{hold, wait};
use crate::cli::{Cli, Command};
use crate::duration;
use crate::failure::{Failure, NO};
use crate::print::{Printer, clean, is_here};

/// Release a lock that `tenure hold` holds on this host
///
/// Returns when the lock is released. Exits with 1 if no `tenure hold` of this host holds it, or if it is still held after --wait.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The lock's name
    name: String,

    /// Only what is held for this process: needed where several scripts hold the name together
    #[arg(long, value_name = "PID", value_parser = hold::pid)]
    pid: Option<Pid>,

    /// Wait at most this long until the lock is released [default: for ever]
    #[arg(short, long, visible_alias = "timeout", allow_hyphen_values = true, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,
}

impl Args {
    pub(crate) async fn run(&self, client: &Client, printer: &Printer) -> Result<u8, Failure> {
        #[derive(Serialize)]
        struct Line<'a> {
            name: &'a str,
            released: bool,
        }
        let name = clean(&self.name);
        let released = match &self.keepers(client).await?[..] {
            [] => {
                printer.note(format!("no `tenure hold` of this host holds {name}"));
                false
            }
            [(claim, keeper)] => {
                let told = pidfd_send_signal(keeper, Signal::TERM);
                told.map_err(|error| Failure::new(format!("the process that holds {name} cannot be told: {error}")))?;
                let left =
                    wait::gone(client, &self.name, self.wait.map_or(Wait::Forever, Wait::For), |held| held.claim == *claim);
                let left = left.await?;
                if let Some(left) = &left {
                    printer.note(wait::still_held(left));
                }
                left.is_none()
            }
            several => {
                let what = format!("{} scripts of this host hold {name} together", several.len());
                return Err(Failure::new(what).with_hint("Say with --pid which one is meant"));
            }
        };
        if printer.json {
            printer.object(&Line { name: &self.name, released })?;
        }
        Ok(if released { 0 } else { NO })
    }

    /// The holds that are meant, and the processes that keep them.
    async fn keepers(&self, client: &Client) -> Result<Vec<(Fingerprint, OwnedFd)>, Failure> {
        let view = client.view(&self.name).await?;
        let here = view.holders.iter().filter(|held| !held.closing && is_here(&held.origin));
        Ok(here.filter_map(|held| Some((held.claim, self.keeper(held.origin.pid)?))).collect())
    }

    /// This process, if it is a `tenure hold` that keeps this lock.
    fn keeper(&self, pid: u32) -> Option<OwnedFd> {
        let pid = Pid::from_raw(pid.try_into().ok()?)?;
        // In this order: what the number's process is while the handle's lives, the handle's is.
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words = words.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec()));
        // What follows the last word is a zero as well.
        let mut words: Vec<OsString> = words.collect();
        words.pop();
        let Command::Hold(args) = Cli::try_parse_from(words).ok()?.command else { return None };
        (args.name == self.name && self.pid.is_none_or(|pid| pid == args.pid)).then_some(handle)
    }
}
