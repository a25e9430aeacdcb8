//! Leases: one for each ttl, shared by all claims of a client that have it.
//!
//! A lease is made when it is first needed, under an id of our own, so that making it twice makes it once. It lasts from when
//! the server last heard of it, which was after the keepalive was *sent*: that moment is its base, and a claim's window counts from
//! there. A lease that nobody needs is not kept alive and ends by itself; one that was not used for a while is kept alive
//! in the same flight as the ask that uses it.
//!
//! A claim asks on the lease of its ttl. One that must wait moves to a short one before long, so that a waiter that died is
//! skipped soon; let in, it stands on that, and trusts it for as long as it lasts, until its first renewal moves it back. Others would
//! wait for that lease anyway: to trust it for less would save nobody anything, and lose holds where a network is slow.
//!
//! The marks of claims that were ended while a copy of their ask might still arrive are on the lease of the ask (see `end`), and go with
//! it. A busy client keeps its lease alive for ever, so after [many](MANY) marks newcomers are on another one, and that ends when the last of
//! those who are on it lets go.
//!
//! Who can interleave: any number of claims join and leave while one of them, the heart or a renewal keeps the lease alive.
//! `users` counts those who are on it, so that closing a client revokes only what nobody is on; who joins while it is being
//! revoked finds it dead and makes another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::{Claim, Instant};

/// A lease of this client's.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    /// What was asked for; the server may have granted more.
    pub(crate) seconds: u64,
    /// When the last keepalive that was answered had been sent, in nanoseconds.
    base: AtomicU64,
    dead: AtomicBool,
    users: AtomicUsize,
    marks: AtomicUsize,
}

impl Lease {
    pub(crate) fn new(id: i64, seconds: u64, sent: Instant) -> Self {
        let base = AtomicU64::new(sent.as_nanos());
        let (dead, users, marks) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
        Lease { id, seconds, base, dead, users, marks }
    }

    /// From when it lasts.
    pub(crate) fn base(&self) -> Instant {
        Instant::from_nanos(self.base.load(Ordering::Acquire))
    }

    /// The server heard of it after this.
    pub(crate) fn kept_since(&self, sent: Instant) {
        self.base.fetch_max(sent.as_nanos(), Ordering::AcqRel);
    }

