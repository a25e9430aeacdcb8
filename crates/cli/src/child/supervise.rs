//! The loop that runs while the command does.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_current_process_group, waitid, waitpid,
};
use tenure::{Clock, Instant};

use super::order::{Ending, Leftovers, OnLost, Outcome, Stop, kill_time};
use super::signals::Signals;
use super::start::Child;
use super::terminal::{Terminal, nobody_continues_us, signal_group};
use super::tree;

/// What the command is doing, as far as we can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It runs, or we know already that it is stopped.
    Runs,
    /// This signal stopped it since we last looked.
    Stopped(i32),
    /// It is over. What it started may live on.
    Ended(Ending),
}

impl Child {
    /// Runs the command to its end, and to the end of everything it started.
    ///
    /// - Signals are passed on to the command's process group. What it does with them is its own
    ///   affair, however often they come; but TERM, which a service manager sends, is an order to end,
    ///   so SIGKILL follows after the grace.
    /// - When `stop` resolves, the lock is lost, and its policy is carried out.
    /// - When the command has ended, [`Leftovers`] says what becomes of what it left running; `tell` is told once
    ///   who that is. After a loss, a TERM or a Ctrl-C it is ended in any case: SIGTERM and, after the grace, SIGKILL.
    /// - When the command is stopped from the keyboard, so are we, for the shell to see; and when the
    ///   shell continues us, so is the command. A stopped process renews no lock. Therefore `stop`
    ///   should look at the clock itself (a `sleep_until` the end of the lease will do): it is polled
    ///   before the signal that continued us is, and so a command whose lease ended meanwhile is not
    ///   set running again first.
    ///
    /// Everything below this process counts as started by the command, and is reaped and ended as such,
    /// but for the children it had before: the caller must start no others meanwhile.
    ///
    /// # Cancel safety
    ///
    /// Cancelling drops the [`Child`], which kills the command at once, without grace.
    pub(crate) async fn supervise(
        mut self,
        signals: &mut Signals,
        stop: impl Future<Output = Stop>,
        tell: impl Fn(Ending, &[Pid]),
    ) -> io::Result<Outcome> {
        let mut stop = pin!(stop);
        let mut stop_seen = false;
        let mut stopped_for_loss = false;
        loop {
            self.watchdog.keep()?;
            match self.look()? {
                Look::Runs => {}
                Look::Stopped(by) => self.pause(by),
                Look::Ended(ending) => {
                    if !self.left_behind() || self.may_leave_the_rest(ending, &tell) {
                        self.bury();
                        return Ok(Outcome { ending, stopped_for_loss, interrupted: self.interrupted });
                    }
                }
            }
            // SIGKILL first and `stop` next: no storm of signals may delay the end of the lease.
            tokio::select! {
                biased;
                () = until(self.next_visit()) => self.kill_if_due(),
                order = &mut stop, if !stop_seen => {
                    stop_seen = true;
                    // What is waited for belongs to the command: its exit code alone would tell of a success.
                    let wanted = self.ended.is_none() || self.leftovers == Leftovers::Wait;
                    stopped_for_loss = self.carry_out(order) && wanted;
                }
                signal = signals.next() => self.pass_on(signal),
            }
        }
    }

    /// Looks at the command, without waiting for it.
    pub(super) fn look(&mut self) -> io::Result<Look> {
        if let Some(ending) = self.ended {
            return Ok(Look::Ended(ending));
        }
        // One question for both, and nothing is reaped by it, so that the command's number stays
        // taken; see `Child::leader`.
        let news = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let Some(status) = waitid(WaitId::Pid(self.leader), news)? else {
            return Ok(Look::Runs);
        };
        if let Some(by) = status.stopping_signal() {
            self.take_stop();
            return Ok(Look::Stopped(by));
        }
        let by_itself = status.exit_status().map(Ending::Exited);
        let by_signal = status.terminating_signal().map(Ending::Signaled);
        let ending =
            by_itself.or(by_signal).ok_or_else(|| io::Error::other("the command ended, but waitid cannot say how"))?;
        self.note_end(ending);
        Ok(Look::Ended(ending))
    }

