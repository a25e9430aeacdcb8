//! `tenure run NAME -- COMMAND…`

use std::ffi::OsString;
use std::time::Duration;

use crate::duration;
use crate::failure::Failure;
use crate::guarded::{CommandArgs, HoldArgs, Job, KindArgs};
use crate::print::Printer;
use crate::store::StoreArgs;

/// Run a command while holding a lock
///
/// Waits for the lock on NAME, runs COMMAND, and releases the lock when COMMAND and everything it started have ended. COMMAND has the
/// terminal, the standard streams and the signals it would have without tenure.
///
/// Plain `run` takes the mutex that programs know as `client.mutex(NAME)`; -s and -x are the two sides of an rw lock.
#[derive(clap::Args, Debug)]
#[command(override_usage = USAGE, after_long_help = AFTER, after_help = after_help(), disable_help_flag = true)]
pub(crate) struct Args {
    /// The lock's name: any text, with / for hierarchy
    name: String,

    /// The command to run, and its arguments
    #[arg(hide = true, required_unless_present = "shell", trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,

    /// Run this line with `sh -c` instead of COMMAND
    #[arg(short = 'c', long = "command", value_name = "LINE", conflicts_with = "command")]
    shell: Option<OsString>,

    /// Hold this name as well; all or none; can be repeated
    #[arg(long, value_name = "NAME", conflicts_with = "permits")]
    and: Vec<String>,

    /// Exit with 0 if it was run within this time, on any host
    #[arg(long, value_name = "PERIOD", value_parser = duration::parse, conflicts_with_all = ["shared", "permits"])]
    once_per: Option<Duration>,

    /// Print help; -h prints the options only
    // As one line an option, which clap does in its short help only.
    #[arg(short = 'h', long = "help", action = clap::ArgAction::HelpShort)]
    _help: Option<bool>,

    #[command(flatten)]
    kind: KindArgs,

    #[command(flatten)]
    hold: HoldArgs,

    #[command(flatten)]
    runs: CommandArgs,
}

impl Args {
    pub(crate) async fn run(&self, store: &StoreArgs, printer: &Printer) -> Result<u8, Failure> {
        let command = self.command();
        let job = Job {
            name: &self.name,
            and: &self.and,
            shape: self.kind.shape(),
            hold: &self.hold,
            runs: &self.runs,
            once_per: self.once_per,
            command: &command,
        };
        job.run(store, printer).await
    }

    /// What to run: COMMAND, or the shell with its line.
    fn command(&self) -> Vec<OsString> {
        match &self.shell {
            Some(line) => vec!["sh".into(), "-c".into(), line.clone()],
            None => self.command.clone(),
        }
    }
}

const USAGE: &str = "tenure run [OPTIONS] NAME [--] COMMAND [ARGUMENT]...\n       tenure run [OPTIONS] NAME -c LINE";

/// What stands below the options: for `-h`, where the rest is.
fn after_help() -> &'static str {
    let is_long = std::env::args_os().any(|arg| arg == "--help");
    if is_long { AFTER } else { "More with --help: exit codes, the command's environment, exceptions, examples." }
}

const AFTER: &str = "\
Exit codes: COMMAND's own, 128+n if signal n ended it, 127 if there is no such command, 126 if it
cannot be run. Otherwise:
  0      it was not time for another run (--once-per)
  1      the lock was not acquired with -n or -w; -E chooses another code
  124    the lock was lost, and COMMAND was stopped for it
  125    tenure itself failed (bad usage, no store); COMMAND was not started
  128+n  signal n came while waiting; COMMAND was not started

COMMAND's environment:
  TENURE_NAME         the lock's name
  TENURE_TOKEN        the fencing token, larger for every new holder: hand it to what the lock
                      protects, and let that refuse tokens smaller than the largest it has seen
  TENURE_SEQUENCER    name, kind, mode and token in one word, signed if there are keys
  TENURE_VALID_UNTIL  until when the lock is safe without renewal, in milliseconds since 1970
  TENURE_NAME_2, ...  with --and: name, token and sequencer of the first end in _2, then _3
  TENURE_PERMIT       with --permits N: a number from 0 to N-1 that no other holder has; `0,3` with
                      --take 2. It is the mutex NAME/permit/NUMBER in `tenure ls`
  TENURE_STORE, TENURE_STORE_FILE: the store, for COMMAND's own tenure calls. TENURE_KEYS is removed.

