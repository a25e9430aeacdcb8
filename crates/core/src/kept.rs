//! One hold, as its guards and the keeper share it: the state machine behind a mutex, and a bell that rings when there is
//! something to tell.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::hold::{Event, Phase, State};
use crate::loss::announced;
use crate::{Ask, Claim, Instant, LossReason, Token};

/// One hold, shared by its guard and the keeper.
pub(crate) struct Hold {
    pub(crate) claim: Claim,
    pub(crate) token: Token,
    state: Mutex<Shown>,
    /// Rings whenever something a holder can be told has happened.
    changed: Notify,
    /// This hold's key in the keeper's table; only touched under the table's mutex.
    pub(crate) place: AtomicU64,
    pub(crate) number: u64,
}

/// What a hold shows to its guards.
pub(crate) struct Shown {
    pub(crate) state: State,
    asked: Option<Ask>,
    /// How often it was in jeopardy, was safe again, and was asked: what [`Seen`] is compared with.
    jeopardies: u64,
    asks: u64,
    /// The store said that the hold is gone, and why if it knew.
    refused: Option<LossReason>,
    /// The break that an operator announced.
    announced: Option<Ask>,
    /// Why the last renewal failed.
    error: Option<Arc<str>>,
}

impl Shown {
    fn loss_reason(&self) -> LossReason {
        match (&self.refused, &self.announced) {
            (Some(LossReason::Refused), Some(ask)) => LossReason::Broken(ask.clone()),
            (Some(reason), _) => reason.clone(),
            (None, _) => self.state.ran_out(self.error.clone()),
        }
    }
}

impl Hold {
    /// A hold that was just granted; `number` tells it apart from every other of its client.
    pub(crate) fn new(claim: Claim, state: State, token: Token, number: u64) -> Self {
        let shown = Shown { state, asked: None, jeopardies: 0, asks: 0, refused: None, announced: None, error: None };
        Hold { claim, token, state: Mutex::new(shown), changed: Notify::new(), place: AtomicU64::new(0), number }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Shown> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one step of the state machine and tells whoever listens if that changed anything they can see.
    pub(crate) fn step<T>(&self, step: impl FnOnce(&mut Shown) -> T) -> T {
        let mut shown = self.lock();
        let before = (shown.state.phase, shown.state.until);
        let answer = step(&mut shown);
        let after = (shown.state.phase, shown.state.until);
        if before != after {
            if after.0 == Phase::Jeopardy && before.0 != Phase::Jeopardy {
                shown.jeopardies += 1;
            }
            drop(shown);
            self.changed.notify_waiters();
        }
        answer
    }

    pub(crate) fn until(&self) -> Instant {
        self.lock().state.until
    }

    pub(crate) fn phase_at(&self, now: Instant) -> Phase {
        self.lock().state.phase_at(now)
    }

    /// The store says that it is not held any more.
    pub(crate) fn refused(&self, reason: LossReason) {
        self.step(|shown| {
            if matches!(shown.state.phase, Phase::Held | Phase::Jeopardy) {
                shown.refused = Some(reason);
            }
            shown.state.refused();
        });
    }

    /// A renewal failed: perhaps the reason of a loss to come.
    pub(crate) fn failed(&self, error: Option<&crate::Error>) {
        self.lock().error = error.map(|error| error.cause().into());
    }

    /// Why it was lost, if it is lost by now.
    pub(crate) fn loss_reason(&self, now: Instant) -> Option<LossReason> {
        let shown = self.lock();
        (shown.state.phase_at(now) == Phase::Lost).then(|| shown.loss_reason())
    }

    pub(crate) fn asked(&self) -> Option<Ask> {
        self.lock().asked.clone()
    }

    pub(crate) fn let_go(&self, now: Instant) -> bool {
        self.step(|shown| shown.state.let_go(now))
    }

    pub(crate) fn told(&self, ask: Ask) {
        let mut shown = self.lock();
        if let Some(coming) = announced(&ask) {
            shown.announced = Some(coming);
            return;
        }
        if shown.asked.as_ref() != Some(&ask) {
            shown.asked = Some(ask);
            shown.asks += 1;
            drop(shown);
            self.changed.notify_waiters();
        }
    }

    /// Waits until `ready` gives something.
    pub(crate) async fn until_some<T>(&self, mut ready: impl FnMut(&Self) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable(); // listen first, then look
            if let Some(answer) = ready(self) {
                return answer;
            }
            changed.await;
        }
    }
}

/// Where an [`Events`](crate::guard::Events) reader has got to.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    phase: Phase,
    jeopardies: u64,
    asks: u64,
}

impl Hold {
    pub(crate) fn seen(&self) -> Seen {
        Seen { phase: Phase::Held, jeopardies: 0, asks: 0 }
    }

    /// The next thing to tell a reader, or `None` if it knows all; `Some(None)` once there will be nothing more.
    pub(crate) fn next_event(&self, seen: &mut Seen) -> Option<Option<Event>> {
        let shown = self.lock();
        if shown.asks > seen.asks {
            seen.asks = shown.asks;
            return Some(shown.asked.clone().map(Event::Asked));
        }
        // A jeopardy that came and went unseen is still told: first the one, then the other.
        if shown.jeopardies > seen.jeopardies && seen.phase != Phase::Jeopardy {
            seen.jeopardies = shown.jeopardies;
            seen.phase = Phase::Jeopardy;
            return Some(Some(Event::Jeopardy { until: shown.state.until }));
        }
        match (seen.phase, shown.state.phase) {
            (Phase::Gone | Phase::Lost, _) => Some(None),
            (_, Phase::Lost) => {
                seen.phase = Phase::Lost;
                Some(Some(Event::Lost(shown.loss_reason())))
            }
            (_, Phase::Gone) => Some(None),
            (Phase::Jeopardy, Phase::Held) => {
                seen.phase = Phase::Held;
                seen.jeopardies = shown.jeopardies;
                Some(Some(Event::Safe))
            }
            _ => None,
        }
    }
}
