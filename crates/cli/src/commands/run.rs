//! `tenure run NAME -- COMMAND…`

use std::ffi::OsString;
use std::num::NonZeroU32;

use clap::ValueEnum;

use crate::failure::Failure;
use crate::guarded::{HoldArgs, Job, Shape};
use crate::print::Printer;
use crate::store::StoreArgs;

/// Run a command while holding a lock
///
/// Waits for the lock on NAME, runs COMMAND, and lets go when COMMAND and everything it started are gone. COMMAND has the
/// terminal, the standard streams and the signals it would have without tenure.
///
/// Plain `run` and `run --shared` exclude each other as in flock(1): one writer, or many readers.
#[derive(clap::Args, Debug)]
#[command(override_usage = USAGE, after_long_help = AFTER, after_help = "More with --help: exit codes, the command's environment, examples.")]
pub(crate) struct Args {
    /// The lock's name: any text, with / for hierarchy
    name: String,

    /// The command to run, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,

    /// Hold it together with other --shared holders, but not with plain ones
    #[arg(short, long, help_heading = "Kind", conflicts_with_all = ["fair", "permits"])]
    shared: bool,

    /// Take one of N permits: at most N at a time. Everybody must say the same N
    #[arg(long, value_name = "N", help_heading = "Kind", conflicts_with = "fair")]
    permits: Option<NonZeroU32>,

    /// Take M of the permits
    #[arg(long, value_name = "M", help_heading = "Kind", requires = "permits", default_value = "1")]
    take: NonZeroU32,

    /// Strictly in the order of asking (--kind fair)
    #[arg(long, help_heading = "Kind")]
    fair: bool,

    /// The kind of lock, to meet programs that use the library [default: rw]
    #[arg(long, value_name = "KIND", help_heading = "Kind")]
    kind: Option<KindArg>,

    #[command(flatten)]
    hold: HoldArgs,
}

/// The kinds that a command can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindArg {
    /// One holder
    Mutex,
    /// One holder, strictly in the order of asking
    Fair,
    /// One writer, or many readers with --shared
    Rw,
    /// N permits; needs --permits
    Semaphore,
}

impl Args {
    pub(crate) async fn run(&self, store: &StoreArgs, printer: &Printer) -> Result<u8, Failure> {
        let job = Job { name: &self.name, shape: self.shape()?, hold: &self.hold, command: &self.command };
        job.run(store, printer).await
    }

    /// Which kind all the flags together mean.
    fn shape(&self) -> Result<Shape, Failure> {
        let permits = |of: NonZeroU32| Shape::Permits { take: self.take.get(), of: of.get() };
        match (self.kind, self.shared, self.fair, self.permits) {
            (None | Some(KindArg::Rw), false, false, None) => Ok(Shape::Write),
            (None | Some(KindArg::Rw), true, false, None) => Ok(Shape::Read),
            (Some(KindArg::Mutex), false, false, None) => Ok(Shape::Mutex),
            (None, false, true, None) | (Some(KindArg::Fair), false, _, None) => Ok(Shape::Fair),
            (None | Some(KindArg::Semaphore), false, false, Some(of)) => Ok(permits(of)),
            (Some(KindArg::Semaphore), _, _, None) => Err(Failure::new("--kind semaphore needs --permits N")),
            _ => Err(Failure::new("these flags ask for more than one kind of lock")
                .with_hint("--shared goes with --kind rw, --permits with --kind semaphore, --fair with --kind fair")),
        }
    }
}

const USAGE: &str = "tenure run [OPTIONS] NAME [--] COMMAND [ARGUMENT]...";

const AFTER: &str = "\
Exit codes:
  COMMAND's own, and 128+n if signal n ended it; 127 if there is no such
  command, 126 if it cannot be run. Otherwise:
  1      the lock was not acquired with -n or -w; -E chooses another code
  124    the lock was lost, and COMMAND was stopped for it
  125    tenure itself failed (bad usage, no store); COMMAND was not started
  128+n  signal n came while waiting; COMMAND was not started

COMMAND's environment:
  TENURE_NAME         the lock's name
  TENURE_TOKEN        the fencing token, larger for every new holder: hand it
                      to what the lock protects, and let that refuse any token
                      smaller than the largest it has seen
  TENURE_SEQUENCER    name, kind, mode and token as one printable word, signed
                      if there are keys; see `tenure sequencer`
  TENURE_VALID_UNTIL  until when the lock is safe even if it is never renewed
                      again, in milliseconds since 1970
  TENURE_STORE        the store, so that COMMAND's own tenure calls meet there
  TENURE_KEYS         removed: COMMAND gets its own signed sequencer, and not
                      the keys to sign others; TENURE_KEYS_FILE stays

When the lock is lost:
  The lock is renewed at a third of its --ttl. If that fails, tenure goes on
  trying, and says so. COMMAND gets SIGTERM early enough that SIGKILL, after
  --grace or sooner, comes before the store can let anybody else in. If somebody
  breaks the lock (see `tenure break`), COMMAND gets SIGTERM at once.

Examples:
  tenure run backup -- ./backup.sh
  tenure run -n --min-hold 50s minutely -- ./job   never twice a minute
  tenure run -w 5m -E 75 deploy -- make deploy     exit with 75 after 5 minutes
  tenure run --permits 3 gpu -- ./train.py         at most three at a time
  tenure run -s db -- ./report                     with other readers, but not
  tenure run db -- ./migrate                       while this one writes";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn shape(flags: &str) -> Option<Shape> {
        let words = std::iter::once("run").chain(flags.split_whitespace()).chain(["x", "true"]);
        Line::try_parse_from(words).ok()?.args.shape().ok()
    }

    #[test]
    fn flags_mean_one_kind() {
        assert_eq!(shape(""), Some(Shape::Write));
        assert_eq!(shape("-s"), Some(Shape::Read));
        assert_eq!(shape("--kind rw -s"), Some(Shape::Read));
        assert_eq!(shape("--fair"), Some(Shape::Fair));
        assert_eq!(shape("--kind fair --fair"), Some(Shape::Fair));
        assert_eq!(shape("--kind mutex"), Some(Shape::Mutex));
        assert_eq!(shape("--permits 3"), Some(Shape::Permits { take: 1, of: 3 }));
        assert_eq!(shape("--kind semaphore --permits 3 --take 2"), Some(Shape::Permits { take: 2, of: 3 }));
    }

    #[test]
    fn or_none() {
        for flags in [
            "-s --fair",
            "-s --permits 2",
            "--fair --permits 2",
            "--kind semaphore",
            "--kind mutex -s",
            "--kind mutex --fair",
            "--kind fair -s",
            "--kind rw --permits 2",
            "--take 2",
            "--permits 0",
            "--kind spinlock",
            "-n -w 3s",
            "-E 256",
        ] {
            assert_eq!(shape(flags), None, "{flags}");
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
