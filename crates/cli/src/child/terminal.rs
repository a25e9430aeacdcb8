//! Lending the terminal to the command, and getting it back.
//!
//! A terminal has one *foreground* process group. It alone may read, and it alone gets Ctrl-C and
//! Ctrl-Z. The command has a group of its own (so that all of it can be signalled at once), hence
//! somebody must move the foreground there and back, as a shell does for its jobs.
//!
//! To lend is easy: who is in the foreground may give it away. To take it back is not, since by then
//! we are in the background, and the kernel stops (SIGTTOU) a background process that tries, unless
//! it ignores that signal, which cannot be arranged without `unsafe`. So we start a helper *in the
//! foreground group*, which may, and does it for us.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use rustix::process::{Pid, Signal, WaitOptions, getpgrp, getpid, getsid, kill_process, kill_process_group, waitpid};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use super::{shim, tree};

/// The terminal that controls this process, seen as something to lend.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: File,
    /// The process group of the command.
    borrower: Pid,
    /// Its settings when it was first lent, should the borrower die without tidying up.
    modes: Option<Termios>,
    /// Whether the command wants it: it was lent, and is to be lent again after a pause.
    lent: bool,
}

impl Terminal {
    /// The terminal of this process, if it has one.
    pub(super) fn open(borrower: Pid) -> Option<Self> {
        Some(Self { tty: open_tty().ok()?, borrower, modes: None, lent: false })
    }

    /// Lends it to the command, if it is ours to lend. Says whether the command has it now.
    pub(super) fn lend(&mut self) -> bool {
        if !self.is_ours() {
            return false;
        }
        if self.modes.is_none() {
            self.modes = tcgetattr(&self.tty).ok();
        }
        let given = tcsetpgrp(&self.tty, self.borrower).is_ok();
        self.lent |= given;
        given
    }

    /// Lends it again after a pause, if the command had it before, and we have it now.
    ///
    /// After `bg` the shell keeps it, and the command goes on without.
    pub(super) fn lend_again(&mut self) {
        if self.lent {
            self.lend();
        }
    }

    /// Whether we have it.
    pub(super) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty) == Ok(getpgrp())
    }

    /// Whether the command, or something it started, has it.
    pub(super) fn is_out(&self) -> bool {
        self.front().is_some()
    }

    /// Takes it back from the command or from whatever descends from it.
    ///
    /// From nobody else: if a shell has it by now, it is the shell's. Must happen while the
    /// foreground group still has a member, be it a zombie, for the helper to join; so, before
    /// anything is reaped.
    pub(super) fn take_back(&self) {
        // A Ctrl-C or Ctrl-Z at this very moment hits the helper, hence the attempts. When all fail,
        // an interactive shell above us still takes the terminal by itself.
        for _ in 0..ATTEMPTS {
            let Some(front) = self.front() else {
                return;
            };
            let Ok(mut helper) = shim::terminal_command(getpgrp()) else {
                return;
            };
            let started = helper
                .process_group(front.as_raw_nonzero().get())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            if let Ok(helper) = started {
                wait_or_kill(Pid::from_child(&helper));
            }
        }
    }

    /// Puts the settings back as they were, after a command that could not do it itself.
    ///
    /// A shell does this when its job dies of a signal, but all it sees of ours is an exit code.
    pub(super) fn tidy(&self) {
        if let Some(modes) = &self.modes
            && self.is_ours()
        {
            // `Now`, since draining can wait for ever on a terminal paused by Ctrl-S. A failure
            // leaves the terminal as it would be without us.
            let _ = tcsetattr(&self.tty, OptionalActions::Now, modes);
        }
    }

    /// The foreground group, if it is the command's or that of a descendant.
    fn front(&self) -> Option<Pid> {
        let front = tcgetpgrp(&self.tty).ok()?;
        let below_us =
            || front != getpgrp() && tree::below(getpid(), &[]).into_iter().any(|pid| tree::group_of(pid) == Some(front));
        (front == self.borrower || below_us()).then_some(front)
    }
}

/// Whether the command should have the terminal from its first instruction.
///
/// With its output going into a pipe (`tenure run … | less`), the next program in our own group may
/// want the terminal as well. Then it is lent when the command first asks for it, by stopping with
/// SIGTTIN or SIGTTOU.
pub(super) fn lend_at_once() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Whether no shell above us would notice that we stopped, and continue us.
///
/// That is so in the group of the session leader (`docker run -it`, `ssh -t host tenure …`): a shell
/// with job control gives every job another group than its own. The kernel lets Ctrl-Z do nothing
/// in such a group, and so do we.
pub(super) fn nobody_continues_us() -> bool {
    getsid(None) == Ok(getpgrp())
}

/// In the helper: makes `group` the foreground group of our terminal.
pub(super) fn bring_to_front(group: Pid) -> io::Result<()> {
    Ok(tcsetpgrp(open_tty()?, group)?)
}

fn open_tty() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/tty")
}

/// Waits for a helper to end, and does not let it be stopped.
fn wait_or_kill(helper: Pid) {
    loop {
        match waitpid(Some(helper), WaitOptions::UNTRACED) {
            Ok(Some((_, status))) if status.stopped() => {
                let _ = kill_process(helper, Signal::KILL);
            }
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

/// Sends `signal` to every process of `group`, and does not mind if there is none.
pub(crate) fn signal_group(group: Pid, signal: Signal) {
    let _ = kill_process_group(group, signal);
}

const ATTEMPTS: usize = 5;
