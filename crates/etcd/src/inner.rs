//! What a client's tasks share: the ways to the members, the claims, the leases, and the two tasks in the background.
//!
//! The **heart** keeps the leases of those alive who wait (whoever holds is renewed by the keeper), and ends claims whose time is over, and
//! those whose end was asked for and never answered: a lease is shared, so they would live on with their neighbours. The **ear**'s task reads the watch stream.
//! Both run on the keeper's runtime, end with the client, and are started by the first ask.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tenure_core::{Claim, ClaimId, Clock, Error, ErrorKind, Instant, News, Result};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::codec::Value;
use crate::config::{Layout, Settings};
use crate::ear::{Ear, Own, Told};
use crate::error::{Attempt, Failure, Next};
use crate::leases::{Lease, Leases, OnLease, fresh_id, seconds};
use crate::link::{Link, Login, Member};
use crate::proto::{KeyValue, LeaseGrantRequest, RangeRequest, RangeResponse};
use crate::schema::Schema;
use crate::table::{Entry, Stage, Table};
use crate::wire::Wire;

/// One client of one cluster.
pub(crate) struct Inner {
    pub(crate) settings: Arc<Settings>,
    pub(crate) schema: Schema,
    /// For what users ask.
    pub(crate) asks: Link,
    /// For renewals, which must not queue behind anything.
    pub(crate) keep: Link,
    pub(crate) ear: Arc<Ear>,
    pub(crate) leases: Leases,
    table: Mutex<Table>,
    pub(crate) news: OnceLock<News>,
    home: Arc<OnceLock<Handle>>,
    /// Whether its tasks run.
    runs: AtomicBool,
    pub(crate) bell: Notify,
    /// When the heart beats next, in nanoseconds.
    beats_at: AtomicU64,
    pub(crate) probes: AtomicU64,
    pub(crate) probing: AtomicBool,
    /// What is probed with.
    pub(crate) number: u64,
}

impl Inner {
    pub(crate) fn new(settings: Settings) -> Result<Arc<Self>> {
        settings.check()?;
        let (settings, home, login) = (Arc::new(settings), Arc::default(), Arc::new(Login::default()));
        // Clients of one process begin at different members.
        let first = fresh_id() as u64 % settings.members.len() as u64;
        Ok(Arc::new(Inner {
            schema: Schema::new(&settings.prefix, settings.layout),
            asks: Link::new(&settings, &home, &login, first),
            keep: Link::new(&settings, &home, &login, first),
            ear: Arc::default(),
            leases: Leases::default(),
            table: Mutex::default(),
            news: OnceLock::new(),
            home,
            runs: AtomicBool::new(false),
            bell: Notify::new(),
            beats_at: AtomicU64::new(u64::MAX),
            probes: AtomicU64::new(0),
            probing: AtomicBool::new(false),
            number: fresh_id() as u64,
            settings,
        }))
    }

