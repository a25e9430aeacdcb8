//! Whether the command has really started.
//!
//! The helper that becomes the command (see `shim`) has its end of a pipe, which closes by itself when `exec` succeeds. It writes a
//! dot just before, and why not if `exec` fails: so the end of the pipe after a dot says that the command runs.
//!
//! The helper cannot inherit that end without passing it on to the command. It opens the end that its supervisor has, through
//! `/proc`, before it stops itself; where that is not possible, it says on stderr what a shell would say.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;

use rustix::process::Pid;
use tokio::sync::oneshot;

/// Why the command did not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) message: String,
    /// As a shell has it: 127 if there is no such command, 126 if it cannot be run.
    pub(crate) code: i32,
}

/// The supervisor's end.
#[derive(Debug)]
pub(crate) struct Start(oneshot::Receiver<String>);

impl Start {
    /// Reads in a thread of its own: an `exec` from a file server that does not answer must not stop the supervisor.
    pub(super) fn read(mut from: PipeReader) -> Self {
        let (said, report) = oneshot::channel();
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = from.read_to_string(&mut text);
            let _ = said.send(text);
        });
        Start(report)
    }

    /// Completes when the command has started, or has failed to. `None` if its helper ended without a word.
    ///
    /// # Cancel safety
    /// Dropped before it completes, it can be called again.
    pub(crate) async fn outcome(&mut self) -> Option<Result<(), Failed>> {
        parse(&(&mut self.0).await.unwrap_or_default())
    }
}

fn parse(text: &str) -> Option<Result<(), Failed>> {
    match text.strip_prefix('.').unwrap_or(text).split_once(' ') {
        None if text == "." || !cfg!(target_os = "linux") => Some(Ok(())),
        None => None,
        Some((code, message)) => Some(Err(Failed { message: message.to_owned(), code: code.parse().unwrap_or(126) })),
    }
}

/// What tells the helper where its end is.
pub(super) fn argument(writer: &PipeWriter) -> String {
    writer.as_raw_fd().to_string()
}

/// The helper's end.
pub(super) struct Report(Option<File>);

impl Report {
    /// Opens the end that `parent` has.
    pub(super) fn open(parent: Pid, fd: &str) -> Self {
        Report(File::options().write(true).open(format!("/proc/{parent}/fd/{fd}")).ok())
    }

    /// The next step is `exec`.
    pub(super) fn about_to_start(&mut self) {
        let _ = self.write(".");
    }

    /// Says why there will be no command. False if nobody was told.
    pub(super) fn failed(&mut self, message: &str, code: i32) -> bool {
        self.write(&format!("{code} {message}")).is_ok()
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        self.0.as_mut().ok_or(io::ErrorKind::NotConnected)?.write_all(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn only_a_dot_and_the_end_is_a_start() {
        assert_eq!(parse("."), Some(Ok(())));
        assert_eq!(parse(""), None);
        let failed = Failed { message: "No such file".into(), code: 127 };
        assert_eq!(parse(".127 No such file"), Some(Err(failed.clone())));
        assert_eq!(parse("127 No such file"), Some(Err(failed)));
    }
}
