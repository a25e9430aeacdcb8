//! Renewals: one keepalive and one look for each lease, however many holds are on it, on a channel of their own.
//!
//! A keepalive that is answered "yes" does not prove the hold: servers before 3.4.38, 3.5.23 and 3.6.5 say so of a lease that they
//! are just revoking, and anybody may have removed the key. So the lease's keys are asked for after it: a hold whose key is not
//! among them is lost. The keeper waits for a while only and then drops the future; the next renewal asks another member.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_core::{Claim, Instant, Renewal, Result};

use crate::error::{Failure, Next, again};
use crate::inner::Inner;
use crate::leases::OnLease;
use crate::link::Link;
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
        claims.iter().map(|claim| self.renewed(claim, &kept)).collect()
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
                entry.expires = entry.expires.max(*since + claim.ttl + claim.lock_delay);
                Ok(Renewal::Held { until: claim.window(*since), asked: entry.asked.clone() })
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
