//! Ends that nobody confirmed: they are asked for again, together, for as long as something of their claims may be in the store.
//!
//! A hold that nobody renews ends by time. So does a waiter's place, but not while its client is heard: that keeps the places of
//! all its waiters, also of one that nobody wants any more. So an end is forgotten when time has ended its claim and no place was
//! kept since it was first given up. While the store is away every ask may leave such an end behind: they must not be more and more, nor
//! be in the way of everybody else's when it is back.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::tries::Tries;
use super::{Desk, Ended, Ending, Inner, MARK, Said};
use crate::{Claim, ClaimId, Instant, LockName};

/// How long an end is left to whoever asked for it, and how long after that it is asked for again.
const END_AGAIN: Duration = Duration::from_secs(2);
/// How many are asked for together: others' ends go in between.
const TOGETHER: usize = 64;

/// Ends that were given up.
#[derive(Default)]
pub(crate) struct Unended {
    ends: Mutex<HashMap<ClaimId, GivenUp>>,
    /// Whoever has it asks for them.
    in_hand: tokio::sync::Mutex<()>,
}

/// An end that was given up.
struct GivenUp {
    ending: Ending,
    /// When that was, the first time.
    first: Instant,
    /// How long after that something of the claim may be in the store, if its place in line is not kept.
    life: Duration,
    /// When to ask again.
    due: Instant,
}

impl GivenUp {
    /// Whether nothing of the claim can be in the store any more, if places were last kept then.
    fn is_over(&self, now: Instant, kept: Option<Instant>) -> bool {
        now >= self.first + self.life && kept.is_none_or(|kept| kept < self.first)
    }
}

impl Unended {
    fn ends(&self) -> MutexGuard<'_, HashMap<ClaimId, GivenUp>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was given up, perhaps not for the first time.
    fn add(&self, ending: Ending, life: Duration, now: Instant) {
        let due = now + END_AGAIN;
        let mut ends = self.ends();
        match ends.get_mut(&ending.id) {
            Some(known) => (known.ending, known.due) = (ending, due),
            None => drop(ends.insert(ending.id, GivenUp { ending, first: now, life, due })),
        }
    }

    /// Forgets those that are over, if places were last kept then.
    fn take_over(&self, now: Instant, kept: Option<Instant>) -> Vec<ClaimId> {
        self.ends().extract_if(|_, end| end.is_over(now, kept)).map(|(id, _)| id).collect()
    }

    /// Some that are due, in the order of their names. They are due again later.
    fn some_due(&self, now: Instant) -> Vec<Ending> {
        let mut ends = self.ends();
        let due = ends.values_mut().filter(|end| end.due <= now).take(TOGETHER);
        let due = due.map(|end| {
            end.due = now + END_AGAIN;
            end.ending.clone()
        });
        let mut due: Vec<Ending> = due.collect();
        due.sort_by(|one, other| one.name.cmp(&other.name));
        due
    }
}

/// An end that was asked for: dropped before it was confirmed, it is asked for again.
pub(crate) struct Unconfirmed<'a, D: Desk> {
    inner: &'a Inner<D>,
    pub(crate) ending: Option<Ending>,
    life: Duration,
}

impl<'a, D: Desk> Unconfirmed<'a, D> {
    /// A copy of the claim's ask may be granted for as long as its mark would stay, and that grant lasts for its ttl.
    pub(crate) fn new(inner: &'a Inner<D>, claim: &Claim, min_hold: Duration, mark: Duration) -> Self {
        let ending = Ending { name: claim.name.clone(), id: claim.id, min_hold, mark };
        Unconfirmed { inner, ending: Some(ending), life: MARK + claim.ttl + claim.lock_delay }
    }
}

impl<D: Desk> Drop for Unconfirmed<'_, D> {
    fn drop(&mut self) {
        if let Some(ending) = self.ending.take() {
            let now = Instant::now();
            self.inner.unended.add(ending, self.life, now);
            self.inner.ear.chores_at(now + END_AGAIN);
        }
    }
}

impl<D: Desk> Inner<D> {
    /// Nothing of the claim is left in the store.
    pub(crate) fn has_ended(&self, name: &LockName, id: ClaimId) {
        self.unended.ends().remove(&id);
        self.doubtful().remove(&id);
        self.ear.holds(id, false);
        self.ear.let_go(name);
        self.may_be_idle();
    }

    /// Asks once more for ends that were given up, for as long as there are answers.
    pub(crate) async fn end_again(&self) {
        let Ok(_in_hand) = self.unended.in_hand.try_lock() else { return };
        for id in self.unended.take_over(Instant::now(), self.ear.last_kept_places()) {
            self.doubtful().remove(&id);
            self.ear.holds(id, false);
        }
        loop {
            let due = self.unended.some_due(Instant::now());
            if due.is_empty() {
                break;
            }
            let Ok(Said { value, .. }) = Tries::of(&self.desk).limit(self.desk.end(&due)).await else { break };
            for (Ending { name, id, .. }, ended) in due.iter().zip(value) {
                if ended != Ended::Locked {
                    self.has_ended(name, *id);
                }
            }
        }
        if !self.unended.ends().is_empty() {
            self.ear.chores_at(Instant::now() + END_AGAIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(number: u8) -> Ending {
        let name = LockName::new(format!("{number}")).unwrap();
        Ending { name, id: ClaimId::from_bytes([number; 16]), min_hold: Duration::ZERO, mark: MARK }
    }

    #[test]
    fn an_end_is_forgotten_when_time_has_ended_its_claim_and_no_place_was_kept() {
        let (unended, first, life) = (Unended::default(), Instant::from_nanos(1_000), Duration::from_secs(90));
        let (before, later) = (first - Duration::from_nanos(1), first + Duration::from_secs(40));
        unended.add(ending(1), life, first);
        unended.add(ending(1), life, later); // given up once more: it is no younger for that
        assert!(unended.take_over(first + Duration::from_secs(89), None).is_empty(), "it may be held");
        assert!(unended.take_over(first + life, Some(later)).is_empty(), "it may wait: its client was heard");
        assert!(unended.take_over(first + Duration::from_secs(86_400), Some(first)).is_empty());
        assert_eq!(unended.take_over(first + life, Some(before)), [ending(1).id]);
        assert!(unended.ends().is_empty());
    }

    #[test]
    fn ends_are_asked_for_in_parts_and_in_the_order_of_their_names() {
        let (unended, first) = (Unended::default(), Instant::from_nanos(1_000));
        (0..100).for_each(|number| unended.add(ending(number), Duration::from_secs(90), first));
        assert!(unended.some_due(first).is_empty(), "they are left to whoever asked for them");
        let now = first + END_AGAIN;
        let (some, others) = (unended.some_due(now), unended.some_due(now));
        assert_eq!((some.len(), others.len()), (TOGETHER, 100 - TOGETHER));
        assert!(some.is_sorted_by(|one, other| one.name <= other.name));
        assert!(unended.some_due(now).is_empty(), "each was asked for");
        assert_eq!(unended.some_due(now + END_AGAIN).len(), TOGETHER, "and is again, until it is confirmed");
    }
}
