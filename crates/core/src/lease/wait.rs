//! Asking, and waiting in line.
//!
//! Who can interleave: our own ask with every other client's verbs. A waiter is expected in the [`Ear`](super::ear::Ear) before
//! its ask leaves, so that a message which overtakes the answer finds it. A message that only the server can have sent is
//! checked against nothing else: the grant is in the store already, and a waiter that has gone ends it by its id.
//!
//! A copy of the ask that was stuck somewhere meets the mark that its claim's end has left. One that was stuck for longer than a mark
//! stays is granted to nobody: nobody renews it, and the name is closed until its ttl is over.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::batch::Reply;
use super::ear::{Due, Heard, Verdict};
use super::tries::Tries;
use super::unended::Unconfirmed;
use super::{Asked, Asking, Copies, Desk, Ended, Inner, Looked, Lowered, MARK, Renewed, Said};
use crate::{Claim, ClaimId, Clock, Error, ErrorKind, Grant, Instant, LockName, Renewal, Result, Wait, jitter, margin};

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
    /// It was granted to an earlier copy of the ask, and was lost since.
    Gone(Heard),
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

    /// None will come, and the claim is a new one: if no copy is left, nothing of it is in the store.
    fn refused(self) {
        if !self.remains {
            self.inner.doubtful().insert(self.id, Copies::Refused);
        }
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
        let mut is_new = true;
        loop {
            let mut expecting = (wait != Wait::No).then(|| self.ear.expect(claim, last.take()));
            match self.ask_once(claim, wait != Wait::No, std::mem::take(&mut is_new)).await? {
                Outcome::Granted(grant) => return Ok(Some(grant)),
                Outcome::Busy => return Ok(None),
                Outcome::Locked if wait == Wait::No => return Ok(None),
                Outcome::Locked => {
                    // A transaction cannot be waited for in line: nothing of ours is in the store.
                    let next = Instant::now() + pace / 2 + jitter(pace / 2);
                    pace = (pace * 3 / 2).min(LATER);
                    Clock::Boot.sleep_until(next.min(deadline)).await;
                    if Instant::now() >= deadline {
                        if self.doubtful().contains_key(&claim.id) {
                            self.end(claim, Duration::ZERO).await?;
                        }
                        return Ok(None);
                    }
                    continue;
                }
                Outcome::Gone(heard) => {
                    last = Some(heard);
                    continue;
                }
                Outcome::Queued => {}
            }
            let Some(expecting) = &mut expecting else { return Ok(None) };
            let verdict = tokio::select! {
                biased;
                verdict = &mut expecting.verdict => verdict,
                () = Clock::Boot.sleep_until(deadline) => {
                    self.end(claim, Duration::ZERO).await?; // nobody has used it: it owes no minimum hold
                    return Ok(None);
                }
            };
            match verdict {
                Ok(Verdict::Granted(grant)) => return Ok(Some(grant)),
                Ok(Verdict::Found(grant)) => {
                    if let Some(grant) = self.confirm(claim, grant).await? {
                        return Ok(Some(grant));
                    }
                }
                Ok(Verdict::Failed(error)) => return Err(self.is_unknown(claim, error)),
                // Thought dead, or forgotten by a server that restarted: ask again.
                Ok(Verdict::Gone(heard)) => last = Some(heard),
                Err(_) => {}
            }
        }
    }

    /// `is_new`: nothing of the claim is in the store unless a copy of its ask is.
    async fn ask_once(self: &Arc<Self>, claim: &Claim, queue: bool, is_new: bool) -> Result<Outcome> {
        let earlier = self.doubtful().insert(claim.id, Copies::Unknown);
        let mut doubt = Doubt { inner: self, id: claim.id, remains: earlier == Some(Copies::Unknown) };
        let mut tries = Tries::of(&self.desk);
        let asking = Asking { claim: claim.clone(), queue };
        let answer = tries.insist(|| self.send(&asking)).await; // with the same id, while that may help
        doubt.remains |= !tries.clean;
        let Reply { sent, said: Said { now, value } } = match answer {
            Ok(reply) => reply,
            Err(error) => {
                if is_new {
                    doubt.refused();
                }
                return Err(error);
            }
        };
        let heard = Heard { sent, then: now };
        self.ear.read_clock(heard);
        match value {
            Asked::Granted { token, left } => {
                doubt.answered();
                let left = left.min(claim.ttl);
                let grant = Grant { token, until: sent + left.saturating_sub(margin(left)) };
                Ok(match self.worth_having(claim, grant, left).await {
                    Some(grant) => Outcome::Granted(grant),
                    None => Outcome::Gone(heard),
                })
            }
            Asked::Queued { first, change_in } => {
                doubt.answered();
                self.ear.queued(claim.id, heard, change_in.filter(|_| first));
                Ok(Outcome::Queued)
            }
            Asked::Busy | Asked::Locked => {
                let outcome = if value == Asked::Busy { Outcome::Busy } else { Outcome::Locked };
                let waits = queue && value == Asked::Locked; // then it is asked again, and finds what a late copy was given
                if !doubt.answered() && !waits {
                    // Another copy of the ask may still arrive, and nobody would know of its grant.
                    self.end(claim, Duration::ZERO).await?;
                    return Ok(Outcome::Busy);
                }
                Ok(outcome)
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
    /// whoever gets it has time to do something with it. None if it is not there any more.
    async fn worth_having(self: &Arc<Self>, claim: &Claim, grant: Grant, left: Duration) -> Option<Grant> {
        if left >= claim.handover_ttl {
            return Some(grant);
        }
        match self.renew_one(claim).await {
            Ok(Renewal::Held { until, .. }) => Some(Grant { until, ..grant }),
            Ok(Renewal::Lost) => None,
            Err(_) => Some(grant), // then its end comes soon, and is told
        }
    }

    /// Renews what a waiter has found; none if it is not there any more.
    async fn confirm(self: &Arc<Self>, claim: &Claim, grant: Grant) -> Result<Option<Grant>> {
        let mut tries = Tries::of(&self.desk);
        loop {
            match self.renew_one(claim).await {
                Ok(Renewal::Held { until, .. }) => return Ok(Some(Grant { until, ..grant })),
                Ok(Renewal::Lost) => return Ok(None),
                Err(_) if tries.pause().await => {}
                Err(error) => return Err(self.is_unknown(claim, error)),
            }
        }
    }

    /// It was in the store, and may be there still: whoever asks for it once more and is refused does not know better.
    fn is_unknown(&self, claim: &Claim, error: Error) -> Error {
        self.doubtful().insert(claim.id, Copies::Unknown);
        error
    }

    /// Boxed: every ask carries the room for this future.
    async fn renew_one(self: &Arc<Self>, claim: &Claim) -> Result<Renewal> {
        Box::pin(self.renew(std::slice::from_ref(claim))).await.pop().expect("an answer for each claim")
    }

    /// Ends whatever a claim left behind. It leaves a mark where an ask of it may still arrive. Whether anything was there, as far as is
    /// known: an earlier try that was not answered may have ended it.
    ///
    /// # Cancel safety
    /// Dropped, nothing is known; call it again.
    pub(crate) async fn end(self: &Arc<Self>, claim: &Claim, min_hold: Duration) -> Result<bool> {
        let copies = self.doubtful().get(&claim.id).copied();
        let mark = match copies {
            None => Duration::ZERO,
            Some(Copies::Unknown) => MARK,
            Some(Copies::Refused) => {
                self.doubtful().remove(&claim.id);
                return Ok(true);
            }
        };
        let mut unconfirmed = Unconfirmed::new(self, claim, min_hold, mark);
        let mut tries = Tries::of(&self.desk);
        let mut was_there = true;
        while let Some(ending) = &unconfirmed.ending {
            match tries.limit(self.send(ending)).await {
                Ok(Reply { said: Said { value: ended @ (Ended::Done | Ended::Nothing), .. }, .. }) => {
                    was_there = ended == Ended::Done || !tries.clean;
                    unconfirmed.ending = None;
                }
                Ok(_) if tries.pause().await => {}
                Ok(_) => {
                    return Err(Error::new(ErrorKind::Unavailable, "somebody's transaction has the name locked")
                        .with_name(&claim.name)
                        .with_hint("It is tried again; the claim ends by itself after its ttl"));
                }
                Err(failure) if tries.again(&failure).await => {}
                Err(failure) => return Err(failure.error),
            }
        }
        self.has_ended(&claim.name, claim.id);
        Ok(was_there)
    }

    /// Renews a batch of holds, one attempt: the keeper tries again.
    ///
    /// # Cancel safety
    /// Dropped, the connection that carried it carries nothing more.
    pub(crate) async fn renew(self: &Arc<Self>, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let sent = Instant::now();
        let Said { now, value } = match self.desk.renew(claims).await {
            Ok(said) => said,
            Err(failure) => return claims.iter().map(|_| Err(failure.error.clone())).collect(),
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
        self.sweep_at(Instant::now());
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
            beat &= !self.touch(beat, batch).await;
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

    /// Looks after these, and keeps all places if it is time for that. Whether there was an answer.
    async fn touch(&self, beat: bool, batch: &[(LockName, ClaimId)]) -> bool {
        // Each has a limit of its own: a look that is dropped takes its connection along, and making that may have taken all of the first.
        let sent = Instant::now();
        let ready = tokio::time::timeout(TOUCH_LIMIT, self.desk.stand_ready()).await;
        let touched = match ready {
            Ok(Ok(())) => {
                let touched = tokio::time::timeout(TOUCH_LIMIT, self.desk.touch(beat, batch)).await;
                if !matches!(touched, Ok(Ok(_))) {
                    self.ear.may_have_missed_mail();
                }
                touched
            }
            Ok(Err(failure)) => Ok(Err(failure)),
            Err(elapsed) => Err(elapsed),
        };
        let error = match touched {
            Ok(Ok(Said { now, value: Looked { waiters, mail } })) => {
                let heard = Heard { sent, then: now };
                self.ear.read_clock(heard);
                if beat {
                    self.ear.kept_places();
                }
                for ((_, id), touched) in batch.iter().zip(&waiters) {
                    self.ear.touched(*id, heard, touched);
                }
                mail.into_iter().for_each(|message| super::Listener::told(&*self.ear, message));
                return true;
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
            self.ear.unheard(*id, again_in, self.desk.limits().patience, &error);
        }
        false
    }
}
