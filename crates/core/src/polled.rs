//! Grants that a waiter found by itself: what a store's messages have missed.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ClaimId;

/// The grants of one client that its own looks found first. A message may still be on its way then: when it arrives, it has missed
/// nothing.
#[derive(Debug, Default)]
pub(crate) struct GrantsByPoll(Mutex<Found>);

#[derive(Debug, Default)]
struct Found {
    grants: u64,
    /// Whose message may still come. What is older than the last few is not waited for.
    recent: VecDeque<ClaimId>,
}

/// How many messages are waited for.
const RECENT: usize = 64;

impl GrantsByPoll {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A look found that this claim was let in.
    pub(crate) fn is_found(&self, id: ClaimId) {
        let mut found = self.found();
        found.grants += 1;
        found.recent.push_back(id);
        if found.recent.len() > RECENT {
            found.recent.pop_front();
        }
    }

    /// The message came after all.
    pub(crate) fn is_told(&self, id: ClaimId) {
        let mut found = self.found();
        if let Some(place) = found.recent.iter().position(|recent| *recent == id) {
            found.recent.remove(place);
            found.grants -= 1;
        }
    }

    /// How many there are whose message has not come.
    pub(crate) fn count(&self) -> u64 {
        self.found().grants
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_comes_late_has_missed_nothing() {
        let (polled, ids) = (GrantsByPoll::default(), [1, 2, 3].map(|number| ClaimId::from_bytes([number; 16])));
        ids.into_iter().for_each(|id| polled.is_found(id));
        polled.is_told(ids[1]);
        polled.is_told(ids[1]);
        polled.is_told(ClaimId::from_bytes([9; 16]));
        assert_eq!(polled.count(), 2);
    }

    #[test]
    fn what_is_lost_is_counted_for_ever_and_remembered_for_a_while() {
        let polled = GrantsByPoll::default();
        let ids = (0..1000u128).map(|number| ClaimId::from_bytes(number.to_be_bytes()));
        ids.for_each(|id| polled.is_found(id));
        assert_eq!((polled.count(), polled.found().recent.len()), (1000, RECENT));
    }
}
