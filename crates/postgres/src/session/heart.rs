//! What must be done at its time: renewals when the keeper says so; by itself, showing holds to others, ending what was not
//! renewed in time, tending idle sessions.
//!
//! Who can interleave: the heart is one task, on the keeper's runtime, so that it cannot live on where renewals have stopped. What
//! it begins (an end, a request to show) may meet the claim's own release; see `end`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::lease::Lowered;
use tenure_core::{Claim, Clock, Error, ErrorKind, Instant, Renewal, Result};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Inner;
use super::book::{Entry, Seat, Shown, Stage};

/// What cannot be done now is not tried again at once.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

impl Inner {
    /// Somebody has something to say.
    pub(super) fn ring(&self) {
        self.mail.store(true, Ordering::Relaxed);
        self.bell.notify_one();
    }

    /// Renews a batch of holds with one ping for each of their sessions.
    ///
    /// # Cancel safety
    /// Dropped, it has only not heard.
    pub(super) async fn renew(self: &Arc<Self>, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let mut seats: Vec<Arc<Seat>> = Vec::new();
        {
            let mut book = self.book();
            for claim in claims {
                if let Some(entry) = book.entry(claim.id)
                    && seats.iter().all(|seat| seat.number != entry.seat.number)
                {
                    seats.push(Arc::clone(&entry.seat));
                }
            }
        }
        // One that is stuck is not waited for by the others.
        let limit = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default() / 8;
        let sent = Instant::now();
        let mut heard: Vec<u64> = Vec::new();
        if let [seat] = &seats[..] {
            heard.extend(self.ping(seat, limit).await.then_some(seat.number));
        } else {
            let mut pings = JoinSet::new();
            for seat in seats {
                let inner = Arc::clone(self);
                pings.spawn(async move { inner.ping(&seat, limit).await.then_some(seat.number) });
            }
            heard = pings.join_all().await.into_iter().flatten().collect();
        }
        let mut book = self.book();
        let answer = |claim: &Claim| match book.entry(claim.id) {
            // One that is being ended is not held any more, whatever its session says.
            Some(Entry { stage: Stage::Unknown | Stage::Waiting, .. }) => Ok(Renewal::Lost),
            Some(entry) if heard.contains(&entry.seat.number) => {
                if let Stage::Held { expires, .. } = &mut entry.stage {
                    *expires = (*expires).max(sent + claim.ttl);
                }
                Ok(Renewal::Held { until: claim.window(sent), asked: entry.asked.clone() })
            }
            Some(entry) if entry.seat.session.is_open() => {
                Err(Error::new(ErrorKind::Unavailable, "its session did not answer in time").with_name(&claim.name))
            }
            _ => Ok(Renewal::Lost),
        };
        claims.iter().map(answer).collect()
    }

    /// Whether a session answers.
    async fn ping(self: &Arc<Self>, seat: &Arc<Seat>, limit: Duration) -> bool {
        let sent = Instant::now();
        match timeout(limit, seat.session.ping()).await {
            Ok(Ok(mail)) => {
                self.book().heard(seat, sent);
                self.deliver(mail);
                true
            }
            _ => false,
        }
    }

    /// Starts the heart, if it does not beat yet.
    pub(super) fn start_heart(self: &Arc<Self>) {
        if self.beats.load(Ordering::Relaxed) || self.beats.swap(true, Ordering::Relaxed) {
            return;
        }
        let (weak, beats) = (Arc::downgrade(self), Lowered(Arc::clone(&self.beats)));
        self.spawn(async move {
            let _beats = beats; // wherever this ends, with its runtime or for want of one, the next claim starts another
            loop {
                let Some(inner) = weak.upgrade() else { return };
                let next = inner.next();
                inner.planned.store(next.as_nanos(), Ordering::Relaxed);
                // What was planned for meanwhile was seen in the book, or rings.
                let next = next.min(inner.next()).max(Instant::now() + SHORTEST_PAUSE);
                let bell = Arc::clone(&inner.bell);
                drop(inner);
                tokio::select! {
                    () = bell.notified() => {}
                    () = Clock::Boot.sleep_until(next) => {}
                }
                let Some(inner) = weak.upgrade() else { return };
                inner.beat().await;
            }
        });
    }

    /// When something is next to be done.
    fn next(&self) -> Instant {
        self.book().next(self.patience())
    }

    /// How long an end that was asked for may take, before the heart asks for it.
    pub(super) fn patience(&self) -> Duration {
        self.answer_limit() * 2
    }

    /// Does what is due.
    async fn beat(self: &Arc<Self>) {
        let now = Instant::now();
        if self.mail.swap(false, Ordering::Relaxed)
            && let Ok(Ok(mail)) = timeout(self.answer_limit(), self.server.mail()).await
        {
            self.deliver(mail);
        }
        for seat in self.book().to_show(now) {
            // Not waited for: a session that is stuck must not hold up the others.
            if let Ok(pen) = Arc::clone(&seat.pen).try_lock_owned() {
                let inner = Arc::clone(self);
                self.spawn(async move {
                    let _pen = pen;
                    inner.show(&seat).await;
                });
            }
        }
        for claim in self.book().expired(now, self.patience()) {
            let inner = Arc::clone(self);
            self.spawn(async move { drop(inner.end(&claim).await) });
        }
        let (close, ping) = self.book().idle(now, false);
        for seat in close {
            seat.session.close();
        }
        for seat in ping {
            let (inner, limit) = (Arc::clone(self), self.answer_limit());
            self.book().heard(&seat, now); // not again before its answer
            self.spawn(async move {
                inner.ping(&seat, limit).await;
            });
        }
    }

    /// For whoever has the pen: shows what is to be shown.
    async fn show(&self, seat: &Seat) {
        let due = self.book().show(seat, Instant::now());
        if due.is_empty() {
            return;
        }
        // If that fails, some may be seen or not: their end takes all away.
        let _ = timeout(self.answer_limit(), seat.session.show(&due)).await;
        let mut book = self.book();
        for (claim, _) in due {
            if let Some(entry) = book.entry(claim.id)
                && let Stage::Held { shown, .. } = &mut entry.stage
            {
                *shown = Shown::Yes;
            }
        }
    }

    /// The client is about to end: sessions that nobody needs, and what dead ones left, go now.
    pub(super) async fn leave(self: &Arc<Self>) -> Result<()> {
        let (close, _) = self.book().idle(Instant::now(), true);
        close.iter().for_each(|seat| seat.session.close());
        let limit = self.answer_limit();
        match timeout(limit, self.server.tidy(None)).await {
            Ok(left) => left.map_err(Error::from),
            Err(_) => Err(self.silent().error),
        }
    }
}
