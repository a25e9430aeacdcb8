//! Nothing is left: names that were let go of disappear a moment later, and what dead clients left is found by the living.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::tries::Tries;
use super::{Desk, Inner, QUIET};
use crate::{Instant, LockName, Result};

/// One ask in so many looks for what dead clients left; the first one of a client does.
const EVERY: u32 = 256;
/// How many names it looks at.
const AT_ONCE: usize = 64;
/// How many idle names are removed together: each is a lock or two in the server until all of them are.
const TOGETHER: usize = 256;

/// Names that may be idle.
#[derive(Default)]
pub(crate) struct Loose {
    names: Mutex<HashMap<LockName, Instant>>,
    /// Counts asks, and where the next look begins.
    asks: AtomicU32,
    came_by: Mutex<Option<LockName>>,
}

impl Loose {
    /// Takes the names that were let go of before then; when the next one will have been.
    fn take(&self, before: Instant) -> (Vec<LockName>, Option<Instant>) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = names.extract_if(|_, since| *since <= before).map(|(name, _)| name).collect();
        (taken, names.values().min().copied())
    }
}

impl<D: Desk> Inner<D> {
    /// A claim on the name has ended.
    pub(crate) fn is_loose(&self, name: &LockName) {
        let now = Instant::now();
        let mut names = self.loose.names.lock().unwrap_or_else(PoisonError::into_inner);
        match names.get_mut(name) {
            Some(since) => *since = now,
            None => drop(names.insert(name.clone(), now)),
        }
        drop(names);
        self.ear.chores_at(now + QUIET * 2);
    }

    /// Removes what has been idle for a while.
    pub(crate) async fn do_chores(&self) {
        let (names, next) = self.loose.take(Instant::now() - QUIET);
        if let Some(next) = next {
            self.ear.chores_at(next + QUIET * 2);
        }
        for names in names.chunks(TOGETHER) {
            if self.desk.tidy(names).await.is_err() {
                names.iter().for_each(|name| self.is_loose(name)); // nothing hurts meanwhile: later, then
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
            let after = inner.loose.came_by.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Ok(said) = inner.desk.tidy_after(after.as_ref(), AT_ONCE).await {
                *inner.loose.came_by.lock().unwrap_or_else(PoisonError::into_inner) = said.value;
            }
        });
    }

    /// The client is about to end: what it leaves in the store besides its holds goes now.
    pub(crate) async fn leave(&self) -> Result<()> {
        let (names, _) = self.loose.take(Instant::NEVER);
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
