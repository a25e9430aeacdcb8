//! What happens to the command when we cannot see to it: killed with SIGKILL, or stopped with SIGSTOP.
//!
//! When we are killed, the kernel kills the command itself (its parent-death signal, see `shim`), but
//! not what the command had started: `tenure run x -- sh -c 'a; b'` would lose `sh` and keep `a`,
//! without a lock. And when we are stopped, nobody renews the lock and nobody stops the command.
//!
//! So a second process waits at the other end of a pipe. Through it, we say which process group to
//! guard, and again and again until when its lock is safe. If the pipe ends without a farewell we are
//! dead, and if that time passes without word from us we are as good as dead: then it kills the group.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

use rustix::process::Pid;
use tenure::Instant;

use super::shim;

/// The process that outlives us by a moment if it must.
#[derive(Debug)]
pub(super) struct Warden {
    process: Child,
}

impl Warden {
    /// Posts a warden, which has nothing to guard yet.
    pub(super) fn post() -> io::Result<Self> {
        let process = shim::warden_command()?
            // Its own group, so that Ctrl-C and signals to ours or the command's pass it by.
            .process_group(0)
            .stdin(Stdio::piped())
            // Whoever reads our output waits for its last writer; that must not be the warden.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { process })
    }

    /// Tells it what to guard. What is written stays in the pipe, even if we die next.
    pub(super) fn guard(&mut self, group: Pid) -> io::Result<()> {
        let Some(pipe) = &mut self.process.stdin else {
            return Ok(());
        };
        pipe.write_all(format!("{}\n", group.as_raw_nonzero()).as_bytes())
    }

    /// A line to it, to say again and again until when the lock is safe.
    pub(super) fn line(&self) -> io::Result<Option<Line>> {
        let pipe = self.process.stdin.as_ref().map(|pipe| pipe.as_fd().try_clone_to_owned()).transpose()?;
        Ok(pipe.map(|pipe| Line(File::from(pipe))))
    }

    /// Its process id, to tell it from the command's descendants.
    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Dismisses it: whoever does so has seen the end of the command.
    pub(super) fn dismiss(&mut self) {
        // If the farewell cannot be said, it is because the warden is gone already; killing it then
        // does nothing, and otherwise saves the time it would take to read.
        if let Some(mut pipe) = self.process.stdin.take() {
            let _ = pipe.write_all(b".");
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A line to the warden. Until something was said through it, the warden only looks for our death.
#[derive(Debug)]
pub(crate) struct Line(File);

impl Line {
    /// The command's group may run until then, and not an instant longer unless we say so again.
    pub(crate) fn safe_until(&mut self, until: Instant) {
        // A pipe that is broken has no warden at its end any more: the command is over.
        let _ = self.0.write_all(format!("{}\n", until.as_nanos()).as_bytes());
    }
}

impl Drop for Warden {
    /// For the start that failed half-way; otherwise it has been dismissed, and twice does no harm.
    fn drop(&mut self) {
        self.dismiss();
    }
}
