//! Leases: one for each ttl, shared by all claims of a client that have it.
//!
//! A lease is made when it is first needed, under an id of our own, so that making it twice makes it once. It lasts from when
//! the server last heard of it, which was after the keepalive was *sent*: that moment is its base, and a claim's window counts from
//! there. A lease that nobody needs is not kept alive and ends by itself; one that was not used for a while is kept alive
//! right before the ask that uses it.
//!
//! A claim asks on the lease of its ttl. One that must wait moves to a short one before long, so that a waiter that died is
//! skipped soon; let in, it stands on that, and trusts it for as long as it lasts, until its first renewal moves it back. Others would
//! wait for that lease anyway: to trust it for less would save nobody anything, and lose holds where a network is slow.
//!
//! The marks of claims that were ended while a copy of their ask might still arrive are on the lease of the ask (see `end`), and go with
//! it. A busy client keeps its lease alive for ever, so after [many](MANY) marks newcomers are on another one, and that ends when the last of
//! those who are on it lets go.
//!
//! A lease is known before it is asked for: where the answer is lost, or nobody waits for it any more, the lease may be there all the
//! same. Closing a client revokes every lease that may be there and that nobody is on.
//!
//! Who can interleave: any number of claims join and leave while one of them, the heart or a renewal keeps the lease alive.
//! `users` counts the claims that are on it, so that closing a client revokes only what nobody is on; who joins while it is being
//! revoked finds it dead and makes another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::{Claim, Instant, random};

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

    /// Whether nobody is on it.
    fn is_unused(&self) -> bool {
        self.users.load(Ordering::Acquire) == 0
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
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The leases for newcomers, by their seconds.
    current: HashMap<u64, Arc<Lease>>,
    /// Every lease that may be there, by its id.
    all: HashMap<i64, Arc<Lease>>,
}

impl Leases {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease for so many seconds, if it is there, surely not over yet, and has room for marks.
    pub(crate) fn get(&self, seconds: u64, now: Instant) -> Option<OnLease> {
        let current = &mut self.known().current;
        let lease = current.get(&seconds)?;
        if !lease.surely_lasts(now) || lease.marks.load(Ordering::Relaxed) >= MANY {
            current.remove(&seconds);
            return None;
        }
        Some(OnLease::of(lease))
    }

    /// The lease of this id, if it is one of ours and surely not over yet.
    pub(crate) fn by_id(&self, id: i64, now: Instant) -> Option<OnLease> {
        let known = self.known();
        let lease = known.all.get(&id)?;
        lease.surely_lasts(now).then(|| OnLease::of(lease))
    }

    /// Notes a lease that is about to be asked for: from now on it may be there.
    pub(crate) fn expect(&self, lease: Lease, now: Instant) -> OnLease {
        let all = &mut self.known().all;
        all.retain(|_, lease| !lease.is_unused() || lease.surely_lasts(now)); // the others end by themselves
        let lease = Arc::new(lease);
        all.insert(lease.id, Arc::clone(&lease));
        OnLease::of(&lease)
    }

    /// A lease is not there, or not any more.
    pub(crate) fn forget(&self, id: i64) {
        self.known().all.remove(&id);
    }

    /// Offers a lease to newcomers, unless somebody on another link was quicker: then theirs is used.
    pub(crate) fn offer(&self, on: OnLease, now: Instant) -> OnLease {
        let current = &mut self.known().current;
        if let Some(there) = current.get(&on.lease().seconds).filter(|there| there.surely_lasts(now)) {
            return OnLease::of(there);
        }
        current.insert(on.lease().seconds, Arc::clone(on.lease()));
        on
    }

    /// What nobody is on, to be revoked: nobody joins it any more.
    pub(crate) fn unused(&self) -> Vec<Arc<Lease>> {
        let Known { current, all } = &mut *self.known();
        let unused: Vec<_> = all.values().filter(|lease| lease.is_unused()).map(Arc::clone).collect();
        unused.iter().for_each(|lease| lease.die());
        current.retain(|_, lease| !lease.is_dead());
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
    (i64::from_le_bytes(random()) & i64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks for a lease, and offers it.
    fn add(leases: &Leases, id: i64, seconds: u64, now: Instant) -> OnLease {
        leases.offer(leases.expect(Lease::new(id, seconds, now), now), now)
    }

    #[test]
    fn what_is_used_is_not_revoked() {
        let leases = Leases::default();
        let now = Instant::now();
        let user = add(&leases, 1, 30, now);
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
        add(&leases, 1, 2, now);
        assert!(leases.get(2, now + Duration::from_secs(1)).is_some());
        assert!(leases.get(2, now + Duration::from_secs(2)).is_none());
    }

    /// Marks stay for as long as their lease, so that must not live for ever; whoever is on it stays there.
    #[test]
    fn after_many_marks_newcomers_are_on_another() {
        let leases = Leases::default();
        let now = Instant::now();
        let first = add(&leases, 1, 30, now);
        (1..MANY).for_each(|_| first.lease().marked());
        assert!(leases.get(30, now).is_some());
        first.lease().marked();
        assert!(leases.get(30, now).is_none());
        assert_eq!(add(&leases, 2, 30, now).lease().id, 2);
        assert!(!first.lease().is_dead());
    }

    /// A lease that newcomers are not put on any more lasts for as long as its ttl: closing a client revokes it all the same. So it does
    /// with one that nobody heard to be made.
    #[test]
    fn whatever_may_be_there_is_revoked() {
        let leases = Leases::default();
        let now = Instant::now();
        let first = add(&leases, 1, 30, now);
        (0..MANY).for_each(|_| first.lease().marked());
        assert!(leases.get(30, now).is_none());
        let second = add(&leases, 2, 30, now);
        let unheard = leases.expect(Lease::new(3, 40, now), now);
        assert!(leases.unused().is_empty(), "they are used");
        drop((first, second, unheard));
        leases.forget(2);
        let mut ids: Vec<_> = leases.unused().iter().map(|lease| lease.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [1, 3]);
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let leases = Leases::default();
        let now = Instant::now();
        let used = add(&leases, 1, 2, now);
        drop(add(&leases, 2, 3, now));
        drop(leases.expect(Lease::new(3, 60, now), now + Duration::from_secs(5)));
        drop(used);
        let mut ids: Vec<_> = leases.unused().iter().map(|lease| lease.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [1, 3], "the second has ended by itself");
    }

    #[test]
    fn of_two_that_are_made_at_once_the_first_is_used() {
        let leases = Leases::default();
        let now = Instant::now();
        let first = add(&leases, 1, 30, now);
        assert_eq!(add(&leases, 2, 30, now).lease().id, 1);
        first.lease().die();
        assert_eq!(add(&leases, 3, 30, now).lease().id, 3, "unless it is dead");
    }

    #[test]
    fn seconds_are_rounded_up() {
        for (time, seconds) in [(1, 1), (1_000, 1), (1_001, 2), (30_000, 30)] {
            assert_eq!(whole_seconds(Duration::from_millis(time)), seconds);
        }
    }
}
