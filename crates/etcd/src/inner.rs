//! What a client's tasks share: the ways to the members, the claims, the leases, and the two tasks in the background.
//!
//! The **heart** keeps the leases of those alive who wait (whoever holds is renewed by the keeper), and ends claims whose time is over: a
//! lease is shared, so a hold that nobody renews would live on with its neighbours. The **ear**'s task reads the watch stream.
//! Both run on the keeper's runtime, end with the client, and are started by the first ask.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tenure_core::{Claim, ClaimId, Clock, Instant, News, Result};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::codec::Value;
use crate::config::{Layout, Settings};
use crate::ear::{Ear, Own, Told};
use crate::error::{Failure, Next};
use crate::leases::{Lease, Leases, OnLease, fresh_id, seconds, whole_seconds};
use crate::link::{Link, Login, Member};
use crate::proto::{LeaseGrantRequest, RangeRequest};
use crate::schema::Schema;
use crate::table::{Entry, Stage, Table};

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
    pub(crate) async fn lease(&self, claim: &Claim) -> std::result::Result<(OnLease, bool), Failure> {
        self.lease_of(seconds(claim), claim.ttl).await
    }

    /// The lease of so many seconds, for somebody who trusts it for that long.
    pub(crate) async fn lease_of(&self, seconds: u64, ttl: Duration) -> std::result::Result<(OnLease, bool), Failure> {
        if self.schema.layout == Layout::Concurrency {
            let lease = Arc::new(self.grant(seconds).await?); // its key is named by it, so it is the claim's alone
            return Ok((OnLease::of(&lease), false));
        }
        if let Some(on) = self.leases.get(seconds, Instant::now()) {
            let old = Instant::now().since(on.lease().base()) > ttl / 6;
            return Ok((on, old));
        }
        let _alone = self.leases.making.lock().await;
        if let Some(on) = self.leases.get(seconds, Instant::now()) {
            return Ok((on, false));
        }
        let lease = self.grant(seconds).await?;
        Ok((self.leases.add(lease), false))
    }

    /// Makes a lease.
    pub(crate) async fn grant(&self, seconds: u64) -> std::result::Result<Lease, Failure> {
        let request = LeaseGrantRequest { ttl: seconds as i64, id: fresh_id() };
        let sent = Instant::now();
        let asked = self.asks.call("making a lease", |wire| async move { wire.lease_grant(request).await }).await;
        match asked {
            Ok(answer) => Ok(Lease::new(answer.value.id, seconds, answer.sent)),
            // The first copy of the request made it.
            Err(failure) if failure.error.to_string().contains("lease already exists") => {
                Ok(Lease::new(request.id, seconds, sent))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Keeps a lease alive; whether it is.
    pub(crate) async fn keep_alive(&self, lease: &Lease, link: &Link) -> std::result::Result<bool, Failure> {
        let id = lease.id;
        let answer = link.call("keeping a lease alive", |wire| async move { wire.keep_alive(id).await }).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) if failure.next == Next::NoLease => {
                self.lease_is_gone(lease);
                return Ok(false);
            }
            Err(failure) => return Err(failure),
        };
        if answer.value > 0 {
            lease.kept_since(answer.sent);
            return Ok(!lease.is_dead());
        }
        self.lease_is_gone(lease);
        Ok(false)
    }

    /// Everything that was on it is gone too.
    pub(crate) fn lease_is_gone(&self, lease: &Lease) {
        lease.die();
        let lost: Vec<ClaimId> = {
            let table = self.table();
            table.claims.iter().filter(|(_, entry)| entry.is_on(lease)).map(|(id, _)| *id).collect()
        };
        lost.into_iter().for_each(|id| self.key_is_gone(id));
    }

    /// What marks of ended claims are on: it lasts longer than any ask may be on its way.
    pub(crate) async fn marks(&self) -> std::result::Result<i64, Failure> {
        let mut marks = self.leases.marks.lock().await;
        if let Some((id, made)) = *marks
            && Instant::now() < made + MARK
        {
            return Ok(id);
        }
        let lease = self.grant(whole_seconds(MARK * 2)).await?;
        *marks = Some((lease.id, lease.base()));
        Ok(lease.id)
    }

    // What the server says.

    /// A claim's own key is not there any more.
    pub(crate) fn key_is_gone(&self, id: ClaimId) {
        let mut table = self.table();
        let Some(entry) = table.claims.get_mut(&id) else { return };
        if entry.ending {
            return; // that is our own doing
        }
        match entry.stage {
            Stage::Asking | Stage::Waiting => {
                if let Some(signal) = &entry.signal {
                    let _ = signal.send(());
                }
            }
            Stage::Held { .. } | Stage::Closing => {
                let entry = table.remove(id);
                drop(table);
                if let Some(entry) = entry {
                    self.ear.gone_here(&entry.key, false);
                    if let (Some(news), Stage::Held { .. }) = (self.news.get(), entry.stage) {
                        news.lost(id);
                    }
                }
            }
        }
    }

    fn told(self: &Arc<Self>, own: Own) {
        match own {
            Own::Told(id, Told::Gone) => self.key_is_gone(id),
            Own::Told(id, Told::Put(kv)) => self.own_value(id, &kv.value),
            Own::Told(_, Told::Live | Told::Over | Told::Refused(_)) => {}
            Own::Look(id) => {
                let inner = Arc::clone(self);
                self.spawn(async move { inner.look_at_own(id).await });
            }
        }
    }

    /// Somebody wrote a claim's own key: asked its holder to let go, or broke it and keeps its name closed.
    fn own_value(&self, id: ClaimId, bytes: &[u8]) {
        let value = Value::decode(bytes);
        let held = {
            let mut table = self.table();
            let Some(entry) = table.claims.get_mut(&id) else { return };
            let held = matches!(entry.stage, Stage::Held { .. });
            if held && value.asked.is_some() {
                entry.asked.clone_from(&value.asked);
            }
            held
        };
        match value.asked {
            _ if !held => {}
            _ if value.closing => self.key_is_gone(id),
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
        let request = RangeRequest::one(&key);
        let looked = self.asks.call("looking at a claim", |wire| wire_range(wire, request.clone())).await;
        // Without an answer nothing is lost: the next renewal proves the key.
        if let Ok(answer) = looked {
            match answer.value.kvs.first() {
                Some(kv) => self.own_value(id, &kv.value),
                None => self.key_is_gone(id),
            }
        }
    }

    /// A member that was cut off from the others tells nothing, and does not say so. A read has no answer there, and then the link
    /// moves on, and the ear with it.
    async fn ask_for_a_sign(&self) {
        let request = RangeRequest::one(&self.schema.nothing());
        let _ = self.asks.call_within(BEAT, "listening", |wire| wire_range(wire, request.clone())).await;
    }

    // The heart.

    /// Does what is due, and says when to look again.
    async fn beat(self: &Arc<Self>) -> Instant {
        let now = Instant::now();
        let mut next = Instant::NEVER;
        let (mut over, mut due): (Vec<ClaimId>, HashMap<i64, OnLease>) = Default::default();
        for (id, entry) in &mut self.table().claims {
            match entry.stage {
                Stage::Held { .. } | Stage::Closing if entry.expires <= now => {
                    over.push(*id);
                    next = next.min(now + Duration::from_secs(1)); // and again, if that comes to nothing
                }
                Stage::Held { .. } | Stage::Closing => next = next.min(entry.expires),
                Stage::Asking | Stage::Waiting => {
                    let Some(on) = &entry.on else { continue };
                    let trusted = entry.trusted();
                    let again = on.lease().base() + trusted / 3;
                    if again <= now {
                        due.insert(on.lease().id, on.clone());
                        next = next.min(now + trusted / 12);
                    }
                    next = next.min(again.max(now + Duration::from_millis(20)));
                }
            }
        }
        for id in over {
            let inner = Arc::clone(self);
            self.spawn(async move {
                let _ = inner.end_by_id(id).await;
            });
        }
        for on in due.into_values() {
            let inner = Arc::clone(self);
            self.spawn(async move {
                let limit = on.lease().lasts() / 6;
                let kept = tokio::time::timeout(limit, inner.keep_alive(on.lease(), &inner.keep)).await;
                if kept.is_err() {
                    inner.keep.leave(inner.keep.number());
                }
            });
        }
        next
    }

    /// Claims that are over: their key is not anybody's any more.
    pub(crate) fn forget(&self, id: ClaimId) -> Option<Entry> {
        let entry = self.table().remove(id)?;
        self.ear.gone_here(&entry.key, matches!(entry.stage, Stage::Held { .. }));
        Some(entry)
    }
}

/// How long after an ask a copy of it may still arrive.
pub(crate) const MARK: Duration = Duration::from_secs(30);

pub(crate) async fn wire_range(
    wire: crate::wire::Wire,
    request: RangeRequest,
) -> std::result::Result<crate::proto::RangeResponse, tonic::Status> {
    wire.range(request).await
}

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
        hear(&inner, &ear, &member, &moved).await;
        ear.closed();
        let Some(strong) = inner.upgrade() else { return };
        strong.asks.leave(member.number); // unless somebody did: then that is why
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

/// Reads one stream to its end.
async fn hear(inner: &Weak<Inner>, ear: &Arc<Ear>, member: &Member, moved: &Notify) {
    let requests = ear.opened();
    let opening = member.wire.watch(requests);
    let Ok(Ok(mut stream)) = tokio::time::timeout(BEAT, opening).await else { return };
    let mut next_beat = Instant::now() + BEAT;
    loop {
        let next = ear.due(Instant::now());
        tokio::select! {
            message = stream.message() => {
                let Ok(Some(response)) = message else { return };
                let Some(inner) = inner.upgrade() else { return };
                for own in ear.hear(response) {
                    inner.told(own);
                }
            }
            () = ear.ring(next) => {}
            () = moved.notified() => return, // somebody found the member wanting
            () = Clock::Boot.sleep_until(next_beat) => {
                let Some(inner) = inner.upgrade() else { return };
                let (any, waits) = ear.wants();
                next_beat = Instant::now() + if waits { BEAT } else { SLOW_BEAT };
                if inner.asks.number() != member.number {
                    return;
                }
                if any {
                    let asking = Arc::clone(&inner);
                    inner.spawn(async move { asking.ask_for_a_sign().await });
                }
            }
        }
    }
}
