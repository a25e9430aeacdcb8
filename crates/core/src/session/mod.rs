//! The client's side of a store whose server has locks of its own: the server's session keeps the lock, the server's own queue
//! is the line.
//!
//! A store says in [`Server`] and [`Session`] how its server opens a session, locks, waits and lets go; everything a client must
//! do around that is here, so that no store repeats it:
//!
//! - `book`: which claim is on which session. Many locks share one session; a session never has two claims of one name, since to
//!   its server it would be the holder already.
//! - `ask`: a claim is tried on a shared session, and where it must wait it gets one of its own, on which the server lets it
//!   wait; it keeps that for as long as it holds.
//! - `near`: a claim that another task of this client is about to let go of is passed on to the next one without the server.
//! - `end`: letting go, and finding out what a claim has that nobody knows the state of: unlock, or close.
//! - `moving`: a session's connection, which is driven where it is used. With the feature `net` only.
//! - `lent`: whether a connection is a session at all, or somebody in between lends those to others.
//! - `heart`: what must be done at its time: showing holds to others, ending those that were not renewed, tending idle sessions.
//!
//! [`Sessions`] puts them together as a [`Backend`](crate::Backend).
//!
//! # What keeps a hold, and what ends it
//!
//! A hold lives as long as its session. The server ends a session that it has not heard of for its *idle limit*, which is the
//! ttl rounded up to a power of two in seconds (2 s at least), so that few sessions serve many ttls: a host that vanishes frees
//! its locks within that. While the client's process runs, it ends its own holds to the ttl itself: one that was not renewed in
//! time is let go by the heart, whether or not its session lives on. A renewal is one ping per session, however many locks are
//! on it, and proves them all: nobody but us can take a lock from a session that answers.
//!
//! # Who can interleave
//!
//! Requests on one session are executed in the order in which they were sent; that is what everything here rests on. A request
//! whose caller was dropped is executed all the same, so whoever ends a claim of which nobody knows what became sends its end on
//! the same session, after it. On different sessions everything interleaves with everything, and only the server decides. The
//! book is behind one mutex that is never held across an await; a name stays marked as in use on a session until the server has
//! confirmed that nothing of it is left there, or the session is closed.

mod ask;
mod backend;
mod book;
mod end;
mod heart;
mod lent;
mod looks;
#[cfg(feature = "net")]
mod moving;
mod near;

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};

use crate::backend::{Abilities, BoxFuture, Finding};
use crate::keeper::News;
use crate::lease::Failure;
use crate::{Ask, Claim, ClaimId, Kind, LockName, Mode, Result, Token, Versioned, View};

pub use self::backend::Sessions;
use self::book::Book;
pub use self::lent::{Connection, refuse_lent};
pub use self::looks::Looks;
#[cfg(feature = "net")]
pub use self::moving::{Drive, Mover, MovingStream, Place};

/// An answer, or why there is none.
pub type Answer<T> = std::result::Result<T, Failure>;

