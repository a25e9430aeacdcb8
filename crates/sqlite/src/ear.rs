//! Waiting, and being woken by other processes.
//!
//! A release hands the lock over inside its transaction; the new holder only has to learn of it. Within a process that is a
//! channel. To another process goes one datagram, to a socket in Linux's abstract namespace whose name follows from the
//! file and the client's key: nothing to create, nothing to clean up, gone with the process.
//!
//! Such a socket has no permissions: every process of the host can send to it. So a datagram is a hint. It names claims that
//! something happened to, and nothing else; what happened is read from the file.
//!
//! One thread per client, the *ear*, sleeps in `poll(2)` on that socket, on the pidfds of whoever is in our waiters' way,
//! and on a clock. Datagrams may be lost (a full socket, another network namespace, a process that was not
//! listening yet), so about once a second the ear looks at the names of everybody who waits here, in one transaction. The
//! same look keeps our tickets alive, finds holders whose time is up, and buries the dead.
//!
//! A grant that a look finds is [counted](tenure_core::Client::grants_by_poll) where a message should have come first: whoever joined the
//! line when the ear listened already is told of every grant that the look did not make itself. A message may
//! still be on its way when a look overtakes it: so a grant that is only just made does not count, and any other not any more once its
//! message arrives.
//!
//! Who can interleave with what: a ticket is in [`Waits`] before the transaction that put it in line is committed, so the
//! wake that follows finds it. It is taken out by whoever delivers its verdict, or by the waiting future when it is
//! dropped; whichever comes second finds nothing, and does nothing.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tenure_core::record::{ClientKey, Record, Stage, Ticket, Touched, Wake};
use tenure_core::{ClaimId, Error, ErrorKind, Grant, Instant, LockName, jitter};
use tokio::sync::oneshot;

use crate::error::Fault;
use crate::schema::File;
use crate::store::Store;
use crate::transaction::{InTheWay, Transaction, changes_for};

/// How long a waiter may be unheard of before it counts as dead.
pub(crate) const ALIVE: Duration = Duration::from_secs(10);
/// With less of that left, a look also says that we are alive, which is a write; other looks only read.
const ALIVE_ENOUGH: Duration = Duration::from_secs(7);
/// A datagram about a grant that was made so long before a look is on its way as surely as what the look says.
const ON_ITS_WAY: Duration = Duration::from_millis(10);
/// About how often the ear looks, jittered by a fifth so that processes that started together drift apart.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How many names one transaction looks at.
const NAMES_AT_ONCE: usize = 128;
/// How many processes are watched at once.
const MOST_WATCHED: usize = 512;
/// The ids of so many claims are in one datagram at most; more for one client make several.
const MOST_IDS: usize = 1024;
/// How many datagrams are read in one round.
const MOST_DATAGRAMS: usize = 64;
/// How long an id is in a datagram.
const ID_LENGTH: usize = 16;

/// What a waiting task is told.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It was let in.
    Granted(Grant),
    /// It is not in line any more: it was thought dead. It must ask again.
    Gone,
    /// It waits in vain.
    Failed(Error),
}

/// The tasks of this client that wait.
#[derive(Default)]
pub(crate) struct Waits {
    by_id: HashMap<ClaimId, Waiting>,
    /// When the ear will look next, and whose death would wake it before.
    next_look: Option<Instant>,
    watched: HashSet<ClientKey>,
    /// The ear has the socket on which datagrams come.
    pub(crate) listens: bool,
}

struct Waiting {
    name: LockName,
    verdict: oneshot::Sender<Verdict>,
    in_the_way: InTheWay,
    /// When time alone may let it in.
    changes: Instant,
    /// It is told when it is let in, and was not told anything yet.
    is_owed: bool,
}

