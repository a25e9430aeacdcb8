//! Asking: on a shared session if it can be had at once, on one of its own if it must be waited for.
//!
//! Who can interleave: every claim of this client and of every other. A claim is in the book before its request leaves, so that
//! whoever drops this future finds it there and ends it. A grant that was waited for may be older than its answer, and the
//! server's count for its session began with the grant: so its window begins when the wait was sent. Where little of it is left, a
//! new token is drawn by a request of its own, with which the session is heard once more before anybody trusts it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::lease::{Failure, Fate, Tries};
use tenure_core::{Claim, Clock, Error, ErrorKind, Grant, Instant, Result, Token, Wait};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::book::{Seat, Shown, Stage};
use super::near::Turn;
use super::{Answer, Inner, Tried, idle_limit};

/// A hold that is younger than this is shown to nobody: most are over by then, and showing costs as much as locking.
const SHOW_AFTER: Duration = Duration::from_millis(4);
/// How much later than the server's our own clock ends a wait: the server knows better whether it was in time.
const GRACE: Duration = Duration::from_millis(500);
/// The longest wait that a server is told; one that is longer is ended by us.
const LONGEST_LIMIT: Duration = Duration::from_secs(20 * 24 * 60 * 60);
/// Whoever has waited in line for so long has met a server that worked.
const MET: Duration = Duration::from_secs(1);

/// A grant that was waited for counts from when the wait was sent, if no more than this part of its ttl is over.
const SHORT: u32 = 8;

/// How soon whoever has no room for a session tries once more on a shared one: at first, and in the long run.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LAST_RETRY: Duration = Duration::from_secs(2);

/// Where a claim is to be tried first.
enum First {
    /// Here.
    Seat(Arc<Seat>),
    /// Another task of this client has it, and may pass it on.
    Near(Turn),
    /// On a session that must be opened.
    Open,
    /// Nowhere: it can only be waited for.
    Wait,
    /// Nowhere: this client has it.
    Busy,
}

impl Inner {
    /// Grants, or waits in line.
    ///
    /// # Cancel safety
    /// Dropped, the claim may be in the store: end it.
    pub(super) async fn acquire(self: &Arc<Self>, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        tokio::task::coop::consume_budget().await; // a task that locks in a loop must let others run
        self.start_heart();
        let deadline = wait.deadline(Instant::now());
        let limit = if wait == Wait::No { self.answer_limit() } else { self.server.settings().patience };
        let (mut begun, mut tries) = (Instant::now(), None);
        loop {
            let mut has_met = false;
            let failure = match self.ask_once(claim, wait, deadline, &mut has_met).await {
                Ok(granted) => return Ok(granted),
                Err(failure) => failure,
            };
            let now = Instant::now();
            if has_met {
                (begun, tries) = (now, None);
            }
            let left = limit.saturating_sub(now.since(begun));
            let tries = tries.get_or_insert_with(|| Tries::within(left, self.server.describe()));
            if !tries.again(&failure).await {
                return Err(failure.error);
            }
        }
    }