    pub(crate) fn attach(&self, news: News) {
        if let Some(home) = news.runtime() {
            let _ = self.home.set(home);
            self.asks.come_home();
            self.keep.come_home();
        }
        let _ = self.news.set(news);
    }

    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs something in the background, where it does not depend on the caller's runtime.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        match self.home.get().cloned().or_else(|| Handle::try_current().ok()) {
            Some(home) => drop(home.spawn(work)),
            None => drop(work),
        }
    }

    /// Starts the tasks in the background, if they do not run.
    pub(crate) fn start(self: &Arc<Self>) {
        if self.runs.load(Ordering::Relaxed) || self.runs.swap(true, Ordering::Relaxed) {
            return;
        }
        self.spawn(beat(Arc::downgrade(self)));
        self.spawn(listen(Arc::downgrade(self), Arc::clone(&self.ear)));
    }

    /// The heart must look no later than then.
    pub(crate) fn beat_by(&self, then: Instant) {
        if self.beats_at.fetch_min(then.as_nanos(), Ordering::AcqRel) > then.as_nanos() {
            self.bell.notify_one();
        }
    }

    // Leases.

    /// The lease for a claim, and whether it should be kept alive along with the ask: its window would be short otherwise.
    pub(crate) async fn lease(&self, claim: &Claim) -> Attempt<(OnLease, bool)> {
        // Where its key is named by its lease, another lease would leave that key in line, and the claim behind itself. And where an ask
        // of it may still arrive, the mark that its end leaves must be on the lease of that one and of every other.
        let asked_on = self.table().claims.get(&claim.id).and_then(|entry| match self.schema.layout {
            Layout::Concurrency => entry.on.clone(),
            Layout::Tenure => entry.doubt().cloned(),
        });
        if let Some(on) = asked_on.filter(|on| !on.lease().is_dead()) {
            return Ok((on, true));
        }
        let on = self.lease_of(seconds(claim), &self.asks).await?;
        let is_old = Instant::now().since(on.lease().base()) > claim.ttl / 6;
        Ok((on, is_old))
    }

    /// The lease of so many seconds.
    async fn lease_of(&self, seconds: u64, link: &Link) -> Attempt<OnLease> {
        if self.schema.layout == Layout::Concurrency {
            return self.make_lease(self.settings.answer_limit, seconds, link).await; // its key is named by it: it is the claim's alone
        }
        if let Some(on) = self.leases.get(seconds, Instant::now()) {
            return Ok(on);
        }
        // To wait for whoever makes one is part of the limit: where nobody answers, all hear so at the same time.
        let (limit, came) = (self.settings.answer_limit, Instant::now());
        let making = tokio::time::timeout(limit, link.making.lock()).await;
        let _alone = making.map_err(|_| link.silence(limit, "making a lease"))?;
        if let Some(on) = self.leases.get(seconds, Instant::now()) {
            return Ok(on);
        }
        let on = self.make_lease((came + limit).since(Instant::now()), seconds, link).await?;
        Ok(self.leases.offer(on, Instant::now()))
    }

    /// The same, which is not about to end: what is moved to it must not go with it.
    pub(crate) async fn lasting_lease(&self, seconds: u64, link: &Link) -> Attempt<OnLease> {
        let on = self.lease_of(seconds, link).await?;
        let lease = on.lease();
        if Instant::now() < lease.base() + lease.lasts() / 2 || self.keep_alive(lease, link).await? {
            return Ok(on);
        }
        self.lease_of(seconds, link).await // that one is dead, and this is another
    }

    /// Makes a lease for claims. Dropped, or without an answer, it may be there all the same: closing the client revokes it.
    async fn make_lease(&self, limit: Duration, seconds: u64, link: &Link) -> Attempt<OnLease> {
        let now = Instant::now();
        let on = self.leases.expect(Lease::new(fresh_id(), seconds, now), now);
        let id = on.lease().id;
        match self.grant_within(limit, id, seconds, link).await {
            Ok(sent) => on.lease().kept_since(sent),
            Err(failure) => {
                if !failure.in_doubt {
                    self.leases.forget(id);
                }
                return Err(failure);
            }
        }
        Ok(on)
    }

    /// Makes a lease that keeps a name closed: it ends by itself, also where the client was closed before that.
    pub(crate) async fn grant(&self, seconds: u64, link: &Link) -> Attempt<Lease> {
        let id = fresh_id();
        let sent = self.grant_within(self.settings.answer_limit, id, seconds, link).await?;
        Ok(Lease::new(id, seconds, sent))
    }

    /// Makes the lease of this id; when it lasts from.
    pub(crate) async fn grant_within(&self, limit: Duration, id: i64, seconds: u64, link: &Link) -> Attempt<Instant> {
        let request = LeaseGrantRequest { ttl: seconds as i64, id };
        let sent = Instant::now();
        let asked = link.call_within(limit, "making a lease", |wire| async move { wire.lease_grant(request).await }).await;
        match asked {
            Ok(answer) if answer.value.ttl < seconds as i64 => {
                let what = format!("a lease of {seconds} s was asked for, and one of {} s granted", answer.value.ttl);
                let error = Error::new(ErrorKind::Backend, what).with_store(self.settings.describe());
                Err(Failure { in_doubt: true, ..error.into() }) // it was made
            }
            Ok(answer) => Ok(answer.sent),
            // The first copy of the request made it. If there was one only, it is somebody else's.
            Err(failure) if failure.in_doubt && failure.error.to_string().contains("lease already exists") => Ok(sent),
            Err(failure) => Err(failure),
        }
    }

    /// Keeps a lease alive; whether it is.
    ///
    /// A keepalive is answered by whoever believes that it leads, without asking the others: one that was stopped, and goes on after
    /// others elected another, says yes to anybody for a moment. So a read follows, which the others must confirm: if it was
    /// answered in the same term, the keepalive was the leader's.
    pub(crate) async fn keep_alive(&self, lease: &Lease, link: &Link) -> Attempt<bool> {
        Ok(self.keep_alive_and_read(lease, link, &self.schema.nothing()).await?.is_some())
    }

    /// The same, and what the read finds under this key: a server may also say yes of a lease that it is just revoking, and of that the
    /// keys are gone. `None`: the lease is.
    pub(crate) async fn keep_alive_and_read(
        &self,
        lease: &Lease,
        link: &Link,
        key: &[u8],
    ) -> Attempt<Option<RangeResponse>> {
        let Some((sent, term)) = self.send_keepalive(lease, link).await? else { return Ok(None) };
        let confirmed = link.range("keeping a lease alive", RangeRequest::one(key)).await?.value;
        if confirmed.header.raft_term != term {
            let what = "the leader changed while a lease was kept alive";
            let error = Error::new(ErrorKind::Unavailable, what).with_store(self.settings.describe());
            return Err(Failure { next: Next::Later, in_doubt: false, spoken: true, error });
        }
        lease.kept_since(sent);
        Ok((!lease.is_dead()).then_some(confirmed))
    }

    /// Sends a keepalive: when that was, and the term in which it was answered, which nobody has confirmed yet. `None`: the lease is gone.
    pub(crate) async fn send_keepalive(&self, lease: &Lease, link: &Link) -> Attempt<Option<(Instant, u64)>> {
        let id = lease.id;
        let answer = link.call("keeping a lease alive", |wire| async move { wire.keep_alive(id).await }).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) if failure.next == Next::NoLease => {
                self.lease_is_gone(lease);
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        let (ttl, term) = answer.value;
        if ttl <= 0 {
            self.lease_is_gone(lease);
            return Ok(None);
        }
        Ok(Some((answer.sent, term)))
    }

    /// Everything that was on it is gone too.
    pub(crate) fn lease_is_gone(&self, lease: &Lease) {
        lease.die();
        self.leases.forget(lease.id);
        let lost: Vec<ClaimId> = {
            let table = self.table();
            table.claims.iter().filter(|(_, entry)| entry.is_on(lease)).map(|(id, _)| *id).collect()
        };
        lost.into_iter().for_each(|id| self.key_is_gone(id, |entry| entry.is_on(lease)));
    }

    // What the server says.

    /// A claim's own key is not there any more, if it still is the one that this was said of: it may have been asked anew since.
    pub(crate) fn key_is_gone(&self, id: ClaimId, is_that_one: impl FnOnce(&Entry) -> bool) {
        let mut table = self.table();
        let Some(entry) = table.claims.get_mut(&id).filter(|entry| is_that_one(entry)) else { return };
        if entry.ending {
            return; // that is our own doing
        }
        match entry.stage {
            Stage::Asking | Stage::Waiting => {
                entry.gone = true;
                if let Some(signal) = &entry.signal {
                    let _ = signal.send(());
                }
            }
            Stage::Held { .. } | Stage::Closing => {
                let entry = table.remove(id);
                drop(table);
                if let Some(entry) = entry {
                    self.ear.gone_here(&entry.key, None);
                    self.table().leave(&entry);
                    if let (Some(news), Stage::Held { .. }) = (self.news.get(), entry.stage) {
                        news.lost(id);
                    }
                }
            }
        }
    }

    fn told(self: &Arc<Self>, own: Own) {
        match own {
            Own::Told(id, Told::Gone(revision)) => {
                // A key is used again: what was before the claim is not about it.
                self.key_is_gone(id, |entry| entry.revision > 0 && entry.revision < revision);
            }
            Own::Told(id, Told::Put(kv)) => self.own_value(id, &kv),
            Own::Told(_, Told::Live | Told::Over(_) | Told::Refused(_)) => {}
            Own::Look(id) => {
                let inner = Arc::clone(self);
                self.spawn(async move { inner.look_at_own(id).await });
            }
        }
    }

    /// Somebody wrote a claim's own key: asked its holder to let go, or broke it and keeps its name closed.
    fn own_value(&self, id: ClaimId, kv: &KeyValue) {
        let value = Value::decode(&kv.value);
        let (held, broken) = {
            let mut table = self.table();
            let Some(entry) = table.claims.get_mut(&id).filter(|entry| entry.revision == kv.create_revision) else { return };
            let held = matches!(entry.stage, Stage::Held { .. });
            if value.asked.is_some() {
                entry.asked.clone_from(&value.asked); // it may hold and not have heard of it yet: its first renewal says so
            }
            // Once it was let go, it is its own minimum hold that keeps the name closed.
            (held, value.closing && entry.given_up.is_none())
        };
        match value.asked {
            _ if broken => self.key_is_gone(id, |entry| entry.revision == kv.create_revision),
            _ if !held => {}
            Some(ask) => {
                if let Some(news) = self.news.get() {
                    news.asked(id, ask);
                }
            }
            None => {}
        }
    }

    /// Something about a claim's key may have been missed.
    async fn look_at_own(&self, id: ClaimId) {
        let Some(key) = self.table().claims.get(&id).map(|entry| entry.key.clone()) else { return };
        // Without an answer nothing is lost: the next renewal proves the key.
        if let Ok(answer) = self.asks.range("looking at a claim", RangeRequest::one(&key)).await {
            match answer.value.kvs.first() {
                Some(kv) => self.own_value(id, kv),
                None => self.key_is_gone(id, |entry| was_there(entry, &key, answer.value.header.revision)),
            }
        }
    }

    /// A member that was cut off from the others tells nothing, and does not say so. A read has no answer there, and then the link
    /// moves on, and the ear with it.
    async fn ask_for_a_sign(&self) {
        let request = RangeRequest::one(&self.schema.nothing());
        let read = |wire: Wire| {
            let request = request.clone();
            async move { wire.range(request).await }
        };
        let _ = self.asks.call_within(BEAT, "listening", read).await;
    }

    // The heart.

    /// Does what is due, and says when to look again.
    async fn beat(self: &Arc<Self>) -> Instant {
        let now = Instant::now();
        let mut next = Instant::NEVER;
        let (mut over, mut due): (Vec<ClaimId>, HashMap<i64, Arc<Lease>>) = Default::default();
        for (id, entry) in &mut self.table().claims {
            match entry.stage {
                Stage::Held { .. } | Stage::Closing if entry.expires <= now => {
                    over.push(*id);
                    next = next.min(now + Duration::from_secs(1)); // and again, if that comes to nothing
                }
                Stage::Held { .. } | Stage::Closing => next = next.min(entry.expires),
                Stage::Asking | Stage::Waiting => {
                    if let Some(last) = entry.given_up {
                        // Whoever wanted its end has given that up too: kept alive, it would keep others out for ever.
                        if last + ABANDONED <= now {
                            over.push(*id);
                        }
                        next = next.min((last + ABANDONED).max(now + Duration::from_secs(1)));
                        continue;
                    }
                    let Some(on) = entry.on.as_ref().filter(|on| !on.lease().is_dead()) else { continue };
                    let again = on.lease().base() + entry.pace();
                    if again <= now {
                        due.insert(on.lease().id, Arc::clone(on.lease()));
                        next = next.min(now + entry.pace() / 4);
                    } else {
                        next = next.min(again);
                    }
                }
            }
        }
        for id in over {
            let inner = Arc::clone(self);
            self.spawn(async move {
                let _ = inner.end_by_id(id).await;
            });
        }
        for lease in due.into_values() {
            let inner = Arc::clone(self);
            self.spawn(async move {
                let (limit, member) = (lease.lasts() / 6, inner.keep.number());
                let kept = tokio::time::timeout(limit, inner.keep_alive(&lease, &inner.keep)).await;
                if kept.is_err() {
                    inner.keep.leave(member);
                }
            });
        }
        next
    }

    /// A claim is over. Where its key was deleted, it is not anybody's any more.
    pub(crate) fn forget(&self, id: ClaimId, is_deleted: bool) {
        let Some(entry) = self.table().remove(id) else { return };
        let was_held = is_deleted && matches!(entry.stage, Stage::Held { .. }) && entry.revision > 0;
        self.ear.gone_here(&entry.key, was_held.then_some(entry.revision));
        self.table().leave(&entry); // in this order: whoever is told must not take it for the next one's
    }
}

