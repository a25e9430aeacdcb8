//! Asking, and waiting in line.
//!
//! Who can interleave: our own ask with every other client's verbs. A waiter is expected in the [`Ear`](crate::ear::Ear)
//! before its ask leaves, so that a message which overtakes the answer finds it. A message that knows the waiter's secret is
//! checked against nothing else: the grant is in the store already, and a waiter that has gone ends it by its id.
//!
//! A copy of the ask that was stuck somewhere meets the mark that its claim's end has left. One that was stuck for longer than
//! a mark stays is granted to nobody: nobody renews it, and the name is closed until its ttl is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tenure_core::lease::Lowered;
use tenure_core::{Claim, Clock, Error, ErrorKind, Grant, Instant, Renewal, Result, Wait, jitter, margin};

use crate::config::Settings;
use crate::ear::{ALIVE, Due, Heard, Verdict};
use crate::error::Next;
use crate::fleet::Lane;
use crate::inner::Inner;
use crate::link::ANSWER_LIMIT;
use crate::schema::Bucket;
use crate::scripts;
use crate::verbs::{self, Asked};

/// How many waiters one script touches.
const TOUCH_AT_ONCE: usize = 250;
/// How long a touch may take.
const TOUCH_LIMIT: Duration = Duration::from_millis(1500);

/// What came of asking once.
enum Outcome {
    Granted(Grant),
    Queued,
    Busy,
}

impl Inner {
    /// Grants, or waits in line.
    ///
    /// # Cancel safety
    /// Dropped, the claim may be in the store: end it by its id.
    pub(crate) async fn acquire(self: &Arc<Self>, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        tokio::task::coop::consume_budget().await; // a task that locks in a loop must let others run
        self.tidy_now_and_then();
        self.must_fit(claim)?;
        let deadline = wait.deadline(Instant::now());
        if !self.fleet.is_listening(self.bucket(&claim.name)) {
            // Before the ask, so that nothing is said to nobody.
            let (bucket, limit) = (self.bucket(&claim.name), self.fleet.settings.answer_limit.min(ANSWER_LIMIT));
            match Box::pin(self.fleet.insist_on_listening(bucket, limit)).await {
                Err(failure) if failure.next == Next::Fatal => return Err(failure.error),
                _ => {} // who cannot listen now is touched all the same, and the heart tries again
            }
        }
        self.start_heart();
        let mut last = None;
        loop {
            let mut expecting = (wait != Wait::No).then(|| self.ear.expect(claim, last.take()));
            match self.ask_once(claim, wait != Wait::No).await? {
                Outcome::Granted(grant) => return Ok(Some(grant)),
                Outcome::Busy => return Ok(None),
                Outcome::Queued => {}
            }
            let Some(expecting) = &mut expecting else { return Ok(None) };
            let verdict = tokio::select! {
                biased;
                verdict = &mut expecting.verdict => verdict,
                () = Clock::Boot.sleep_until(deadline) => {
                    self.end(claim, Duration::ZERO).await?; // nobody has used it: it owes nobody a minimum hold
                    return Ok(None);
                }
            };
            match verdict {
                Ok(Verdict::Granted(grant)) => return self.confirmed(claim, grant).await.map(Some),
                Ok(Verdict::Failed(error)) => return Err(error),
                // Thought dead, or forgotten by a server that restarted: ask again.
                Ok(Verdict::Gone(heard)) => last = Some(heard),
                Err(_) => {}
            }
        }
    }

    /// A Redlock's node has no vote for `largest_ttl` after its start, which helps nobody who holds for longer.
    fn must_fit(&self, claim: &Claim) -> Result<()> {
        let Settings { is_node, durable, largest_ttl, .. } = &*self.fleet.settings;
        if !is_node || *durable || claim.ttl + claim.lock_delay <= *largest_ttl {
            return Ok(());
        }
        let what = format!("a ttl of {:?} is longer than largest_ttl, {largest_ttl:?}", claim.ttl + claim.lock_delay);
        Err(Error::new(ErrorKind::BadOption, what).with_hint(
            "Say the longest ttl of all programs in the URL: largest_ttl=5m; a node has no vote for so long after its start",
        ))
    }

