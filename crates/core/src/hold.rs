//! One hold as one state machine: Held ⇄ Jeopardy → Lost, and Gone once it is let go.
//!
//! Pure: it is told what happened and when, and says what to do next. Renewing is a state of it, not a task beside it, so
//! nothing can go on renewing after the end. `Lost` and `Gone` are final: a renewal that was answered "yes" too late
//! changes nothing, since its window has been given up already.

use std::sync::Arc;
use std::time::Duration;

use crate::{Ask, Instant, LossReason};

/// Where a hold stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Safe: the window is open and renewals are on time.
    Held,
    /// A renewal is overdue, or the store may have forgotten, but the window is still open: the hold may be trusted, and
    /// may soon be lost.
    Jeopardy,
    /// May no longer be trusted, whatever the store thinks.
    Lost,
    /// Let go by its owner.
    Gone,
}

/// What the keeper must do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    /// Nothing yet.
    Nothing,
    /// Send a renewal.
    Renew,
}

/// The state of one hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    /// The window's end.
    pub(crate) until: Instant,
    /// No renewal reaches beyond this: `max_hold`, or the window itself where renewal is off.
    cap: Instant,
    /// When to renew next.
    due: Instant,
    /// When a renewal that has not succeeded by then is overdue.
    overdue: Instant,
    /// A renewal is on its way; the next one waits for its answer or its deadline.
    in_flight: bool,
    /// The store may have forgotten it, or have said so, and no renewal has been sent since: a yes on its way is from before.
    in_doubt: bool,
    keep: bool,
    ttl: Duration,
}

impl State {
    /// A hold granted with this window; `keep` is whether it is renewed, `cap` is where renewal stops.
    pub(crate) fn new(ttl: Duration, now: Instant, until: Instant, keep: bool, cap: Instant) -> Self {
        let cap = if keep { cap } else { cap.min(until) };
        let mut state = State {
            phase: Phase::Held,
            until: until.min(cap),
            cap,
            due: Instant::NEVER,
            overdue: Instant::NEVER,
            in_flight: false,
            in_doubt: false,
            keep,
            ttl,
        };
        // A grant made while waiting has a short first window: a third of what is left, not of the ttl.
        state.plan(now + until.since(now) / 3);
        state
    }

    /// A renewal is due so soon: for a window that is shorter than those that renewals give.
    pub(crate) fn renew_at(&mut self, due: Instant) {
        self.plan(due.min(self.due));
    }

    /// Why the window's end was the end.
    pub(crate) fn ran_out(&self, error: Option<Arc<str>>) -> LossReason {
        match (self.keep, self.until < self.cap) {
            (false, _) => LossReason::Expired,
            (true, false) => LossReason::MaxHold,
            (true, true) => LossReason::NotRenewed(error),
        }
    }

    /// When to look at it again, if nothing else happens.
    pub(crate) fn next_event(&self) -> Instant {
        match self.phase {
            Phase::Lost | Phase::Gone => Instant::NEVER,
            Phase::Held if self.in_flight => self.until.min(self.overdue),
            Phase::Held => self.until.min(self.due).min(self.overdue),
            Phase::Jeopardy if self.in_flight => self.until,
            Phase::Jeopardy => self.until.min(self.due),
        }
    }

    /// When it would like to be renewed, for batching.
    pub(crate) fn wants_renewal_before(&self, then: Instant) -> bool {
        matches!(self.phase, Phase::Held | Phase::Jeopardy) && !self.in_flight && self.due <= then
    }

    /// Time has passed. Becomes `Lost` or `Jeopardy` by the local clock alone, and says whether to renew.
    pub(crate) fn tick(&mut self, now: Instant) -> Duty {
        if !matches!(self.phase, Phase::Held | Phase::Jeopardy) {
            return Duty::Nothing;
        }
        if now >= self.until {
            self.phase = Phase::Lost;
            return Duty::Nothing;
        }
        if now >= self.overdue {
            self.phase = Phase::Jeopardy;
        }
        if self.wants_renewal_before(now) { Duty::Renew } else { Duty::Nothing }
    }

    /// A renewal was sent.
    pub(crate) fn sent(&mut self) {
        self.in_flight = true;
        self.in_doubt = false;
    }

    /// The store may have forgotten it: in jeopardy until a renewal sent from now on says otherwise, and that is due at
    /// once. Also where renewal is off or at its cap, since whoever was forgotten must learn it; the window stays as it is.
    pub(crate) fn verify(&mut self, now: Instant) {
        self.renew_now(now);
        if matches!(self.phase, Phase::Held | Phase::Jeopardy) {
            self.phase = Phase::Jeopardy;
        }
    }

    /// The store may have said something about it that did not arrive: a renewal sent from now on finds out, and is due at once.
    /// That is no jeopardy, since the store itself has forgotten nothing.
    pub(crate) fn renew_now(&mut self, now: Instant) {
        self.tick(now);
        if matches!(self.phase, Phase::Held | Phase::Jeopardy) {
            self.in_doubt = true;
            self.due = now;
        }
    }