/// Whether a claim was under this key already at this revision: if not, a read that found nothing there says nothing of it.
fn was_there(entry: &Entry, key: &[u8], revision: i64) -> bool {
    entry.key == key && entry.revision > 0 && entry.revision <= revision
}

/// How long nobody has tried to end a claim before that is taken up here: longer than those who try pause in between.
const ABANDONED: Duration = Duration::from_secs(3);

/// The heart's life.
async fn beat(inner: Weak<Inner>) {
    let mut next = Instant::from_nanos(0);
    loop {
        let Some(inner) = inner.upgrade() else { return };
        if next <= Instant::now() {
            inner.beats_at.store(u64::MAX, Ordering::Release);
            next = inner.beat().await;
            next = next.min(Instant::from_nanos(inner.beats_at.fetch_min(next.as_nanos(), Ordering::AcqRel)));
        }
        let longest = Instant::now() + Duration::from_secs(2);
        tokio::select! {
            () = inner.bell.notified() => next = next.min(Instant::from_nanos(inner.beats_at.load(Ordering::Acquire))),
            () = Clock::Boot.sleep_until(next.min(longest)) => {}
        }
    }
}

/// How often whoever waits makes sure that its member can still tell it something.
const BEAT: Duration = Duration::from_secs(2);
/// The same where nobody waits, and only holds are watched.
const SLOW_BEAT: Duration = Duration::from_secs(10);