    /// It is gone, or must be taken for it.
    pub(crate) fn die(&self) {
        self.dead.store(true, Ordering::Release);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// A mark is put on it.
    pub(crate) fn marked(&self) {
        self.marks.fetch_add(1, Ordering::Relaxed);
    }

    /// How long it lasts from its base.
    pub(crate) fn lasts(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// Whether it is surely not over yet.
    fn surely_lasts(&self, now: Instant) -> bool {
        !self.is_dead() && self.base() + self.lasts() > now
    }
}

/// Being on a lease: as long as this is there, nobody revokes it for want of users.
#[derive(Debug)]
pub(crate) struct OnLease(Arc<Lease>);

impl OnLease {
    pub(crate) fn lease(&self) -> &Arc<Lease> {
        &self.0
    }
}

impl Clone for OnLease {
    fn clone(&self) -> Self {
        OnLease::of(&self.0)
    }
}

impl OnLease {
    pub(crate) fn of(lease: &Arc<Lease>) -> Self {
        lease.users.fetch_add(1, Ordering::AcqRel);
        OnLease(Arc::clone(lease))
    }
}

impl Drop for OnLease {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The leases of a client.
#[derive(Default)]
pub(crate) struct Leases {
    by_seconds: Mutex<HashMap<u64, Arc<Lease>>>,
}

impl Leases {
    fn map(&self) -> MutexGuard<'_, HashMap<u64, Arc<Lease>>> {
        self.by_seconds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease for so many seconds, if it is there, surely not over yet, and has room for marks.
    pub(crate) fn get(&self, seconds: u64, now: Instant) -> Option<OnLease> {
        let mut map = self.map();
        let lease = map.get(&seconds)?;
        if !lease.surely_lasts(now) || lease.marks.load(Ordering::Relaxed) >= MANY {
            map.remove(&seconds);
            return None;
        }
        Some(OnLease::of(lease))
    }

    /// The lease of this id, if it is one of ours and surely not over yet.
    pub(crate) fn by_id(&self, id: i64, now: Instant) -> Option<OnLease> {
        let map = self.map();
        let lease = map.values().find(|lease| lease.id == id)?;
        lease.surely_lasts(now).then(|| OnLease::of(lease))
    }

    /// Adds a lease, unless somebody on another link was quicker: then it is theirs, and this one ends by itself.
    pub(crate) fn add(&self, lease: Lease, now: Instant) -> OnLease {
        let mut map = self.map();
        if let Some(there) = map.get(&lease.seconds).filter(|there| there.surely_lasts(now)) {
            return OnLease::of(there);
        }
        let lease = Arc::new(lease);
        let user = OnLease::of(&lease);
        map.insert(lease.seconds, lease);
        user
    }

    /// Takes out what nobody is on, for it to be revoked.
    pub(crate) fn unused(&self) -> Vec<Arc<Lease>> {
        let mut map = self.map();
        let unused: Vec<_> = map.values().filter(|lease| lease.users.load(Ordering::Acquire) == 0).map(Arc::clone).collect();
        for lease in &unused {
            lease.die();
            map.remove(&lease.seconds);
        }
        unused
    }
}

/// So many marks are enough for one lease: every renewal hears of them all.
const MANY: usize = 64;

/// The lease that a hold needs, in whole seconds.
pub(crate) fn seconds(claim: &Claim) -> u64 {
    whole_seconds(claim.ttl + claim.lock_delay)
}

/// The lease that a waiter needs: one that died costs those behind it this, and not its whole ttl.
pub(crate) fn waiting_seconds(claim: &Claim) -> u64 {
    whole_seconds(claim.handover_ttl.max(WAITING).min(claim.ttl) + claim.lock_delay)
}

/// How long a waiter keeps its place unheard: longer than it takes to elect a leader, and to find it.
const WAITING: Duration = Duration::from_secs(5);

pub(crate) fn whole_seconds(time: Duration) -> u64 {
    (time.as_secs() + u64::from(time.subsec_nanos() > 0)).max(1)
}

/// A lease's id, never 0.
pub(crate) fn fresh_id() -> i64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the kernel has random numbers");
    (i64::from_le_bytes(bytes) & i64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_is_not_revoked() {
        let leases = Leases::default();
        let now = Instant::now();
        let user = leases.add(Lease::new(1, 30, now), now);
        assert!(leases.unused().is_empty());
        let twin = leases.get(30, now).expect("it is there");
        drop(user);
        assert!(leases.unused().is_empty());
        drop(twin);
        assert_eq!(leases.unused().len(), 1);
        assert!(leases.get(30, now).is_none(), "whoever comes later makes another");
    }

    #[test]
    fn what_may_be_over_is_not_used() {
        let leases = Leases::default();
        let now = Instant::now();
        leases.add(Lease::new(1, 2, now), now);
        assert!(leases.get(2, now + Duration::from_secs(1)).is_some());
        assert!(leases.get(2, now + Duration::from_secs(2)).is_none());
    }

    /// Marks stay for as long as their lease, so that must not live for ever; whoever is on it stays there.
    #[test]
    fn after_many_marks_newcomers_are_on_another() {
        let leases = Leases::default();
        let now = Instant::now();
        let first = leases.add(Lease::new(1, 30, now), now);
        (1..MANY).for_each(|_| first.lease().marked());
        assert!(leases.get(30, now).is_some());
        first.lease().marked();
        assert!(leases.get(30, now).is_none());
        assert_eq!(leases.add(Lease::new(2, 30, now), now).lease().id, 2);
        assert!(!first.lease().is_dead());
    }

    #[test]
    fn of_two_that_are_made_at_once_the_first_is_used() {
        let leases = Leases::default();
        let now = Instant::now();
        let first = leases.add(Lease::new(1, 30, now), now);
        assert_eq!(leases.add(Lease::new(2, 30, now), now).lease().id, 1);
        first.lease().die();
        assert_eq!(leases.add(Lease::new(3, 30, now), now).lease().id, 3, "unless it is dead");
    }

    #[test]
    fn seconds_are_rounded_up() {
        for (time, seconds) in [(1, 1), (1_000, 1), (1_001, 2), (30_000, 30)] {
            assert_eq!(whole_seconds(Duration::from_millis(time)), seconds);
        }
    }
}
