//! Asking, and waiting in line.
//!
//! Who can interleave: our own ask with every other client's verbs. A waiter is expected in the [`Ear`](super::ear::Ear) before
//! its ask leaves, so that a message which overtakes the answer finds it. Nothing that a waiter is told needs to be checked:
//! the grant is in the store already, and whoever does not want it any more ends it by its id.
//!
//! The ask carries the latest time, by the server's own clock, at which it may still be handled. A copy of it that was stuck
//! somewhere for longer does nothing, and one that was stuck for less meets the mark that its claim's end has left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::batch::Reply;
use super::ear::{Due, Heard, Verdict};
use super::tries::Tries;
use super::{Asked, Asking, Desk, Ended, Ending, Inner, Looked, MARK, Renewed, Said, jitter, mismatch};
use crate::{Claim, ClaimId, Clock, Error, ErrorKind, Grant, Instant, LockName, Renewal, Result, Wait, margin};

/// How long after it was sent an ask may still be handled.
const ASK_LIFE: Duration = Duration::from_secs(20);
/// How many waiters one request looks after.
const TOUCH_AT_ONCE: usize = 250;
/// How long a look may take.
const TOUCH_LIMIT: Duration = Duration::from_millis(1500);
/// How often it is tried whether somebody's transaction still has the name: at first, and in the long run.
const SOON: Duration = Duration::from_millis(4);
const LATER: Duration = Duration::from_millis(100);

/// What came of asking once.
enum Outcome {
    Granted(Grant),
    Queued,
    Busy,
    Locked,
}

/// A claim that was asked for and not answered yet.
struct Doubt<'a, D> {
    inner: &'a Inner<D>,
    id: ClaimId,
    /// Some copy of the ask has no answer.
    remains: bool,
}

impl<D: Desk> Doubt<'_, D> {
    /// An answer came. Whether it was to the only copy there is.
    fn answered(self) -> bool {
        if !self.remains {
            self.inner.doubtful().remove(&self.id);
        }
        !self.remains
    }
}

impl<D: Desk> Inner<D> {
    /// Grants, or waits in line.
    ///
    /// # Cancel safety
    /// Dropped, the claim may be in the store: end it by its id.
    pub(crate) async fn acquire(self: &Arc<Self>, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        tokio::task::coop::consume_budget().await; // a task that locks in a loop must let others run
        self.start_heart();
        self.tidy_now_and_then();
        let granted = self.wait_for(claim, wait).await?;
        if granted.is_some() {
            self.ear.holds(claim.id, true);
        }
        Ok(granted)
    }

    async fn wait_for(self: &Arc<Self>, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        let deadline = wait.deadline(Instant::now());
        let mut last = None;
        let mut pace = SOON;
        loop {
            let mut expecting = (wait != Wait::No).then(|| self.ear.expect(claim, last.take()));
            match self.ask_once(claim, wait != Wait::No).await? {
                Outcome::Granted(grant) => return Ok(Some(grant)),
                Outcome::Busy => return Ok(None),
                Outcome::Locked if wait == Wait::No => return Ok(None),
                Outcome::Locked => {
                    // A transaction cannot be waited for in line: nothing of ours is in the store.
                    let next = Instant::now() + pace / 2 + jitter(pace / 2);
                    pace = (pace * 3 / 2).min(LATER);
                    Clock::Boot.sleep_until(next.min(deadline)).await;
                    if Instant::now() >= deadline {
                        if self.doubtful().contains(&claim.id) {
                            self.end(&claim.name, claim.id, Duration::ZERO).await?;
                        }
                        return Ok(None);
                    }
                    continue;
                }
                Outcome::Queued => {}
            }
            let Some(expecting) = &mut expecting else { return Ok(None) };
            let verdict = tokio::select! {
                biased;
                verdict = &mut expecting.verdict => verdict,
                () = Clock::Boot.sleep_until(deadline) => {
                    self.end(&claim.name, claim.id, Duration::ZERO).await?; // nobody has used it: it owes no minimum hold
                    return Ok(None);
                }
            };
            match verdict {
                Ok(Verdict::Granted(grant)) => return Ok(Some(grant)),
                Ok(Verdict::Failed(error)) => return Err(error),
                // Thought dead, or forgotten by a server that restarted: ask again.
                Ok(Verdict::Gone(heard)) => last = Some(heard),
                Err(_) => {}
            }
        }
    }

