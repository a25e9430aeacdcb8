//! Asking: on a shared session if it can be had at once, on one of its own if it must be waited for.
//!
//! Who can interleave: every claim of this client and of every other. A claim is in the book before its request leaves, so that
//! whoever drops this future finds it there and ends it. A grant that was waited for may be older than its answer, and the
//! server's count for its session began with the grant: so the session is heard once more before anybody trusts it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::book::{Seat, Shown, Stage};
use super::{Answer, Inner, Server, Session, Tried, idle_limit};
use crate::lease::tries::Tries;
use crate::lease::{Failure, Fate, mismatch};
use crate::{Claim, Clock, Error, ErrorKind, Grant, Instant, Result, Token, Wait};

/// A hold that is younger than this is shown to nobody: most are over by then, and showing costs as much as locking.
const SHOW_AFTER: Duration = Duration::from_millis(4);
/// How much later than the server's our own clock ends a wait: the server knows better whether it was in time.
const GRACE: Duration = Duration::from_millis(500);
/// The longest wait that a server is told; one that is longer is ended by us.
const LONGEST_LIMIT: Duration = Duration::from_secs(20 * 24 * 60 * 60);
/// Whoever has waited in line for so long has met a server that worked.
const MET: Duration = Duration::from_secs(1);

/// Where a claim is to be tried first.
enum First<X> {
    /// Here.
    Seat(Arc<Seat<X>>),
    /// On a session that must be opened.
    Open,
    /// Nowhere: it can only be waited for.
    Wait,
    /// Nowhere: this client has it.
    Busy,
}

impl<S: Server> Inner<S> {
    /// Grants, or waits in line.
    ///
    /// # Cancel safety
    /// Dropped, the claim may be in the store: end it.
    pub(super) async fn acquire(self: &Arc<Self>, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        tokio::task::coop::consume_budget().await; // a task that locks in a loop must let others run
        self.start_heart();
        let deadline = wait.deadline(Instant::now());
        let limits = self.server.limits();
        let limit = if wait == Wait::No { limits.answer } else { limits.patience };
        let mut tries = None;
        loop {
            let begun = Instant::now();
            let failure = match self.ask_once(claim, wait, deadline).await {
                Ok(granted) => return Ok(granted),
                Err(failure) => failure,
            };
            if Instant::now().since(begun) > MET {
                tries = None;
            }
            let tries = tries.get_or_insert_with(|| Tries::within(limit, self.server.describe()));
            if !tries.again(&failure).await {
                return Err(failure.error);
            }
        }
    }

    async fn ask_once(self: &Arc<Self>, claim: &Claim, wait: Wait, deadline: Instant) -> Answer<Option<Grant>> {
        let seat = match self.first(claim, wait)? {
            First::Seat(seat) => Some(seat),
            First::Open => self.open_shared(claim, wait).await?,
            First::Wait => None,
            First::Busy => return Ok(None),
        };
        if let Some(seat) = seat
            && let Some(grant) = self.try_on(claim, &seat).await?
        {
            return Ok(Some(grant));
        }
        if wait == Wait::No || Instant::now() >= deadline {
            return Ok(None);
        }
        let room = Arc::clone(&self.room);
        let room = match before(deadline, room.acquire_owned()).await {
            Some(room) => room.ok(),
            None => return Ok(None),
        };
        self.wait_on_own(claim, wait, deadline, room).await
    }

