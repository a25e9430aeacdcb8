//! Waiting in line: watch the one in front, and nothing else.
//!
//! The one in front, where nothing else is ahead, is the holder: when it is gone, the waiter holds, and asks nobody. Where more was
//! ahead, the waiter looks once; unless the one in front was a hold of the same client: the answer to that client's release says as
//! much as the watch would. An rw lock's waiter always looks, for its token. The first who waits for permits watches everybody who
//! has some; when it is let in it writes its key anew, which tells the one behind it that it is the first now.
//!
//! Who can interleave: the one in front may go before the watch is there, so the first thing that a watch brings about is a
//! look. The waiter's own key may go, with its lease or by somebody's hand: then its place is lost and it asks anew. What an event
//! grants counts only while the waiter's lease surely lasts; otherwise it is kept alive first, and the key must still be on it; if that
//! fails it is a new ask.
//! What a look finds after nothing was told for a long time, though the watch was there, is [counted](tenure_core::Client::grants_by_poll),
//! unless the event comes after all.
//!
//! After a look without an answer nobody knows on which lease the key is: then nothing is a grant before the next look.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Claim, Clock, Error, ErrorKind, Instant, Kind, Mode, Result};
use tokio::sync::mpsc::unbounded_channel;

use crate::ask::{Waited, matters};
use crate::ear::{Subscription, Told};
use crate::error::Failure;
use crate::inner::Inner;
use crate::line::{Front, Seen};
use crate::proto::{Op, PutRequest, TxnRequest, created_at};
use crate::table::Entry;

/// How long a waiter hears nothing before it looks by itself: a net, under what should not happen.
const SLOW_LOOK: Duration = Duration::from_secs(20);
/// How long an event is waited for that a look may have overtaken.
const LATE: Duration = Duration::from_secs(1);
/// How long after a look that failed it looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

impl Inner {
    /// Waits until the claim is in, or gone, or its time is over.
    ///
    /// # Cancel safety
    /// Dropped, the claim keeps its place: end it by its id.
    pub(crate) async fn wait_in_line(
        self: &Arc<Self>,
        claim: &Claim,
        mut front: Front,
        deadline: Instant,
    ) -> Result<Waited> {
        let (signal, mut gone) = unbounded_channel();
        match self.table().claims.get_mut(&claim.id) {
            Some(entry) => entry.signal = Some(signal),
            None => return Ok(Waited::Gone),
        }
        let place = self.schema.place(&claim.name, claim.kind, claim.mode);
        let mut watch = self.watch_front(&front);
        let mut look_at = Instant::now() + SLOW_LOOK;
        let mut failing_since = None;
        // Whether it is known on which lease the key is: a look moves it, and may have been done without an answer.
        let mut placed = true;
        // Whether the last look had an answer, so that the next one is the slow look.
        let mut is_slow = true;
        loop {
            let mut by_poll = false;
            let must_look = tokio::select! {
                biased;
                _ = gone.recv() => return Ok(Waited::Gone),
                told = watch.next() => match told {
                    Told::Refused(reason) => return Err(refused(claim, &reason)),
                    told if placed && is_direct(claim) && ends(&front, &told) => {
                        if let Some(waited) = self.let_in(claim).await {
                            return Ok(waited);
                        }
                        (look_at, is_slow) = (Instant::now() + LOOK_AGAIN, false);
                        false
                    }
                    told => matters(claim, &front, &told),
                },
                () = Clock::Boot.sleep_until(look_at) => {
                    by_poll = is_slow && watch.is_live();
                    true
                }
                () = Clock::Boot.sleep_until(deadline) => return Ok(Waited::Over),
            };
            if !must_look {
                continue;
            }
            let looking = self.look(claim, &place);
            let looked = tokio::select! {
                biased;
                looked = looking => looked,
                () = Clock::Boot.sleep_until(deadline) => return Ok(Waited::Over),
            };
            placed = looked.is_ok();
            match looked {
                Ok(Seen::Enter) => {
                    let Some(waited) = self.let_in(claim).await else {
                        (look_at, is_slow) = (Instant::now() + LOOK_AGAIN, false);
                        continue;
                    };
                    if by_poll {
                        self.missed(claim, watch);
                    }
                    if let Waited::Granted(_) = &waited {
                        self.tell_next(claim);
                    }
                    return Ok(waited);
                }
                Ok(Seen::Gone) => return Ok(Waited::Gone),
                Ok(Seen::Behind(now)) => {
                    if (&now.key, now.revision) != (&front.key, front.revision) {
                        watch = self.watch_front(&now);
                    }
                    front = now;
                    (look_at, is_slow) = (Instant::now() + SLOW_LOOK, true);
                    failing_since = None;
                }
                Err(Failure { error, .. }) if error.is_transient() => {
                    let since = *failing_since.get_or_insert(Instant::now());
                    if Instant::now() > since + self.settings.patience {
                        return Err(error);
                    }
                    (look_at, is_slow) = (Instant::now() + LOOK_AGAIN, false);
                }
                Err(failure) => return Err(failure.error),
            }
        }
    }

