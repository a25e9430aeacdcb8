//! One session: what its requests, its answers and its watches share.
//!
//! Who can interleave: any task sends through [`Session::send`], which only takes a mutex, puts bytes into a buffer and writes what
//! the connection takes at once; the one [driver](crate::driver) task writes the rest, also under the mutex where others may write,
//! reads answers and hands them out. Requests leave in the order in
//! which they took the mutex, servers handle a session's requests in the order of their arrival, and answers come back in that
//! order: so several requests that are sent together are *one flight*, and whatever is listed after one's own create contains it.
//!
//! That order outlives a connection. When a session goes on over another one, the leader is asked first; from then on it refuses
//! whatever still arrives of this session through the old member (`SESSION_MOVED`), and a member that is the same closes the
//! old connection before it opens the new one. So what was sent over the old connection was done *before* anything that is sent
//! over the new one, or never will be. "Did my create land?" is therefore answered for ever by a write and a list on the new
//! connection, and an end that was sent there is final.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::{Address, ClaimId, Instant};
use tokio::net::TcpStream;
use tokio::sync::{Notify, oneshot, watch};

use crate::error::Fault;
use crate::trust::Trust;
use crate::wire::{Access, Event, Notice, Refusal, Reply, Request};

/// What came of one request.
#[derive(Clone, Debug)]
pub(crate) enum Trouble {
    /// The server said no.
    Refused(Refusal),
    /// The connection went away: it was done or not, and that can be found out on the next one.
    Unsure(Fault),
    /// The session is over: it was done or not, and whatever it did is gone or going.
    Over(Fault),
}

pub(crate) type Outcome = Result<Reply, Trouble>;

/// Where an answer goes.
pub(crate) type Asked = oneshot::Receiver<Outcome>;

/// What is known about the session now.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// There is no connection; the last one, or the last attempt, ended like this.
    Away(Option<Fault>),
    /// There is.
    Here,
    /// It is over.
    Over(Fault),
}

impl Phase {
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Phase::Over(_))
    }

    pub(crate) fn is_here(&self) -> bool {
        matches!(self, Phase::Here)
    }
}

/// A request that was sent and not answered yet.
pub(crate) struct Pending {
    pub(crate) xid: i32,
    pub(crate) request: Request,
    pub(crate) sent: Instant,
    answer: oneshot::Sender<Outcome>,
}

/// Who wants to know about a node.
pub(crate) enum Watcher {
    /// Somebody who waits for it.
    Waiter(oneshot::Sender<Event>),
    /// The hold that the node is.
    Own(ClaimId),
}

impl Watcher {
    fn listens(&self) -> bool {
        match self {
            Watcher::Waiter(tell) => !tell.is_closed(),
            Watcher::Own(_) => true,
        }
    }
}

/// Which kind of watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Watched {
    Node,
    Children,
}

/// What changes while a session lives.
pub(crate) struct State {
    pub(crate) number: i64,
    pub(crate) password: Vec<u8>,
    pub(crate) timeout: Duration,
    pub(crate) last_zxid: i64,
    pub(crate) trust: Trust,
    pub(crate) out: Vec<u8>,
    /// The connection, where whoever sends may write to it.
    pub(crate) door: Option<Arc<TcpStream>>,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) next_xid: i32,
    pub(crate) watchers: HashMap<(Watched, String), Vec<Watcher>>,
    /// Where the connection goes.
    pub(crate) member: Option<Address>,
    /// When the last write was sent.
    pub(crate) last_write: Instant,
    /// When the last write was sent that a quorum took, done or refused.
    pub(crate) last_proof: Instant,
    /// When anything was sent last.
    pub(crate) last_sent: Instant,
    /// Somebody found the connection too slow.
    pub(crate) leave: bool,
    /// Nobody needs the session any more.
    pub(crate) close: bool,
}

