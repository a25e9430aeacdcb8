//! Ending a claim: whatever its id left behind, by its own key and the revision at which it was made.
//!
//! Who can interleave: the next claim of this client on the name has the same key. An end compares its create revision, or nothing at
//! the first try of the usual one; where that was not answered it takes the key out of use (see
//! [`Entry::loose`](crate::table::Entry::loose)). A copy of the claim's ask may arrive after its end, after
//! minutes too, where a member stood still: where one may be on its way the end leaves a mark in the same transaction, on the lease on
//! which that copy would put its key. So the mark is there for as long as anything can come of the copy, and needs nobody to remove it. A
//! minimum hold leaves the key where it is, on a lease of its own that ends when the name opens; this client opens it to the
//! millisecond, and the lease does where the client is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::{Claim, ClaimId, Instant, Result};

use crate::codec::Value;
use crate::config::Layout;
use crate::error::{Failure, Next};
use crate::inner::Inner;
use crate::leases::{OnLease, whole_seconds};
use crate::link::Answer;
use crate::proto::*;
use crate::schema::shown;
use crate::table::Stage;

/// What an end must know of its claim.
struct Ending {
    key: Vec<u8>,
    revision: i64,
    /// The lease on which a copy of its ask may still put its key.
    doubt: Option<OnLease>,
    /// For how much longer the name must stay closed.
    closed_for: Duration,
    on: Option<OnLease>,
}

impl Inner {
    /// Ends whatever a claim left behind; `false` if its key was surely gone before.
    ///
    /// # Cancel safety
    /// Dropped, it may have been ended or not: end it again.
    pub(crate) async fn end(self: &Arc<Self>, claim: &Claim, min_hold: Duration) -> Result<bool> {
        let Some(ending) = self.begin_ending(claim.id, min_hold) else { return Ok(true) };
        if !ending.closed_for.is_zero() {
            return self.close_name(claim, &ending).await;
        }
        match self.end_now(claim, &ending).await {
            Ok(was_there) => {
                self.forget(claim.id);
                Ok(was_there)
            }
            Err(failure) => {
                if let Some(entry) = self.table().claims.get_mut(&claim.id) {
                    entry.ending = false;
                }
                Err(failure.error)
            }
        }
    }

    /// Ends a claim whose time is over.
    pub(crate) async fn end_by_id(self: &Arc<Self>, id: ClaimId) -> Result<()> {
        let claim = self.table().claims.get(&id).map(|entry| entry.claim.clone());
        match claim {
            Some(claim) => self.end(&claim, Duration::ZERO).await.map(drop),
            None => Ok(()),
        }
    }

    /// `None` if there is nothing to be ended.
    fn begin_ending(&self, id: ClaimId, min_hold: Duration) -> Option<Ending> {
        let now = Instant::now();
        let mut table = self.table();
        let entry = table.claims.get_mut(&id)?;
        let closed_for = match entry.stage {
            Stage::Held { since } if entry.expires > now => (since + min_hold).since(now),
            Stage::Closing if entry.expires > now => return None,
            _ => Duration::ZERO,
        };
        entry.ending = closed_for.is_zero();
        entry.given_up = Some(now);
        let has_lease = self.schema.layout == Layout::Concurrency && entry.on.is_some(); // which is its own, and goes with it
        if entry.key.is_empty() || (entry.revision == 0 && entry.doubt().is_none() && !has_lease) {
            drop(table);
            self.forget(id); // nothing was ever sent, or nothing came of it
            return None;
        }
        Some(Ending {
            key: entry.key.clone(),
            revision: entry.revision,
            doubt: entry.doubt().cloned(),
            closed_for,
            on: entry.on.clone(),
        })
    }

    async fn end_now(&self, claim: &Claim, ending: &Ending) -> std::result::Result<bool, Failure> {
        if self.schema.layout == Layout::Concurrency
            && let Some(on) = &ending.on
        {
            return self.revoke(on.lease().id).await.map(|()| true); // the key goes with it, and no copy of the ask can bring it back
        }
        if ending.revision > 0 && ending.doubt.is_none() {
            return self.delete_at_once(claim.id, &ending.key, ending.revision).await;
        }
        let (mut revision, mut doubt) = (ending.revision, ending.doubt.as_ref());
        if revision == 0 {
            // Its ask was not answered. What is under its key is its own, or that of a twin (see `ask`).
            let look = TxnRequest { success: vec![read(RangeRequest::one(&ending.key))], ..Default::default() };
            let found = self.do_and_mark(claim, doubt.take(), look).await?.value.reads().into_iter().flatten().next();
            let is_own = |kv: &KeyValue| {
                let value = Value::decode(&kv.value);
                value.id == shown(claim.id) && !value.closing
            };
            match found.filter(is_own) {
                Some(kv) => revision = kv.create_revision,
                None => return Ok(true),
            }
        }
        let success = vec![delete(&ending.key)];
        // Its key is used again by the next claim of this client: it must be this one's.
        let txn = TxnRequest { compare: vec![created_at(&ending.key, revision)], success, failure: Vec::new() };
        let answer = self.do_and_mark(claim, doubt, txn).await?;
        Ok(answer.value.succeeded || !answer.clean)
    }

