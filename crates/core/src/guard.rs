//! What a caller holds: proof, for as long as it lasts, and the signal that it does not.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::backend::BoxFuture;
use crate::client::Inner;
use crate::hold::{Event, Phase};
use crate::kept::{Hold, Seen};
use crate::{Ask, Claim, Error, ErrorKind, Instant, Keys, Kind, LockName, LossReason, Mode, Result, Sequencer, Token};

/// A held lock. It is kept alive in the background until it is released or dropped.
///
/// A lock in a distributed system is a lease: it can end while you work, if the store or the way to it fails for longer
/// than the ttl, or if this process stands still. A guard says so in three ways, all by the local clock and all before
/// the store can let anybody else in: [`check`](Guard::check) before doing something that matters,
/// [`lost`](Guard::lost) to stop what is running, and [`run`](Guard::run), which does both. For what may never happen
/// twice, hand [`token`](Guard::token) to the resource and let it refuse lower ones.
///
/// Dropping a guard releases it in the background, on any thread, with or without a runtime.
/// [`release`](Guard::release) does so at once and says how it went.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// # let client = tenure_core::Client::new(tenure_core::memory::Memory::new().backend())?;
/// let guard = client.mutex("invoices")?.lock().await?;
/// let sum = guard.run(async { 40 + 2 }).await?;
/// guard.check()?;
/// println!("{sum}, fenced by {}", guard.token());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "a guard that is dropped at once releases its lock at once"]
pub struct Guard {
    pub(crate) lease: Arc<Lease>,
    mode: Mode,
    /// What its sequencers are signed with.
    keys: Option<Keys>,
    /// Whether a downgrade was sent and its outcome never heard: it may be tried again.
    unsure: bool,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("mode", &self.mode)
            .field("token", &self.token())
            .field("phase", &self.phase())
            .finish()
    }
}

impl Guard {
    pub(crate) fn new(lease: Arc<Lease>, mode: Mode, keys: Option<Keys>) -> Self {
        Guard { lease, mode, keys, unsure: false }
    }

    /// What is locked.
    pub fn name(&self) -> &LockName {
        &self.hold().claim.name
    }