/// The ear's life: a stream for as long as there is anything to be watched, and another one when it ends.
async fn listen(inner: Weak<Inner>, ear: Arc<Ear>) {
    let mut failures = 0u32;
    loop {
        let next = ear.due(Instant::now());
        if !ear.wants().0 {
            if inner.strong_count() == 0 {
                return;
            }
            let longest = Instant::now() + Duration::from_secs(2);
            ear.ring(Some(next.unwrap_or(longest).min(longest))).await;
            continue;
        }
        let Some(strong) = inner.upgrade() else { return };
        let member = match strong.asks.member().await {
            Ok(member) => member,
            Err(_) => {
                strong.asks.leave(strong.asks.number());
                drop(strong);
                failures += 1;
                tokio::time::sleep(pause(failures)).await;
                continue;
            }
        };
        let moved = Arc::clone(&strong.asks.moved);
        drop(strong);
        let began = Instant::now();
        let ended = hear(&inner, &ear, &member, &moved).await;
        ear.closed();
        let Some(strong) = inner.upgrade() else { return };
        if ended == Ended::Member {
            strong.asks.leave(member.number); // unless somebody did: then that is why
        }
        failures = if began + BEAT < Instant::now() { 0 } else { failures + 1 };
        drop(strong);
        if failures > 1 {
            tokio::time::sleep(pause(failures)).await;
        }
    }
}