/// A session. Lives as long as its driver, and as long as somebody has it.
pub(crate) struct Session {
    pub(crate) access: Access,
    /// The granted timeout.
    pub(crate) timeout: Duration,
    /// The timeout that was asked for.
    pub(crate) wanted: Duration,
    state: Mutex<State>,
    pub(crate) wake: Notify,
    pub(crate) phase: watch::Sender<Phase>,
    /// How many asks and holds need it.
    pub(crate) users: AtomicU64,
    /// When the last of them left.
    pub(crate) idle_since: AtomicU64,
    /// Holds whose own node is not watched yet, and when it shall be.
    pub(crate) fresh: Mutex<VecDeque<(Instant, ClaimId)>>,
}

impl Session {
    pub(crate) fn new(access: Access, wanted: Duration, state: State) -> Self {
        Session {
            access,
            timeout: state.timeout,
            wanted,
            state: Mutex::new(state),
            wake: Notify::new(),
            phase: watch::Sender::new(Phase::Here),
            users: AtomicU64::new(0),
            idle_since: AtomicU64::new(Instant::now().as_nanos()),
            fresh: Mutex::default(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its number, which its nodes carry.
    pub(crate) fn number(&self) -> i64 {
        self.state().number
    }

    /// The instant from which it may not be trusted.
    pub(crate) fn until(&self) -> Instant {
        self.state().trust.until()
    }

    /// Whether it is over, or may not be trusted any more, which is the same to whoever asks anew.
    pub(crate) fn is_over(&self) -> bool {
        self.phase.borrow().is_over() || self.until() <= Instant::now()
    }

    /// Sends requests together, if there is a connection.
    pub(crate) fn send<const N: usize>(&self, requests: [Request; N]) -> Result<[Asked; N], Trouble> {
        self.put(|state| requests.map(|request| state.push(request, self.access)))
    }

    /// The same for as many as there are.
    pub(crate) fn send_all(&self, requests: Vec<Request>) -> Result<Vec<Asked>, Trouble> {
        self.put(|state| requests.into_iter().map(|request| state.push(request, self.access)).collect())
    }

    fn put<T>(&self, push: impl FnOnce(&mut State) -> T) -> Result<T, Trouble> {
        let mut state = self.state();
        match &*self.phase.borrow() {
            Phase::Here => {}
            Phase::Away(fault) => return Err(Trouble::Unsure(fault.clone().unwrap_or_else(Fault::silent))),
            Phase::Over(fault) => return Err(Trouble::Over(fault.clone())),
        }
        let asked = push(&mut state);
        let is_written = state.write_now().unwrap_or(false);
        drop(state);
        if !is_written {
            self.wake.notify_one();
        }
        Ok(asked)
    }

    /// Sends one and waits for its answer.
    ///
    /// # Cancel safety
    /// Dropped, it may have been done or not.
    pub(crate) async fn call(&self, request: Request) -> Outcome {
        let [asked] = self.send([request])?;
        answer(asked).await
    }

    /// Sends a request that watches a node, if it is there.
    ///
    /// The watcher stands before the request is sent, so that nothing said after the answer is missed.
    ///
    /// # Cancel safety
    /// Dropped, a watch may stay that nobody hears.
    pub(crate) async fn watch(&self, watched: Watched, path: &str) -> Result<(Reply, oneshot::Receiver<Event>), Trouble> {
        let (tell, told) = oneshot::channel();
        {
            let mut state = self.state();
            let watchers = state.watchers.entry((watched, path.to_owned())).or_default();
            watchers.retain(Watcher::listens); // whoever looks again and again leaves one each time
            watchers.push(Watcher::Waiter(tell));
        }
        let path = path.to_owned();
        let request = match watched {
            Watched::Node => Request::Get { path, watch: true },
            Watched::Children => Request::Children { path, watch: true },
        };
        Ok((self.call(request).await?, told))
    }

    /// Waits until there is a connection; the reason if the session ends first.
    ///
    /// # Cancel safety
    /// Holds no state.
    pub(crate) async fn here(&self) -> Result<(), Fault> {
        let mut phase = self.phase.subscribe();
        loop {
            match &*phase.borrow_and_update() {
                Phase::Here => return Ok(()),
                Phase::Over(fault) => return Err(fault.clone()),
                Phase::Away(_) => {}
            }
            if phase.changed().await.is_err() {
                return Err(Fault::closed());
            }
        }
    }

    /// Waits until it is over.
    ///
    /// # Cancel safety
    /// Holds no state.
    pub(crate) async fn over(&self) -> Fault {
        let mut phase = self.phase.subscribe();
        loop {
            if let Phase::Over(fault) = &*phase.borrow_and_update() {
                return fault.clone();
            }
            if phase.changed().await.is_err() {
                return Fault::closed();
            }
        }
    }

    /// Leaves the connection if something that was sent before then still has no answer.
    pub(crate) fn leave_if_silent_since(&self, sent: Instant) {
        let mut state = self.state();
        if state.pending.front().is_some_and(|oldest| oldest.sent <= sent) {
            state.leave = true;
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Closes the session: its nodes go with it.
    pub(crate) fn close(&self) {
        self.state().close = true;
        self.wake.notify_one();
    }

    /// Somebody needs it.
    pub(crate) fn enter(self: &Arc<Self>) -> User {
        self.users.fetch_add(1, Ordering::Relaxed);
        User(Arc::clone(self))
    }
}

/// Somebody who needs a session; it is not closed before.
pub(crate) struct User(pub(crate) Arc<Session>);

impl Clone for User {
    fn clone(&self) -> Self {
        self.0.enter()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.idle_since.store(Instant::now().as_nanos(), Ordering::Relaxed);
        self.0.users.fetch_sub(1, Ordering::Release);
    }
}

/// Waits for an answer.
///
/// # Cancel safety
/// Dropped, nobody hears it.
pub(crate) async fn answer(asked: Asked) -> Outcome {
    asked.await.unwrap_or_else(|_| Err(Trouble::Over(Fault::closed())))
}

impl State {
    pub(crate) fn push(&mut self, request: Request, access: Access) -> Asked {
        let (tell, asked) = oneshot::channel();
        let (xid, sent) = (self.next_xid, Instant::now());
        self.next_xid = if xid == i32::MAX { 1 } else { xid + 1 };
        request.encode(xid, access, &mut self.out);
        self.last_sent = sent;
        if request.is_write() {
            self.last_write = sent;
        }
        self.pending.push_back(Pending { xid, request, sent, answer: tell });
        asked
    }

    /// Writes as much as the connection takes at once; whether that was all. What is left, and what failed, is the driver's.
    pub(crate) fn write_now(&mut self) -> std::io::Result<bool> {
        let Some(door) = &self.door else { return Ok(false) };
        while !self.out.is_empty() {
            match door.try_write(&self.out) {
                Ok(written) => drop(self.out.drain(..written)),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Everything that was sent and has no answer gets this one.
    pub(crate) fn fail(&mut self, trouble: &Trouble) {
        self.out.clear();
        for pending in self.pending.drain(..) {
            let _ = pending.answer.send(Err(trouble.clone()));
        }
    }

    /// Tells whoever watches; the holds whose own node it was are given back, since only their owner can look.
    pub(crate) fn notify(&mut self, notice: &Notice) -> Vec<ClaimId> {
        let mut own = Vec::new();
        let kinds: &[Watched] = match notice.event {
            Event::Created | Event::DataChanged => &[Watched::Node],
            Event::ChildrenChanged => &[Watched::Children],
            Event::Deleted => &[Watched::Node, Watched::Children],
            Event::Other => &[],
        };
        for kind in kinds {
            for watcher in self.watchers.remove(&(*kind, notice.path.clone())).unwrap_or_default() {
                match watcher {
                    Watcher::Waiter(tell) => drop(tell.send(notice.event)),
                    Watcher::Own(id) => own.push(id),
                }
            }
        }
        own
    }

    /// Forgets those who do not listen any more.
    pub(crate) fn forget_the_deaf(&mut self) {
        self.watchers.retain(|_, watchers| {
            watchers.retain(Watcher::listens);
            !watchers.is_empty()
        });
    }
}

impl Pending {
    pub(crate) fn resolve(self, outcome: Outcome) {
        let _ = self.answer.send(outcome);
    }
}
