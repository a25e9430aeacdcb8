//! What a client knows of its own claims: which key, on which lease, how far it got.
//!
//! A claim is entered before its first request leaves and goes when its end was answered, or when the server said that its key
//! is gone. What is not here has nothing in the store, so ending it asks for nothing.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tenure_core::{Ask, Claim, ClaimId, Instant, LockName};
use tokio::sync::mpsc::UnboundedSender;

use crate::leases::{Lease, OnLease, fresh_id};
use crate::schema::Seat;

/// How far a claim got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Asked for, and not answered yet.
    Asking,
    /// In line.
    Waiting,
    /// Held, since then.
    Held { since: Instant },
    /// Let go before its minimum hold was over.
    Closing,
}

/// One claim.
pub(crate) struct Entry {
    pub(crate) claim: Claim,
    pub(crate) key: Vec<u8>,
    /// Its create revision; 0 while it is not known.
    pub(crate) revision: i64,
    /// The revision at which this client has last written its key, as far as it knows: a copy of an earlier look finds another.
    pub(crate) written: i64,
    pub(crate) stage: Stage,
    pub(crate) on: Option<OnLease>,
    /// The lease that it may be on already: it was to be moved there, and no answer came.
    pub(crate) moving_to: Option<OnLease>,
    /// When it ends in the store unless it is renewed: the lease may be kept alive by others, so this client ends it then.
    pub(crate) expires: Instant,
    /// An ask of it was sent and not answered yet, or refused, perhaps since its key is there from before: nobody knows yet.
    pub(crate) under_way: bool,
    /// A copy of an ask of it may be on its way, though another was answered: it would put its key on this lease.
    pub(crate) copied: Option<OnLease>,
    pub(crate) seat: Option<Seat>,
    pub(crate) asked: Option<Ask>,
    /// Its key was seen to be gone while it was asked for or in line: what is seen of that line grants nothing.
    pub(crate) gone: bool,
    /// Its end is being asked for.
    pub(crate) ending: bool,
    /// When its end was last asked for, unless it was asked for itself after that: nobody needs it any more.
    pub(crate) given_up: Option<Instant>,
    /// Wakes whoever waits for it: its key is gone.
    pub(crate) signal: Option<UnboundedSender<()>>,
}

impl Entry {
    pub(crate) fn new(claim: &Claim) -> Self {
        Entry {
            claim: claim.clone(),
            key: Vec::new(),
            revision: 0,
            written: 0,
            stage: Stage::Asking,
            on: None,
            moving_to: None,
            expires: Instant::NEVER,
            under_way: false,
            copied: None,
            seat: None,
            asked: None,
            gone: false,
            ending: false,
            given_up: None,
            signal: None,
        }
    }

    /// The lease on which an ask of it would put its key that may still arrive: its end leaves a mark there. It asks on no other for as
    /// long as there is one.
    pub(crate) fn doubt(&self) -> Option<&OnLease> {
        if self.under_way { self.on.as_ref() } else { self.copied.as_ref() }
    }

    /// For how long its lease is good for it: its ttl, or all that the short lease of those who wait has, but for what the name stays
    /// closed after it.
    pub(crate) fn trusted(&self) -> Duration {
        let lasts = self.on.as_ref().map_or(Duration::MAX, |on| on.lease().lasts());
        self.claim.ttl.min(lasts.saturating_sub(self.claim.lock_delay))
    }

    /// Whether it is on the short lease of those who wait.
    pub(crate) fn is_on_the_short_one(&self) -> bool {
        self.trusted() < self.claim.ttl
    }

    /// How often its lease is kept alive while it waits. The short one often: what is left of it when the claim is let in is all the
    /// time that its first renewal has, over a slow network too.
    pub(crate) fn pace(&self) -> Duration {
        if self.is_on_the_short_one() { self.claim.handover_ttl / 3 } else { self.claim.ttl / 3 }
    }

    pub(crate) fn is_on(&self, lease: &Lease) -> bool {
        self.on.as_ref().is_some_and(|on| on.lease().id == lease.id)
    }
}

/// All claims of a client.
pub(crate) struct Table {
    pub(crate) claims: HashMap<ClaimId, Entry>,
    pub(crate) keys: HashMap<Vec<u8>, ClaimId>,
    /// Who this client is in its keys.
    client: u64,
    /// Which seats are taken, name by name.
    seats: HashMap<LockName, BTreeSet<u32>>,
}

impl Default for Table {
    fn default() -> Self {
        let client = fresh_id() as u64;
        Table { claims: HashMap::new(), keys: HashMap::new(), client, seats: HashMap::new() }
    }
}

impl Table {
    /// The seat of a claim: it keeps the one that it has.
    pub(crate) fn seat(&mut self, claim: &Claim) -> Seat {
        let entry = self.claims.entry(claim.id).or_insert_with(|| Entry::new(claim));
        if let Some(seat) = entry.seat {
            return seat;
        }
        let taken = self.seats.entry(claim.name.clone()).or_default();
        let number = (0..).find(|number| !taken.contains(number)).unwrap_or_default();
        taken.insert(number);
        let seat = Seat { client: self.client, number };
        entry.seat = Some(seat);
        seat
    }

    /// A claim's key keeps the name closed, or is a twin's: it needs another, unless a copy of its ask may still put that one.
    pub(crate) fn move_over(&mut self, id: ClaimId) {
        if let Some(entry) = self.claims.get_mut(&id).filter(|entry| entry.doubt().is_none()) {
            (entry.seat, entry.on) = (None, None);
            self.be_another();
        }
    }

    /// From now on this client uses other keys.
    fn be_another(&mut self) {
        self.client = fresh_id() as u64;
        self.seats.clear();
    }

    /// Has the keys of another client, as a machine does that was restored from the same snapshot.
    #[cfg(test)]
    pub(crate) fn be_twin_of(&mut self, other: &Table) {
        self.client = other.client;
        self.seats.clone_from(&other.seats);
    }

    /// Notes which key a claim has.
    pub(crate) fn name(&mut self, id: ClaimId, key: &[u8]) {
        if let Some(entry) = self.claims.get_mut(&id)
            && entry.key != key
        {
            self.keys.remove(&entry.key);
            entry.key = key.to_vec();
            self.keys.insert(key.to_vec(), id);
        }
    }

    /// Forgets a claim; its seat stays taken until whoever waits behind it was told.
    pub(crate) fn remove(&mut self, id: ClaimId) -> Option<Entry> {
        let entry = self.claims.remove(&id)?;
        self.keys.remove(&entry.key);
        Some(entry)
    }

    /// Gives a seat back.
    pub(crate) fn leave(&mut self, entry: &Entry) {
        let Some(seat) = entry.seat.filter(|seat| seat.client == self.client) else { return };
        let name = &entry.claim.name;
        if let Some(taken) = self.seats.get_mut(name) {
            taken.remove(&seat.number);
            if taken.is_empty() {
                self.seats.remove(name);
            }
        }
    }

    /// Whether a key that was made at this revision is a claim of ours.
    pub(crate) fn ours(&self, key: &[u8], revision: i64) -> bool {
        self.keys.get(key).and_then(|id| self.claims.get(id)).is_some_and(|entry| entry.revision == revision)
    }
}

#[cfg(test)]
mod tests;