    /// Does this, and where a copy of the claim's ask may be on its way, marks the claim as ended in the same step.
    async fn do_and_mark(
        &self,
        claim: &Claim,
        doubt: Option<&OnLease>,
        txn: TxnRequest,
    ) -> std::result::Result<Answer<TxnResponse>, Failure> {
        if let Some(on) = doubt {
            let mark = put(&self.schema.ended(claim.id), b"ended".to_vec(), on.lease().id);
            let mut marking = txn.clone();
            marking.success.push(mark.clone());
            marking.failure.push(mark);
            on.lease().marked();
            match self.txn("ending a claim", marking).await {
                // Without one, then: a mark is a write, which a full disk refuses; and on a lease that is gone nobody can put anything.
                Err(failure) if matches!(failure.next, Next::Full | Next::NoLease) => {}
                answer => return answer,
            }
        }
        self.txn("releasing a lock", txn).await
    }

    /// The usual end: a delete that compares nothing, which costs the server a tenth less than a transaction. Nobody but this claim
    /// has the key until that was answered, and unless it was answered at the first try nobody has it ever again. Nobody but a twin, so
    /// the second try compares.
    async fn delete_at_once(&self, id: ClaimId, key: &[u8], revision: i64) -> std::result::Result<bool, Failure> {
        if let Some(entry) = self.table().claims.get_mut(&id) {
            entry.loose += 1; // it is on its way from now on
        }
        let request = DeleteRangeRequest { key: key.to_vec(), range_end: Vec::new() };
        let again = TxnRequest { compare: vec![created_at(key, revision)], success: vec![delete(key)], failure: Vec::new() };
        let is_sent = AtomicBool::new(false);
        let answer = self
            .asks
            .call("releasing a lock", |wire| {
                let (request, again, is_sent) = (request.clone(), again.clone(), is_sent.swap(true, Ordering::Relaxed));
                async move {
                    match is_sent {
                        false => wire.delete(request).await.map(|answer| answer.deleted > 0),
                        true => wire.txn(again).await.map(|answer| answer.succeeded),
                    }
                }
            })
            .await?;
        if answer.clean
            && let Some(entry) = self.table().claims.get_mut(&id)
        {
            entry.loose = entry.loose.saturating_sub(1);
        }
        Ok(answer.value || !answer.clean)
    }

    /// Keeps the name closed for the rest of the minimum hold.
    async fn close_name(self: &Arc<Self>, claim: &Claim, ending: &Ending) -> Result<bool> {
        let lease = self.grant(whole_seconds(ending.closed_for), &self.asks).await?;
        let opens = Instant::now() + ending.closed_for;
        let value = Value { closing: true, ttl: ending.closed_for, ..Value::of(claim) };
        let success = vec![put(&ending.key, value.encode(), lease.id)];
        let txn = TxnRequest { compare: vec![created_at(&ending.key, ending.revision)], success, failure: Vec::new() };
        let answer = self.txn("keeping a name closed", txn).await.map_err(|failure| failure.error)?;
        if !answer.value.succeeded {
            self.forget(claim.id);
            let _ = self.revoke(lease.id).await;
            return Ok(!answer.clean);
        }
        if let Some(entry) = self.table().claims.get_mut(&claim.id) {
            entry.stage = Stage::Closing;
            entry.expires = opens;
            entry.on = Some(OnLease::of(&Arc::new(lease)));
        }
        self.beat_by(opens);
        Ok(true)
    }

    /// Ends a lease and everything on it.
    pub(crate) async fn revoke(&self, id: i64) -> std::result::Result<(), Failure> {
        match self.asks.call("ending a lease", |wire| async move { wire.lease_revoke(id).await }).await {
            Ok(_) => {}
            Err(failure) if failure.next == Next::NoLease => {} // it has ended
            Err(failure) => return Err(failure),
        }
        self.leases.forget(id);
        Ok(())
    }

    /// Revokes the leases that nobody is on.
    pub(crate) async fn close(&self) -> Result<()> {
        for lease in self.leases.unused() {
            self.revoke(lease.id).await.map_err(|failure| failure.error)?;
        }
        Ok(())
    }
}
