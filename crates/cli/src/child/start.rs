//! From an [`Order`] to a running [`Child`], with no race for the terminal.

use std::io;
use std::os::unix::process::CommandExt;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, waitid};
use tenure::Instant;

use super::order::{Ending, Leftovers, Order};
use super::report::Start;
use super::supervise::Look;
use super::terminal::{Terminal, lend_at_once, signal_group};
use super::watchdog::{Line, Watchdog};
use super::{shim, tree};

/// A running command: the leader of a process group of its own, and all that descends from it.
///
/// Dropping it kills all of it, gives the terminal back, and waits for the end: there is no path on
/// which the command goes on without its supervisor.
#[derive(Debug)]
#[must_use = "dropping a Child kills the command"]
pub(crate) struct Child {
    /// The command's process, and the number of its group.
    ///
    /// It is reaped last of all, so that this number cannot come to mean somebody else.
    pub(super) leader: Pid,
    /// From SIGTERM to SIGKILL.
    pub(super) grace: Duration,
    /// The terminal, if this process has one.
    pub(super) terminal: Option<Terminal>,
    /// Kills all of it should we be killed or stopped.
    pub(super) watchdog: Watchdog,
    /// What to do with what the command leaves running.
    pub(super) leftovers: Leftovers,
    /// When to tell what is left, once the command has ended.
    pub(super) tell_at: Option<Instant>,
    /// Whether everything was asked to end.
    pub(super) asked: bool,
    /// When everything gets SIGKILL, if that is settled.
    pub(super) kill_at: Option<Instant>,
    /// How the command ended, once it has. What it started may live on.
    pub(super) ended: Option<Ending>,
    /// Whether Ctrl-C ended it while it had the terminal.
    pub(super) interrupted: bool,
    /// Whether all of it is gone, and reaped.
    pub(super) gone: bool,
}

impl Child {
    /// Starts the command, with our standard streams and our environment plus the order's.
    ///
    /// That the command does not exist is not an error here: as in a shell, a process is started,
    /// says so to [`Start`], and exits with 127 (or 126, if it exists but cannot be run).
    ///
    /// **Call this on the main thread.** The command is killed by the kernel when the *thread* that
    /// started it ends, so that thread must be one that lives as long as the process.
    pub(crate) fn start(order: &Order) -> io::Result<(Self, Start)> {
        tree::adopt_orphans()?;
        // Whoever became this program by `exec` may have had children before.
        let strangers = tree::children(getpid());
        // Before the command, so that there is no moment at which it runs unguarded.
        let watchdog = Watchdog::start(strangers)?;
        let (report, writer) = io::pipe()?;
        let process = shim::exec_command(order, &writer)?.process_group(0).spawn()?;
        let leader = Pid::from_child(&process);
        let mut child = Self {
            leader,
            grace: order.grace,
            terminal: Terminal::open(leader),
            watchdog,
            leftovers: order.leftovers,
            tell_at: None,
            asked: false,
            kill_at: None,
            ended: None,
            interrupted: false,
            gone: false,
        };
        // From here on `child` cleans up when anything fails.
        child.watchdog.guard(leader)?;
        child.let_go()?;
        drop(writer); // the helper has one of its own by now
        Ok((child, Start::read(report)))
    }

    /// The number of the command's process group. It means the command for as long as [`supervise`](Child::supervise) runs.
    pub(crate) fn group(&self) -> Pid {
        self.leader
    }

    /// A line to the watchdog, to say again and again until when the lock is safe.
    pub(crate) fn line(&self) -> Line {
        self.watchdog.line()
    }

    /// Gives the terminal to the command, which stands still until then, and lets it go.
    fn let_go(&mut self) -> io::Result<()> {
        // If it ended instead, `supervise` will find that out; so only a stop is taken here.
        let news = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        retry_on_intr(|| waitid(WaitId::Pid(self.leader), news))?;
        self.take_stop();
        if let Some(terminal) = &mut self.terminal
            && lend_at_once()
        {
            terminal.lend();
        }
        signal_group(self.leader, Signal::CONT);
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        // Blocking is right here: the alternative is to leave while it may still be running. The
        // bound is for what even SIGKILL does not end at once.
        let patience = Instant::now() + Duration::from_secs(5);
        while Instant::now() < patience {
            self.kill();
            if !matches!(self.look(), Ok(Look::Runs | Look::Stopped(_))) && !self.left_behind() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.bury();
    }
}