    /// The store renewed it until then; `next` is when to renew again.
    pub(crate) fn renewed(&mut self, until: Instant, next: Instant, now: Instant) {
        self.in_flight = false;
        self.tick(now); // an answer that came after the window's end is too late
        if matches!(self.phase, Phase::Held | Phase::Jeopardy) && !self.in_doubt {
            self.phase = Phase::Held;
            self.until = self.until.max(until).min(self.cap);
            // A store may give less than the ttl: a session's timeout has its limits. Then the next one comes sooner.
            self.plan(next.min(now + self.until.since(now) / 2));
        }
    }

    /// Nothing is known about a renewal: try again at `next`, as long as the window is open.
    pub(crate) fn unknown(&mut self, next: Instant, now: Instant) {
        self.in_flight = false;
        self.due = next;
        self.tick(now);
    }

    /// The store says that it is not held any more.
    pub(crate) fn refused(&mut self) {
        if matches!(self.phase, Phase::Held | Phase::Jeopardy) {
            self.phase = Phase::Lost;
        }
    }

    /// The owner lets go. Says whether it still had it.
    pub(crate) fn let_go(&mut self, now: Instant) -> bool {
        self.tick(now);
        let had_it = matches!(self.phase, Phase::Held | Phase::Jeopardy);
        self.phase = if had_it { Phase::Gone } else { self.phase };
        had_it
    }

    /// The phase as of now, whether or not anybody has ticked.
    pub(crate) fn phase_at(&self, now: Instant) -> Phase {
        match self.phase {
            Phase::Held | Phase::Jeopardy if now >= self.until => Phase::Lost,
            Phase::Held if now >= self.overdue => Phase::Jeopardy,
            phase => phase,
        }
    }

    /// How long a renewal sent now may take before it is given up and tried on a fresh connection: a sixth of the ttl, less
    /// where that would leave no time for a second try. Once one has failed, half of what is left: over a slow network a
    /// connection and a request may need more than a sixth, and would need it every time.
    pub(crate) fn renewal_deadline(&self, now: Instant) -> Duration {
        let left = self.until.since(now);
        if self.phase == Phase::Jeopardy { left / 2 } else { (self.ttl / 6).min(left / 3) }
    }

    /// Sets the next renewal, if there is one: none where renewal is off, or could not reach beyond the cap.
    fn plan(&mut self, due: Instant) {
        (self.due, self.overdue) = if self.keep && self.until < self.cap {
            (due, due + self.renewal_deadline(due))
        } else {
            (Instant::NEVER, Instant::NEVER)
        };
    }
}

/// What a holder can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A renewal is overdue, or the store may have forgotten; the window is still open until then.
    Jeopardy {
        /// When the hold will be lost if nothing changes.
        until: Instant,
    },
    /// The renewal came through after all.
    Safe,
    /// Somebody asks the holder to let go.
    Asked(Ask),
    /// The hold may no longer be trusted, for this reason.
    Lost(LossReason),
}

