//! How things go wrong here, and the exit codes that say so.

use std::io;

use tenure::{Error, ErrorKind};

/// The lock was lost, and the command was stopped for it.
pub(crate) const LOST: u8 = 124;
/// A failure of tenure's own, as `timeout`, `env` and `docker run` have it: bad usage, no store, no such name.
pub(crate) const OWN_FAILURE: u8 = 125;
/// The answer is no: nobody holds it, a finding is bad, somebody declined. Also `run`'s code for "not acquired", as in `flock`.
pub(crate) const NO: u8 = 1;

/// Why a command of ours could not do its work: for people, with a hint where we have one.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// Whoever read our output has gone; there is nobody to tell.
    pub(crate) silent: bool,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Failure { kind: "usage", message: message.into(), hint: None, silent: false }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// What the process ends with.
    pub(crate) fn code(&self) -> u8 {
        // A program without our handler would have died of SIGPIPE.
        if self.silent { 128 + 13 } else { OWN_FAILURE }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::BadName => "bad_name",
            ErrorKind::BadUrl => "bad_url",
            ErrorKind::BadOption => "bad_option",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Mismatch => "mismatch",
            ErrorKind::Lost => "lost",
            ErrorKind::BadSignature => "bad_signature",
            ErrorKind::Unavailable => "unavailable",
            _ => "backend",
        };
        let text = error.to_string();
        let hint = error.hint().map(str::to_owned);
        // The hint has a line of its own here.
        let message = match &hint {
            Some(hint) => text.strip_suffix(hint.as_str()).map_or(&*text, |text| text.trim_end_matches(". ")).to_owned(),
            None => text,
        };
        Failure { kind, message, hint, silent: false }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let silent = error.kind() == io::ErrorKind::BrokenPipe;
        Failure { kind: "system", message: error.to_string(), hint: None, silent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_is_told_once() {
        let error = Error::new(ErrorKind::Mismatch, "in use as a mutex").with_hint("Use another name");
        let failure = Failure::from(error);
        assert_eq!(failure.message, "in use as a mutex");
        assert_eq!(failure.hint.as_deref(), Some("Use another name"));
    }

    #[test]
    fn a_closed_pipe_is_nobody_s_fault() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((failure.silent, failure.code()), (true, 141));
    }
}