impl Waits {
    /// Somebody waits. Says whether the ear must hear of it before its next look.
    pub(crate) fn insert(
        &mut self,
        name: LockName,
        id: ClaimId,
        verdict: oneshot::Sender<Verdict>,
        in_the_way: InTheWay,
        changes: Instant,
    ) -> bool {
        let is_news = self.next_look.is_none_or(|next| changes < next)
            || in_the_way.iter().any(|(client, _)| !self.watched.contains(client));
        let is_owed = self.listens;
        self.by_id.insert(id, Waiting { name, verdict, in_the_way, changes, is_owed });
        is_news
    }

    pub(crate) fn remove(&mut self, id: ClaimId) -> Option<oneshot::Sender<Verdict>> {
        if self.by_id.is_empty() {
            return None;
        }
        self.by_id.remove(&id).map(|waiting| waiting.verdict)
    }

    /// Has the ear look at this claim as soon as it can. Says whether it is here.
    pub(crate) fn look_soon(&mut self, id: ClaimId) -> bool {
        let Some(waiting) = self.by_id.get_mut(&id) else { return false };
        waiting.changes = Instant::from_nanos(0);
        waiting.is_owed = false;
        true
    }
}

/// The ear of one client, and its voice.
pub(crate) struct Ear {
    /// What everybody's socket on this file begins with.
    prefix: String,
    me: ClientKey,
    /// For sending; made when first needed.
    voice: OnceLock<Option<UnixDatagram>>,
    /// For listening; made once, since its name can be bound only once.
    socket: OnceLock<Option<UnixDatagram>>,
    thread: Mutex<Option<Thread>>,
}

struct Thread {
    poke: Arc<OwnedFd>,
    must_stop: Arc<AtomicBool>,
    handle: std::thread::JoinHandle<()>,
}

impl Ear {
    pub(crate) fn new(file: &File, me: ClientKey) -> Self {
        Ear {
            prefix: format!("tenure/{:x}/{:x}/", file.device, file.inode),
            me,
            voice: OnceLock::new(),
            socket: OnceLock::new(),
            thread: Mutex::default(),
        }
    }

    /// Tells a client of another process that something happened to its claims. Never waits, and never fails: a message that
    /// cannot be sent is a lost one.
    pub(crate) fn call(&self, client: ClientKey, claims: &[ClaimId]) {
        let voice = self.voice.get_or_init(|| {
            let voice = UnixDatagram::unbound().ok()?;
            voice.set_nonblocking(true).ok()?;
            Some(voice)
        });
        let (Some(voice), Ok(address)) = (voice, self.address(client)) else { return };
        for claims in claims.chunks(MOST_IDS) {
            let bytes: Vec<u8> = claims.iter().flat_map(ClaimId::as_bytes).copied().collect();
            let _ = voice.send_to_addr(&bytes, &address);
        }
    }

    /// Has the ear make its plans anew.
    pub(crate) fn poke(&self) {
        if let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = rustix::io::write(&thread.poke, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn stop(&self) {
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            thread.must_stop.store(true, Ordering::Relaxed);
            let _ = rustix::io::write(&thread.poke, &1u64.to_ne_bytes());
        }
    }

    fn socket(&self, listen: bool) -> Option<&UnixDatagram> {
        let make = || {
            let socket = UnixDatagram::bind_addr(&self.address(self.me).ok()?).ok()?;
            socket.set_nonblocking(true).ok()?;
            Some(socket)
        };
        self.socket.get_or_init(|| if listen { make() } else { None }).as_ref()
    }

    fn address(&self, client: ClientKey) -> std::io::Result<SocketAddr> {
        SocketAddr::from_abstract_name(format!("{}{client:x}", self.prefix))
    }
}

impl Store {
    /// Starts the ear, if it is not there yet. Called after the first commit, so that the first ask does not wait for it;
    /// what was sent before it listened is found by its first look, which is at once.
    pub(crate) fn need_ear(self: &Arc<Self>) -> tenure_core::Result<()> {
        let mut thread = self.ear.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.as_ref().is_some_and(|thread| !thread.handle.is_finished()) {
            return Ok(());
        }
        // Without it nobody would hear that it was let in, or that it was asked.
        let failed = |error: std::io::Error| {
            Error::new(ErrorKind::Unavailable, "the thread that listens for other processes could not be started")
                .with_source(error)
                .with_hint("Look at the process's limits on threads and open files")
        };
        let poke = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
        let (poke, must_stop) = (Arc::new(poke), Arc::new(AtomicBool::new(false)));
        let socket = self.ear.socket(self.settings.listen); // bound before anybody hears of us
        self.waits().listens = socket.is_some();
        let (store, inner_poke, inner_stop) = (Arc::clone(self), Arc::clone(&poke), Arc::clone(&must_stop));
        let listen = move || store.listen(&inner_poke, &inner_stop);
        let handle = std::thread::Builder::new().name("tenure-ear".to_owned()).spawn(listen).map_err(failed)?;
        *thread = Some(Thread { poke, must_stop, handle });
        Ok(())
    }