/// A server with locks of its own. Every method is one attempt; trying again is the caller's.
pub trait Server: Send + Sync + 'static {
    /// A connection of it.
    type Session: Session;

    /// What the store does.
    fn abilities(&self) -> Abilities;

    /// The store in words, without secrets.
    fn describe(&self) -> String;

    /// How long answers may take, and how many sessions may wait.
    fn limits(&self) -> Limits;

    /// Called once, before anything else: who is told what others have to say.
    fn attach(&self, listener: Arc<dyn Listener>);

    /// Opens a session that the server ends when it has not heard of it for `idle`. Called on a runtime that outlives it.
    fn open(&self, idle: Duration) -> BoxFuture<'_, Answer<Arc<Self::Session>>>;

    /// Ends what the session waits for. When this has an answer, nothing sent on the session afterwards is ended by it.
    fn interrupt<'a>(&'a self, session: &'a Self::Session) -> BoxFuture<'a, Answer<()>>;

    /// What others had to say to this client about its holds.
    fn mail(&self) -> BoxFuture<'_, Answer<Vec<(ClaimId, Notice)>>>;

    /// Who holds and who waits.
    fn view<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Answer<View>>;

    /// See [`Backend::list`](crate::Backend::list).
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a LockName>, limit: usize) -> BoxFuture<'a, Answer<Vec<View>>>;

    /// Leaves a request with every holder, and tells them. How many.
    fn request<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> BoxFuture<'a, Answer<usize>>;

    /// Has holders let go, and ends the sessions of those who do not; returns when nothing of their holds is left. How many.
    fn break_holds<'a>(&'a self, name: &'a LockName, only: Option<Token>) -> BoxFuture<'a, Answer<usize>>;

    /// See [`Backend::cell_get`](crate::Backend::cell_get).
    fn cell_get<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Answer<Versioned>>;

    /// See [`Backend::cell_set`](crate::Backend::cell_set).
    fn cell_set<'a>(
        &'a self,
        name: &'a LockName,
        expected: u64,
        value: Option<&'a [u8]>,
    ) -> BoxFuture<'a, Answer<Option<u64>>>;

    /// Removes what sessions that are no more have left; this one is over, whether or not the server knows already.
    fn tidy<'a>(&'a self, over: Option<&'a Self::Session>) -> BoxFuture<'a, Answer<()>>;

    /// Ends connections that are no sessions; whatever is asked next makes new ones.
    fn say_goodbye(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// The smallest request that a grant could possibly cost.
    fn probe(&self) -> BoxFuture<'_, Answer<()>>;

    /// What could hurt.
    fn examine(&self) -> BoxFuture<'_, Result<Vec<Finding>>>;
}

/// One session with a server. Requests are executed in the order in which they were first polled. A future that is dropped
/// leaves the session usable: its request may be executed or not.
pub trait Session: Send + Sync + 'static {
    /// Whether it may still be used: `false` from the moment on at which anybody could know otherwise.
    fn is_open(&self) -> bool;

    /// Ends it, and with it everything it has, without waiting.
    fn close(&self);

    /// Completes when it is over, for whatever reason. Does not keep the session.
    fn ended(&self) -> BoxFuture<'static, ()>;

    /// Locks if that can be had at once.
    fn try_lock<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Answer<Tried>>;

    /// Waits in the server's line, for ever or for so long, shown to others as somebody who waits: from the start, or where order
    /// is not promised after some milliseconds. The fencing number is drawn when it is let in. `None` when the time was over;
    /// the lock may have been given in that very moment, and whoever asked gives it up.
    fn wait<'a>(&'a self, claim: &'a Claim, limit: Option<Duration>) -> BoxFuture<'a, Answer<Option<Waited>>>;

    /// Draws a fencing number for what this session has already. The session is heard of with it. What others see of the claim that had
    /// it before, if they see anything, goes.
    fn enter<'a>(&'a self, claim: &'a Claim, before: Option<&'a Claim>) -> BoxFuture<'a, Answer<Token>>;

    /// Lets go of what is certainly held.
    fn unlock<'a>(&'a self, claim: &'a Claim, held: Held) -> BoxFuture<'a, Answer<()>>;

    /// Lets go of whatever the claim has on this session, also where nobody knows what that is.
    fn give_up<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Answer<()>>;

    /// Makes a reader of the writer of an rw lock, with the same token.
    fn downgrade<'a>(&'a self, claim: &'a Claim, held: Held) -> BoxFuture<'a, Answer<()>>;

    /// Shows holds to others, of which some may be shown as waiting.
    fn show<'a>(&'a self, holds: &'a [(Claim, Held)]) -> BoxFuture<'a, Answer<()>>;

    /// Makes itself heard; what others had to say about holds on this session.
    fn ping(&self) -> BoxFuture<'_, Answer<Vec<(ClaimId, Notice)>>>;
}