    /// `has_met` says of a failure that it came after a while in the line of a server that worked.
    async fn ask_once(
        self: &Arc<Self>,
        claim: &Claim,
        wait: Wait,
        deadline: Instant,
        has_met: &mut bool,
    ) -> Answer<Option<Grant>> {
        let mut is_near = true;
        let seat = loop {
            match self.first(claim, wait, is_near)? {
                First::Near(turn) => match turn.comes(deadline).await {
                    Some(seat) => return self.enter(claim, &seat, Shown::At(Instant::now() + SHOW_AFTER)).await.map(Some),
                    None => is_near = false,
                },
                First::Seat(seat) => break Some(seat),
                First::Open => break self.in_time(self.open_shared(claim, wait)).await?,
                First::Wait => break None,
                First::Busy => return Ok(None),
            }
        };
        if let Some(seat) = seat
            && let Some(grant) = self.try_on(claim, &seat).await?
        {
            return Ok(Some(grant));
        }
        if wait == Wait::No || Instant::now() >= deadline {
            return Ok(None);
        }
        let room = Arc::clone(&self.room).acquire_owned();
        tokio::pin!(room);
        let mut pace = FIRST_RETRY;
        let room = loop {
            if let Some(room) = before(deadline.min(Instant::now() + pace), &mut room).await {
                break room.ok();
            }
            // Those who have the room may hold for as long as they like, and wait for us to let go of something else.
            if let First::Seat(seat) = self.first(claim, wait, false)?
                && let Some(grant) = self.try_on(claim, &seat).await?
            {
                return Ok(Some(grant));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            pace = (pace * 2).min(LAST_RETRY);
        };
        let seat = self.seat_of_its_own(claim, room).await?;
        let begun = Instant::now();
        let waited = self.wait_on_own(claim, wait, deadline, &seat).await;
        *has_met = Instant::now().since(begun) > MET;
        waited
    }

    /// Where to try first; the claim is in the book then.
    fn first(self: &Arc<Self>, claim: &Claim, wait: Wait, is_near: bool) -> Answer<First> {
        let idle = idle_limit(claim.ttl);
        let mut book = self.book();
        if is_near
            && wait != Wait::No
            && let Some(line) = book.line_near(claim, idle)
        {
            return Ok(First::Near(Turn::new(self, &claim.name, line)));
        }
        if let Some(holder) = book.holder(&claim.name) {
            let kind = holder.claim.kind;
            return match (kind == claim.kind, wait) {
                (false, _) => Err(refused(claim.mismatch(kind, 0))),
                (true, Wait::No) => Ok(First::Busy),
                (true, _) => Ok(First::Wait),
            };
        }
        match book.shared(idle, &claim.name) {
            Some(seat) => {
                book.seat(claim, &seat, Stage::Unknown, None);
                Ok(First::Seat(seat))
            }
            None if wait != Wait::No && book.has_shared(idle) => Ok(First::Wait),
            None => Ok(First::Open),
        }
    }

    /// Opens a session that many share, unless somebody else has just done so.
    async fn open_shared(self: &Arc<Self>, claim: &Claim, wait: Wait) -> Answer<Option<Arc<Seat>>> {
        let _one_at_a_time = self.opening.lock().await;
        match self.first(claim, wait, false)? {
            First::Seat(seat) => return Ok(Some(seat)),
            First::Near(_) | First::Wait | First::Busy => return Ok(None),
            First::Open => {}
        }
        let opened = self.open(idle_limit(claim.ttl), false).await?;
        self.book().seat(claim, &opened.seat, Stage::Unknown, None);
        Ok(Some(Arc::clone(&opened.seat)))
    }

    /// Opens a session, where it does not end with the caller's runtime.
    async fn open(self: &Arc<Self>, idle: Duration, is_own: bool) -> Answer<Opened> {
        let inner = Arc::clone(self);
        let opening = async move {
            let session = inner.server.open(idle).await?;
            let ended = session.ended();
            let seat = inner.book().open(session, idle, is_own);
            let (weak, number) = (Arc::downgrade(&inner), seat.number);
            tokio::spawn(async move {
                ended.await;
                if let Some(inner) = weak.upgrade() {
                    inner.is_over(number);
                }
            });
            inner.plan_for(Instant::now());
            Ok(Opened { inner, seat })
        };
        match self.home() {
            Some(home) => home.spawn(opening).await.unwrap_or_else(|_| Err(ended_runtime())),
            None => Err(ended_runtime()),
        }
    }

    /// What opens a session, if it takes no longer than an answer may: a server that cannot be reached keeps nobody waiting for all who
    /// came before.
    async fn in_time<T>(&self, opening: impl Future<Output = Answer<T>>) -> Answer<T> {
        let limit = self.answer_limit();
        timeout(limit, opening).await.unwrap_or_else(|_| {
            let error = Error::new(ErrorKind::Unavailable, format!("no session could be opened within {limit:?}"))
                .with_store(self.server.describe())
                .with_hint("Is the server reachable from here, and has it connections left?");
            Err(Failure { error, fate: Fate::Refused, again: true }) // nothing of the claim is anywhere
        })
    }

    /// Tries on a session that the book has the claim on.
    async fn try_on(self: &Arc<Self>, claim: &Claim, seat: &Arc<Seat>) -> Answer<Option<Grant>> {
        let sent = Instant::now();
        match timeout(self.answer_limit(), seat.session.try_lock(claim)).await {
            Ok(Ok(Tried::Granted(token))) => {
                self.granted(claim, token, sent, sent, Shown::At(sent + SHOW_AFTER))?;
                Ok(Some(Grant { token, until: claim.window(sent) }))
            }
            Ok(Ok(Tried::Busy)) => {
                let mut book = self.book();
                book.leave(claim.id);
                book.disperse(&claim.name);
                Ok(None)
            }
            Ok(Ok(Tried::Mismatch(kind))) => {
                self.book().leave(claim.id);
                Err(refused(claim.mismatch(kind, 0)))
            }
            Ok(Err(failure)) => {
                self.clear(claim, seat).await;
                Err(failure)
            }
            Err(_) => Err(self.silent()), // the session may have other holds: whoever ends this claim sends that after it
        }
    }

    /// A session on which a claim can wait, and nobody else is.
    async fn seat_of_its_own(self: &Arc<Self>, claim: &Claim, room: Option<OwnedSemaphorePermit>) -> Answer<Arc<Seat>> {
        let idle = idle_limit(claim.ttl);
        {
            let mut book = self.book();
            if let Some(seat) = book.vacant(idle) {
                book.seat(claim, &seat, Stage::Waiting, room);
                return Ok(seat);
            }
        }
        let opened = self.in_time(self.open(idle, true)).await?;
        self.book().seat(claim, &opened.seat, Stage::Waiting, room);
        Ok(Arc::clone(&opened.seat))
    }

    /// Waits on a session of its own.
    async fn wait_on_own(
        self: &Arc<Self>,
        claim: &Claim,
        wait: Wait,
        deadline: Instant,
        seat: &Arc<Seat>,
    ) -> Answer<Option<Grant>> {
        let sent = Instant::now();
        let limit = match wait.left(deadline, sent) {
            Wait::For(left) if left < LONGEST_LIMIT => Some(left),
            _ => None,
        };
        let waited = before(deadline + GRACE, seat.session.wait(claim, limit)).await;
        let now = Instant::now();
        let is_broken = match self.book().entry(claim.id) {
            Some(entry) if waited.is_some() => {
                (entry.stage, entry.had_since) = (Stage::Unknown, now); // it does not wait any more
                entry.broken
            }
            entry => entry.is_none(),
        };
        match waited {
            Some(Ok(Some(token))) if !is_broken && now.since(sent) < claim.ttl / SHORT => {
                self.granted(claim, token, sent, now, Shown::AsWaiting(now + SHOW_AFTER))?;
                Ok(Some(Grant { token, until: claim.window(sent) }))
            }
            Some(Ok(Some(_))) => self.enter(claim, seat, Shown::AsWaiting(now)).await.map(Some),
            Some(Ok(None)) | None => {
                self.clear(claim, seat).await;
                Ok(None)
            }
            Some(Err(failure)) => {
                self.clear(claim, seat).await;
                Err(failure)
            }
        }
    }

    /// The session has the lock, since some time ago: the server hears of it once more, and counts from then on.
    async fn enter(self: &Arc<Self>, claim: &Claim, seat: &Arc<Seat>, shown: Shown) -> Answer<Grant> {
        let before = self.book().entry(claim.id).and_then(|entry| entry.before.clone());
        let sent = Instant::now();
        match timeout(self.answer_limit(), seat.session.enter(before.as_ref())).await {
            Ok(Ok(_)) if self.book().entry(claim.id).is_none_or(|entry| entry.broken) => {
                self.clear(claim, seat).await;
                Err(broken())
            }
            Ok(Ok(token)) => {
                if let Some(entry) = self.book().entry(claim.id) {
                    entry.before = None;
                }
                self.granted(claim, token, sent, sent, shown)?;
                Ok(Grant { token, until: claim.window(sent) })
            }
            Ok(Err(failure)) => {
                self.clear(claim, seat).await;
                Err(failure)
            }
            Err(_) => Err(self.silent()),
        }
    }

    /// Writes down that a claim holds; unless its session ended after it had answered, which may be known before the answer is read.
    fn granted(&self, claim: &Claim, token: Token, sent: Instant, since: Instant, shown: Shown) -> Answer<()> {
        let expires = sent + claim.ttl;
        match self.book().entry(claim.id) {
            Some(entry) => entry.stage = Stage::Held { token, mode: claim.mode, since, expires, shown },
            None => return Err(ended_since()),
        }
        self.plan_for(shown.due().map_or(expires, |at| at.min(expires)));
        Ok(())
    }

    /// The heart wakes up then at the latest.
    pub(super) fn plan_for(&self, at: Instant) {
        if self.planned.fetch_min(at.as_nanos(), Ordering::Relaxed) > at.as_nanos() {
            self.bell.notify_one();
        }
    }

    pub(super) fn silent(&self) -> Failure {
        let what = format!("no answer within {:?}", self.answer_limit());
        let error = Error::new(ErrorKind::Unavailable, what)
            .with_store(self.server.describe())
            .with_hint("Is the server reachable from here, and is nothing keeping it busy?");
        Failure { error, fate: Fate::Unknown, again: false }
    }
}

/// A session that was just opened. Whoever did so may be gone by then: dropped, anybody may use it.
struct Opened {
    inner: Arc<Inner>,
    seat: Arc<Seat>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.inner.book().unreserve(&self.seat);
    }
}

/// What a future gives, if it does so before then.
async fn before<T>(deadline: Instant, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = Clock::Boot.sleep_until(deadline) => None,
    }
}

fn refused(error: Error) -> Failure {
    Failure { error, fate: Fate::Refused, again: false }
}

fn broken() -> Failure {
    let error = Error::new(ErrorKind::Unavailable, "somebody broke the hold while it was let in");
    Failure { error, fate: Fate::Refused, again: true }
}

fn ended_since() -> Failure {
    let error = Error::new(ErrorKind::Unavailable, "the session that was granted the lock has ended since");
    Failure { error, fate: Fate::Refused, again: true }
}

fn ended_runtime() -> Failure {
    let error = Error::new(ErrorKind::Unavailable, "the runtime that opened the session has ended")
        .with_hint("Ask again from a runtime that goes on");
    Failure { error, fate: Fate::Refused, again: true }
}
