//! One client's end of the file: what its tasks and its threads share.
//!
//! Up to three threads stand beside the user's: the *worker* waits where a task must not (for other processes' transactions,
//! and for names to fall quiet), the *ear* listens for other processes, and the *renewer* has a connection that nothing a
//! user does can delay. Each is started when it is first needed, and ends with the client.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use rusqlite::Connection;
use tenure_core::record::{ClientKey, Wake};
use tenure_core::{Ask, ClaimId, Error, ErrorKind, Instant, LockName, LossReason, News, Result, random};
use tokio::sync::Notify;

use crate::batch::{Batch, LONG_LOG, Patience};
use crate::config::Settings;
use crate::death::{Deaths, Process};
use crate::ear::{Ear, Verdict, Waits};
use crate::error::explained;
use crate::renew::Renewer;
use crate::schema::{self, File, REPLACED, SHORTENING};
use crate::tidy;
use crate::transaction::After;

/// What one client tells another of this process after a commit. Another process is only told whose claim to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Your claim was let in.
    Wake(Wake),
    /// Somebody asks you to let go of your claim.
    Asked(ClaimId, Ask),
    /// Your claim was ended by force.
    Lost(ClaimId),
    /// Somebody else stands in front of your waiting claim now: look who it is.
    Look(ClaimId),
}

impl Message {
    fn claim(&self) -> ClaimId {
        match self {
            Message::Wake(wake) => wake.id,
            Message::Asked(id, _) | Message::Lost(id) | Message::Look(id) => *id,
        }
    }
}

pub(crate) struct Store {
    pub(crate) file: File,
    pub(crate) settings: Settings,
    /// This client among all that use the file: random, so that nobody has to hand keys out.
    pub(crate) me: ClientKey,
    pub(crate) here: Process,
    /// This start of the machine: what the file says of an earlier one is void.
    pub(crate) boot: String,
    pub(crate) deaths: Deaths,
    pub(crate) batch: Batch,
    pub(crate) waits: Mutex<Waits>,
    pub(crate) ear: Ear,
    pub(crate) renewer: Mutex<Option<Arc<Renewer>>>,
    pub(crate) news: OnceLock<News>,
    /// Rings at every commit of this client, for those who watch.
    pub(crate) changed: Notify,
    /// Claims of ours that are, or may be, in the file. While there is any, the client's own row must stay.
    claims: Mutex<HashMap<ClaimId, LockName>>,
    reader: Mutex<Option<Connection>>,
    worker: Worker,
    /// Once seen, for good: the path leads to another file than ours.
    is_replaced: AtomicBool,
}

/// The clients of this process: a waiter among them is woken without a system call, and is known to be alive.
static CLIENTS: Mutex<Option<HashMap<ClientKey, Weak<Store>>>> = Mutex::new(None);

impl Store {
    pub(crate) fn open(path: &Path, settings: Settings) -> Result<Arc<Self>> {
        let (file, connection) = schema::open(path, &settings)?;
        let here = Process::current();
        let deaths = Deaths::new(here);
        let dead = match file.is_writable {
            true => tidy::find_dead(&connection, &deaths).map_err(|error| explained(error, &file.path, "opening it"))?,
            false => Vec::new(), // a process that may write finds them
        };
        let me = u64::from_le_bytes(random()) >> 1; // SQLite's integers have a sign
        let store = Arc::new(Store {
            ear: Ear::new(&file, me),
            deaths,
            boot: schema::boot_id()?,
            file,
            settings,
            me,
            here,
            batch: Batch::default(),
            waits: Mutex::default(),
            renewer: Mutex::default(),
            news: OnceLock::new(),
            changed: Notify::new(),
            claims: Mutex::default(),
            reader: Mutex::default(),
            worker: Worker::default(),
            is_replaced: AtomicBool::new(false),
        });
        store.adopt(connection).map_err(|error| explained(error, &store.file.path, "opening it"))?;
        clients().get_or_insert_default().insert(me, Arc::downgrade(&store));
        store.sweep(dead)?;
        Ok(store)
    }

    /// The client with this key, if it is one of this process.
    pub(crate) fn in_this_process(client: ClientKey) -> Option<Arc<Store>> {
        let store = clients().as_ref()?.get(&client)?.upgrade()?;
        // A fork copies this table; what is in it then belongs to the parent.
        (store.here.pid == std::process::id() as i32).then_some(store)
    }

    /// After a commit: wakes and tells everybody concerned, wherever they are.
    pub(crate) fn announce(self: &Arc<Self>, after: After) {
        let After { woken, mut messages, loose, poke_ear, mut has_chores, dead, ended } = after;
        if !ended.is_empty() {
            let mut claims = self.claims();
            ended.iter().for_each(|id| has_chores |= claims.remove(id).is_some() && claims.is_empty());
        }
        self.changed.notify_waiters();
        for wake in woken {
            if wake.client == self.me {
                self.deliver(wake);
            } else {
                messages.push((wake.client, Message::Wake(wake)));
            }
        }
        if !messages.is_empty() {
            self.send(messages);
        }
        if has_chores || !loose.is_empty() || !dead.is_empty() {
            self.remember_chores(loose, dead, has_chores);
        }
        if poke_ear {
            self.ear.poke();
        }
    }