    /// Whether other processes can tell this client anything.
    pub(crate) fn can_listen(&self) -> bool {
        self.ear.socket(self.settings.listen).is_some()
    }

    /// The ear's life.
    fn listen(self: Arc<Self>, poke: &OwnedFd, must_stop: &AtomicBool) {
        let socket = self.ear.socket(self.settings.listen);
        let mut datagram = vec![0; MOST_IDS * ID_LENGTH];
        let mut round = Some(Instant::now()); // whatever was sent before we listened is found at once
        while !must_stop.load(Ordering::Relaxed) {
            let Plan { wakes_at, watched } = self.waits().plan(&mut round);
            let mut fds = vec![PollFd::new(poke, PollFlags::IN)];
            fds.extend(socket.map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)));
            fds.extend(watched.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)));
            let timeout = wakes_at.map(|wakes_at| timespec(wakes_at.since(Instant::now())));
            let _ = poll(&mut fds, timeout.as_ref()); // interrupted or not: what is ready is looked at
            let ended = fds.iter().rev().zip(watched.iter().rev()).filter(|(fd, _)| !fd.revents().is_empty());
            let dead: Vec<ClientKey> = ended.map(|(_, (client, _))| *client).collect();
            let _ = rustix::io::read(poke, &mut [0; 8]);
            let mut hinted = Vec::new();
            // Anybody may send without end: what is left is read in the next round, which comes at once.
            for _ in 0..MOST_DATAGRAMS {
                let Some(Ok(length)) = socket.map(|socket| socket.recv(&mut datagram)) else { break };
                hinted.extend(datagram[..length].as_chunks::<ID_LENGTH>().0.iter().copied().map(ClaimId::from_bytes));
            }
            self.follow(&hinted);
            let now = Instant::now();
            let is_round = round.is_some_and(|round| round <= now);
            if is_round {
                round = Some(now + jittered(LOOK_EVERY));
            }
            let due = self.waits().due(now, is_round, &dead);
            if !due.is_empty() {
                self.look(due);
            }
        }
    }

    /// Reads what happened to claims of ours. Whoever says that something happened is not believed: see the module's page.
    fn follow(&self, hinted: &[ClaimId]) {
        let mut names: HashMap<LockName, Vec<ClaimId>> = HashMap::new();
        {
            let claims = self.claims();
            for id in hinted {
                self.counts(*id, true);
                if let Some(name) = claims.get(id) {
                    names.entry(name.clone()).or_default().push(*id);
                }
            }
        }
        for (name, ids) in names {
            match self.record(&name) {
                Ok(record) => ids.into_iter().for_each(|id| self.found(id, record.as_ref())),
                Err(_) => {
                    let mut waits = self.waits(); // holders learn it by renewing
                    ids.into_iter().for_each(|id| _ = waits.look_soon(id));
                }
            }
        }
    }

    /// A look has found a grant that its waiter should have been told of; or the message has come after all.
    pub(crate) fn counts(&self, id: ClaimId, is_told: bool) {
        if let Some(news) = self.news.get() {
            news.grant_by_poll(id, is_told);
        }
    }

    /// Tells whoever waits for or holds a claim what the record says of it.
    fn found(&self, id: ClaimId, record: Option<&Record>) {
        if let Some(Touched::Granted(wake)) = record.map(|record| record.standing(id)) {
            self.deliver(wake);
        } else if self.waits().look_soon(id) {
            return;
        }
        let Some(news) = self.news.get() else { return };
        let ticket = record.and_then(|record| record.line.iter().find(|ticket| ticket.id == id));
        match ticket {
            Some(Ticket { stage: Stage::Held { asked: Some(ask), .. }, .. }) => news.asked(id, ask.clone()),
            Some(Ticket { stage: Stage::Held { .. } | Stage::Waiting { .. }, .. }) => {}
            Some(Ticket { stage: Stage::Closing { .. }, .. }) | None => news.lost(id),
        }
    }

    /// Looks at the names of these claims: says that we are alive, buries the dead in their way, and finds what they were
    /// not told.
    fn look(self: &Arc<Self>, due: HashMap<LockName, Vec<ClaimId>>) {
        let mut due: Vec<(LockName, Vec<ClaimId>)> = due.into_iter().collect();
        while !due.is_empty() {
            let some = due.split_off(due.len().saturating_sub(NAMES_AT_ONCE));
            let ids: Vec<ClaimId> = some.iter().flat_map(|(_, ids)| ids).copied().collect();
            let looked = self.ask_blocking(move |tx| {
                let mut all = Vec::new();
                for (name, ids) in &some {
                    match look_at(tx, name, ids) {
                        Ok(looked) => all.extend(looked),
                        Err(Fault::Verb(error)) => {
                            let failed = |id| (id, Looked::Failed(error.clone()));
                            all.extend(ids.iter().copied().map(failed));
                        }
                        Err(error) => return Err(error),
                    }
                }
                Ok(all)
            });
            match looked {
                Ok(looked) => self.pass_on(looked),
                // Nothing is known; the next round asks again. Only if the file is gone is there nothing to wait for.
                Err(_) if !self.is_replaced() => self.waits().leave_to_next_round(&ids),
                Err(_) => self.pass_on(ids.into_iter().map(|id| (id, Looked::Failed(self.file.replaced()))).collect()),
            }
        }
    }

    fn pass_on(&self, looked: Vec<(ClaimId, Looked)>) {
        let mut waits = self.waits();
        for (id, looked) in looked {
            let verdict = match looked {
                Looked::Waiting { in_the_way, changes } => {
                    if let Some(waiting) = waits.by_id.get_mut(&id) {
                        (waiting.in_the_way, waiting.changes) = (in_the_way, changes);
                    }
                    continue;
                }
                Looked::Granted { wake, looked } => {
                    // Still under the mutex: a message that finds nobody waiting comes after that.
                    if looked.since(wake.granted) > ON_ITS_WAY && waits.by_id.get(&id).is_some_and(|waiting| waiting.is_owed)
                    {
                        self.counts(id, false);
                    }
                    Verdict::Granted(wake.grant())
                }
                Looked::Gone => Verdict::Gone,
                Looked::Failed(error) => Verdict::Failed(error),
            };
            if let Some(sender) = waits.remove(id) {
                let _ = sender.send(verdict);
            }
        }
    }
}