/// How long answers may take, and how many sessions there may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a request may go unanswered, all tries together.
    pub answer: Duration,
    /// How long whoever waits puts up with a server that cannot be reached.
    pub patience: Duration,
    /// How many claims may wait, or hold after they waited, at a time: each has a session. Whoever comes then waits its turn in
    /// this process.
    pub sessions: usize,
    /// How often sessions that hold something are pinged besides their renewals, where the server tells nobody: for mail, and
    /// for the session's end.
    pub mail: Option<Duration>,
    /// Whether the server finds out by itself that the host of a session which waits has vanished.
    pub finds_vanished: bool,
}

/// What came of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// The fencing number.
    pub token: Token,
    /// Whether others have seen it wait.
    pub shown: bool,
}

/// What came of trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// Locked, with this fencing number.
    Granted(Token),
    /// Not to be had.
    Busy,
    /// In use as this kind.
    Mismatch(Kind),
}

/// How something is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its fencing number.
    pub token: Token,
    /// In this mode.
    pub mode: Mode,
    /// For so long by now.
    pub age: Duration,
    /// Whether others can see it, or see it wait.
    pub shown: bool,
}

/// What others say about a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Let go, please.
    Asked(Ask),
    /// Let go: this was ended by force.
    Broken,
}

/// Who is told what others have to say.
pub trait Listener: Send + Sync + 'static {
    /// There is mail.
    fn rung(&self);
    /// A runtime that is always running, if there is one: for work that must not stand still with a caller's.
    fn home(&self) -> Option<Handle>;
}

/// What a client's tasks share.
struct Inner<S: Server> {
    server: S,
    book: Mutex<Book<S::Session>>,
    news: OnceLock<News>,
    /// Room for sessions that wait.
    room: Arc<Semaphore>,
    /// Sessions that many share are opened one at a time.
    opening: tokio::sync::Mutex<()>,
    /// Rung when the heart should wake up earlier than planned.
    bell: Arc<Notify>,
    /// When it wakes up by itself.
    planned: AtomicU64,
    beats: Arc<AtomicBool>,
    /// Somebody has something to say.
    mail: AtomicBool,
    /// When it was last looked whether anybody has, where nobody tells.
    looked: AtomicU64,
}

impl<S: Server> Inner<S> {
    fn new(server: S) -> Arc<Self> {
        let room = Arc::new(Semaphore::new(server.limits().sessions.clamp(1, Semaphore::MAX_PERMITS)));
        let inner = Arc::new(Inner {
            server,
            book: Mutex::default(),
            news: OnceLock::new(),
            room,
            opening: tokio::sync::Mutex::default(),
            bell: Arc::new(Notify::new()),
            planned: AtomicU64::new(u64::MAX),
            beats: Arc::default(),
            mail: AtomicBool::new(false),
            looked: AtomicU64::new(0),
        });
        inner.server.attach(Arc::new(heart::Ring(Arc::downgrade(&inner))));
        inner
    }

    fn book(&self) -> MutexGuard<'_, Book<S::Session>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where work lives that must not end with a caller's runtime.
    fn home(&self) -> Option<Handle> {
        self.news.get().and_then(News::runtime).or_else(|| Handle::try_current().ok())
    }

    /// Does something in the background, wherever there is a runtime for it.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(home) = self.home() {
            drop(home.spawn(work));
        }
    }

    fn tell(&self, what: impl FnOnce(&News)) {
        if let Some(news) = self.news.get() {
            what(news);
        }
    }
}

/// How long the server must keep a session unheard for holds with this ttl: rounded up, so that few sessions serve many ttls.
fn idle_limit(ttl: Duration) -> Duration {
    let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    Duration::from_secs(seconds.next_power_of_two().max(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_outlives_every_ttl_it_serves() {
        for (ttl, idle) in [(100, 2_000), (2_000, 2_000), (2_001, 4_000), (30_000, 32_000), (86_400_000, 131_072_000)] {
            assert_eq!(idle_limit(Duration::from_millis(ttl)), Duration::from_millis(idle));
        }
    }
}
