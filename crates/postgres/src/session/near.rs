//! Passing a hold on to another task of the same client, without the server.
//!
//! Tasks of one program that want one name in turn would each pay for letting go in the server and for being let in again, though
//! the lock never leaves the program. So whoever finds a plain mutex in use by this very client first waits here for a moment,
//! and whoever lets go of it passes its session's lock on: the next one draws its token there, which is one request.
//!
//! Others are not kept waiting for it: a session's lock is passed on for [`PASSED_FOR`] at most, from when the server gave it, and
//! then let go of in the server. And nobody waits here for long, where others do not see it: after [`HOPES_FOR`] it goes and stands in the server's
//! line. Only the plain mutex is passed on, which promises no order.
//!
//! # Who can interleave
//!
//! Everything here happens under the book's mutex. A claim that a lock is passed on to is in the book before its task knows: if
//! the task is gone by then, its claim's end finds it there and lets go. A task that is dropped leaves this line before its
//! claim's end is begun, since its future is dropped first. A hold that others see as one is not passed on, nor one that was not
//! renewed in time. Where others see it wait still, the next one takes that away, or whoever ends the next one does.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Claim, Clock, Instant, Kind, LockName, Mode};
use tokio::sync::oneshot;

use super::Inner;
use super::book::{Book, Entry, Seat, Shown, Stage};

/// For so long a session's lock goes from task to task before others get their chance.
const PASSED_FOR: Duration = Duration::from_millis(5);
/// For so long a task waits for that before it stands in the server's line.
const HOPES_FOR: Duration = Duration::from_millis(10);

/// Somebody who waits for a name to be passed on.
pub(super) struct Hopeful {
    claim: Claim,
    /// On a session with this idle limit.
    idle: Duration,
    /// On which session it has the lock now; `None` if it had better ask the server.
    tell: oneshot::Sender<Option<Arc<Seat>>>,
}

/// A place in that line.
pub(super) struct Turn {
    inner: Arc<Inner>,
    name: LockName,
    told: oneshot::Receiver<Option<Arc<Seat>>>,
}

impl Turn {
    pub(super) fn new(inner: &Arc<Inner>, name: &LockName, told: oneshot::Receiver<Option<Arc<Seat>>>) -> Self {
        Turn { inner: Arc::clone(inner), name: name.clone(), told }
    }

    /// The session that has the lock, for this claim from now on. `None` after a moment, or at the deadline.
    ///
    /// # Cancel safety
    /// Dropped, the claim may have been passed a lock: end it.
    pub(super) async fn comes(mut self, deadline: Instant) -> Option<Arc<Seat>> {
        let until = deadline.min(Instant::now() + HOPES_FOR);
        tokio::select! {
            biased;
            told = &mut self.told => return told.ok().flatten(),
            () = Clock::Boot.sleep_until(until) => {}
        }
        let _book = self.inner.book(); // whoever passes something on has done so, or finds nobody
        self.told.close();
        self.told.try_recv().ok().flatten()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut book = self.inner.book();
        self.told.close();
        book.forget_hopeless(&self.name);
    }
}

impl Book {
    /// A place in line for what another task of this client has, waits for, or is about to have or to let go of.
    pub(super) fn line_near(&mut self, claim: &Claim, idle: Duration) -> Option<oneshot::Receiver<Option<Arc<Seat>>>> {
        if claim.kind != Kind::Mutex {
            return None;
        }
        let is_near = |entry: &Entry| {
            entry.claim.name == claim.name
                && entry.claim.kind == claim.kind
                && entry.seat.idle == idle
                && match entry.stage {
                    Stage::Held { shown, .. } => shown.due().is_some(),
                    Stage::Waiting | Stage::Unknown => true,
                    Stage::Changing => false,
                }
        };
        if !self.has_name(&claim.name) || !self.claims.values().any(is_near) {
            return None;
        }
        let (tell, told) = oneshot::channel();
        let line = self.near.entry(claim.name.clone()).or_default();
        line.push_back(Hopeful { claim: claim.clone(), idle, tell });
        Some(told)
    }

    /// Passes on what a claim holds to the next who hopes for it. Whether there was somebody; then nothing of the claim is left.
    pub(super) fn pass_on(&mut self, claim: &Claim) -> bool {
        let now = Instant::now();
        let may_be = |entry: &Entry| {
            let Stage::Held { mode: Mode::Exclusive, expires, shown, .. } = entry.stage else { return false };
            shown.due().is_some() && now < expires && now.since(entry.had_since) < PASSED_FOR && entry.seat.session.is_open()
        };
        if !claim.min_hold.is_zero() || !self.claims.get(&claim.id).is_some_and(may_be) {
            return false;
        }
        let Some(next) = self.next_near(claim) else { return false };
        let Some(Entry { seat, had_since, room, stage, .. }) = self.claims.remove(&claim.id) else { return false };
        let before = matches!(stage, Stage::Held { shown: Shown::AsWaiting(_), .. }).then(|| claim.clone());
        let _ = next.tell.send(Some(Arc::clone(&seat))); // it listens: nobody stops without the book
        let stage = Stage::Unknown; // until its token is drawn
        let (given_up, ending) = (None, Arc::default());
        let entry =
            Entry { claim: next.claim, seat, stage, asked: None, broken: false, had_since, before, given_up, ending, room };
        self.claims.insert(entry.claim.id, entry);
        true
    }

    /// The name was let go of in the server: if nobody of us stands in its line, the first of those who hope had better ask.
    pub(super) fn nudge(&mut self, name: &LockName) {
        if self.is_ours(name) {
            return;
        }
        while let Some(Hopeful { tell, .. }) = self.near.get_mut(name).and_then(|line| line.pop_front()) {
            if tell.send(None).is_ok() {
                break;
            }
        }
        self.forget_hopeless(name);
    }

    /// Somebody else has the name, or was faster: unless that is one of us, all had better stand in the server's line.
    pub(super) fn disperse(&mut self, name: &LockName) {
        if self.is_ours(name) {
            return;
        }
        for Hopeful { tell, .. } in self.near.remove(name).into_iter().flatten() {
            let _ = tell.send(None); // if it does not hope any more, it asks by itself
        }
    }

    /// Whether a claim of ours has the name, waits for it, or asks for it.
    fn is_ours(&self, name: &LockName) -> bool {
        self.near.contains_key(name) && self.claims.values().any(|entry| entry.claim.name == *name)
    }

    /// Who is next for the session that this claim is on.
    fn next_near(&mut self, claim: &Claim) -> Option<Hopeful> {
        let idle = self.claims.get(&claim.id)?.seat.idle;
        let line = self.near.get_mut(&claim.name)?;
        let first = line.iter().position(|hopeful| hopeful.idle == idle && !hopeful.tell.is_closed())?;
        line.remove(first)
    }

    fn forget_hopeless(&mut self, name: &LockName) {
        if let Some(line) = self.near.get_mut(name) {
            line.retain(|hopeful| !hopeful.tell.is_closed());
            if line.is_empty() {
                self.near.remove(name);
            }
        }
    }
}
