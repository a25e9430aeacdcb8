//! Renewals: in batches, on a connection of their own, so that nothing a user does can delay them.
//!
//! The keeper sends all holds that are due at once. They go out as few scripts as the layout allows, all of them before any
//! answer is waited for, and each proves its claim by comparing the id in the same step as it extends. The keeper waits for a
//! while only and then drops the future, which gives the connection up: the next renewal makes a fresh one.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use tenure_core::{Claim, Error, Instant, Renewal, Result};

use crate::fleet::Lane;
use crate::inner::Inner;
use crate::schema::Bucket;
use crate::scripts;
use crate::verbs::{self, Renewed};

/// How many holds one script renews: a few milliseconds in which the server does nothing else.
const AT_ONCE: usize = 500;

impl Inner {
    /// Renews a batch of holds.
    ///
    /// # Cancel safety
    /// Dropped, the connection that carried it carries nothing more.
    pub(crate) async fn renew(self: &Arc<Self>, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let mut buckets: BTreeMap<Bucket, Vec<usize>> = BTreeMap::new();
        for (place, claim) in claims.iter().enumerate() {
            buckets.entry(self.fleet.layout.bucket(&claim.name)).or_default().push(place);
        }
        let mut answers: Vec<Option<Result<Renewal>>> = claims.iter().map(|_| None).collect();
        let mut renewals = Vec::new();
        for (bucket, places) in &buckets {
            for batch in places.chunks(AT_ONCE) {
                renewals.push(async move { (batch, self.renew_batch(*bucket, claims, batch).await) });
            }
        }
        for (batch, renewed) in join_all(renewals).await {
            for (place, answer) in batch.iter().zip(renewed) {
                answers[*place] = Some(answer);
            }
        }
        self.listen_again();
        answers.into_iter().map(|answer| answer.expect("every claim was in a batch")).collect()
    }

    async fn renew_batch(&self, bucket: Bucket, claims: &[Claim], batch: &[usize]) -> Vec<Result<Renewal>> {
        let claims: Vec<&Claim> = batch.iter().map(|place| &claims[*place]).collect();
        let failed = |error: Error| claims.iter().map(|_| Err(error.clone())).collect();
        let command = verbs::renew(&self.fleet.layout, bucket, &claims);
        let lane = if self.fleet.settings.min_replicas == 0 { Lane::Keep } else { Lane::SyncedKeep };
        let answer = match self.fleet.call(lane, bucket, Some(&scripts::RENEW), &command).await {
            Ok(answer) => answer,
            Err(failure) => return failed(failure.error),
        };
        let (now, renewed) = match verbs::renewed(answer.value, claims.len()) {
            Ok(renewed) => renewed,
            Err(error) => return failed(error),
        };
        self.ear.read_clock(&answer.from.address, answer.sent, now);
        if answer.replicas < self.fleet.settings.min_replicas {
            return failed(self.too_few_replicas(answer.replicas)); // neither yes nor no: a failover might forget it
        }
        renewed.into_iter().zip(claims).map(|(renewed, claim)| Ok(renewal(renewed, claim, answer.sent))).collect()
    }
}

fn renewal(renewed: Renewed, claim: &Claim, sent: Instant) -> Renewal {
    match renewed {
        Renewed::Held(asked) => Renewal::Held { until: claim.window(sent), asked },
        Renewed::Lost => Renewal::Lost,
    }
}
