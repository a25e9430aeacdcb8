//! The memory store: the reference backend, and the smallest one to read.
//!
//! A [`Memory`] is to its clients what a server is to others: a map from names to [`Record`]s, each verb of which runs
//! under one mutex. Who can interleave with what is therefore simple: a verb with nothing; a *wait* with everything. A
//! waiter sleeps in a `Bed` of its own, whose bell the verb that lets it in rings while the mutex is still held, and its
//! `Place` ends the claim when the future is dropped, so that every way out of [`Backend::acquire`] leaves either a grant
//! in the caller's hand or nothing at all.
//!
//! Time is the one thing nobody announces: a holder that stops renewing is noticed by the waiters' own timers, set to
//! the record's [`next_change`](Record::next_change).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{Abilities, Backend, Fencing, Finding, Liveness, Reach, Waiting, async_trait, released};
use crate::keeper::News;
use crate::quorum::Node;
use crate::record::{Admission, ClientKey, Moment, Record, Wake};
use crate::{
    Ask, Claim, ClaimId, Clock, Error, ErrorKind, Grant, Instant, Kind, LockName, Renewal, Result, Token, View, Wait,
};

/// A store in this process's memory: for tests, and for tasks and threads of one process.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// use tenure_core::{Client, memory::Memory};
/// let store = Memory::new();
/// let (one, other) = (Client::new(store.backend())?, Client::new(store.backend())?);
/// let guard = one.mutex("x")?.lock().await?;
/// assert!(other.mutex("x")?.try_lock().await?.is_none());
/// guard.release().await?;
/// assert!(other.mutex("x")?.try_lock().await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Memory(Arc<Store>);

struct Store {
    clock: Clock,
    names: Mutex<Names>,
    /// The highest token of any record that was dropped: what a new record starts from, so that a name whose record went
    /// away within one tick of the clock, or before the clock was set back, still goes up.
    floor: AtomicU64,
    changed: Notify,
    next_client: AtomicU64,
    /// Tells one store from another, for a quorum.
    number: u64,
    /// Has no vote in a quorum.
    dark: AtomicBool,
}

#[derive(Default)]
struct Names {
    records: HashMap<LockName, Record>,
    waiting: HashMap<ClaimId, Sleeper>,
    cells: BTreeMap<LockName, (Vec<u8>, u64)>,
    clients: HashMap<ClientKey, News>,
    /// The last tokens of names that were used last: so much is remembered of what is over, for those who ask.
    past: VecDeque<(LockName, Token)>,
}

/// How many names are remembered that nobody uses any more.
const PAST: usize = 1024;

/// A waiter, as those see it who may let it in.
struct Sleeper {
    bed: Arc<Bed>,
    /// When its own timer will have it look.
    looks_at: Instant,
}

/// Where a waiter sleeps: the bell rings when it was let in, or should look at the clock anew.
#[derive(Default)]
struct Bed {
    bell: Notify,
    grant: Mutex<Option<Grant>>,
}

impl Bed {
    fn grant(&self) -> MutexGuard<'_, Option<Grant>> {
        self.grant.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One client's end of a [`Memory`].
struct MemoryBackend {
    store: Arc<Store>,
    client: ClientKey,
}

impl Memory {
    /// A new, empty store.
    pub fn new() -> Self {
        Self::with_clock(Clock::Boot)
    }

    /// A store on another clock, for simulations.
    pub fn with_clock(clock: Clock) -> Self {
        static STORES: AtomicU64 = AtomicU64::new(0);
        Memory(Arc::new(Store {
            clock,
            names: Mutex::default(),
            floor: AtomicU64::new(0),
            changed: Notify::new(),
            next_client: AtomicU64::new(1),
            number: STORES.fetch_add(1, Ordering::Relaxed),
            dark: AtomicBool::new(false),
        }))
    }

    /// The process's store of this name: what `memory://NAME` connects to. It lives as long as anybody uses it.
    pub fn shared(name: &str) -> Self {
        static STORES: OnceLock<Mutex<HashMap<String, Weak<Store>>>> = OnceLock::new();
        let mut stores = STORES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        stores.retain(|_, store| store.strong_count() > 0);
        if let Some(store) = stores.get(name).and_then(Weak::upgrade) {
            return Memory(store);
        }
        let memory = Memory::new();
        stores.insert(name.to_owned(), Arc::downgrade(&memory.0));
        memory
    }

