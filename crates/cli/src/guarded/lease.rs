//! When the command must be stopped, so that it is over before anybody else can be let in.
//!
//! A hold may be trusted until an instant that moves on with every renewal (`valid_until`), and the store lets nobody
//! else in before that. So there are two ways to lose it, and they are not alike:
//!
//! **The window runs out.** The store does not answer, this process or the machine stood still, or `--max-hold` is
//! reached. Renewals come at a third of the ttl. From half of it on the hold is *in jeopardy*: we say so, and go on, for
//! the store may come back. But stopping takes time: a command that is asked with SIGTERM may use its grace, and only
//! then comes SIGKILL. So we begin early, at `valid_until` less a *notice*, if no renewal has moved it on by then:
//!
//! ```text
//! renewed        due      jeopardy      SIGTERM        SIGKILL  valid_until   the store may let others in
//! |--------------|--------|-------------|-----------------|-----|------------|
//!                                       |<--- notice: the grace, at most 1/3 of the window --->|
//! ```
//!
//! At most a third of the window, or a long grace would end healthy commands: of a hold that is renewed in time more
//! than two thirds are left at every moment. (The first window of a lock that was waited for is short, about 2 s; its
//! third counts then.) SIGKILL leaves `KILL_MARGIN` for dying, and the window itself ends before the store's own count by
//! the library's margin. With `--on-lost kill` the notice is just that margin.
//!
//! **It is taken away.** An operator breaks it, or the store says no. Nothing is left to stop inside of: others may be in
//! already. SIGTERM goes out at once and SIGKILL after the grace (or SIGKILL at once with `--on-lost kill`). Only a
//! resource that checks tokens is safe in that moment, which is what `TENURE_TOKEN` is for.
//!
//! If we find the window over already (we were stopped with SIGSTOP, the machine slept), there is no grace: SIGKILL.
//!
//! All of it is decided by the clock that goes on during sleep, and polled before any signal is, so that a command is
//! not continued by the SIGCONT that woke us before its lease was looked at.

use std::time::Duration;

use tenure::{Clock, Guard, Instant};

use super::args::HoldArgs;
use crate::child::{OnLost, Stop};

/// A hold, seen as time in which the command may run.
pub(super) struct Lease<'a> {
    guard: &'a Guard,
    policy: OnLost,
    grace: Duration,
    /// The first window: when it ends, and how long it was.
    first: (Instant, Duration),
    /// How long every later window is.
    later: Duration,
}

impl<'a> Lease<'a> {
    pub(super) fn new(guard: &'a Guard, policy: OnLost, hold: &HoldArgs, shortest_ttl: Duration) -> Self {
        let first = (guard.valid_until(), guard.remaining());
        let ttl = hold.ttl().max(shortest_ttl);
        let later = hold.max_hold.map_or(ttl, |max_hold| ttl.min(max_hold));
        Lease { guard, policy, grace: hold.grace, first, later }
    }

    /// Completes when the command must be stopped. With `--on-lost ignore`, never.
    ///
    /// # Cancel safety
    /// Holds no state.
    pub(super) async fn end(&self) -> Stop {
        if self.policy == OnLost::Ignore {
            return std::future::pending().await;
        }
        loop {
            let until = self.guard.valid_until();
            let begin = until - self.notice(until);
            tokio::select! {
                biased;
                () = self.guard.lost() => return self.stop_after_loss(),
                () = Clock::Boot.sleep_until(begin) => {
                    if self.guard.valid_until() <= until {
                        return self.stop(Some(until));
                    }
                }
            }
        }
    }

    /// How long before the window's end to begin.
    fn notice(&self, until: Instant) -> Duration {
        let window = if until == self.first.0 { self.first.1 } else { self.later };
        notice(window, self.grace, self.policy)
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

fn notice(window: Duration, grace: Duration, policy: OnLost) -> Duration {
    let wanted = match policy {
        OnLost::Term => grace.saturating_add(KILL_NOTICE),
        OnLost::Kill | OnLost::Ignore => KILL_NOTICE,
    };
    wanted.min(window / 3)
}

/// What waking up, killing and dying may take: more than the supervisor's own margin before the deadline.
const KILL_NOTICE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

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
