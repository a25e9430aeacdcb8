//! The options that `run` and `elect` have in common.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tenure::{DEFAULT_TTL, Note, Wait};

use crate::child::OnLost;
use crate::duration;
use crate::failure::Failure;
use crate::keys::KeysArgs;

/// How to ask for the lock, how to hold it, and what to do when it is lost.
#[derive(Args, Clone, Debug)]
pub(crate) struct HoldArgs {
    /// Do not wait: if somebody else has it, exit with the conflict code. Connecting may take 2s, or the URL's connect_limit
    #[arg(short, long, help_heading = "Waiting", conflicts_with = "wait")]
    pub(crate) nonblock: bool,

    /// Wait at most this long, connecting included, then exit with the conflict code [default: for ever]
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

    /// How long the lock outlives a host that died; it is renewed while the command runs [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = "Holding")]
    ttl: Option<Duration>,

    /// If the command ends sooner, keep the name closed until then
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = "Holding")]
    pub(crate) min_hold: Option<Duration>,

    /// Never hold it longer than this: the lock is lost then, and the command stopped
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = "Holding")]
    pub(crate) max_hold: Option<Duration>,

    /// After a loss (not after a release), keep the name closed this long
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help_heading = "Holding")]
    pub(crate) lock_delay: Option<Duration>,

    /// What `tenure ls` shows for it [default: the program's name]
    #[arg(long, value_name = "TEXT", help_heading = "Holding")]
    note: Option<String>,

    #[command(flatten)]
    pub(crate) keys: KeysArgs,

    /// What to do with the command when the lock is lost
    #[arg(long, value_name = "POLICY", default_value = "term", help_heading = "When the lock is lost")]
    pub(crate) on_lost: LossPolicy,

    /// From SIGTERM to SIGKILL, also when tenure itself is told to end
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = duration::parse,
        default_value = "5s",
        help_heading = "When the lock is lost"
    )]
    pub(crate) grace: Duration,
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
