//! Names for which a moment was waited in vain just now. Whoever comes next would wait as long again, and send one request more for
//! it: it had better be seen at once.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::{Instant, LockName};

/// How many are told apart: two names that share a place are slower, and no more than that.
const PLACES: usize = 64;
/// After that it is worth another try.
const LATELY: Duration = Duration::from_secs(1);

/// When that was, by a part of the name's hash.
pub(super) struct InVain([AtomicU64; PLACES]);

impl InVain {
    pub(super) fn new() -> Self {
        InVain([const { AtomicU64::new(0) }; PLACES])
    }

    fn place(&self, name: &LockName) -> &AtomicU64 {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        &self.0[hasher.finish() as usize % PLACES]
    }

    /// It was.
    pub(super) fn note(&self, name: &LockName, at: Instant) {
        self.place(name).store(at.as_nanos(), Ordering::Relaxed);
    }

    /// Whether it was, not long before.
    pub(super) fn was_lately(&self, name: &LockName, now: Instant) -> bool {
        match self.place(name).load(Ordering::Relaxed) {
            0 => false,
            at => now < Instant::from_nanos(at) + LATELY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_forgotten_after_a_while() {
        let (in_vain, name, now) = (InVain::new(), LockName::new("x").unwrap(), Instant::now());
        assert!(!in_vain.was_lately(&name, now));
        in_vain.note(&name, now);
        assert!(in_vain.was_lately(&name, now + LATELY - Duration::from_nanos(1)));
        assert!(!in_vain.was_lately(&name, now + LATELY));
        let elsewhere = |n: &u32| !in_vain.was_lately(&LockName::new(format!("y{n}")).unwrap(), now);
        assert!((0..100).filter(elsewhere).count() > 80, "others have places of their own");
    }
}