    /// Tells clients what concerns them: those of this process directly, the others by datagram.
    fn send(self: &Arc<Self>, messages: Vec<(ClientKey, Message)>) {
        let mut abroad: Vec<(ClientKey, Vec<ClaimId>)> = Vec::new();
        for (client, message) in messages {
            if client == self.me {
                self.hear(message);
            } else if let Some(store) = Self::in_this_process(client) {
                store.hear(message);
            } else if let Some((_, others)) = abroad.iter_mut().find(|(known, _)| *known == client) {
                others.push(message.claim());
            } else {
                abroad.push((client, vec![message.claim()]));
            }
        }
        for (client, claims) in abroad {
            self.ear.call(client, &claims);
        }
    }

    /// Takes in what a client of this process told this one.
    fn hear(&self, message: Message) {
        match message {
            Message::Wake(wake) => {
                self.deliver(wake);
                self.counts(wake.id, true);
            }
            Message::Asked(id, ask) => {
                if let Some(news) = self.news.get() {
                    news.asked(id, ask);
                }
            }
            Message::Lost(id) => {
                if let Some(news) = self.news.get() {
                    news.lost(id);
                }
            }
            Message::Look(id) => {
                if self.waits().look_soon(id) {
                    self.ear.poke();
                }
            }
        }
    }

    /// Hands a grant to the task that waits for it, if there still is one; else its claim is about to be ended.
    pub(crate) fn deliver(&self, wake: Wake) {
        let waiting = self.waits().remove(wake.id);
        if let Some(waiting) = waiting {
            let _ = waiting.send(Verdict::Granted(wake.grant()));
        }
    }

    pub(crate) fn claims(&self) -> MutexGuard<'_, HashMap<ClaimId, LockName>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs something that only reads, on a connection that writers do not hold up.
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        self.check_process()?;
        self.check_file()?;
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        if reader.is_none() {
            *reader = Some(self.file.connect()?);
        }
        read(reader.as_ref().expect("it was just made"))
    }

    /// SQLite's connections do not survive a fork, and neither do holds.
    pub(crate) fn check_process(&self) -> Result<()> {
        if std::process::id() as i32 == self.here.pid {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Backend, "this process is a fork of the one that opened the file")
            .with_hint("Connect again in the child: neither connections nor holds can be inherited"))
    }

    /// Whether the path still leads to our file.
    pub(crate) fn check_file(&self) -> Result<()> {
        if !self.is_replaced() && self.file.is_in_place() {
            return Ok(());
        }
        if !self.is_replaced.swap(true, Ordering::Relaxed)
            && let Some(news) = self.news.get()
        {
            let claims: Vec<ClaimId> = self.claims().keys().copied().collect();
            // Others lock in the other file: nothing of ours counts.
            let reason = LossReason::Store(REPLACED.into());
            claims.into_iter().for_each(|id| news.lost_for(id, reason.clone()));
        }
        Err(self.file.replaced())
    }

    pub(crate) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    /// The client is gone: nobody will ask through it any more. Lets go of threads and connections.
    pub(crate) fn leave(&self) {
        if let Some(clients) = clients().as_mut() {
            clients.remove(&self.me);
        }
        self.duty().is_left = true;
        self.stop_worker();
        self.ear.stop();
        drop(self.renewer.lock().unwrap_or_else(PoisonError::into_inner).take());
        drop(self.reader.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.disconnect();
    }
}

fn clients() -> MutexGuard<'static, Option<HashMap<ClientKey, Weak<Store>>>> {
    CLIENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The worker: leads batches that had to wait, and tidies up.
#[derive(Default)]
struct Worker {
    duty: Mutex<Duty>,
    wake: Condvar,
}

#[derive(Default)]
struct Duty {
    is_running: bool,
    must_lead: bool,
    must_shorten: bool,
    must_stop: bool,
    /// The client is gone for good: the worker ends as soon as nothing is queued.
    is_left: bool,
    /// Names that are idle, or will be, and since when.
    loose: HashMap<LockName, Instant>,
    /// Clients that were found dead, whose leftovers are to be swept.
    dead: Vec<ClientKey>,
    /// Since when there is something to do besides names: the dead, or our own row since it came or lost its last claim.
    chores_since: Option<Instant>,
    /// When the claims were last looked after.
    claims_seen: Option<Instant>,
    /// When the worker will look by itself.
    wakes_at: Option<Instant>,
    /// The last name that the worker came by.
    came_by: String,
}