    /// The kind of lock.
    pub fn kind(&self) -> Kind {
        self.hold().claim.kind
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The fencing number: larger than that of every earlier grant of this name, the same on re-entry.
    pub fn token(&self) -> Token {
        self.hold().token
    }

    /// The hold as one printable string, to hand to what the lock protects: signed, if the client was
    /// [given keys](crate::Client::signed_with).
    pub fn sequencer(&self) -> Sequencer {
        let issued_ms = self.lease.client.environment().clock.wall_micros() / 1000;
        let sequencer = Sequencer::new(self.name().clone(), self.kind(), self.mode, self.token(), issued_ms);
        match &self.keys {
            Some(keys) => sequencer.signed_with(keys),
            None => sequencer,
        }
    }

    /// The local instant from which the hold may not be trusted, unless it is renewed before.
    pub fn valid_until(&self) -> Instant {
        self.hold().until()
    }

    /// How long the hold may be trusted from now on; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        match self.phase() {
            Phase::Held | Phase::Jeopardy => self.valid_until().since(self.now()),
            Phase::Lost | Phase::Gone => Duration::ZERO,
        }
    }

    /// Where the hold stands now: held, in jeopardy (a renewal is overdue, the window still open), or lost.
    pub fn phase(&self) -> Phase {
        if self.lease.is_forked() { Phase::Lost } else { self.hold().phase_at(self.now()) }
    }

    /// `Ok` while the hold may be trusted. Asks the local clock only: no request, no waiting.
    ///
    /// In a forked child it is [`Lost`](ErrorKind::Lost): the parent has the lock.
    pub fn check(&self) -> Result<()> {
        match self.phase() {
            Phase::Held | Phase::Jeopardy => Ok(()),
            Phase::Lost | Phase::Gone => Err(self.lease.lost()),
        }
    }

    /// Completes when the hold may no longer be trusted, before the store can let anybody else in.
    ///
    /// # Cancel safety
    /// Dropping it stops listening, nothing else.
    pub async fn lost(&self) {
        let clock = self.lease.client.environment().clock;
        loop {
            let until = self.valid_until();
            tokio::select! {
                biased;
                () = self.hold().until_some(|_| (self.phase() == Phase::Lost).then_some(())) => return,
                // The keeper says so first; this is for the day its thread does not come to run.
                () = clock.sleep_until(until), if until < Instant::NEVER => {}
            }
        }
    }

    /// Why the hold was lost; `None` while it may be trusted.
    pub fn loss_reason(&self) -> Option<LossReason> {
        self.hold().loss_reason(self.now())
    }

    /// Completes with the next renewal, when [`valid_until`](Guard::valid_until) has moved on; `Err(Lost)` if the hold is lost instead.
    /// A hold that was waited for has a window of two seconds at first, and is renewed at once: who needs all of its ttl from the
    /// start waits for this.
    ///
    /// # Cancel safety
    /// Dropping it stops listening, nothing else.
    pub async fn renewed(&self) -> Result<()> {
        let until = self.valid_until();
        tokio::select! {
            biased;
            () = self.hold().until_some(|hold| (hold.until() > until).then_some(())) => Ok(()),
            () = self.lost() => Err(self.lease.lost()),
        }
    }

    /// Completes when somebody has asked the holder to let go, with why and who. Letting go remains the holder's choice.
    ///
    /// # Cancel safety
    /// Dropping it stops listening; the request stays and is given by the next call.
    pub async fn asked(&self) -> Ask {
        self.hold().until_some(Hold::asked).await
    }

    /// Everything that happens to this hold, in order, from its grant on: [`Event`]s.
    pub fn events(&self) -> Events {
        Events { hold: Arc::clone(self.hold()), seen: self.hold().seen(), news: None }
    }

    /// Runs a future for as long as the hold may be trusted: at the end of the window it is dropped where it stands, and
    /// the answer is [`Lost`](ErrorKind::Lost). It is never polled without the lock.
    ///
    /// # Cancel safety
    /// Dropping it drops the future; the lock stays held.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        tokio::pin!(work);
        let lost = self.lost();
        tokio::pin!(lost);
        std::future::poll_fn(move |context| {
            if self.check().is_err() || lost.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(self.lease.lost()));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Lets go, and completes when the store has confirmed it.
    ///
    /// `Err(Lost)` if the hold had been lost before: what was done under it may have overlapped with somebody else. Any
    /// other error means that the store did not confirm; the ending is then tried again in the background, and the ttl is
    /// the backstop. One guard of a re-entered lock only steps back; the last one lets go.
    ///
    /// # Cancel safety
    /// Dropping it hands the ending to the background, as dropping the guard does.
    pub async fn release(self) -> Result<()> {
        match Arc::into_inner(self.lease) {
            Some(lease) => lease.release().await,
            None => Ok(()),
        }
    }

    /// Lets go without the minimum hold: for a hold under which nothing was done that others should wait for. Otherwise like
    /// [`release`](Guard::release).
    ///
    /// # Cancel safety
    /// Dropping it hands the ending to the background.
    pub async fn give_up(self) -> Result<()> {
        match Arc::into_inner(self.lease) {
            Some(lease) => lease.give_up().await,
            None => Ok(()),
        }
    }

    /// Turns a held write lock into a read lock without letting go in between, and lets other
    /// readers in. The hold keeps its token and its window. On Redlock this is
    /// [`Unsupported`](ErrorKind::Unsupported).
    ///
    /// # Cancel safety
    /// Dropped before it completes, the store may or may not have let readers in; this guard is a reader's then.
    pub async fn downgrade(&mut self) -> Result<()> {
        self.can_be_downgraded()?;
        self.check()?;
        // A reader from here on, whatever becomes of the request: the store may let others in before we hear of it.
        (self.mode, self.unsure) = (Mode::Shared, true);
        let is_held = self.lease.client.keeper().backend.downgrade(&self.hold().claim).await?;
        self.unsure = false;
        if is_held { self.check() } else { Err(self.lease.lost()) }
    }

    fn can_be_downgraded(&self) -> Result<()> {
        let refused = |what: String| Err(Error::new(ErrorKind::Unsupported, what).with_name(self.name()));
        if self.kind() != Kind::RwLock || (self.mode != Mode::Exclusive && !self.unsure) {
            return refused(format!("a {} held {} cannot be downgraded", self.kind(), self.mode));
        }
        let abilities = &self.lease.client.abilities;
        if !abilities.downgrade {
            return refused("this store cannot downgrade a write lock".to_owned())
                .map_err(|error| error.with_store(abilities.store).with_hint("Release it, and lock it for reading"));
        }
        Ok(())
    }

    fn hold(&self) -> &Arc<Hold> {
        &self.lease.hold
    }

    fn now(&self) -> Instant {
        self.lease.client.keeper().now()
    }
}