    async fn ask_once(self: &Arc<Self>, claim: &Claim, queue: bool) -> Result<Outcome> {
        let remains = !self.doubtful().insert(claim.id); // an earlier ask of this claim was never answered
        let mut doubt = Doubt { inner: self, id: claim.id, remains };
        for _ in 0..3 {
            let (reply, clean) = self.ask_until_answered(claim, queue).await?;
            doubt.remains |= !clean;
            let Reply { sent, said: Said { now, value } } = reply;
            let heard = Heard { sent, then: now };
            self.ear.read_clock(heard);
            match value {
                Asked::Granted { token, left } => {
                    doubt.answered();
                    let grant = Grant { token, until: sent + left.saturating_sub(margin(left)) };
                    return Ok(Outcome::Granted(self.worth_having(claim, grant, left).await));
                }
                Asked::Queued { first, change_in } => {
                    doubt.answered();
                    self.ear.queued(claim.id, heard, change_in.filter(|_| first));
                    return Ok(Outcome::Queued);
                }
                Asked::Busy | Asked::Locked => {
                    let outcome = if value == Asked::Busy { Outcome::Busy } else { Outcome::Locked };
                    let waits = queue && value == Asked::Locked; // then it is asked again, and finds what a late copy was given
                    if !doubt.answered() && !waits {
                        // Another copy of the ask may still arrive, and nobody would know of its grant.
                        self.end(&claim.name, claim.id, Duration::ZERO).await?;
                        return Ok(Outcome::Busy);
                    }
                    return Ok(outcome);
                }
                Asked::Mismatch { kind, of } => {
                    doubt.answered();
                    return Err(mismatch(claim, kind, of));
                }
                Asked::Ended => {
                    let what = "this claim was ended before its request arrived";
                    return Err(Error::new(ErrorKind::Unavailable, what).with_hint("Ask again: that is another claim"));
                }
                Asked::Late => {} // the server's clock has jumped, or we stood still: now we know its time
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the server's clock ran away from every request")
            .with_store(self.desk.describe())
            .with_hint("Look at the server's clock: it has jumped several times within seconds"))
    }

    /// Asks again with the same id while that may help. Whether the answer is to the only copy there is.
    async fn ask_until_answered(self: &Arc<Self>, claim: &Claim, queue: bool) -> Result<(Reply<Asked>, bool)> {
        let mut tries = Tries::of(&self.desk);
        loop {
            let by = self.ear.estimate().map(|now| now + ASK_LIFE.as_micros() as u64);
            let asking = Asking { claim: claim.clone(), queue, by };
            match tries.limit(self.send(&asking)).await {
                Ok(reply) => return Ok((reply, tries.clean)),
                Err(failure) if tries.again(&failure).await => {}
                Err(failure) => return Err(failure.error),
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

    /// Ends whatever a claim left behind. It leaves a mark where an ask of it may still arrive.
    ///
    /// # Cancel safety
    /// Dropped, nothing is known; call it again.
    pub(crate) async fn end(self: &Arc<Self>, name: &LockName, id: ClaimId, min_hold: Duration) -> Result<()> {
        let mark = if self.doubtful().contains(&id) { MARK } else { Duration::ZERO };
        let ending = Ending { name: name.clone(), id, min_hold, mark };
        let mut tries = Tries::of(&self.desk);
        loop {
            match tries.limit(self.send(&ending)).await {
                Ok(Reply { said: Said { value: Ended::Done, .. }, .. }) => break,
                Ok(_) if tries.pause().await => {}
                Ok(_) => {
                    return Err(Error::new(ErrorKind::Unavailable, "somebody's transaction has the name locked")
                        .with_name(name)
                        .with_hint("It is tried again; the claim ends by itself after its ttl"));
                }
                Err(failure) if tries.again(&failure).await => {}
                Err(failure) => return Err(failure.error),
            }
        }
        self.doubtful().remove(&id);
        self.ear.holds(id, false);
        self.ear.let_go(name);
        self.is_loose(name);
        Ok(())
    }

    /// Renews a batch of holds, one attempt: the keeper tries again.
    ///
    /// # Cancel safety
    /// Dropped, the connection that carried it carries nothing more.
    pub(crate) async fn renew(self: &Arc<Self>, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let sent = Instant::now();
        let Said { now, value } = match self.desk.renew(claims).await {
            Ok(said) => said,
            Err(failure) => return claims.iter().map(|_| Err(failure.copy().error)).collect(),
        };
        self.ear.read_clock(Heard { sent, then: now });
        let mut renewed = value.into_iter();
        let answer = |claim: &Claim| match renewed.next() {
            Some(Renewed::Held(asked)) => Ok(Renewal::Held { until: claim.window(sent), asked }),
            Some(Renewed::Lost) => Ok(Renewal::Lost),
            Some(Renewed::Unknown) | None => {
                Err(Error::new(ErrorKind::Unavailable, "somebody else was at the claim in that moment")
                    .with_name(&claim.name))
            }
        };
        claims.iter().map(answer).collect()
    }

    /// Starts looking after those who wait, if nobody does so yet.
    pub(crate) fn start_heart(self: &Arc<Self>) {
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
                inner.beat().await;
            }
        });
    }

    /// Does what is due.
    async fn beat(self: &Arc<Self>) {
        let Due { mut beat, mut mail, waiters, chores } = self.ear.due(Instant::now());
        for batch in waiters.chunks(TOUCH_AT_ONCE) {
            self.touch(std::mem::take(&mut beat), batch).await;
            mail = false;
        }
        if beat || mail {
            self.touch(beat, &[]).await;
        }
        if chores {
            let inner = Arc::clone(self);
            self.spawn(async move { inner.do_chores().await }); // the heart does not wait for what nobody waits for
        }
    }

    async fn touch(&self, beat: bool, batch: &[(LockName, ClaimId)]) {
        let sent = Instant::now();
        let error = match tokio::time::timeout(TOUCH_LIMIT, self.desk.touch(beat, batch)).await {
            Ok(Ok(Said { now, value: Looked { waiters, mail } })) => {
                let heard = Heard { sent, then: now };
                self.ear.read_clock(heard);
                for ((_, id), touched) in batch.iter().zip(&waiters) {
                    self.ear.touched(*id, heard, touched);
                }
                mail.into_iter().for_each(|message| super::Listener::told(&*self.ear, message));
                return;
            }
            Ok(Err(failure)) => failure.error,
            Err(_) => Error::new(ErrorKind::Unavailable, format!("no answer within {TOUCH_LIMIT:?}"))
                .with_store(self.desk.describe()),
        };
        let again_in = Duration::from_millis(50) + jitter(Duration::from_millis(450));
        if beat {
            self.ear.missed_a_beat(again_in);
        }
        for (_, id) in batch {
            let words = || Error::new(error.kind(), error.to_string());
            self.ear.unheard(*id, again_in, self.desk.limits().patience, words);
        }
    }
}

/// A flag that says that somebody is at it; dropped, nobody is.
struct Lowered(Arc<AtomicBool>);

impl Drop for Lowered {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