    /// A backend for one client.
    pub fn backend(&self) -> impl Backend + use<> {
        self.client()
    }

    /// The same as a node of a quorum.
    pub fn node(&self) -> Arc<dyn Node> {
        Arc::new(self.client())
    }

    fn client(&self) -> MemoryBackend {
        let client = self.0.next_client.fetch_add(1, Ordering::Relaxed);
        MemoryBackend { store: Arc::clone(&self.0), client }
    }

    /// Forgets everything, as a server without a disk does when it restarts: who waits is told, whoever holds is in doubt.
    pub fn forget(&self) {
        let mut names = self.0.lock();
        let sleepers = std::mem::take(&mut *names);
        self.0.floor.store(0, Ordering::Relaxed);
        names.clients.clone_from(&sleepers.clients);
        drop(names);
        sleepers.waiting.values().for_each(|sleeper| sleeper.bed.bell.notify_one());
        self.0.changed.notify_waiters();
        sleepers.clients.values().for_each(News::verify);
    }

    /// Takes its vote in a quorum away, or gives it back.
    pub fn be_dark(&self, dark: bool) {
        self.0.dark.store(dark, Ordering::Relaxed);
    }

    /// How many names, waiters and cells the store has right now: what "nothing is left behind" is measured by.
    pub fn residue(&self) -> usize {
        let names = self.0.lock();
        names.records.len() + names.waiting.len() + names.cells.len()
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moment(&self) -> Moment {
        Moment { now: self.clock.now(), wall_micros: self.clock.wall_micros() }
    }

    /// Runs one verb on the record of a name, if it has one, and wakes whom the verb let in.
    fn with<T>(&self, name: &LockName, verb: impl FnOnce(&mut Record, Moment, &mut Vec<Wake>) -> T) -> Option<T> {
        let mut names = self.lock();
        let record = names.records.get_mut(name)?;
        let mut woken = Vec::new();
        let at = self.moment();
        let answer = verb(record, at, &mut woken);
        self.settle(&mut names, name, woken);
        Some(answer)
    }

    /// What every verb ends with: the woken are told, the first in line looks no later than time may let it in, an idle
    /// record is dropped, watchers look.
    fn settle(&self, names: &mut Names, name: &LockName, woken: Vec<Wake>) {
        for wake in woken {
            if let Some(Sleeper { bed, .. }) = names.waiting.remove(&wake.id) {
                *bed.grant() = Some(wake.grant());
                bed.bell.notify_one();
            }
        }
        let Some(record) = names.records.get(name) else { return };
        if let (Some(first), Some(changes)) = (record.first_waiter(), record.next_change())
            && let Some(waiting) = names.waiting.get_mut(&first)
            && changes < waiting.looks_at
        {
            waiting.looks_at = changes;
            waiting.bed.bell.notify_one();
        }
        if record.is_idle() {
            self.floor.fetch_max(record.last.get(), Ordering::Relaxed);
            if let Some((name, record)) = names.records.remove_entry(name) {
                if names.past.len() == PAST {
                    names.past.pop_front();
                }
                names.past.push_back((name, record.last));
            }
        }
        self.changed.notify_waiters();
    }

    /// Tells clients about their claims. Not under the mutex: the last word to a client may be what ends it.
    fn tell(&self, claims: &[(ClientKey, ClaimId)], news: impl Fn(&News, ClaimId)) {
        for (client, id) in claims {
            let client = self.lock().clients.get(client).cloned();
            if let Some(client) = client {
                news(&client, *id);
            }
        }
    }

    /// When a waiter should look at its name by itself; notes it, so that [`settle`](Self::settle) can tell it otherwise.
    fn next_look(&self, claim: &Claim) -> Instant {
        let mut names = self.lock();
        let changes = names.records.get(&claim.name).and_then(Record::next_change).unwrap_or(Instant::NEVER);
        if let Some(waiting) = names.waiting.get_mut(&claim.id) {
            waiting.looks_at = changes;
        }
        changes
    }

    fn view(&self, name: &LockName) -> View {
        let (names, now) = (self.lock(), self.clock.now());
        match names.records.get(name) {
            Some(record) => record.view(name, now),
            None => {
                let last = names.past.iter().rev().find(|(past, _)| past == name).map(|(_, last)| *last);
                View { last, ..View::free(name.clone()) }
            }
        }
    }
}

/// A place in line that ends with its future: dropping it ends the claim.
struct Place<'a> {
    store: &'a Store,
    claim: &'a Claim,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.store.lock().waiting.remove(&self.claim.id);
        self.store.with(&self.claim.name, |record, at, woken| record.end(self.claim.id, Duration::ZERO, at, woken));
    }
}

