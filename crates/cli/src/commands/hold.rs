//! `tenure hold NAME --pid PID`

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

use rustix::process::Pid;
use serde_json::Value;

use crate::failure::{Failure, OWN_FAILURE};
use crate::guarded::{HoldArgs, KEEPER, Keeper, KindArgs};
use crate::print::Printer;
use crate::store::StoreArgs;

/// Hold a lock for a running script
///
/// Waits for the lock on NAME, leaves a small process in the background that holds it for as long as process PID lives, prints
/// the fencing token and returns. `tenure release NAME` ends it sooner. If the lock is lost, PID gets SIGTERM, and SIGKILL after
/// --grace; what PID has started is not stopped: `tenure run` does that.
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Args {
    /// The lock's name
    pub(crate) name: String,

    /// The process that the lock is held for; in a script, $$
    #[arg(long, value_name = "PID", value_parser = pid)]
    pub(crate) pid: Pid,

    #[command(flatten)]
    kind: KindArgs,

    #[command(flatten)]
    hold: HoldArgs,
}

impl Args {
    pub(crate) async fn run(&self, store: &StoreArgs, printer: &Printer) -> Result<u8, Failure> {
        if self.hold.events.is_some() {
            return Err(Failure::new("--events is for a command: `tenure run` and `tenure elect`"));
        }
        if std::env::var_os(KEEPER).is_some() {
            let keeper = Keeper { name: &self.name, shape: self.kind.shape(), hold: &self.hold, pid: self.pid };
            return keeper.run(store, printer).await;
        }
        // A second process with the same arguments. It stays in our process group, and so hears Ctrl-C, until it holds the lock.
        let mut keeper = Command::new("/proc/self/exe")
            .arg0("tenure")
            .args(std::env::args_os().skip(1))
            .env(KEEPER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (mut answer, says) = (keeper.stdin.take().expect("piped"), keeper.stdout.take().expect("piped"));
        let mut line = String::new();
        BufReader::new(says).read_line(&mut line)?;
        let Ok(held) = serde_json::from_str::<Value>(&line) else {
            // It has said why.
            let status = keeper.wait()?;
            let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
            return Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(OWN_FAILURE));
        };
        if printer.json {
            printer.line(line.trim_end())?
        } else {
            printer.line(&held["token"])?
        }
        // Until this arrives, it would release the lock if we ended.
        answer.write_all(b".")?;
        Ok(0)
    }
}

/// Reads a process's number.
pub(super) fn pid(text: &str) -> Result<Pid, String> {
    text.parse()
        .ok()
        .filter(|raw| *raw > 0)
        .and_then(Pid::from_raw)
        .ok_or_else(|| "expected the number of a process".to_owned())
}

const AFTER: &str = "\
Exit codes are those of `tenure run`: 0 if the lock is held, 1 (or -E) if it was not acquired, 125 if tenure failed.

Example, in a script:
  token=$(tenure hold -w 1m backup --pid $$) || exit
  …
  tenure release backup                   or just end";