#[cfg(test)]
#[path = "hold_model.rs"]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(6);

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn kept() -> State {
        State::new(TTL, at(0), at(6), true, Instant::NEVER)
    }

    #[test]
    fn an_overdue_renewal_is_jeopardy_and_then_loss() {
        let mut state = kept();
        assert_eq!(state.tick(at(1)), Duty::Nothing);
        assert_eq!(state.tick(at(2)), Duty::Renew);
        state.sent();
        assert_eq!((state.tick(at(3)), state.phase), (Duty::Nothing, Phase::Jeopardy));
        state.unknown(at(4), at(3));
        assert_eq!(state.tick(at(4)), Duty::Renew);
        state.sent();
        assert_eq!((state.tick(at(6)), state.phase), (Duty::Nothing, Phase::Lost));
        state.renewed(at(10), at(8), at(7));
        assert_eq!(state.phase, Phase::Lost, "a yes after the end is too late");
    }

    #[test]
    fn a_yes_after_the_end_is_too_late_though_nobody_looked_before() {
        let mut state = kept();
        state.tick(at(2));
        state.sent();
        state.renewed(at(10), at(8), at(7));
        assert_eq!(state.phase, Phase::Lost);
    }

    #[test]
    fn a_renewal_makes_it_safe_again() {
        let mut state = kept();
        state.tick(at(2));
        state.sent();
        state.tick(at(4));
        assert_eq!(state.phase, Phase::Jeopardy);
        state.renewed(at(8), at(4), at(4));
        assert_eq!((state.phase, state.until), (Phase::Held, at(8)));
    }

    #[test]
    fn a_store_that_gives_less_than_the_ttl_is_asked_sooner() {
        let mut state = State::new(TTL * 100, at(0), at(6), true, Instant::NEVER);
        assert_eq!(state.tick(at(2)), Duty::Renew);
        state.sent();
        state.renewed(at(10), at(200), at(2));
        assert_eq!(state.next_event(), at(6));
        assert_eq!(state.tick(at(6)), Duty::Renew);
    }

    #[test]
    fn renewal_stops_at_the_cap() {
        let mut state = State::new(TTL, at(0), at(6), true, at(7));
        state.tick(at(2));
        state.sent();
        state.renewed(at(8), at(4), at(2));
        assert_eq!(state.until, at(7));
        assert_eq!(state.tick(at(5)), Duty::Nothing, "there is nothing left to gain");
        state.tick(at(7));
        assert_eq!(state.phase, Phase::Lost);
    }

    #[test]
    fn at_the_cap_there_is_nothing_to_wake_for_but_the_end() {
        let mut state = State::new(TTL, at(0), at(6), true, at(5));
        assert_eq!(state.next_event(), at(5));
        assert_eq!((state.tick(at(4)), state.phase), (Duty::Nothing, Phase::Held));
        assert_eq!(state.next_event(), at(5));
    }

    #[test]
    fn a_short_first_window_leaves_time_for_a_second_try() {
        let state = State::new(Duration::from_secs(60), at(0), at(6), true, Instant::NEVER);
        assert_eq!(state.renewal_deadline(at(3)), Duration::from_secs(1));
        assert!(state.overdue < at(4), "jeopardy comes before the loss");
    }

    #[test]
    fn a_waiter_s_first_window_is_renewed_at_once() {
        let mut state = State::new(Duration::from_secs(60), at(0), at(6), true, Instant::NEVER);
        state.renew_at(at(1));
        assert_eq!((state.next_event(), state.tick(at(1))), (at(1), Duty::Renew));
        let mut capped = State::new(TTL, at(0), at(6), true, at(5));
        capped.renew_at(at(1));
        assert_eq!(capped.tick(at(1)), Duty::Nothing, "there is nothing to gain");
    }

    #[test]
    fn a_window_ends_for_a_reason() {
        assert_eq!(kept().ran_out(None), LossReason::NotRenewed(None));
        assert_eq!(State::new(TTL, at(0), at(6), true, at(5)).ran_out(None), LossReason::MaxHold);
        assert_eq!(State::new(TTL, at(0), at(6), false, at(9)).ran_out(None), LossReason::Expired);
    }

    #[test]
    fn without_renewal_the_window_is_all_there_is() {
        let mut state = State::new(TTL, at(0), at(6), false, Instant::NEVER);
        assert_eq!(state.next_event(), at(6));
        assert_eq!((state.tick(at(5)), state.phase), (Duty::Nothing, Phase::Held));
        state.tick(at(6));
        assert_eq!(state.phase, Phase::Lost);
    }

    #[test]
    fn a_doubt_is_jeopardy_until_a_renewal_sent_after_it() {
        let mut state = kept();
        state.verify(at(1));
        assert_eq!((state.phase, state.until, state.next_event()), (Phase::Jeopardy, at(6), at(1)));
        assert_eq!(state.tick(at(1)), Duty::Renew);
        state.sent();
        state.renewed(at(7), at(3), at(1));
        assert_eq!((state.phase, state.until), (Phase::Held, at(7)));
        assert_eq!(state.tick(at(2)), Duty::Nothing);
    }

    #[test]
    fn a_message_that_may_be_lost_is_a_renewal_at_once_and_no_jeopardy() {
        let mut state = kept();
        state.tick(at(2));
        state.sent();
        state.renew_now(at(2));
        state.renewed(at(8), at(4), at(2)); // sent before the message may have been
        assert_eq!((state.phase, state.until, state.tick(at(2))), (Phase::Held, at(6), Duty::Renew));
        state.sent();
        state.renewed(at(8), at(4), at(2));
        assert_eq!((state.phase, state.until, state.tick(at(3))), (Phase::Held, at(8), Duty::Nothing));
    }

    #[test]
    fn a_yes_from_before_the_doubt_proves_nothing() {
        let mut state = kept();
        state.tick(at(2));
        state.sent();
        state.verify(at(2));
        assert_eq!(state.tick(at(2)), Duty::Nothing, "one renewal at a time");
        state.renewed(at(8), at(4), at(3));
        assert_eq!((state.phase, state.until), (Phase::Jeopardy, at(6)), "nothing is gained by it");
        assert_eq!(state.tick(at(3)), Duty::Renew);
        state.sent();
        state.refused();
        assert_eq!(state.phase, Phase::Lost);
    }

    #[test]
    fn a_doubt_without_renewal_asks_once_and_gains_nothing() {
        let mut state = State::new(TTL, at(0), at(6), false, Instant::NEVER);
        state.verify(at(1));
        assert_eq!((state.tick(at(1)), state.phase), (Duty::Renew, Phase::Jeopardy));
        state.sent();
        state.renewed(at(7), at(3), at(2));
        assert_eq!((state.phase, state.until, state.next_event()), (Phase::Held, at(6), at(6)));
        state.verify(at(6));
        assert_eq!(state.phase, Phase::Lost, "there was nothing left to doubt");
    }

    #[test]
    fn nothing_renews_after_the_end() {
        let mut state = kept();
        assert!(state.let_go(at(1)));
        assert_eq!(state.tick(at(2)), Duty::Nothing);
        state.renewed(at(9), at(5), at(2));
        assert_eq!(state.phase, Phase::Gone);
        assert_eq!(state.next_event(), Instant::NEVER);
    }
}
