//! When the command must be stopped, so that it is over before anybody else can be let in.
//!
//! A hold may be trusted until an instant that moves on with every renewal (`valid_until`), and the store lets nobody
//! else in before that. So there are two ways to lose it, and they are not alike, and one way to end it in order:
//!
//! **The window runs out.** The store does not answer, or this process or the machine stood still. Renewals come at a third of
//! the ttl. From half of it on the hold is *in jeopardy*: we say so, and go on, for the store may come back. But stopping takes
//! time: a command that is asked with SIGTERM may use its grace, and only then comes SIGKILL. So we begin early, at `valid_until`
//! less a *notice*, if no renewal has moved it on by then:
//!
//! ```text
//! renewed        due      jeopardy      SIGTERM        SIGKILL  valid_until   the store may let others in
//! |--------------|--------|-------------|-----------------|-----|------------|
//!                                       |<--- notice: the grace, at most 1/3 of the window --->|
//! ```
//!
//! At most a third of the window, or a long grace would end healthy commands: of a hold that is renewed in time more
//! than two thirds are left at every moment. SIGKILL leaves `KILL_MARGIN` for dying, and the window itself ends before the store's own count by
//! the library's margin. With `--on-lost kill` the notice is just that margin.
//!
//! **It is taken away.** An operator breaks it, or the store says no. Nothing is left to stop inside of: others may be in
//! already. SIGTERM goes out at once and SIGKILL after the grace (or SIGKILL at once with `--on-lost kill`). Only a
//! resource that checks tokens is safe in that moment, which is what `TENURE_TOKEN` is for.
//!
//! **`--max-hold` is reached.** The command has until the cap itself, and then its grace, in which the lock is still held and
//! renewed: the hold's own maximum is longer by the grace ([`longest_hold`]).
//!
//! If we find the window over already (we were stopped with SIGSTOP, the machine slept), there is no grace: SIGKILL.
//!
//! All of it is decided by the clock that goes on during sleep, and polled before any signal is, so that a command is
//! not continued by the SIGCONT that woke us before its lease was looked at.

use std::time::Duration;

use tenure::{Clock, Guard, Instant, MAX_TTL};

use super::args::HoldArgs;
use crate::child::{OnLost, Stop};

/// A hold, seen as time in which the command may run.
pub(super) struct Lease<'a> {
    guard: &'a Guard,
    policy: OnLost,
    grace: Duration,
    /// How long a window is: this one has just begun.
    window: Duration,
    /// `--max-hold`, and when that is over.
    cap: Option<(Duration, Instant)>,
}

/// Why the command is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The lock is lost.
    Lost,
    /// It was not renewed, and there is just time enough to stop.
    NotRenewed,
    /// It was held for as long as `--max-hold` allows.
    MaxHold(Duration),
}

/// How long the store may hold the lock for a command that may run for `max_hold`: what stopping it takes comes on top.
pub(super) fn longest_hold(max_hold: Duration, grace: Duration, policy: OnLost) -> Duration {
    let stopping = match policy {
        OnLost::Ignore => return max_hold,
        OnLost::Kill => KILL_NOTICE,
        OnLost::Term => grace.saturating_add(KILL_NOTICE),
    };
    max_hold.saturating_add(stopping).saturating_add(SLACK).min(MAX_TTL)
}

impl<'a> Lease<'a> {
    /// To be called when the hold was just granted or renewed.
    pub(super) fn new(guard: &'a Guard, hold: &HoldArgs) -> Self {
        let cap = hold.max_hold.map(|max_hold| (max_hold, Instant::now() + max_hold));
        Lease { guard, policy: hold.on_lost.into(), grace: hold.grace, window: guard.remaining(), cap }
    }

    /// Completes when the command must be stopped. With `--on-lost ignore`, never.
    ///
    /// # Cancel safety
    /// Holds no state.
    pub(super) async fn end(&self) -> (Stop, Cause) {
        if self.policy == OnLost::Ignore {
            return std::future::pending().await;
        }
        loop {
            let until = self.guard.valid_until();
            let begin = until - notice(self.window, self.grace, self.policy);
            tokio::select! {
                biased;
                () = self.guard.lost() => return (self.stop_after_loss(), Cause::Lost),
                max_hold = cap(self.cap) => {
                    // Renewals go on meanwhile. Should they fail now, the watchdog kills in time.
                    return (self.stop(None), Cause::MaxHold(max_hold));
                }
                () = Clock::Boot.sleep_until(begin) => {
                    if self.guard.valid_until() <= until {
                        return (self.stop(Some(until)), Cause::NotRenewed);
                    }
                }
            }
        }
    }

    fn stop_after_loss(&self) -> Stop {
        // Lost before its time: it was taken away, and there is no end of a lease left to meet.
        let until = self.guard.valid_until();
        self.stop((until <= Instant::now()).then_some(until))
    }

    fn stop(&self, until: Option<Instant>) -> Stop {
        Stop { policy: self.policy, deadline: until }
    }
}

/// Resolves when the cap is reached, if there is one.
async fn cap(cap: Option<(Duration, Instant)>) -> Duration {
    let Some((max_hold, at)) = cap else { return std::future::pending().await };
    Clock::Boot.sleep_until(at).await;
    max_hold
}

fn notice(window: Duration, grace: Duration, policy: OnLost) -> Duration {
    let wanted = match policy {
        OnLost::Term => grace.saturating_add(KILL_NOTICE),
        OnLost::Kill | OnLost::Ignore => KILL_NOTICE,
    };
    wanted.min(window / 3)
}

/// What waking up, killing and dying may take: more than the supervisor's own margin before the deadline.
const KILL_NOTICE: Duration = Duration::from_millis(100);

/// What waking up late may add to a hold.
const SLACK: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capped_hold_lasts_through_the_grace() {
        let s = Duration::from_secs;
        assert!(longest_hold(s(8), s(5), OnLost::Term) > s(13));
        assert!(longest_hold(s(8), s(5), OnLost::Kill) < s(13));
        assert_eq!(longest_hold(s(8), s(5), OnLost::Ignore), s(8));
        assert_eq!(longest_hold(s(8), Duration::MAX, OnLost::Term), MAX_TTL);
    }

    #[test]
    fn the_grace_fits_or_a_third_of_the_window_must_do() {
        let s = Duration::from_secs;
        assert_eq!(notice(s(30), s(5), OnLost::Term), s(5) + KILL_NOTICE);
        assert_eq!(notice(s(30), s(60), OnLost::Term), s(10));
        assert_eq!(notice(s(30), Duration::MAX, OnLost::Term), s(10));
        assert_eq!(notice(s(30), s(5), OnLost::Kill), KILL_NOTICE);
        assert_eq!(notice(Duration::from_millis(90), s(5), OnLost::Kill), Duration::from_millis(30));
    }
}
