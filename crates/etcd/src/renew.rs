//! Renewals: one keepalive and two questions for each lease, however many holds are on it, on a channel of their own.
//!
//! A keepalive that is answered "yes" does not prove the hold: servers before 3.4.38, 3.5.23 and 3.6.5 say so of a lease that they
//! are just revoking, and anybody may have removed the key. So the lease's keys are asked for after it: a hold whose key is not
//! among them is lost. The keeper waits for a while only and then drops the future; the next renewal asks another member.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_core::{Claim, ClaimId, Error, Instant, Renewal, Result, margin};
use tokio::task::JoinSet;

use crate::codec::Value;
use crate::config::Layout;
use crate::error::{Attempt, Next};
use crate::inner::Inner;
use crate::leases::{Lease, seconds};
use crate::link::Link;
use crate::proto::{KeyValue, RangeRequest, TxnRequest, created_at, is_on, moved, read};
use crate::table::{Entry, Stage};

/// A renewal that is under way: dropped before it is done, its member was too slow.
struct UnderWay<'a> {
    link: &'a Link,
    number: u64,
    done: AtomicBool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.done.load(Ordering::Relaxed) {
            self.link.leave(self.number);
        }
    }
}

/// What a lease has to say.
enum Kept {
    /// It lasts from then, and these keys are on it.
    Since(Instant, HashSet<Vec<u8>>),
    Gone,
}

impl Inner {
    /// Renews a batch of holds.
    ///
    /// # Cancel safety
    /// Dropped, the member that was asked is asked nothing more.
    pub(crate) async fn renew(self: &Arc<Self>, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let under_way = UnderWay { link: &self.keep, number: self.keep.number(), done: AtomicBool::new(false) };
        let unmoved = self.move_all_back(claims).await;
        // Not as users of them: when a claim ends during its renewal, closing the client must still revoke its lease.
        let mut leases: HashMap<i64, Arc<Lease>> = HashMap::new();
        {
            let table = self.table();
            for claim in claims {
                if let Some(on) = table.claims.get(&claim.id).and_then(|entry| entry.on.as_ref()) {
                    leases.entry(on.lease().id).or_insert_with(|| Arc::clone(on.lease()));
                }
            }
        }
        let mut kept = HashMap::new();
        for (id, lease) in &leases {
            kept.insert(*id, self.prove(lease).await); // as a rule there is one
        }
        under_way.done.store(true, Ordering::Relaxed);
        let renewed = |claim: &Claim| match unmoved.get(&claim.id) {
            Some(error) => Err(error.clone()),
            None => self.renewed(claim, &kept),
        };
        claims.iter().map(renewed).collect()
    }

    /// Moves those that stand on the short lease of those who wait, all at once; which could not be, and why.
    async fn move_all_back(self: &Arc<Self>, claims: &[Claim]) -> HashMap<ClaimId, Error> {
        let mut moving = JoinSet::new();
        for claim in claims {
            let must_move = self.table().claims.get(&claim.id).is_some_and(stands_on_the_short_one);
            if must_move {
                let (inner, claim) = (Arc::clone(self), claim.clone());
                moving.spawn(async move { (claim.id, inner.move_back(&claim, &inner.keep).await) });
            }
        }
        let mut unmoved = HashMap::new();
        while let Some(moved) = moving.join_next().await {
            if let Ok((id, Err(failure))) = moved {
                unmoved.insert(id, failure.error);
            }
        }
        unmoved
    }

    /// A hold that was handed over stands on the short lease of those who wait: its first renewal moves it to that of its ttl.
    ///
    /// A copy of it may arrive late, when the hold was broken: then its key is on another lease, and is left alone. The
    /// lease that it goes to may have been ended by somebody else, and nobody who is on it has told: then there is another one.
    pub(crate) async fn move_back(&self, claim: &Claim, link: &Link) -> Attempt<()> {
        match self.move_once(claim, link).await {
            Err(failure) if failure.next == Next::NoLease => self.move_once(claim, link).await,
            moved => moved,
        }
    }

