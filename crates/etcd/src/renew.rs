//! Renewals: one keepalive and one look for each lease, however many holds are on it, on a channel of their own.
//!
//! A keepalive that is answered "yes" does not prove the hold: servers before 3.4.38, 3.5.23 and 3.6.5 say so of a lease that they
//! are just revoking, and anybody may have removed the key. So the lease's keys are asked for after it: a hold whose key is not
//! among them is lost. The keeper waits for a while only and then drops the future; the next renewal asks another member.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_core::{Claim, ClaimId, Error, Instant, Kind, Renewal, Result, margin};

use crate::codec::Value;
use crate::error::{Failure, Next, again};
use crate::inner::Inner;
use crate::leases::OnLease;
use crate::link::Link;
use crate::proto::{TxnRequest, created_at, moved, put};
use crate::table::Stage;

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
    pub(crate) async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let under_way = UnderWay { link: &self.keep, number: self.keep.number(), done: AtomicBool::new(false) };
        let mut unmoved: HashMap<ClaimId, Error> = HashMap::new();
        for claim in claims {
            if let Err(failure) = self.move_back(claim).await {
                unmoved.insert(claim.id, failure.error);
            }
        }
        let mut leases: HashMap<i64, OnLease> = HashMap::new();
        {
            let table = self.table();
            for claim in claims {
                if let Some(on) = table.claims.get(&claim.id).and_then(|entry| entry.on.as_ref()) {
                    leases.entry(on.lease().id).or_insert_with(|| on.clone());
                }
            }
        }
        let mut kept = HashMap::new();
        for (id, on) in &leases {
            kept.insert(*id, self.prove(on).await); // as a rule there is one
        }
        under_way.done.store(true, Ordering::Relaxed);
        let renewed = |claim: &Claim| match unmoved.get(&claim.id) {
            Some(error) => Err(again(error)),
            None => self.renewed(claim, &kept),
        };
        claims.iter().map(renewed).collect()
    }

    /// A hold that was handed over stands on the short lease of those who wait: its first renewal moves it to that of its ttl, and so
    /// does a conversion, before it writes anything.
    pub(crate) async fn move_back(&self, claim: &Claim) -> std::result::Result<(), Failure> {
        let (key, revision, token, asked) = {
            let table = self.table();
            match table.claims.get(&claim.id) {
                Some(entry) if entry.trusted() < claim.ttl && matches!(entry.stage, Stage::Held { .. }) => {
                    (entry.key.clone(), entry.revision, entry.token, entry.asked.clone())
                }
                _ => return Ok(()),
            }
        };
        let (to, _) = self.lease(claim).await?;
        let lease = to.lease().id;
        let write = if claim.kind == Kind::RwLock {
            let value = Value { token: Some(token as u64), asked, ..Value::of(claim) };
            put(&key, value.encode(), lease)
        } else {
            moved(&key, lease)
        };
        let txn = TxnRequest { compare: vec![created_at(&key, revision)], success: vec![write], failure: Vec::new() };
        if self.txn("renewing a hold", txn).await?.value.succeeded
            && let Some(entry) = self.table().claims.get_mut(&claim.id)
        {
            entry.on = Some(to);
        }
        Ok(()) // where there is no key any more, its lease's keys say so
    }

    /// Keeps a lease alive, and then asks what is on it.
    async fn prove(&self, on: &OnLease) -> std::result::Result<Kept, Failure> {
        if !self.keep_alive(on.lease(), &self.keep).await? {
            return Ok(Kept::Gone);
        }
        let (since, id) = (on.lease().base(), on.lease().id);
        let keys = self.keep.call("proving a lease", |wire| async move { wire.time_to_live(id).await }).await;
        match keys {
            Ok(answer) if answer.value.ttl > 0 => Ok(Kept::Since(since, answer.value.keys.into_iter().collect())),
            Ok(_) => {
                self.lease_is_gone(on.lease());
                Ok(Kept::Gone)
            }
            Err(failure) if failure.next == Next::NoLease => {
                self.lease_is_gone(on.lease());
                Ok(Kept::Gone)
            }
            Err(failure) => Err(failure),
        }
    }

    fn renewed(&self, claim: &Claim, kept: &HashMap<i64, std::result::Result<Kept, Failure>>) -> Result<Renewal> {
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
            Ok(Kept::Since(..)) => {
                drop(table);
                self.forget(claim.id);
                Ok(Renewal::Lost)
            }
            Ok(Kept::Gone) => Ok(Renewal::Lost),
            Err(failure) => Err(again(&failure.error)),
        }
    }
}
