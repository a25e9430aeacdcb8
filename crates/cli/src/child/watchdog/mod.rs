//! What happens to the command when we cannot see to it: killed with SIGKILL, or stopped with SIGSTOP.
//!
//! When we are killed, the kernel kills the command itself (its parent-death signal, see `shim`), but
//! not what the command had started: `tenure run x -- sh -c 'a; b'` would lose `sh` and keep `a`,
//! without a lock. And when we are stopped, nobody renews the lock and nobody stops the command.
//!
//! So a second process waits at the other end of a pipe. Through it, we say which process group to
//! guard, and again and again until when its lock is safe. If the pipe ends without a farewell we are
//! dead, and if that time passes without word from us we are as good as dead: then it kills the group
//! and everything else that descends from us. `process` is that other end.
//!
//! The watchdog takes no signal that can be caught, and the supervisor replaces one that was killed.

mod process;

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tenure::Instant;

use super::shim;

pub(super) use self::process::watch;

/// The process that outlives us by a moment if it must.
#[derive(Debug)]
pub(super) struct Watchdog {
    process: Child,
    /// Children of this process that have nothing to do with the command.
    strangers: Vec<Pid>,
    link: Line,
}

/// What the watchdog knows, and the pipe through which it learns that.
#[derive(Debug, Default)]
struct Link {
    pipe: Option<ChildStdin>,
    group: Option<Pid>,
    safe_until: Option<Instant>,
}

/// A line to the watchdog. Until something was said through it, the watchdog only looks for our death.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line(Arc<Mutex<Link>>);

impl Watchdog {
    /// Starts one, which has nothing to guard yet, and does not touch `strangers`.
    pub(super) fn start(strangers: Vec<Pid>) -> io::Result<Self> {
        let (process, pipe) = spawn(None, None, &strangers)?;
        let link = Line::default();
        link.lock().pipe = Some(pipe);
        Ok(Self { process, strangers, link })
    }

    /// Tells it what to guard. What is written stays in the pipe, even if we die next.
    pub(super) fn guard(&mut self, group: Pid) -> io::Result<()> {
        let mut link = self.link.lock();
        link.group = Some(group);
        link.say(group)
    }

    /// A line to it, to say again and again until when the lock is safe.
    pub(super) fn line(&self) -> Line {
        self.link.clone()
    }

    /// Sees to it that one is watching: continues one that was stopped, replaces one that was killed.
    pub(super) fn keep(&mut self) -> io::Result<()> {
        if self.process.try_wait()?.is_none() {
            if let Ok(Some(_)) = waitid(WaitId::Pid(self.pid()), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG) {
                // Our own child, and not reaped: the number is its.
                let _ = kill_process(self.pid(), Signal::CONT);
            }
            return Ok(());
        }
        let replace = || {
            let mut link = self.link.lock();
            // It is told at its birth: we may be stopped before the next line.
            let (process, pipe) = spawn(link.group, link.safe_until, &self.strangers)?;
            link.pipe = Some(pipe);
            Ok(process)
        };
        let failed = |error: io::Error| {
            io::Error::other(format!("the watchdog was killed, and another one could not be started: {error}"))
        };
        self.process = replace().map_err(failed)?;
        Ok(())
    }

    /// Its process id, to tell it from the command's descendants.
    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// What is below us and not the command's.
    pub(super) fn not_the_command_s(&self) -> Vec<Pid> {
        self.strangers.iter().copied().chain([self.pid()]).collect()
    }

    /// Dismisses it: whoever does so has seen the end of the command.
    pub(super) fn dismiss(&mut self) {
        // If the farewell cannot be said, it is because the watchdog is gone already; killing it then
        // does nothing, and otherwise saves the time it would take to read.
        let mut link = self.link.lock();
        let _ = link.say_bytes(b".");
        link.pipe = None;
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(group: Option<Pid>, safe_until: Option<Instant>, strangers: &[Pid]) -> io::Result<(Child, ChildStdin)> {
    let mut process = shim::watchdog_command(group, safe_until.unwrap_or(Instant::NEVER), strangers)?
        // Its own group, so that Ctrl-C and signals to ours or the command's pass it by.
        .process_group(0)
        .stdin(Stdio::piped())
        // Whoever reads our output waits for its last writer; that must not be the watchdog.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let pipe = process.stdin.take().ok_or_else(|| io::Error::other("the watchdog has no pipe"))?;
    // One that was stopped does not read: its pipe must not stop us too.
    rustix::io::ioctl_fionbio(&pipe, true)?;
    Ok((process, pipe))
}

impl Link {
    fn say(&mut self, word: impl std::fmt::Display) -> io::Result<()> {
        self.say_bytes(format!("{word}\n").as_bytes())
    }

    fn say_bytes(&mut self, words: &[u8]) -> io::Result<()> {
        self.pipe.as_mut().map_or(Ok(()), |pipe| pipe.write_all(words))
    }
}

impl Line {
    /// The command's group may run until then, and not an instant longer unless we say so again.
    pub(crate) fn safe_until(&mut self, until: Instant) {
        let mut link = self.lock();
        link.safe_until = Some(until);
        // A pipe that is broken has no watchdog at its end any more: the next one is told.
        let _ = link.say(until.as_nanos());
    }

    fn lock(&self) -> MutexGuard<'_, Link> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watchdog {
    /// For the start that failed half-way; otherwise it has been dismissed, and twice does no harm.
    fn drop(&mut self) {
        self.dismiss();
    }
}
