//! Letting go: of what is certainly held in one request; of what nobody knows by looking, and by closing where looking fails.
//!
//! Who can interleave: a claim's end with its own ask, whose caller has gone; with the heart that shows its hold; with a change
//! of its mode. The ask cannot send anything any more, so that the end comes after it on its session. The other two have the
//! session's pen, and the end waits for it. Two ends of one claim (somebody broke it, and its holder lets go) come one after the other:
//! an end that was sent after the other's answer would let go of what the next claim has of the same name. A server may grant at the very moment in which it gives up waiting, or is told to:
//! so whatever was not answered with a plain "granted" is looked for and let go.
//!
//! Whoever asked for an end gives up after a while without an answer, and the session may live on with what it has: the heart asks
//! again, for as long as the claim is in the book.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::lease::Fate;
use tenure_core::{Claim, ClaimId, Instant, Mode, Result};
use tokio::time::timeout;

use super::book::{Seat, Shown, Stage};
use super::{Answer, Held, Inner, Notice};

/// How long a session that was told to stop waiting may take to say so, before it is told again: the first time may have come
/// before it began to wait.
const SAY_AGAIN: Duration = Duration::from_millis(100);
/// How often.
const TIMES: u32 = 20;

impl Inner {
    /// Ends whatever a claim has. Whether it had anything, as far as is known: what was held is lost where its session was found to be
    /// over or another one.
    ///
    /// # Cancel safety
    /// Dropped, nothing is known; call it again.
    pub(super) async fn end(self: &Arc<Self>, claim: &Claim) -> Result<bool> {
        let ending = {
            let mut book = self.book();
            if book.pass_on(claim) {
                return Ok(true);
            }
            let Some(entry) = book.entry(claim.id) else { return Ok(false) };
            Arc::clone(&entry.ending)
        };
        let _alone = ending.lock().await;
        let mut was_there = true;
        loop {
            let (seat, stage) = {
                let mut book = self.book();
                let Some(entry) = book.entry(claim.id) else { return Ok(was_there) };
                let (seat, stage) = (Arc::clone(&entry.seat), entry.stage);
                entry.given_up = Some(Instant::now());
                if matches!(stage, Stage::Held { shown, .. } if shown != Shown::UnderWay) {
                    entry.stage = Stage::Unknown; // from the request on
                }
                (seat, stage)
            };
            if !seat.session.is_open() {
                self.is_over(seat.number);
                return Ok(was_there && !matches!(stage, Stage::Held { .. } | Stage::Changing));
            }
            if stage == Stage::Unknown {
                self.plan_for(Instant::now() + self.patience()); // it may be the last time that somebody asks
            }
            match stage {
                Stage::Held { shown: Shown::UnderWay, .. } | Stage::Changing => drop(seat.pen.lock().await),
                Stage::Held { token, mode, since, shown, .. } => {
                    let age = Instant::now().since(since);
                    let held = Held { token, mode, age, shown: shown.is_something() };
                    match timeout(self.answer_limit(), seat.session.unlock(claim, held)).await {
                        Ok(Ok(true)) => {
                            let mut book = self.book();
                            book.leave(claim.id);
                            book.nudge(&claim.name);
                            return Ok(true);
                        }
                        Ok(Ok(false)) => {
                            self.shut(&seat); // nor has it anything else of what we believe
                            return Ok(false);
                        }
                        Ok(Err(failure)) => {
                            // The server has ended it before, or knows it no more.
                            was_there = failure.fate == Fate::Unknown || seat.session.is_open();
                            self.clear(claim, &seat).await;
                        }
                        Err(_) => return Err(self.silent().error),
                    }
                }
                Stage::Waiting => self.clear(claim, &seat).await,
                Stage::Unknown => match timeout(self.answer_limit(), self.give_up(claim, &seat)).await {
                    Ok(Ok(())) => self.book().leave(claim.id),
                    Ok(Err(_)) => self.shut(&seat),
                    Err(_) => return Err(self.silent().error),
                },
            }
        }
    }

    /// Nobody knows what a claim has on a session that answered, or that only waits for it: unlock, or close.
    ///
    /// # Cancel safety
    /// Dropped, nothing is known; end the claim.
    pub(super) async fn clear(self: &Arc<Self>, claim: &Claim, seat: &Arc<Seat>) {
        let is_waiting = matches!(self.book().entry(claim.id), Some(entry) if entry.stage == Stage::Waiting);
        for _ in 0..TIMES {
            if !seat.session.is_open() || (is_waiting && self.server.interrupt(&seat.session).await.is_err()) {
                break;
            }
            let limit = if is_waiting { SAY_AGAIN } else { self.answer_limit() };
            match timeout(limit, self.give_up(claim, seat)).await {
                Ok(Ok(())) => return self.book().leave(claim.id),
                Ok(Err(_)) | Err(_) if is_waiting => {} // it may have been interrupted itself
                Ok(Err(_)) | Err(_) => break,
            }
        }
        self.shut(seat);
    }