    /// A look has let in a claim that the watch should have: it counts, unless the event was on its way.
    fn missed(self: &Arc<Self>, claim: &Claim, mut watch: Subscription) {
        let Some(news) = self.news.get().cloned() else { return };
        news.grant_by_poll(claim.id, false);
        let id = claim.id;
        self.spawn(async move {
            let gone = async { while !matches!(watch.next().await, Told::Gone(_) | Told::Over(_) | Told::Put(_)) {} };
            if tokio::time::timeout(LATE, gone).await.is_ok() {
                news.grant_by_poll(id, true);
            }
        });
    }

    fn watch_front(&self, front: &Front) -> Subscription {
        let ours = front.to.is_empty() && self.table().ours(&front.key, front.revision);
        self.ear.subscribe(&front.key, &front.to, ours.then_some(front.revision))
    }

    /// A waiter is in; whether its lease is good for it must be sure. `None` if that cannot be told now: it keeps its place.
    pub(crate) async fn let_in(&self, claim: &Claim) -> Option<Waited> {
        let of = |entry: &Entry| Some((entry.on.clone()?, entry.trusted(), entry.key.clone(), entry.revision));
        let entered = self.table().claims.get(&claim.id).and_then(of);
        let Some((on, trusted, key, revision)) = entered else { return Some(Waited::Gone) };
        let fresh = Instant::now() < on.lease().base() + trusted / 2 && !on.lease().is_dead();
        if !fresh {
            match self.keep_alive_and_read(on.lease(), &self.asks, &key).await {
                Ok(Some(read)) if read.kvs.iter().any(|kv| (kv.create_revision, kv.lease) == (revision, on.lease().id)) => {}
                Ok(_) => return Some(Waited::Gone),
                Err(_) => return None,
            }
        }
        match self.granted(claim) {
            Some(grant) => Some(Waited::Granted(grant)),
            None if on.lease().is_dead() || self.lost_its_place(claim) => Some(Waited::Gone),
            None => None,
        }
    }

    fn lost_its_place(&self, claim: &Claim) -> bool {
        self.table().claims.get(&claim.id).is_none_or(|entry| entry.gone)
    }

    /// Tells the one behind that this one was let in, where that makes it the first who waits.
    pub(crate) fn tell_next(self: &Arc<Self>, claim: &Claim) {
        if !matches!(claim.mode, Mode::Permits { .. }) {
            return;
        }
        let (key, revision) = match self.table().claims.get(&claim.id) {
            Some(entry) => (entry.key.clone(), entry.revision),
            None => return,
        };
        let inner = Arc::clone(self);
        self.spawn(async move {
            let touch = PutRequest { key: key.clone(), ignore_value: true, ignore_lease: true, ..Default::default() };
            let success = vec![Op::Put(touch).into()];
            let txn = TxnRequest { compare: vec![created_at(&key, revision)], success, failure: Vec::new() };
            let _ = inner.asks.txn("telling the next", txn).await; // else the next one finds out by itself
        });
    }
}

/// Whether what was told is the end of the holder in front. Keys are used again: it must be this one's.
fn ends(front: &Front, told: &Told) -> bool {
    match told {
        Told::Gone(revision) => front.only && *revision > front.revision,
        Told::Over(revision) => *revision == front.revision,
        _ => false,
    }
}

/// Whether the end of the only one in front is the grant: not for permits, and not for rw locks.
fn is_direct(claim: &Claim) -> bool {
    claim.mode == Mode::Exclusive && claim.kind != Kind::RwLock
}

fn refused(claim: &Claim, reason: &str) -> Error {
    Error::new(ErrorKind::Backend, format!("etcd refuses to watch the line: {reason}"))
        .with_name(&claim.name)
        .with_hint("May the user read every key of the prefix?")
}
