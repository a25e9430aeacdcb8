//! Nothing is left: names that were let go of disappear a moment later, and what dead clients left is found by the living.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::tries::Tries;
use super::{Desk, Inner, QUIET};
use crate::{Instant, LockName, Result};

/// One ask in so many looks for what dead clients left; the first one of a client does.
const EVERY: u32 = 256;
/// How many names it looks at in one request, and in how many requests at most: whoever locks in transactions of its own tidies nothing.
const AT_ONCE: usize = 64;
const REQUESTS: usize = 64;
/// How many idle names are removed together: each is a lock or two in the server until all of them are.
const TOGETHER: usize = 256;

/// Names that may be idle.
#[derive(Default)]
pub(crate) struct Loose {
    names: Mutex<HashMap<LockName, Idle>>,
    /// Counts asks, and where the next look begins.
    asks: AtomicU32,
    came_by: Mutex<Option<LockName>>,
}

/// A name that was let go of.
struct Idle {
    since: Instant,
    /// A chore is about to remove it. It stays here until that is done: the client may end meanwhile, and its chores with it.
    in_hand: bool,
}

impl Loose {
    fn names(&self) -> MutexGuard<'_, HashMap<LockName, Idle>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim on the name has ended.
    fn add(&self, name: &LockName, since: Instant) {
        let mut names = self.names();
        let idle = Idle { since, in_hand: false };
        match names.get_mut(name) {
            Some(known) => *known = idle,
            None => drop(names.insert(name.clone(), idle)),
        }
    }

    /// The names that were let go of before then, for a chore; when the next one will have been.
    fn take_in_hand(&self, before: Instant) -> (Vec<LockName>, Option<Instant>) {
        let (mut taken, mut next) = (Vec::new(), None);
        for (name, idle) in self.names().iter_mut().filter(|(_, idle)| !idle.in_hand) {
            if idle.since <= before {
                idle.in_hand = true;
                taken.push(name.clone());
            } else {
                next = Some(next.map_or(idle.since, |next| idle.since.min(next)));
            }
        }
        (taken, next)
    }

    /// The chore has removed them, except where a claim has ended since.
    fn are_gone(&self, done: &[LockName]) {
        let mut names = self.names();
        for name in done {
            if names.get(name).is_some_and(|idle| idle.in_hand) {
                names.remove(name);
            }
        }
    }

    /// All names, whoever is at them.
    fn take_all(&self) -> Vec<LockName> {
        std::mem::take(&mut *self.names()).into_keys().collect()
    }
}

impl<D: Desk> Inner<D> {
    /// A claim on the name has ended.
    pub(crate) fn is_loose(&self, name: &LockName) {
        let now = Instant::now();
        self.loose.add(name, now);
        self.ear.chores_at(now + QUIET * 2);
    }

    /// Ends what could not be ended before, and removes what has been idle for a while.
    pub(crate) async fn do_chores(&self) {
        self.end_again().await;
        let (names, next) = self.loose.take_in_hand(Instant::now() - QUIET);
        if let Some(next) = next {
            self.ear.chores_at(next + QUIET * 2);
        }
        for names in names.chunks(TOGETHER) {
            match self.desk.tidy(names).await {
                Ok(_) => self.loose.are_gone(names),
                Err(_) => names.iter().for_each(|name| self.is_loose(name)), // nothing hurts meanwhile: later, then
            }
        }
    }

    /// Now and then, a look at some names whose clients may have died.
    pub(crate) fn tidy_now_and_then(self: &Arc<Self>) {
        if !self.loose.asks.fetch_add(1, Ordering::Relaxed).is_multiple_of(EVERY) {
            return;
        }
        let inner = Arc::clone(self);
        self.spawn(async move {
            let came_by = || inner.loose.came_by.lock().unwrap_or_else(PoisonError::into_inner);
            for _ in 0..REQUESTS {
                let after = came_by().clone();
                let Ok(said) = inner.desk.tidy_after(after.as_ref(), AT_ONCE).await else { return };
                let is_the_end = said.value.is_none();
                *came_by() = said.value;
                if is_the_end {
                    return;
                }
            }
        });
    }

    /// The client is about to end: what it leaves in the store besides its holds goes now.
    pub(crate) async fn leave(&self) -> Result<()> {
        let names = self.loose.take_all();
        let mut left = names.as_slice();
        let mut tries = Tries::of(&self.desk);
        loop {
            let (names, others) = left.split_at(left.len().min(TOGETHER));
            match tries.limit(self.desk.leave(names)).await {
                Ok(_) if others.is_empty() => return Ok(()),
                Ok(_) => (left, tries) = (others, Tries::of(&self.desk)),
                Err(failure) if tries.again(&failure).await => {}
                Err(failure) => return Err(failure.error),
            }
        }
    }
}