impl MemoryBackend {
    /// Lets the claim in, or puts it in line and makes its bed.
    fn ask_for(&self, claim: &Claim, wait: Wait) -> Result<Result<Option<Grant>, Arc<Bed>>> {
        let mut names = self.store.lock();
        let at = self.store.moment();
        let floor = || Record::new(claim.kind, Token::new(self.store.floor.load(Ordering::Relaxed)));
        let record = names.records.entry(claim.name.clone()).or_insert_with(floor);
        let queue_until = (wait != Wait::No).then_some(Instant::NEVER); // a waiter here cannot die without its future being dropped
        let mut woken = Vec::new();
        let admission = record.ask_for(claim, self.client, queue_until, at, &mut woken);
        let answer = match admission {
            Ok(Admission::Granted(token)) => Ok(Ok(Some(Grant { token, until: claim.window(at.now) }))),
            Ok(Admission::Busy) => Ok(Ok(None)),
            Ok(Admission::Queued) => {
                let bed = Arc::new(Bed::default());
                names.waiting.insert(claim.id, Sleeper { bed: Arc::clone(&bed), looks_at: Instant::from_nanos(0) });
                Ok(Err(bed))
            }
            Err(error) => Err(error),
        };
        self.store.settle(&mut names, &claim.name, woken);
        answer
    }

    async fn wait_in_line(&self, claim: &Claim, wait: Wait, bed: Arc<Bed>) -> Result<Option<Grant>> {
        let (store, clock) = (&*self.store, self.store.clock);
        let place = Place { store, claim };
        let deadline = wait.deadline(clock.now());
        loop {
            let changes = store.next_look(claim);
            tokio::select! {
                biased;
                () = bed.bell.notified() => {}
                () = clock.sleep_until(deadline.min(changes)) => {}
            }
            if let Some(grant) = bed.grant().take() {
                std::mem::forget(place); // the claim is the caller's now
                return Ok(Some(grant));
            }
            if !store.lock().waiting.contains_key(&claim.id) && bed.grant().is_none() {
                return Err(Error::new(ErrorKind::Unavailable, "the store forgot who waits"));
            }
            // Somebody's time is up: a holder's, then whoever is next is woken by this very sweep; or our own.
            store.with(&claim.name, |record, at, woken| record.sweep(at, woken));
            if clock.now() >= deadline && bed.grant().is_none() {
                return Ok(None);
            }
        }
    }
}

#[async_trait]
impl Backend for MemoryBackend {
    fn abilities(&self) -> Abilities {
        Abilities {
            store: "memory",
            kinds: &Kind::ALL,
            fencing: Fencing::DataOrClock,
            waiting: Waiting::Notified,
            liveness: Liveness::Lease,
            reach: Reach::Process,
            cells: true,
            delays: true,
            downgrade: true,
            shortest_ttl: crate::MIN_TTL,
        }
    }

    fn describe(&self) -> String {
        "memory".to_owned()
    }

    fn attach(&self, news: News) {
        self.store.lock().clients.insert(self.client, news);
    }

    async fn acquire(&self, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        match self.ask_for(claim, wait)? {
            Ok(answer) => Ok(answer),
            Err(bed) => self.wait_in_line(claim, wait, bed).await,
        }
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let sent = self.store.clock.now();
        let renew = move |claim: &Claim| {
            let renewed = self.store.with(&claim.name, |record, at, _| record.renew(claim.id, at)).flatten();
            Ok(renewed.map_or(Renewal::Lost, |asked| Renewal::Held { until: claim.window(sent), asked }))
        };
        claims.iter().map(renew).collect()
    }