/// What the ear sleeps on.
struct Plan {
    wakes_at: Option<Instant>,
    watched: InTheWay,
}

impl Waits {
    /// When to wake up next and whom to watch until then. `round` is when everybody is looked at; it stands still while
    /// nobody waits.
    fn plan(&mut self, round: &mut Option<Instant>) -> Plan {
        self.by_id.retain(|_, waiting| !waiting.verdict.is_closed()); // nobody waits there any more
        self.watched.clear();
        if self.by_id.is_empty() {
            (self.next_look, *round) = (None, None);
            return Plan { wakes_at: None, watched: Vec::new() };
        }
        let round = *round.get_or_insert_with(|| Instant::now() + jittered(LOOK_EVERY));
        let mut wakes_at = round;
        let mut watched = Vec::new();
        for waiting in self.by_id.values() {
            wakes_at = wakes_at.min(waiting.changes);
            for (client, fd) in &waiting.in_the_way {
                if watched.len() < MOST_WATCHED && self.watched.insert(*client) {
                    watched.push((*client, Arc::clone(fd)));
                }
            }
        }
        self.next_look = Some(wakes_at);
        Plan { wakes_at: Some(wakes_at), watched }
    }

    /// The claims to look at now, by name: all in a round, else those whose moment has come or whose way a death has
    /// cleared.
    fn due(&self, now: Instant, is_round: bool, dead: &[ClientKey]) -> HashMap<LockName, Vec<ClaimId>> {
        let mut due: HashMap<LockName, Vec<ClaimId>> = HashMap::new();
        for (id, waiting) in &self.by_id {
            let bereft = || waiting.in_the_way.iter().any(|(client, _)| dead.contains(client));
            if is_round || waiting.changes <= now || bereft() {
                due.entry(waiting.name.clone()).or_default().push(*id);
            }
        }
        due
    }