Once per period: --once-per counts from start to start by the hosts' wall clocks; say a little less
  than cron's interval. A run that was not started (126, 127) or lost its lock does not count.

When the lock is lost: it is renewed at a third of its --ttl. If that fails, tenure says so and goes
  on trying. COMMAND gets SIGTERM early enough that SIGKILL, after --grace or sooner, comes before the
  store can let another holder in. If the lock is broken (`tenure break`), COMMAND gets SIGTERM at
  once. After --max-hold, COMMAND gets SIGTERM, and the lock is held through its --grace.
  Messages never hold tenure up: if stderr is not read, they are dropped and counted.

When COMMAND ends before what it started: the lock is held until that has ended too; tenure says
  what it waits for. SIGINT and SIGTERM end it, with SIGKILL after --grace. --leftovers term ends it
  at once; --leftovers keep lets it run on without the lock.

What can run on without the lock (more in GUARANTEES.md): if tenure is killed or stopped, its watchdog
  kills COMMAND and what it started, except what left COMMAND's process group in the last half second
  before a SIGKILL; if both are killed or stopped at once, nothing does. Set-user-ID programs take no
  signals from tenure: write `sudo tenure run`. What systemd-run, docker or at starts is not COMMAND's.

Examples:
  tenure run -n --min-hold 50s minutely -- ./job   never twice a minute
  tenure run --once-per 23h nightly -- ./report    on one of the hosts, daily
  tenure run -w 5m -E 75 deploy -- make deploy     exit with 75 after 5 minutes
  tenure run --permits 3 gpu -- ./train.py         at most three at a time
  tenure run -s db -- ./report                     with other readers, but no writer (-x)
  tenure run logs -c 'gzip *.log && mv *.gz old/'  a line for the shell";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guarded::Shape;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Option<Args> {
        Line::try_parse_from(std::iter::once("run").chain(line.split_whitespace())).ok().map(|line| line.args)
    }

    #[test]
    fn flags_mean_one_kind() {
        let shape = |flags: &str| parse(&format!("{flags} x true")).map(|args| args.kind.shape());
        assert_eq!(shape(""), Some(Shape::Mutex));
        assert_eq!(shape("-s"), Some(Shape::Read));
        assert_eq!(shape("-x"), Some(Shape::Write));
        assert_eq!(shape("--fair"), Some(Shape::Fair));
        assert_eq!(shape("--permits 3"), Some(Shape::Permits { take: 1, of: 3 }));
        assert_eq!(shape("--permits 3 --take 2"), Some(Shape::Permits { take: 2, of: 3 }));
        for flags in [
            "-s -x",
            "-s --fair",
            "-x --fair",
            "-s --permits 2",
            "-x --permits 2",
            "--fair --permits 2",
            "--take 2",
            "--permits 0",
            "-n -w 3s",
            "-E 256",
        ] {
            assert_eq!(shape(flags), None, "{flags}");
        }
    }

    #[test]
    fn the_shell_s_line_or_a_command() {
        for line in ["x -c true", "-c true x", "-c true -n x"] {
            assert_eq!(parse(line).expect(line).command(), ["sh", "-c", "true"], "{line}");
        }
        assert_eq!(parse("x sh -c true").unwrap().command(), ["sh", "-c", "true"]);
        for line in ["x", "-c true", "-c true x -- false", "-c x"] {
            assert!(parse(line).is_none(), "{line}");
        }
    }

    #[test]
    fn the_command_keeps_its_own_flags() {
        let line = Line::try_parse_from(["run", "-n", "x", "-q", "--", "ls", "-l", "--", "-n"]).unwrap();
        assert_eq!(line.args.command, ["ls", "-l", "--", "-n"]);
        let line = Line::try_parse_from(["run", "x", "ls", "-n"]).unwrap();
        assert_eq!((line.args.command, line.args.hold.nonblock), (vec!["ls".into(), "-n".into()], false));
    }
}