    /// Lets go of whatever a claim has on a session, and of what the one has left there whose lock was passed on to it.
    async fn give_up(&self, claim: &Claim, seat: &Seat) -> Answer<()> {
        let before = self.book().entry(claim.id).and_then(|entry| entry.before.clone());
        if let Some(before) = before {
            seat.session.give_up(&before).await?;
        }
        seat.session.give_up(claim).await
    }

    /// Closes a session of which nobody knows the state, and with it all it has.
    fn shut(self: &Arc<Self>, seat: &Seat) {
        self.is_over(seat.number); // first: whoever holds on it is told before anybody else can be let in
        seat.session.close();
    }

    /// A session is no more: whatever was held on it is lost, now.
    pub(super) fn is_over(self: &Arc<Self>, number: u64) {
        let (lost, over) = {
            let mut book = self.book();
            let over = book.seats().find(|seat| seat.number == number).map(Arc::clone);
            (book.close(number), over)
        };
        lost.iter().for_each(|id| self.tell(|news| news.lost(*id)));
        if let Some(seat) = over {
            let inner = Arc::clone(self);
            self.spawn(async move {
                let _ = timeout(inner.answer_limit(), inner.server.tidy(Some(&seat.session))).await;
            });
        }
    }

    /// Makes a reader of a writer, as [`Record::downgrade`](tenure_core::record::Record::downgrade) does.
    ///
    /// # Cancel safety
    /// Dropped, it is done all the same.
    pub(super) async fn downgrade(self: &Arc<Self>, claim: &Claim) -> Result<bool> {
        let Some(seat) = self.book().entry(claim.id).map(|entry| Arc::clone(&entry.seat)) else { return Ok(false) };
        let pen = Arc::clone(&seat.pen).lock_owned().await;
        let held = {
            let mut book = self.book();
            let Some(entry) = book.entry(claim.id) else { return Ok(false) };
            let Stage::Held { token, mode, since, shown, .. } = entry.stage else { return Ok(false) };
            if mode == Mode::Shared {
                return Ok(true); // nobody waited for the answer to the first time
            }
            entry.stage = Stage::Changing;
            Held { token, mode, age: Instant::now().since(since), shown: shown.is_something() }
        };
        let (inner, claim) = (Arc::clone(self), claim.clone());
        let changing = async move {
            let _pen = pen;
            inner.make_reader(&claim, &seat, held).await
        };
        match self.home() {
            Some(home) => home.spawn(changing).await.unwrap_or_else(|_| Err(self.silent().error)),
            None => Err(self.silent().error),
        }
    }

    /// For whoever has the pen: does it, and writes down what came of it.
    async fn make_reader(self: Arc<Self>, claim: &Claim, seat: &Arc<Seat>, held: Held) -> Result<bool> {
        let (since, sent) = (Instant::now() - held.age, Instant::now());
        let changing = seat.session.downgrade(claim, held);
        let changed = timeout(self.answer_limit(), changing).await.unwrap_or_else(|_| Err(self.silent()));
        if let Err(failure) = changed {
            // Nobody knows in which mode it is held: it may be less than its holder believes.
            self.shut(seat);
            return Err(failure.error);
        }
        if let Some(entry) = self.book().entry(claim.id) {
            // Others may see it as it was before, or not as a hold at all: it is shown anew.
            let (expires, shown) = (sent + claim.ttl, Shown::anew(held.shown, sent));
            entry.stage = Stage::Held { token: held.token, mode: Mode::Shared, since, expires, shown };
        }
        self.plan_for(sent);
        Ok(true)
    }

    /// Hears what others had to say.
    pub(super) fn deliver(self: &Arc<Self>, mail: Vec<(ClaimId, Notice)>) {
        for (id, notice) in mail {
            let mut book = self.book();
            let Some(entry) = book.entry(id) else { continue };
            match notice {
                Notice::Asked(ask) => {
                    entry.asked = Some(ask.clone());
                    drop(book);
                    self.tell(|news| news.asked(id, ask));
                }
                Notice::Broken if !matches!(entry.stage, Stage::Held { .. } | Stage::Changing) => entry.broken = true,
                Notice::Broken => {
                    let claim = entry.claim.clone();
                    drop(book);
                    self.tell(|news| news.lost(id));
                    let inner = Arc::clone(self);
                    self.spawn(async move { drop(inner.end(&claim).await) });
                }
            }
        }
    }
}