    fn leave_to_next_round(&mut self, ids: &[ClaimId]) {
        for id in ids {
            if let Some(waiting) = self.by_id.get_mut(id) {
                (waiting.in_the_way, waiting.changes) = (Vec::new(), Instant::NEVER);
            }
        }
    }
}

/// What a look at a claim found.
enum Looked {
    Granted { wake: Wake, looked: Instant },
    Waiting { in_the_way: InTheWay, changes: Instant },
    Gone,
    Failed(Error),
}

fn look_at(tx: &mut Transaction<'_>, name: &LockName, ids: &[ClaimId]) -> Result<Vec<(ClaimId, Looked)>, Fault> {
    let looked = tx.with(name, |tx, record| {
        keep_alive(record, ids, tx.at.now);
        let mut woken = Vec::new();
        record.sweep(tx.at, &mut woken);
        let mut looked = Vec::with_capacity(ids.len());
        for id in ids {
            let in_the_way = tx.clear_the_way(record, *id, &mut woken)?;
            looked.push((*id, look_for(record, *id, in_the_way, tx.at.now)));
        }
        tx.after.woken.append(&mut woken);
        Ok(looked)
    })?;
    Ok(looked.unwrap_or_else(|| ids.iter().map(|id| (*id, Looked::Gone)).collect()))
}

/// What [`Record::touch`] does to one ticket, for many in one walk, and only where it is time.
fn keep_alive(record: &mut Record, ids: &[ClaimId], now: Instant) {
    for ticket in &mut record.line {
        if let Stage::Waiting { alive_until } = &mut ticket.stage
            && alive_until.since(now) < ALIVE_ENOUGH
            && ids.contains(&ticket.id)
        {
            *alive_until = now + ALIVE;
        }
    }
}

fn look_for(record: &Record, id: ClaimId, in_the_way: InTheWay, looked: Instant) -> Looked {
    match record.standing(id) {
        Touched::Waiting => Looked::Waiting { in_the_way, changes: changes_for(record, id) },
        Touched::Granted(wake) => Looked::Granted { wake, looked },
        Touched::Gone => Looked::Gone,
    }
}

/// About that long: four to six fifths of it.
fn jittered(time: Duration) -> Duration {
    time * 4 / 5 + jitter(time * 2 / 5)
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().min(3600) as i64, tv_nsec: time.subsec_nanos().into() }
}
