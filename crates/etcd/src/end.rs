//! Ending a claim: whatever its id left behind, by its own key and the revision at which it was made.
//!
//! Who can interleave: the next claim of this client on the name has the same key, and so has a machine that was restored from the
//! same snapshot: an end compares the create revision. Whoever breaks a hold with a lock delay leaves its key, on another lease: an end
//! compares the lease. So a copy of it that arrives late ends nothing else. A copy of the claim's ask may arrive after its end, after
//! minutes too, where a member stood still: where one may be on its way the end leaves a mark in the same transaction, on the lease on
//! which that copy would put its key. So the mark is there for as long as anything can come of the copy, and needs nobody to remove it. A
//! minimum hold leaves the key where it is, on a lease of its own that ends when the name opens; this client opens it to the
//! millisecond, and the lease does where the client is gone.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Claim, ClaimId, Instant, Result};

use crate::codec::Value;
use crate::config::Layout;
use crate::error::{Attempt, Next};
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
            Ok((is_deleted, may_have_been)) => {
                self.forget(claim.id, is_deleted);
                Ok(may_have_been)
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
            self.forget(id, false); // nothing was ever sent, or nothing came of it
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

    /// Whether it deleted the claim's key, and whether it may have, unheard.
    async fn end_now(self: &Arc<Self>, claim: &Claim, ending: &Ending) -> Attempt<(bool, bool)> {
        let lease = ending.on.as_ref().map(|on| on.lease().id).filter(|_| self.schema.layout == Layout::Concurrency);
        let mut ended = (false, true);
        if ending.revision > 0 || lease.is_none() {
            let doubt = ending.doubt.as_ref().filter(|_| lease.is_none());
            let (is_done, is_clean) = self.change_own(claim, ending, doubt, delete(&ending.key), None).await?;
            ended = (is_done, is_done || !is_clean || ending.revision == 0);
        }
        // No copy of the ask can bring a key back whose lease is gone.
        match lease {
            Some(lease) if ending.revision == 0 || ending.doubt.is_some() => self.revoke(lease).await?,
            Some(lease) => {
                let inner = Arc::clone(self);
                self.spawn(async move { drop(inner.revoke(lease).await) });
            }
            None => {}
        }
        Ok(ended)
    }

    /// Changes a claim's key, unless somebody has broken the claim; `to` is the lease that the change puts it on. Whether it was
    /// done, and if not, whether that is sure.
    async fn change_own(
        &self,
        claim: &Claim,
        ending: &Ending,
        mut doubt: Option<&OnLease>,
        change: RequestOp,
        to: Option<i64>,
    ) -> Attempt<(bool, bool)> {
        let key = &ending.key;
        // Where the ask was not answered, there may be nothing.
        let lease = ending.on.as_ref().filter(|_| ending.revision > 0).map_or(0, |on| on.lease().id);
        let (mut at, mut is_clean) = ((ending.revision, lease), true);
        loop {
            let compare = vec![created_at(key, at.0), is_on(key, at.1)];
            let txn = TxnRequest { compare, success: vec![change.clone()], failure: Vec::new() };
            let answer = self.do_and_mark(claim, doubt.take(), txn).await?;
            is_clean &= answer.clean;
            if answer.value.succeeded {
                return Ok((true, is_clean));
            }
            let found = self.asks.range("releasing a lock", RangeRequest::one(key)).await?.value.kvs.into_iter().next();
            match found.filter(|kv| ending.revision == 0 || kv.create_revision == ending.revision) {
                Some(kv) if to == Some(kv.lease) => return Ok((true, is_clean)),
                // Its ask was not answered, or a renewal that moved it. What is under its key may also be that of a twin (see `ask`).
                Some(kv) if is_of(&kv, claim) => at = (kv.create_revision, kv.lease),
                _ => return Ok((false, is_clean)),
            }
        }
    }

    /// Does this, and where a copy of the claim's ask may be on its way, marks the claim as ended in the same step.
    async fn do_and_mark(&self, claim: &Claim, doubt: Option<&OnLease>, txn: TxnRequest) -> Attempt<Answer<TxnResponse>> {
        if let Some(on) = doubt {
            let mark = put(&self.schema.ended(claim.id), b"ended".to_vec(), on.lease().id);
            let mut marking = txn.clone();
            marking.success.push(mark.clone());
            marking.failure.push(mark);
            on.lease().marked();
            match self.asks.txn("ending a claim", marking).await {
                // Without one, then: a mark is a write, which a full disk refuses; and on a lease that is gone nobody can put anything.
                Err(failure) if matches!(failure.next, Next::Full | Next::NoLease) => {}
                answer => return answer,
            }
        }
        self.asks.txn("releasing a lock", txn).await
    }

    /// Keeps the name closed for the rest of the minimum hold.
    async fn close_name(self: &Arc<Self>, claim: &Claim, ending: &Ending) -> Result<bool> {
        let lease = self.grant(whole_seconds(ending.closed_for), &self.asks).await?;
        let opens = Instant::now() + ending.closed_for;
        let value = Value { closing: true, ttl: ending.closed_for, ..Value::of(claim) };
        let close = put(&ending.key, value.encode(), lease.id);
        let (is_done, is_clean) =
            self.change_own(claim, ending, None, close, Some(lease.id)).await.map_err(|failure| failure.error)?;
        if !is_done {
            self.forget(claim.id, false);
            let _ = self.revoke(lease.id).await;
            return Ok(!is_clean);
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
    pub(crate) async fn revoke(&self, id: i64) -> Attempt<()> {
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

/// Whether a key is this claim's, and nobody has closed it.
fn is_of(kv: &KeyValue, claim: &Claim) -> bool {
    let value = Value::decode(&kv.value);
    value.id == shown(claim.id) && !value.closing
}

#[cfg(test)]
mod tests;
