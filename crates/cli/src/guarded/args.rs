//! The options that `run` and `elect` have in common.

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, Signal, getpid, pidfd_getfd, pidfd_open};
use tenure::{DEFAULT_TTL, Note, Wait};

use crate::child::{Leftovers, OnLost};
use crate::duration;
use crate::failure::Failure;
use crate::keys::KeysArgs;
use crate::signal_name;

/// How to ask for the lock, how to hold it, and what to do when it is lost.
#[derive(Args, Clone, Debug)]
pub(crate) struct HoldArgs {
    /// Do not wait: if it is held, exit with the conflict code
    #[arg(short, long, help_heading = "Waiting", conflicts_with = "wait")]
    pub(crate) nonblock: bool,

    /// Wait at most this long, to connect too
    #[arg(
        short,
        long,
        visible_alias = "timeout",
        allow_hyphen_values = true,
        value_name = "DURATION",
        value_parser = duration::parse,
        help_heading = "Waiting"
    )]
    pub(crate) wait: Option<Duration>,

    /// The exit code when the lock was not acquired
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 1, help_heading = "Waiting")]
    pub(crate) conflict_exit_code: u8,

    /// Say nothing while waiting and holding, only errors
    #[arg(short, long, help_heading = "Waiting")]
    pub(crate) quiet: bool,

    /// JSON events to this open descriptor: --events 3 3>FILE
    #[arg(long, value_name = "FD", value_parser = events, help_heading = "Waiting")]
    pub(crate) events: Option<Arc<File>>,

    /// How long it outlives a host that died [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = "Holding")]
    ttl: Option<Duration>,

    /// Keep the name closed this long if the command ends sooner
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = "Holding")]
    pub(crate) min_hold: Option<Duration>,

    /// Stop the command after this long, and hold on until it is gone
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = "Holding")]
    pub(crate) max_hold: Option<Duration>,

    /// After a loss (not a release), keep the name closed this long
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = "Holding")]
    pub(crate) lock_delay: Option<Duration>,

    /// What `tenure ls` shows for it [default: the program]
    #[arg(long, value_name = "TEXT", help_heading = "Holding")]
    note: Option<String>,

    #[command(flatten, next_help_heading = "Holding")]
    pub(crate) keys: KeysArgs,

    /// SIGTERM, and SIGKILL in time (`term`), `kill`, or `ignore`
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "term",
        hide_possible_values = true,
        help_heading = "When the lock is lost"
    )]
    pub(crate) on_lost: LossPolicy,

    /// From SIGTERM to SIGKILL, also when tenure is told to end
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = duration::parse,
        default_value = "5s",
        help_heading = "When the lock is lost"
    )]
    pub(crate) grace: Duration,
}

/// What only a command that `tenure` starts can have.
#[derive(Args, Clone, Debug)]
pub(crate) struct CommandArgs {
    /// Apply --min-hold to `any` end, or only to `success`
    #[arg(
        long,
        value_name = "END",
        default_value = "any",
        hide_possible_values = true,
        requires = "min_hold",
        help_heading = "Holding"
    )]
    pub(crate) min_hold_on: Ends,

    /// Signal the command when `tenure ask` asks for the lock: USR1
    #[arg(long, value_name = "SIGNAL", value_parser = signal_name::parse, help_heading = "Holding")]
    pub(crate) on_ask: Option<Signal>,

    /// What outlives the command: wait, term or keep
    #[arg(long, value_name = "POLICY", default_value = "wait", hide_possible_values = true, help_heading = "Holding")]
    pub(crate) leftovers: Leftovers,
}

/// Ways in which a command can end.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Ends {
    /// Any
    Any,
    /// Exit code 0: a failed command can be run again at once
    Success,
}

/// What to do with the command when its lock is lost.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LossPolicy {
    /// SIGTERM, then SIGKILL: both before anybody else can be let in
    Term,
    /// SIGKILL, at the last moment
    Kill,
    /// Let it finish without its lock; say so on stderr
    Ignore,
}

impl From<LossPolicy> for OnLost {
    fn from(policy: LossPolicy) -> Self {
        match policy {
            LossPolicy::Term => OnLost::Term,
            LossPolicy::Kill => OnLost::Kill,
            LossPolicy::Ignore => OnLost::Ignore,
        }
    }
}

/// Opens a descriptor that we were started with. clap calls this before anything of our own is open.
fn events(text: &str) -> Result<Arc<File>, String> {
    let number: u32 = text.parse().map_err(|_| "expected the number of a descriptor".to_owned())?;
    let path = format!("/proc/self/fd/{number}");
    let refuse = |error: std::io::Error| format!("descriptor {number} cannot be written to: {error}");
    std::fs::symlink_metadata(&path).map_err(|_| format!("descriptor {number} is not open"))?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
    if info.lines().any(|line| line.starts_with("flags:") && line.ends_with(['0', '4'])) {
        return Err(format!("descriptor {number} is open only for reading"));
    }
    // Sockets cannot be opened by their name, and containers may forbid the other way.
    let duplicate = || pidfd_getfd(pidfd_open(getpid(), PidfdFlags::empty())?, number as _, PidfdGetfdFlags::empty());
    let file = File::options().append(true).open(path).or_else(|_| duplicate().map(File::from).map_err(Into::into));
    file.map(Arc::new).map_err(refuse)
}

impl HoldArgs {
    pub(crate) fn ttl(&self) -> Duration {
        self.ttl.unwrap_or(DEFAULT_TTL)
    }

    pub(crate) fn patience(&self) -> Wait {
        match (self.nonblock, self.wait) {
            (true, _) | (_, Some(Duration::ZERO)) => Wait::No,
            (false, Some(wait)) => Wait::For(wait),
            (false, None) => Wait::Forever,
        }
    }

    pub(crate) fn wait_ms(&self) -> Option<u64> {
        self.wait.map(|wait| wait.as_millis() as u64)
    }

    /// The note: the user's, or the program's name. Never the arguments, which may hold secrets.
    pub(crate) fn note_for(&self, command: &[OsString]) -> Result<Note, Failure> {
        let program = command.first().and_then(|program| Path::new(program).file_name()).unwrap_or_default();
        self.note_or(&program.to_string_lossy())
    }

    /// The note: the user's, or a program's name.
    pub(crate) fn note_or(&self, program: &str) -> Result<Note, Failure> {
        match &self.note {
            Some(note) => Ok(Note::new(note)?),
            None => Ok(Note::new(program).unwrap_or_else(|_| Note::none())),
        }
    }
}