    async fn release(&self, claim: &Claim) -> Result<()> {
        let ended = self.store.with(&claim.name, |record, at, woken| record.end(claim.id, claim.min_hold, at, woken));
        released(ended == Some(true), claim, self.describe())
    }

    async fn downgrade(&self, claim: &Claim) -> Result<bool> {
        let downgrade = |record: &mut Record, at, woken: &mut Vec<Wake>| record.downgrade(claim.id, at, woken);
        Ok(self.store.with(&claim.name, downgrade).unwrap_or_default())
    }

    async fn view(&self, name: &LockName) -> Result<View> {
        Ok(self.store.view(name))
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        let (names, now) = (self.store.lock(), self.store.clock.now());
        let mut found: Vec<&LockName> = names
            .records
            .keys()
            .filter(|name| name.as_str().starts_with(prefix) && after.is_none_or(|after| *name > after))
            .collect();
        found.sort_unstable();
        let views = found.into_iter().map(|name| names.records[name].view(name, now));
        Ok(views.filter(|view| !view.is_free()).take(limit).collect())
    }

    async fn watch(&self, name: &LockName, seen: &View) -> Result<View> {
        loop {
            let changed = self.store.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable(); // listen first, then look
            let view = self.store.view(name);
            if !view.says_the_same_as(seen) {
                return Ok(view);
            }
            let next = self.store.lock().records.get(name).and_then(Record::next_change).unwrap_or(Instant::NEVER);
            tokio::select! {
                () = changed => {}
                () = self.store.clock.sleep_until(next) => {}
            }
        }
    }

    async fn ask(&self, name: &LockName, ask: &Ask) -> Result<usize> {
        let told = self.store.with(name, |record, _, _| record.ask(ask)).unwrap_or_default();
        self.store.tell(&told, |news, id| news.asked(id, ask.clone()));
        Ok(told.len())
    }

    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Result<usize> {
        let broken = self.store.with(name, |record, at, woken| record.break_holds(only, at, woken)).unwrap_or_default();
        self.store.tell(&broken, |news, id| news.lost(id));
        Ok(broken.len())
    }

    async fn cell_get(&self, name: &LockName) -> Result<crate::Versioned> {
        let names = self.store.lock();
        Ok(names.cells.get(name).map_or((None, 0), |(value, version)| (Some(value.clone()), *version)))
    }

    async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Result<Option<u64>> {
        let mut names = self.store.lock();
        let current = names.cells.get(name).map_or(0, |(_, version)| *version);
        if current != expected {
            return Ok(None);
        }
        let floor = current.max(self.store.floor.load(Ordering::Relaxed));
        let version = Token::next(Token::new(floor), self.store.clock.wall_micros()).get();
        match value {
            Some(value) => drop(names.cells.insert(name.clone(), (value.to_vec(), version))),
            None => drop(names.cells.remove(name)),
        }
        self.store.floor.fetch_max(version, Ordering::Relaxed);
        Ok(Some(version))
    }

    async fn probe(&self) -> Result<()> {
        drop(self.store.lock());
        Ok(())
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        Ok(vec![Finding::good("reach", "locks are shared by the tasks and threads of this process, and end with it")])
    }
}

#[async_trait]
impl Node for MemoryBackend {
    async fn raise(&self, name: &LockName, at_least: Token) -> Result<Token> {
        let mut names = self.store.lock();
        Ok(match names.records.get_mut(name) {
            Some(record) => {
                record.last = record.last.max(at_least);
                record.last
            }
            None => Token::new(self.store.floor.fetch_max(at_least.get(), Ordering::Relaxed)).max(at_least),
        })
    }

    fn vote(&self) -> Result<()> {
        if self.store.dark.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, "it may have forgotten, and has no vote for a while"));
        }
        Ok(())
    }

    fn identity(&self) -> String {
        format!("memory {}", self.store.number)
    }
}

impl Drop for MemoryBackend {
    fn drop(&mut self) {
        self.store.lock().clients.remove(&self.client);
    }
}