fn pause(failures: u32) -> Duration {
    Duration::from_millis(10).saturating_mul(1 << failures.min(6))
}

/// Why a stream is over.
#[derive(PartialEq, Eq)]
enum Ended {
    /// For its member's sake, or the client's.
    Member,
    /// There is another login, or there must be.
    Login,
}

/// Reads one stream to its end.
async fn hear(inner: &Weak<Inner>, ear: &Arc<Ear>, member: &Member, moved: &Notify) -> Ended {
    let requests = ear.opened();
    let opening = member.wire.watch(requests);
    let Ok(Ok(mut stream)) = tokio::time::timeout(BEAT, opening).await else { return Ended::Member };
    let mut next_beat = Instant::now() + BEAT;
    loop {
        let next = ear.due(Instant::now());
        let soon = Instant::now() + BEAT;
        if next_beat > soon && ear.wants().1 {
            next_beat = soon; // somebody came to wait since
        }
        tokio::select! {
            message = stream.message() => {
                let Ok(Some(response)) = message else { return Ended::Member };
                let Some(inner) = inner.upgrade() else { return Ended::Member };
                let Some(own) = ear.hear(response, inner.asks.is_logged_in(member)) else {
                    inner.asks.log_out(member);
                    return Ended::Login;
                };
                own.into_iter().for_each(|own| inner.told(own));
            }
            () = ear.ring(next) => {}
            () = moved.notified() => return Ended::Member, // somebody found the member wanting
            () = Clock::Boot.sleep_until(next_beat) => {
                let Some(inner) = inner.upgrade() else { return Ended::Member };
                let (any, waits) = ear.wants();
                next_beat = Instant::now() + if waits { BEAT } else { SLOW_BEAT };
                if inner.asks.number() != member.number {
                    return Ended::Member;
                }
                if !inner.asks.is_logged_in(member) {
                    return Ended::Login; // its own may be over, and then nothing new could be watched
                }
                if any {
                    let asking = Arc::clone(&inner);
                    inner.spawn(async move { asking.ask_for_a_sign().await });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