    async fn ask_once(self: &Arc<Self>, claim: &Claim, queue: bool) -> Result<Outcome> {
        let bucket = self.bucket(&claim.name);
        let (inbox, secret) = (self.fleet.inbox(bucket), self.ear.secret(claim.id));
        let mut doubt = self.doubt(claim.id);
        let queue = queue.then_some(ALIVE);
        let command = verbs::ask(&self.fleet.layout, self.fleet.publish(), claim, &inbox, queue, &secret);
        let answer = self.run(&claim.name, &scripts::ASK, &command).await?;
        doubt.remains |= !answer.clean;
        let (now, asked) = verbs::asked(answer.value, claim)?;
        self.ear.read_clock(&answer.from.address, answer.sent, now);
        if matches!(asked, Asked::Granted { .. }) && answer.replicas < self.fleet.settings.min_replicas {
            self.end(claim, Duration::ZERO).await?;
            return Err(self.too_few_replicas(answer.replicas));
        }
        match asked {
            Asked::Granted { token, left } => {
                doubt.answered();
                let grant = Grant { token, until: answer.sent + left.saturating_sub(margin(left)) };
                Ok(Outcome::Granted(self.worth_having(claim, grant, left).await))
            }
            Asked::Queued { first, change_in } => {
                doubt.answered();
                let heard = Heard::new(&answer.from.address, answer.sent, now);
                self.ear.queued(claim.id, heard, change_in.filter(|_| first));
                Ok(Outcome::Queued)
            }
            Asked::Busy => {
                if !doubt.answered() {
                    // Another copy of the ask may still arrive, and nobody would know of its grant.
                    self.end(claim, Duration::ZERO).await?;
                }
                Ok(Outcome::Busy)
            }
            Asked::Mismatch { kind, of } => {
                doubt.answered();
                Err(claim.mismatch(kind, of))
            }
            Asked::Ended => {
                let what = "this claim was ended before its request arrived";
                Err(Error::new(ErrorKind::Unavailable, what).with_hint("Ask again: that is another claim"))
            }
        }
    }

    /// A second ask may find a grant that was made to the first one a while ago and is nearly over: then it is renewed, so that
    /// whoever gets it has time to do something with it.
    async fn worth_having(self: &Arc<Self>, claim: &Claim, grant: Grant, left: Duration) -> Grant {
        if left >= claim.handover_ttl {
            return grant;
        }
        match Box::pin(self.renew(std::slice::from_ref(claim))).await.pop() {
            Some(Ok(Renewal::Held { until, .. })) => Grant { until, ..grant },
            _ => grant, // then its end comes soon, and is told
        }
    }

    /// Where replicas must have a grant before it counts, one that came by message is renewed first.
    async fn confirmed(self: &Arc<Self>, claim: &Claim, grant: Grant) -> Result<Grant> {
        if self.fleet.settings.min_replicas == 0 {
            return Ok(grant);
        }
        match self.renew(std::slice::from_ref(claim)).await.pop() {
            Some(Ok(Renewal::Held { until, .. })) => Ok(Grant { until, ..grant }),
            Some(Err(error)) => Err(error),
            Some(Ok(Renewal::Lost)) | None => {
                Err(Error::new(ErrorKind::Unavailable, "the grant was gone before its replicas had it")
                    .with_hint("Ask again"))
            }
        }
    }

    /// Starts touching those who wait, if nobody does so yet.
    fn start_heart(self: &Arc<Self>) {
        if self.beats.swap(true, Ordering::Relaxed) {
            return;
        }
        let (inner, ear, beats) = (Arc::downgrade(self), Arc::clone(&self.ear), Lowered(Arc::clone(&self.beats)));
        self.spawn(async move {
            let _beats = beats; // wherever this ends, with its runtime or for want of one, the next waiter starts another
            loop {
                let next = ear.plan();
                tokio::select! {
                    () = ear.bell.notified() => {}
                    () = Clock::Boot.sleep_until(next) => {}
                }
                let Some(inner) = inner.upgrade() else { return };
                if ear.was_silenced() {
                    inner.listen_again();
                }
                inner.beat().await;
            }
        });
    }

    /// Touches everybody whose time has come.
    async fn beat(&self) {
        let mut buckets: BTreeMap<Bucket, Vec<Due>> = BTreeMap::new();
        for due in self.ear.due(Instant::now()) {
            buckets.entry(self.bucket(&due.name)).or_default().push(due);
        }
        let mut touches = Vec::new();
        for (bucket, due) in &buckets {
            touches.extend(due.chunks(TOUCH_AT_ONCE).map(|batch| self.touch(*bucket, batch)));
        }
        join_all(touches).await;
    }

    async fn touch(&self, bucket: Bucket, batch: &[Due]) {
        let listens = self.fleet.is_listening(bucket);
        let outcome = tokio::time::timeout(TOUCH_LIMIT, async {
            // Listen first, then look; but look, whatever became of listening.
            let _ = tokio::time::timeout(TOUCH_LIMIT / 3, self.fleet.listen(bucket)).await;
            let waiters: Vec<_> = batch.iter().map(|due| (&due.name, due.id, self.ear.secret(due.id))).collect();
            let command = verbs::touch(&self.fleet.layout, self.fleet.publish(), bucket, ALIVE, &waiters);
            let answer = self.fleet.call(Lane::Keep, bucket, Some(&scripts::TOUCH), &command).await?;
            Ok::<_, Error>((answer.from, answer.sent, verbs::touched(answer.value, batch.len())?))
        });
        let error = match outcome.await {
            Ok(Ok((from, sent, (now, touched)))) => {
                self.ear.read_clock(&from.address, sent, now);
                for (due, touched) in batch.iter().zip(touched) {
                    self.ear.touched(due.id, Heard::new(&from.address, sent, now), &touched, listens);
                }
                return;
            }
            Ok(Err(error)) => error,
            Err(_) => self.fleet.silent(bucket, TOUCH_LIMIT).error,
        };
        let again_in = Duration::from_millis(50) + jitter(Duration::from_millis(450));
        for due in batch {
            self.ear.unheard(due.id, again_in, self.fleet.settings.patience, &error);
        }
    }
}
