//! What a client knows of its own claims: which key, on which lease, how far it got.
//!
//! A claim is entered before its first request leaves and goes when its end was answered, or when the server said that its key
//! is gone. What is not here has nothing in the store, so ending it asks for nothing.

use std::collections::HashMap;
use std::time::Duration;

use tenure_core::{Ask, Claim, ClaimId, Instant};
use tokio::sync::mpsc::UnboundedSender;

use crate::leases::{Lease, OnLease, seconds};

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
    /// Its token, once it holds.
    pub(crate) token: i64,
    pub(crate) stage: Stage,
    pub(crate) on: Option<OnLease>,
    /// When it ends in the store unless it is renewed: the lease may be kept alive by others, so this client ends it then.
    pub(crate) expires: Instant,
    /// A copy of its ask may be on its way: its end leaves a mark.
    pub(crate) doubtful: bool,
    /// It became the writer: there is a key beside its own.
    pub(crate) beside: bool,
    pub(crate) asked: Option<Ask>,
    /// Its end is being asked for.
    pub(crate) ending: bool,
    /// Wakes whoever waits for it: its key is gone.
    pub(crate) signal: Option<UnboundedSender<()>>,
}

impl Entry {
    pub(crate) fn new(claim: &Claim) -> Self {
        Entry {
            claim: claim.clone(),
            key: Vec::new(),
            revision: 0,
            token: 0,
            stage: Stage::Asking,
            on: None,
            expires: Instant::NEVER,
            doubtful: true,
            beside: false,
            asked: None,
            ending: false,
            signal: None,
        }
    }

    /// For how long its lease is good for it: its ttl, or what a waiter is granted.
    pub(crate) fn trusted(&self) -> Duration {
        match &self.on {
            Some(on) if on.lease().seconds < seconds(&self.claim) => self.claim.handover_ttl,
            _ => self.claim.ttl,
        }
    }

    pub(crate) fn is_on(&self, lease: &Lease) -> bool {
        self.on.as_ref().is_some_and(|on| on.lease().id == lease.id)
    }
}

/// All claims of a client.
#[derive(Default)]
pub(crate) struct Table {
    pub(crate) claims: HashMap<ClaimId, Entry>,
    pub(crate) keys: HashMap<Vec<u8>, ClaimId>,
}

impl Table {
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

    pub(crate) fn remove(&mut self, id: ClaimId) -> Option<Entry> {
        let entry = self.claims.remove(&id)?;
        self.keys.remove(&entry.key);
        Some(entry)
    }

    /// The create revision of a key that is a claim of ours.
    pub(crate) fn ours(&self, key: &[u8]) -> Option<i64> {
        self.keys.get(key).and_then(|id| self.claims.get(id)).map(|entry| entry.revision).filter(|revision| *revision > 0)
    }
}