impl From<&Guard> for Sequencer {
    fn from(guard: &Guard) -> Self {
        guard.sequencer()
    }
}

/// What happens to a hold, in order. From [`Guard::events`]; outlives the guard. Also a [`Stream`](futures_core::Stream).
pub struct Events {
    hold: Arc<Hold>,
    seen: Seen,
    /// Completes when there is something to tell: what the stream waits for.
    news: Option<BoxFuture<'static, ()>>,
}

impl Events {
    /// The next event; `None` once the hold was let go, or after an [`Event::Lost`].
    ///
    /// # Cancel safety
    /// Dropping it loses nothing: the next call gives the same event.
    pub async fn next(&mut self) -> Option<Event> {
        let Events { hold, seen, .. } = self;
        hold.until_some(|hold| hold.next_event(seen)).await
    }
}

impl futures_core::Stream for Events {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let Events { hold, seen, news } = self.get_mut();
        loop {
            if let Some(event) = hold.next_event(seen) {
                *news = None;
                return Poll::Ready(event);
            }
            let waiting = news.get_or_insert_with(|| {
                // With a copy of what was seen: it only looks, and whoever reads next is told.
                let (hold, mut seen) = (Arc::clone(hold), seen.clone());
                Box::pin(async move { hold.until_some(|hold| hold.next_event(&mut seen).map(drop)).await })
            });
            std::task::ready!(waiting.as_mut().poll(context));
            *news = None;
        }
    }
}

/// A grant in keeping; ends when dropped. Guards share one when a lock is re-entered.
pub(crate) struct Lease {
    client: Arc<Inner>,
    hold: Arc<Hold>,
    /// Whether the hold could still be trusted when it was let go: it is let go once, however often its ending is tried.
    had_it: Option<bool>,
    released: bool,
}

impl Lease {
    pub(crate) fn new(client: Arc<Inner>, hold: Arc<Hold>) -> Self {
        Lease { client, hold, had_it: None, released: false }
    }

    pub(crate) fn is_trusted(&self) -> bool {
        let now = self.client.keeper().now();
        !self.is_forked() && matches!(self.hold.phase_at(now), Phase::Held | Phase::Jeopardy)
    }

    pub(crate) fn lost(&self) -> Error {
        let says = if self.is_forked() {
            "this process was forked from the one that holds it".to_owned()
        } else {
            let reason = self.hold.loss_reason(self.client.keeper().now()).unwrap_or(LossReason::Refused);
            format!("the hold was lost: {reason}")
        };
        Error::new(ErrorKind::Lost, says)
            .with_name(&self.hold.claim.name)
            .with_store(self.client.keeper().backend.describe())
            .with_hint("Somebody else may hold it now: stop, and check what was done since")
    }

    /// Lets go of a hold that nobody has used: it owes nobody a minimum hold.
    async fn give_up(self) -> Result<()> {
        let claim = Claim { min_hold: Duration::ZERO, ..self.hold.claim.clone() };
        self.end(&claim).await
    }

    async fn release(self) -> Result<()> {
        let claim = self.hold.claim.clone();
        self.end(&claim).await
    }

    async fn end(mut self, claim: &Claim) -> Result<()> {
        if self.is_forked() {
            return Err(self.lost());
        }
        let had_it = self.let_go();
        if !had_it && !claim.lock_delay.is_zero() {
            return Err(self.lost()); // and `drop` sees to it that its lock-delay is kept
        }
        // Not `released` yet: if this future is dropped, or the store does not confirm, `drop` goes on in the background.
        let released = self.client.keeper().backend.release(claim).await;
        let was_there = !released.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost);
        if was_there {
            released?;
        }
        self.released = true;
        if had_it && was_there { Ok(()) } else { Err(self.lost()) }
    }

    /// Stops keeping the hold. Says whether it could still be trusted.
    fn let_go(&mut self) -> bool {
        *self.had_it.get_or_insert_with(|| self.client.keeper().let_go(&self.hold))
    }

    /// A fork copies guards but not the right to them; the copy must neither trust nor release.
    fn is_forked(&self) -> bool {
        self.client.is_forked()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.released && !self.is_forked() {
            let had_it = self.let_go();
            let (keeper, claim) = (self.client.keeper(), self.hold.claim.clone());
            if had_it || claim.lock_delay.is_zero() {
                keeper.end(claim);
            } else {
                keeper.end_after_loss(claim); // ending it now would open the name before its lock-delay is over
            }
        }
    }
}
