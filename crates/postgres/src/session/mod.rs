//! Session mode (`?liveness=session`): the server's advisory locks. The server's session keeps the lock, the server's own queue
//! is the line.
//!
//! What the server does:
//!
//! - `advisory`: one session, and each verb on it as one statement; `wire`: its connection
//! - `server`: opening sessions, and what is asked of the server about all of them: views, requests, breaking
//! - `sql/`: the table that shows who holds, and the functions around the server's own locks
//!
//! What a client does around that:
//!
//! - `book`: which claim is on which session. Many locks share one session; a session never has two claims of one name, since to
//!   its server it would be the holder already.
//! - `ask`: a claim is tried on a shared session, and where it must wait it gets one of its own, on which the server lets it
//!   wait; it keeps that for as long as it holds.
//! - `near`: a claim that another task of this client is about to let go of is passed on to the next one without the server.
//! - `end`: letting go, and finding out what a claim has that nobody knows the state of: unlock, or close.
//! - `moving`: a session's connection, which is driven where it is used.
//! - `pooler_check`: whether a connection is a session at all, or a pooler lends its session to others in between.
//! - `heart`: what must be done at its time: showing holds to others, ending those that were not renewed, tending idle sessions.
//!
//! [`Sessions`] puts them together as a [`Backend`].
//!
//! # What keeps a hold, and what ends it
//!
//! A hold lives as long as its session. The server ends a session that it has not heard of for its *idle limit*, which is the
//! ttl rounded up to a power of two in seconds (2 s at least), so that few sessions serve many ttls: a host that vanishes frees
//! its locks within that. While the client's process runs, it ends its own holds to the ttl itself: one that was not renewed in
//! time is let go by the heart, whether or not its session lives on. A renewal is one ping per session, however many locks are
//! on it, and proves them all: nobody but us can take a lock from a session that answers, and the answer says which session it is. A
//! proxy in between may have logged in anew.
//!
//! # Who can interleave
//!
//! Requests on one session are executed in the order in which they were sent; that is what everything here rests on. A request
//! whose caller was dropped is executed all the same, so whoever ends a claim of which nobody knows what became sends its end on
//! the same session, after it. On different sessions everything interleaves with everything, and only the server decides. The
//! book is behind one mutex that is never held across an await; a name stays marked as in use on a session until the server has
//! confirmed that nothing of it is left there, or the session is closed.

mod advisory;
mod ask;
mod backend;
mod book;
mod end;
mod heart;
mod looks;
mod moving;
mod near;
mod pooler_check;
mod server;
mod wire;

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tenure_core::backend::{Abilities, Fencing, Liveness, Reach, Waiting};
use tenure_core::lease::Failure;
use tenure_core::{Ask, Backend, Kind, MIN_TTL, Mode, News, Result, Token};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};

use self::backend::Sessions;
use self::book::Book;
use self::server::PostgresServer;
use crate::config::Settings;

/// What PostgreSQL does by sessions.
pub const SESSION_ABILITIES: Abilities = Abilities {
    store: "postgres session",
    kinds: &[Kind::Mutex, Kind::FairMutex, Kind::RwLock, Kind::Election],
    fencing: Fencing::DataOrClock,
    waiting: Waiting::Notified,
    liveness: Liveness::Session,
    reach: Reach::Network,
    cells: true,
    delays: false,
    downgrade: true,
    shortest_ttl: MIN_TTL,
};

/// Connects, and finds out whether sessions are what they seem.
///
/// # Cancel safety
/// Dropped before it completes, nothing is left but tables.
pub(crate) async fn connect(settings: Settings) -> Result<Arc<dyn Backend>> {
    let server = PostgresServer::new(settings)?;
    server.prepare().await?;
    Ok(Arc::new(Sessions::new(server)))
}

/// An answer, or why there is none.
type Answer<T> = std::result::Result<T, Failure>;

/// What came of trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    /// Locked, with this fencing number.
    Granted(Token),
    /// Not to be had.
    Busy,
    /// In use as this kind.
    Mismatch(Kind),
}

/// How something is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    /// Its fencing number.
    token: Token,
    /// In this mode.
    mode: Mode,
    /// For so long by now.
    age: Duration,
    /// Whether others can see it, or see it wait.
    shown: bool,
}

/// What others say about a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Notice {
    /// Let go, please.
    Asked(Ask),
    /// Let go: this was ended by force.
    Broken,
}

/// What a client's tasks share.
struct Inner {
    server: PostgresServer,
    book: Mutex<Book>,
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
}

impl Inner {
    fn new(server: PostgresServer) -> Arc<Self> {
        let room = Arc::new(Semaphore::new(server.settings().max_sessions.clamp(1, Semaphore::MAX_PERMITS)));
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
        });
        inner.server.attach(&inner);
        inner
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keepers_runtime(&self) -> Option<Handle> {
        self.news.get().and_then(News::runtime)
    }

    /// Where work lives that must not end with a caller's runtime.
    fn home(&self) -> Option<Handle> {
        self.keepers_runtime().or_else(|| Handle::try_current().ok())
    }

    /// Does something in the background, wherever there is a runtime for it.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(home) = self.home() {
            drop(home.spawn(work));
        }
    }

    /// How long a request may go unanswered, all tries together.
    fn answer_limit(&self) -> Duration {
        self.server.settings().answer_limit
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