/// How long a name must have been idle before its row goes; a hot one is locked again long before.
const QUIET: Duration = Duration::from_secs(1);

/// How often it is looked whether the claims we know of are still there.
const CLAIMS_EVERY: Duration = Duration::from_secs(10);

impl Store {
    /// Leaves the queue to the worker.
    pub(crate) fn call_worker(self: &Arc<Self>) {
        let mut duty = self.duty();
        duty.must_lead = true;
        self.need_worker(&mut duty);
    }

    /// Has the worker shorten the log.
    pub(crate) fn call_worker_to_shorten(self: &Arc<Self>) {
        let mut duty = self.duty();
        duty.must_shorten = true;
        self.need_worker(&mut duty);
    }

    fn remember_chores(self: &Arc<Self>, loose: Vec<(LockName, Instant)>, dead: Vec<ClientKey>, has_chores: bool) {
        let now = Instant::now();
        let mut duty = self.duty();
        let mut due = Instant::NEVER;
        if has_chores || !dead.is_empty() {
            duty.chores_since = Some(now);
            due = now;
        }
        for (name, since) in loose {
            due = due.min(since);
            duty.loose.insert(name, since);
        }
        duty.dead.extend(dead);
        // Waking a thread costs more than all of this: only if it would sleep for too long.
        if !duty.is_running || duty.wakes_at.is_some_and(|wakes_at| due + QUIET < wakes_at) {
            self.need_worker(&mut duty);
        }
    }

    /// Whether rows of ours may still have to be removed.
    pub(crate) fn has_loose(&self) -> bool {
        !self.duty().loose.is_empty()
    }

    /// Takes the clients that were found dead.
    pub(crate) fn take_dead(&self) -> Vec<ClientKey> {
        let mut dead = std::mem::take(&mut self.duty().dead);
        dead.sort_unstable();
        dead.dedup();
        dead
    }

    /// Takes names that nobody may need any more for some time: those of a while ago, or all.
    pub(crate) fn take_loose(&self, before: Option<Instant>) -> Vec<LockName> {
        let mut duty = self.duty();
        duty.loose.extract_if(|_, since| before.is_none_or(|before| *since <= before)).map(|(name, _)| name).collect()
    }

    /// The last name that the worker came by, or nothing if it begins again.
    pub(crate) fn came_by(&self, now_by: Option<String>) -> String {
        std::mem::replace(&mut self.duty().came_by, now_by.unwrap_or_default())
    }

    fn need_worker(self: &Arc<Self>, duty: &mut Duty) {
        duty.must_stop = duty.is_left;
        if duty.is_running {
            self.worker.wake.notify_one();
            return;
        }
        duty.is_running = true;
        let store = Arc::clone(self);
        let started = std::thread::Builder::new().name("tenure-sqlite".to_owned()).spawn(move || store.work());
        // Without threads nobody waits for other processes here: the next ask tries again.
        duty.is_running = started.is_ok();
    }

    fn stop_worker(&self) {
        self.duty().must_stop = true;
        self.worker.wake.notify_one();
    }

    fn work(self: Arc<Self>) {
        loop {
            let mut duty = self.duty();
            if duty.must_lead {
                duty.must_lead = false;
                drop(duty);
                self.lead(Patience::Thread);
                continue;
            }
            if duty.must_shorten {
                drop(duty);
                let _ = self.file.shorten_log(LONG_LOG, SHORTENING); // it is looked at again in a moment
                self.duty().must_shorten = false;
                continue;
            }
            if duty.must_stop {
                duty.is_running = false;
                return;
            }
            let now = Instant::now();
            let due = duty.loose.values().chain(&duty.chores_since).map(|since| *since + QUIET).min();
            if due.is_some_and(|due| due <= now) {
                duty.chores_since = duty.chores_since.filter(|since| *since + QUIET > now);
                drop(duty);
                let _ = self.do_chores(now - QUIET); // what fails now is found by somebody else's sweep
                continue;
            }
            let claims_due = duty.claims_seen.map_or(now, |seen| seen + CLAIMS_EVERY);
            let has_claims = !self.claims().is_empty();
            if has_claims && claims_due <= now {
                duty.claims_seen = Some(now);
                drop(duty);
                let _ = self.look_after_claims();
                continue;
            }
            let due = due.into_iter().chain(has_claims.then_some(claims_due)).min();
            let longest = due.map_or(Duration::from_secs(3600), |due| due.since(now)) + Duration::from_millis(20);
            duty.wakes_at = Some(now + longest);
            let mut duty = self.worker.wake.wait_timeout(duty, longest).unwrap_or_else(PoisonError::into_inner).0;
            duty.wakes_at = None;
        }
    }

    fn duty(&self) -> MutexGuard<'_, Duty> {
        self.worker.duty.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
