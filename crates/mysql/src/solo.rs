//! Which names the short way is worth trying for.
//!
//! A name that nobody else wants is taken and let go of with one plain statement each, which costs what a write of one row
//! costs; calling a procedure costs as much again. It is prepared: parsing it anew each time would be a third of what it costs
//! more than a bare write. The statement does nothing where somebody else is there, and then the procedure is called after
//! all. What is remembered here only saves trying in vain: being wrong costs a round trip, and nothing else.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure_core::lease::{Asking, Ending, QUIET};
use tenure_core::{ClaimId, Instant, LockName};

/// So many names and claims are remembered at most.
const MANY: usize = 10_000;

#[derive(Default)]
pub(crate) struct Solo(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Names that let us in at once, and when that or our letting go was: an idle one is removed a moment later.
    names: HashMap<LockName, Instant>,
    /// Claims that have no ticket.
    claims: HashSet<ClaimId>,
}

impl Solo {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the name is there, and was nobody else's when we last had it.
    pub(crate) fn is_worth_trying(&self, name: &LockName) -> bool {
        self.known().names.get(name).is_some_and(|last| Instant::now().since(*last) < QUIET)
    }

    /// What came of asking: whether it was let in without a ticket.
    pub(crate) fn asked(&self, asking: &Asking, solo: bool) {
        let mut known = self.known();
        if known.names.len() >= MANY || known.claims.len() >= MANY {
            *known = Known::default();
        }
        let name = &asking.claim.name;
        if !solo {
            known.names.remove(name);
            return;
        }
        known.claims.insert(asking.claim.id);
        match known.names.get_mut(name) {
            Some(last) => *last = Instant::now(),
            None => drop(known.names.insert(name.clone(), Instant::now())),
        }
    }

    /// A claim is to be ended. Whether it may be without a ticket, and owes nothing that the short way could not do.
    pub(crate) fn ends(&self, ending: &Ending) -> bool {
        let mut known = self.known();
        if let Some(last) = known.names.get_mut(&ending.name) {
            *last = Instant::now();
        }
        known.claims.remove(&ending.id) && ending.min_hold.is_zero() && ending.mark.is_zero()
    }
}