    /// Where to try first; the claim is in the book then.
    fn first(&self, claim: &Claim, wait: Wait) -> Answer<First<S::Session>> {
        let idle = idle_limit(claim.ttl);
        let mut book = self.book();
        if let Some(holder) = book.holder(&claim.name) {
            let kind = holder.claim.kind;
            return match (kind == claim.kind, wait) {
                (false, _) => Err(refused(mismatch(claim, kind, 0))),
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
    async fn open_shared(self: &Arc<Self>, claim: &Claim, wait: Wait) -> Answer<Option<Arc<Seat<S::Session>>>> {
        let _one_at_a_time = self.opening.lock().await;
        match self.first(claim, wait)? {
            First::Seat(seat) => return Ok(Some(seat)),
            First::Wait | First::Busy => return Ok(None),
            First::Open => {}
        }
        let opened = self.open(idle_limit(claim.ttl), false).await?;
        self.book().seat(claim, &opened.seat, Stage::Unknown, None);
        Ok(Some(Arc::clone(&opened.seat)))
    }

    /// Opens a session, where it does not end with the caller's runtime.
    async fn open(self: &Arc<Self>, idle: Duration, is_own: bool) -> Answer<Opened<S>> {
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

    /// Tries on a session that the book has the claim on.
    async fn try_on(self: &Arc<Self>, claim: &Claim, seat: &Arc<Seat<S::Session>>) -> Answer<Option<Grant>> {
        let sent = Instant::now();
        match timeout(self.server.limits().answer, seat.session.try_lock(claim)).await {
            Ok(Ok(Tried::Granted(token))) => {
                self.granted(claim, token, sent, Shown::At(sent + SHOW_AFTER));
                Ok(Some(Grant { token, until: claim.window(sent) }))
            }
            Ok(Ok(Tried::Busy)) => {
                self.book().leave(claim.id);
                Ok(None)
            }
            Ok(Ok(Tried::Mismatch(kind))) => {
                self.book().leave(claim.id);
                Err(refused(mismatch(claim, kind, 0)))
            }
            Ok(Err(failure)) => {
                self.clear(claim, seat).await;
                Err(failure)
            }
            Err(_) => Err(self.silent()), // the session may have other holds: whoever ends this claim sends that after it
        }
    }

    /// Waits on a session of its own.
    async fn wait_on_own(
        self: &Arc<Self>,
        claim: &Claim,
        wait: Wait,
        deadline: Instant,
        room: Option<OwnedSemaphorePermit>,
    ) -> Answer<Option<Grant>> {
        let idle = idle_limit(claim.ttl);
        let mut room = Some(room);
        let seat = {
            let mut book = self.book();
            let vacant = book.vacant(idle);
            if let Some(seat) = &vacant {
                book.seat(claim, seat, Stage::Waiting, room.take().flatten());
            }
            vacant
        };
        let seat = match seat {
            Some(seat) => seat,
            None => {
                let opened = self.open(idle, true).await?;
                self.book().seat(claim, &opened.seat, Stage::Waiting, room.take().flatten());
                Arc::clone(&opened.seat)
            }
        };
        let waited = loop {
            let limit = match wait.left(deadline, Instant::now()) {
                Wait::For(left) if left < LONGEST_LIMIT => Some(left),
                _ => None,
            };
            match before(deadline + GRACE, seat.session.wait(claim, limit)).await {
                Some(Ok(Tried::Busy)) if Instant::now() < deadline => {} // its limit was shorter than ours
                waited => break waited,
            }
        };
        if waited.is_some()
            && let Some(entry) = self.book().entry(claim.id)
        {
            entry.stage = Stage::Unknown; // it does not wait any more
        }
        match waited {
            Some(Ok(Tried::Granted(token))) => self.confirm(claim, &seat, token).await.map(Some),
            Some(Ok(Tried::Busy)) | None => {
                self.clear(claim, &seat).await;
                Ok(None)
            }
            Some(Ok(Tried::Mismatch(kind))) => {
                self.clear(claim, &seat).await;
                Err(refused(mismatch(claim, kind, 0)))
            }
            Some(Err(failure)) => {
                self.clear(claim, &seat).await;
                Err(failure)
            }
        }
    }

    /// The server has granted, some time ago: it hears of the session once more, and counts from then on.
    async fn confirm(self: &Arc<Self>, claim: &Claim, seat: &Arc<Seat<S::Session>>, token: Token) -> Answer<Grant> {
        let sent = Instant::now();
        match timeout(self.server.limits().answer, seat.session.ping()).await {
            Ok(Ok(mail)) => {
                let shown = if seat.session.shows_grants() { Shown::Yes } else { Shown::At(sent) };
                self.granted(claim, token, sent, shown);
                self.deliver(mail);
                Ok(Grant { token, until: claim.window(sent) })
            }
            Ok(Err(failure)) => {
                self.clear(claim, seat).await;
                Err(failure)
            }
            Err(_) => Err(self.silent()),
        }
    }

    fn granted(&self, claim: &Claim, token: Token, sent: Instant, shown: Shown) {
        let expires = sent + claim.ttl;
        if let Some(entry) = self.book().entry(claim.id) {
            entry.stage = Stage::Held { token, mode: claim.mode, since: sent, expires, shown };
        }
        self.plan_for(if let Shown::At(at) = shown { at.min(expires) } else { expires });
    }

    /// The heart wakes up then at the latest.
    pub(super) fn plan_for(&self, at: Instant) {
        if self.planned.fetch_min(at.as_nanos(), Ordering::Relaxed) > at.as_nanos() {
            self.bell.notify_one();
        }
    }

    pub(super) fn silent(&self) -> Failure {
        let what = format!("no answer within {:?}", self.server.limits().answer);
        let error = Error::new(ErrorKind::Unavailable, what)
            .with_store(self.server.describe())
            .with_hint("Is the server reachable from here, and is nothing keeping it busy?");
        Failure { error, fate: Fate::Unknown, again: false }
    }
}

/// A session that was just opened. Whoever did so may be gone by then: dropped, anybody may use it.
struct Opened<S: Server> {
    inner: Arc<Inner<S>>,
    seat: Arc<Seat<S::Session>>,
}

impl<S: Server> Drop for Opened<S> {
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

fn ended_runtime() -> Failure {
    let error = Error::new(ErrorKind::Unavailable, "the runtime that opened the session has ended")
        .with_hint("Ask again from a runtime that goes on");
    Failure { error, fate: Fate::Refused, again: true }
}