    async fn move_once(&self, claim: &Claim, link: &Link) -> Attempt<()> {
        let must_move = self.table().claims.get(&claim.id).is_some_and(stands_on_the_short_one);
        if !must_move {
            return Ok(());
        }
        let to = self.lasting_lease(seconds(claim), link).await?;
        let txn = {
            let mut table = self.table();
            let Some(entry) = table.claims.get_mut(&claim.id) else { return Ok(()) };
            let Some(txn) = moving(entry, to.lease()) else { return Ok(()) };
            entry.moving_to = Some(to.clone()); // dropped or without an answer, it may be done: nobody may revoke that lease
            txn
        };
        let answer = link.txn("renewing a hold", txn).await;
        if answer.as_ref().is_err_and(|failure| failure.next == Next::NoLease) {
            self.lease_is_gone(to.lease()); // or every hold of that ttl would be moved there, and lost
        }
        let answer = answer?.value;
        if let Some(entry) = self.table().claims.get_mut(&claim.id) {
            entry.moving_to = None;
            if answer.succeeded || answer.reads().iter().flatten().any(|kv| was_moved(entry, kv, to.lease())) {
                entry.on = Some(to);
            }
        }
        Ok(()) // where there is no key any more, its lease's keys say so
    }

    /// Keeps a lease alive, and then asks what is on it.
    async fn prove(&self, lease: &Lease) -> Attempt<Kept> {
        if !self.keep_alive(lease, &self.keep).await? {
            return Ok(Kept::Gone);
        }
        let (since, id) = (lease.base(), lease.id);
        let keys = self.keep.call("proving a lease", |wire| async move { wire.time_to_live(id).await }).await;
        match keys {
            Ok(answer) if answer.value.ttl > 0 => Ok(Kept::Since(since, answer.value.keys.into_iter().collect())),
            Ok(_) => {
                self.lease_is_gone(lease);
                Ok(Kept::Gone)
            }
            Err(failure) if failure.next == Next::NoLease => {
                self.lease_is_gone(lease);
                Ok(Kept::Gone)
            }
            Err(failure) => Err(failure),
        }
    }

    fn renewed(&self, claim: &Claim, kept: &HashMap<i64, Attempt<Kept>>) -> Result<Renewal> {
        let mut table = self.table();
        let Some(entry) = table.claims.get_mut(&claim.id) else { return Ok(Renewal::Lost) };
        if !matches!(entry.stage, Stage::Held { .. }) || entry.expires <= Instant::now() {
            return Ok(Renewal::Lost); // what is over is not brought back to life
        }
        let Some(kept) = entry.on.as_ref().and_then(|on| kept.get(&on.lease().id)) else { return Ok(Renewal::Lost) };
        match kept {
            Ok(Kept::Since(since, keys)) if keys.contains(&entry.key) => {
                let trusted = entry.trusted();
                entry.expires = entry.expires.max(*since + trusted + claim.lock_delay);
                Ok(Renewal::Held { until: *since + (trusted - margin(trusted)), asked: entry.asked.clone() })
            }
            // Gone, or on another lease: whatever there is of it is ended like everything that was lost.
            Ok(Kept::Since(..)) => {
                let key = entry.key.clone();
                if self.schema.layout == Layout::Tenure {
                    entry.on = None; // it is not on that one, which is to be revoked when nobody else is
                }
                drop(table);
                self.ear.gone_here(&key, None);
                Ok(Renewal::Lost)
            }
            Ok(Kept::Gone) => Ok(Renewal::Lost),
            Err(failure) => Err(failure.error.clone()),
        }
    }
}

/// Whether a hold was handed over, and not renewed since.
fn stands_on_the_short_one(entry: &Entry) -> bool {
    matches!(entry.stage, Stage::Held { .. }) && entry.is_on_the_short_one()
}

/// What moves a hold to the lease of its ttl, from the one that it is on.
fn moving(entry: &Entry, to: &Lease) -> Option<TxnRequest> {
    let from = entry.on.as_ref().filter(|_| stands_on_the_short_one(entry))?;
    let key = &entry.key;
    let compare = vec![created_at(key, entry.revision), is_on(key, from.lease().id)];
    Some(TxnRequest { compare, success: vec![moved(key, to.id)], failure: vec![read(RangeRequest::one(key))] })
}

/// Whether a hold's key is where it was to be moved: by a renewal that had no answer.
fn was_moved(entry: &Entry, kv: &KeyValue, to: &Lease) -> bool {
    kv.create_revision == entry.revision && kv.lease == to.id && !Value::decode(&kv.value).closing
}

#[cfg(test)]
mod tests;