    /// Takes the news that the command stopped, so that it is told once.
    pub(super) fn take_stop(&self) {
        // If it was killed since, the kernel answers `ECHILD`, having no stopped child to offer. The
        // death is news of its own and will be seen next.
        let _ = waitid(WaitId::Pid(self.leader), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
    }

    /// The command is over: what must happen before anything is reaped.
    fn note_end(&mut self, ending: Ending) {
        self.ended = Some(ending);
        self.tell_at = Some(Instant::now() + MOMENT);
        if let Some(terminal) = &self.terminal {
            let had_terminal = terminal.is_out();
            terminal.take_back();
            if matches!(ending, Ending::Signaled(_)) {
                terminal.tidy();
            }
            self.interrupted = had_terminal && ending == Ending::Signaled(Signal::INT.as_raw());
        }
        // Where `tree` knows nothing, the group is asked whether it has members, and a dead leader
        // might count as one.
        #[cfg(not(target_os = "linux"))]
        self.reap_leader();
    }

    /// The command has ended, and something that it started has not. Says whether that may run on without us.
    fn may_leave_the_rest(&mut self, ending: Ending, tell: &impl Fn(Ending, &[Pid])) -> bool {
        // The user wants it to end, or nobody may run any more.
        let must_end = self.kill_at.is_some() || self.interrupted;
        let now = Instant::now();
        let is_time = self.leftovers != Leftovers::Wait || self.tell_at.is_some_and(|at| at <= now);
        if !must_end && self.tell_at.is_some() && is_time {
            self.tell_at = None;
            let mut left = tree::below(getpid(), &self.watchdog.not_the_command_s());
            left.retain(|&pid| pid != self.leader && tree::Stat::of(pid).is_some_and(|stat| stat.lives));
            if !left.is_empty() {
                tell(ending, &left);
            }
        }
        if self.leftovers == Leftovers::Keep && !must_end {
            return true;
        }
        if (self.leftovers == Leftovers::Term || must_end) && !self.asked {
            self.ask_all_to_end(None);
        }
        false
    }

    /// The command stopped: do what makes that look right from outside.
    fn pause(&mut self, by: i32) {
        let by_keyboard = by == Signal::TSTP.as_raw();
        let wants_terminal = by == Signal::TTIN.as_raw() || by == Signal::TTOU.as_raw();
        let Some(terminal) = &mut self.terminal else {
            // No terminal, no job control: whoever stopped it will continue it, and meanwhile
            // somebody must renew.
            return;
        };
        if wants_terminal && terminal.lend() {
            signal_group(self.leader, Signal::CONT);
            return;
        }
        let has_terminal = terminal.is_out();
        if !by_keyboard && !wants_terminal && !has_terminal {
            // A SIGSTOP from elsewhere, as above.
            return;
        }
        if nobody_continues_us() {
            if by_keyboard {
                signal_group(self.leader, Signal::CONT);
            }
            return;
        }
        terminal.take_back();
        // The whole of our group, not only this process: the shell waits for the job, and if a script
        // called us, the job is the script. SIGSTOP, because we would catch our own SIGTSTP. We go
        // on at SIGCONT, which arrives as a signal like any other.
        let _ = kill_current_process_group(Signal::STOP);
    }

    /// A signal came to us. The command should have it.
    fn pass_on(&mut self, signal: Signal) {
        match signal {
            // The command itself is looked at in every round. This reaps the orphans it made.
            Signal::CHILD => {
                self.left_behind();
            }
            Signal::CONT if self.ended.is_some() => self.signal_all(Signal::CONT),
            Signal::CONT => {
                if let Some(terminal) = &mut self.terminal {
                    terminal.lend_again();
                }
                signal_group(self.leader, Signal::CONT);
            }
            Signal::TERM | Signal::INT if self.ended.is_some() => self.cut_short(signal),
            Signal::TSTP if self.ended.is_some() => {
                if !nobody_continues_us() {
                    self.signal_all(Signal::STOP);
                    let _ = kill_current_process_group(Signal::STOP);
                }
            }
            other if self.ended.is_some() => self.signal_all(other),
            Signal::TERM => {
                signal_group(self.leader, Signal::TERM);
                signal_group(self.leader, Signal::CONT);
                self.kill_by(kill_time(Instant::now(), self.grace, None));
            }
            other => signal_group(self.leader, other),
        }
    }

    /// The user does not want to wait for what the command left running.
    fn cut_short(&mut self, signal: Signal) {
        self.asked = true;
        self.signal_all(signal);
        self.signal_all(Signal::CONT);
        self.kill_by(kill_time(Instant::now(), self.grace, None));
        // Not a success, since something was cut off.
        if self.ended == Some(Ending::Exited(0)) {
            self.ended = Some(Ending::Signaled(signal.as_raw()));
        }
        self.interrupted |= signal == Signal::INT && self.terminal.as_ref().is_some_and(Terminal::is_ours);
    }

    /// The lock is lost. Says whether that ends the command.
    fn carry_out(&mut self, order: Stop) -> bool {
        match order.policy {
            OnLost::Ignore => return false,
            OnLost::Term => self.ask_all_to_end(order.deadline),
            OnLost::Kill => self.kill(),
        }
        true
    }

    /// SIGTERM to everybody, and SIGKILL when it is time.
    fn ask_all_to_end(&mut self, deadline: Option<Instant>) {
        self.asked = true;
        let now = Instant::now();
        let due = kill_time(now, self.grace, deadline);
        if due <= now {
            // No time left to ask, and a stopped command must not run again without its lock.
            return self.kill();
        }
        self.signal_all(Signal::TERM);
        // A stopped process sees SIGTERM only when it is continued.
        self.signal_all(Signal::CONT);
        self.kill_by(due);
    }

    fn kill_by(&mut self, time: Instant) {
        self.kill_at = Some(self.kill_at.map_or(time, |earlier| earlier.min(time)));
    }

    fn kill_if_due(&mut self) {
        if self.kill_at.is_some_and(|due| due <= Instant::now()) {
            self.kill();
        }
    }

    /// SIGKILL to everybody, again and again until nobody is left: what is forked while we send
    /// is missed by us, but not by the next round.
    pub(super) fn kill(&mut self) {
        self.signal_all(Signal::KILL);
        self.kill_at = Some(Instant::now() + ROUND);
    }

    /// Signals the command's group, then whoever descends from us in another one.
    fn signal_all(&self, signal: Signal) {
        signal_group(self.leader, signal);
        tree::each_below(getpid(), &self.watchdog.not_the_command_s(), |_, stat, handle| {
            if stat.group != self.leader {
                handle.signal(signal);
            }
        });
    }

    /// Reaps what can be reaped, except the command itself; says whether anything else lives.
    pub(super) fn left_behind(&self) -> bool {
        let others = self.watchdog.not_the_command_s();
        let living = tree::children(getpid())
            .into_iter()
            .filter(|pid| *pid != self.leader && !others.contains(pid))
            .filter(|&pid| matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None)))
            // Not `any`, which would stop at the first and leave the others unreaped.
            .count();
        living > 0 || group_lives(self.leader)
    }

    /// Reaps the command, which ended, and dismisses its watchdog.
    pub(super) fn bury(&mut self) {
        self.reap_leader();
        self.watchdog.dismiss();
        self.gone = true;
    }

    fn reap_leader(&self) {
        // An error says that it was reaped before.
        let _ = waitpid(Some(self.leader), WaitOptions::NOHANG);
    }

    /// When to look again even if nothing is reported.
    fn next_visit(&self) -> Option<Instant> {
        // Where orphans are not given to us, their end is not reported to us either.
        let blind = self.ended.is_some() && !cfg!(target_os = "linux");
        let soon = blind.then(|| Instant::now() + ROUND);
        let tell_at = self.tell_at.filter(|_| self.leftovers == Leftovers::Wait);
        self.kill_at.into_iter().chain(soon).chain(tell_at).min()
    }
}

/// Whether the group still has members, where `tree` cannot tell.
#[cfg(not(target_os = "linux"))]
fn group_lives(group: Pid) -> bool {
    rustix::process::test_kill_process_group(group).is_ok()
}

/// On Linux all of its members are our descendants, and `tree` knows those.
#[cfg(target_os = "linux")]
fn group_lives(_group: Pid) -> bool {
    false
}

/// Resolves at `time`, or never.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => Clock::Boot.sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// How long SIGKILL is given to work before it is sent again.
const ROUND: Duration = Duration::from_millis(20);

/// What ends so soon after the command is not worth telling about.
const MOMENT: Duration = Duration::from_secs(1);
