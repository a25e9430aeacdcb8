//! One connection: made when it is needed, used by one request at a time, thrown away when anything is in doubt.
//!
//! The protocol knows no request numbers: whoever sent something must read all of its answer before anybody else sends. So a
//! request takes the connection out of its place and puts it back when the answer was read; a future that is dropped in
//! between takes it along, and the next request makes another. Nothing half-read is ever used again.
//!
//! Who can interleave: requests of one link queue, in the order of asking. While one connects, the others wait for it.
//! After a failed attempt the next one waits a while, longer each time and at random, so that a restarted server is not
//! stormed.
//!
//! A connection lives on the runtime of whoever happened to need it first: a hop to a thread of our own and back would cost
//! every request some microseconds. It may vanish with that runtime, or stand still with its only thread; one that fell
//! silent on such a runtime is made anew on the keeper's, and so are all that follow it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Row};
use tenure_core::lease::{Failure, Listener, pause_after};
use tenure_core::{Clock, HalfMade, Instant};
use tokio::runtime::{self, Handle, RuntimeFlavor};

use crate::config::Settings;
use crate::connect::dial;
use crate::error;
use crate::examine::{self, Server};
use crate::verbs::Statement;

/// How long a request that is sent again may go unanswered before its connection is given up: more than a lock is waited for.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// A connection that was idle for so long may have been closed by the server, which is found out before it is relied on.
const IDLE: Duration = Duration::from_secs(5);

/// How a text begins that opens a transaction itself, and does not leave that to a procedure.
pub(crate) const OPENS: &str = "START TRANSACTION";

/// What is sent.
enum Text<'a> {
    Plain(String),
    Prepared(Statement<'a>),
}

impl Text<'_> {
    /// Whether it begins a transaction that it may leave open.
    fn opens(&self) -> bool {
        matches!(self, Text::Plain(text) if text.starts_with(OPENS))
    }
}

/// What came of some statements.
struct Done {
    rows: Rows,
    /// How many rows the last of them changed.
    changed: u64,
    /// The number it drew.
    drawn: u64,
}

/// The rows of each result.
pub(crate) type Rows = Vec<Vec<Row>>;

/// A way to the server, for one purpose.
pub(crate) struct Link {
    way: Way,
    place: tokio::sync::Mutex<Place>,
}

/// What it takes to make a connection, wherever that is done.
#[derive(Clone)]
struct Way {
    settings: Arc<Settings>,
    shared: Arc<Shared>,
    /// A connection stood still with the caller's only thread: the next one lives on the keeper's runtime.
    homeward: Arc<AtomicBool>,
}

/// What the links of a client share.
#[derive(Default)]
pub(crate) struct Shared {
    listener: OnceLock<Arc<dyn Listener>>,
    runs: examine::Runs,
}

impl Shared {
    /// From now on this one is told.
    pub(crate) fn attach(&self, listener: Arc<dyn Listener>) {
        let _ = self.listener.set(listener);
    }

    /// Who is told.
    pub(crate) fn listener(&self) -> Option<&Arc<dyn Listener>> {
        self.listener.get()
    }
}

/// Where the connection is while nobody uses it, and what came of the last attempts to make one.
struct Place {
    live: Option<Live>,
    failed: u32,
    not_before: Instant,
    half_made: HalfMade<Made>,
}

/// A connection, when its first request was sent, and the server's time then.
type Made = Result<(Live, Instant, u64), Failure>;

/// A connection that was there when it was last used.
struct Live {
    conn: Conn,
    server: Arc<Server>,
    /// Whether statements can be prepared on it, as far as we know.
    prepares: bool,
    used: Instant,
    /// Where it lives.
    runtime: runtime::Id,
    /// To be set when it falls silent; `None` where its runtime cannot stand still.
    homeward: Option<Arc<AtomicBool>>,
}

impl Link {
    /// `home`: its connections live on the keeper's runtime from the start, if there is one.
    pub(crate) fn new(settings: &Arc<Settings>, shared: &Arc<Shared>, home: bool) -> Self {
        let homeward = Arc::new(AtomicBool::new(home));
        let way = Way { settings: Arc::clone(settings), shared: Arc::clone(shared), homeward };
        let place = Place { live: None, failed: 0, not_before: Instant::from_nanos(0), half_made: HalfMade::default() };
        Link { way, place: tokio::sync::Mutex::new(place) }
    }

    /// Sends statements and reads all that they answer; `doing` completes "while …". The text may depend on the server.
    ///
    /// # Cancel safety
    /// Dropped, the statements may or may not be executed, and their connection is closed; one that is not made yet is finished
    /// on the keeper's runtime for whoever comes next, if it was to live there.
    pub(crate) async fn send(&self, doing: &str, text: impl FnOnce(&Server) -> String) -> Result<Rows, Failure> {
        self.send_within(ANSWER_LIMIT, doing, text).await
    }

    /// The same for what nobody sends again if it has no answer: it is waited for as long as an answer may take.
    ///
    /// # Cancel safety
    /// As of [`send`](Link::send).
    pub(crate) async fn send_once(&self, doing: &str, text: String) -> Result<Rows, Failure> {
        self.send_within(self.way.settings.answer_limit.max(ANSWER_LIMIT), doing, |_| text).await
    }

    async fn send_within(
        &self,
        limit: Duration,
        doing: &str,
        text: impl FnOnce(&Server) -> String,
    ) -> Result<Rows, Failure> {
        match self.exchange(limit, doing, |server| Some(Text::Plain(text(server)))).await {
            Ok(Some(Done { rows, .. })) => Ok(rows),
            Ok(None) => unreachable!("there was a text"),
            Err((failure, _)) => Err(failure),
        }
    }

    /// Sends one statement that writes at once or not at all, which is prepared: how many rows it changed, and the number it
    /// drew. `None` if somebody else has the row in this moment, or if the server cannot be asked so.
    ///
    /// # Cancel safety
    /// As of [`send`](Link::send).
    pub(crate) async fn write<'a>(
        &self,
        doing: &str,
        statement: impl FnOnce(&Server) -> Option<Statement<'a>>,
    ) -> Result<Option<(u64, u64)>, Failure> {
        match self.exchange(ANSWER_LIMIT, doing, |server| statement(server).map(Text::Prepared)).await {
            Ok(done) => Ok(done.map(|Done { changed, drawn, .. }| (changed, drawn))),
            Err((_, Some(error::ROW_IS_LOCKED))) => Ok(None),
            Err((_, Some(code))) if error::NOT_PREPARED.contains(&code) => Ok(None),
            Err((failure, _)) => Err(failure),
        }
    }

    /// Sends one statement that writes: how many rows it changed.
    ///
    /// # Cancel safety
    /// As of [`send`](Link::send).
    pub(crate) async fn change(&self, doing: &str, text: String) -> Result<u64, Failure> {
        match self.exchange(ANSWER_LIMIT, doing, |_| Some(Text::Plain(text))).await {
            Ok(done) => Ok(done.map_or(0, |Done { changed, .. }| changed)),
            Err((failure, _)) => Err(failure),
        }
    }

    /// What the server answered, or why not and what it called that. Without a text nothing is sent.
    async fn exchange<'a>(
        &self,
        limit: Duration,
        doing: &str,
        text: impl FnOnce(&Server) -> Option<Text<'a>>,
    ) -> Result<Option<Done>, (Failure, Option<u16>)> {
        let mut place = self.place.lock().await;
        let mut live = match place.live.take() {
            Some(live) => self.still_there(live).await,
            None => None,
        };
        if live.is_none() {
            live = Some(Box::pin(self.make(&mut place)).await.map_err(|failure| (failure, None))?);
        }
        let Some(mut live) = live else { unreachable!("it was made") };
        let Some(text) = text(&live.server).filter(|text| live.prepares || matches!(text, Text::Plain(_))) else {
            place.live = Some(live);
            return Ok(None);
        };
        let opens = text.opens();
        match tokio::time::timeout(limit, live.query(text)).await {
            Ok(Ok(rows)) => {
                let (changed, drawn) = (live.conn.affected_rows(), live.conn.last_insert_id().unwrap_or(0));
                live.used = Instant::now();
                place.live = Some(live);
                Ok(Some(Done { rows, changed, drawn }))
            }
            Ok(Err(failure)) => {
                // Our procedures undo what they began; a statement that never came to one left a transaction open.
                if error::leaves_connection(&failure) && (!opens || live.roll_back().await) {
                    live.used = Instant::now();
                    place.live = Some(live);
                }
                let code = error::code(&failure);
                if let (Some(live), Some(code)) = (&mut place.live, code) {
                    live.prepares &= !error::NOT_PREPARED.contains(&code); // else the next one would be told the same
                }
                Err((error::explain(failure, &self.way.settings, doing), code))
            }
            Err(_) => {
                if let Some(homeward) = &live.homeward {
                    homeward.store(true, Ordering::Relaxed);
                }
                Err((error::silent(&self.way.settings, limit, doing), None))
            }
        }
    }

    /// Whether a request of the caller's would be sent at once, and its answer be read by the caller's own runtime: one that goes to
    /// another's takes longer, and must rely on it.
    pub(crate) fn is_at_hand(&self) -> bool {
        let here = Handle::try_current().map(|runtime| runtime.id()).ok();
        let is_here = |live: &Live| Some(live.runtime) == here && Instant::now().since(live.used) < IDLE;
        self.place.try_lock().is_ok_and(|place| place.live.as_ref().is_some_and(is_here))
    }

    /// Sees to it that there is a connection, made now if need be. One that is in use is one.
    ///
    /// # Cancel safety
    /// Dropped, a half-made connection is closed, or finished on the keeper's runtime if it was to live there.
    pub(crate) async fn stand_ready(&self) -> Result<(), Failure> {
        let Ok(mut place) = self.place.try_lock() else { return Ok(()) };
        if place.live.is_none() {
            place.live = Some(Box::pin(self.make(&mut place)).await?);
        }
        Ok(())
    }

    /// Says goodbye, if there is a connection that nobody uses. The next request makes another.
    ///
    /// # Cancel safety
    /// Dropped, the connection is closed without a word.
    pub(crate) async fn close(&self) {
        let Ok(mut place) = self.place.try_lock() else { return };
        if let Some(Live { conn, .. }) = place.live.take() {
            let _ = tokio::time::timeout(ANSWER_LIMIT, conn.disconnect()).await;
        }
    }

    /// What is known about the server, by a connection made now if need be.
    ///
    /// # Cancel safety
    /// It only reads.
    pub(crate) async fn server(&self) -> Result<Arc<Server>, Failure> {
        let mut place = self.place.lock().await;
        if let Some(live) = &place.live {
            return Ok(Arc::clone(&live.server));
        }
        let live = Box::pin(self.make(&mut place)).await?;
        let server = Arc::clone(&live.server);
        place.live = Some(live);
        Ok(server)
    }

    /// The connection, if it has not been closed while nobody used it.
    async fn still_there(&self, mut live: Live) -> Option<Live> {
        if Instant::now().since(live.used) < IDLE {
            return Some(live);
        }
        match tokio::time::timeout(ANSWER_LIMIT, live.conn.ping()).await {
            Ok(Ok(())) => Some(live),
            _ => None,
        }
    }

    async fn make(&self, place: &mut Place) -> Result<Live, Failure> {
        Clock::Boot.sleep_until(place.not_before).await;
        let listener = self.way.shared.listener();
        let home = listener.and_then(|listener| listener.home()).filter(|_| self.way.homeward.load(Ordering::Relaxed));
        let made = match home {
            None => self.way.connect().await,
            Some(home) => {
                let way = self.way.clone();
                let limit = self.way.settings.connect_limit;
                let ended = || Err(error::silent(&self.way.settings, limit, "connecting"));
                place.half_made.finish(&home, async move { way.connect().await }).await.unwrap_or_else(ended)
            }
        };
        match made {
            Ok((live, sent, now)) => {
                place.failed = 0;
                if let Some(listener) = listener {
                    listener.connected(&live.server.run, sent, now);
                }
                Ok(live)
            }
            Err(failure) => {
                place.failed += 1;
                place.not_before = Instant::now() + pause_after(place.failed);
                Err(failure)
            }
        }
    }
}

impl Way {
    async fn connect(&self) -> Made {
        let Settings { connect_limit, .. } = *self.settings;
        match tokio::time::timeout(connect_limit, self.log_in()).await {
            Ok(made) => made,
            Err(_) => {
                let timed_out = std::io::Error::from(std::io::ErrorKind::TimedOut);
                Err(error::explain_connect(timed_out.into(), &self.settings))
            }
        }
    }

    async fn log_in(&self) -> Made {
        let failed = |failure| error::explain_connect(failure, &self.settings);
        let mut conn = dial(self.settings.options().map_err(error::refused)?).await.map_err(failed)?;
        let sent = Instant::now();
        let (server, now) = examine::look(&mut conn, &self.shared.runs).await.map_err(failed)?;
        examine::require(&server, &self.settings)?;
        conn.query_drop(server.setup()).await.map_err(failed)?;
        let runtime = Handle::current();
        let may_stand_still = runtime.runtime_flavor() == RuntimeFlavor::CurrentThread;
        let homeward = may_stand_still.then(|| Arc::clone(&self.homeward));
        let (server, used) = (Arc::new(server), Instant::now());
        let live = Live { conn, server, prepares: true, used, runtime: runtime.id(), homeward };
        Ok((live, sent, now))
    }
}

impl Live {
    /// Undoes what is open. Whether that was answered.
    async fn roll_back(&mut self) -> bool {
        matches!(tokio::time::timeout(ANSWER_LIMIT, self.conn.query_drop("ROLLBACK")).await, Ok(Ok(())))
    }

    async fn query(&mut self, text: Text<'_>) -> mysql_async::Result<Rows> {
        match text {
            Text::Plain(text) => read_all(&mut self.conn, &text).await,
            Text::Prepared(Statement { text, values }) => self.conn.exec_drop(text, values).await.map(|()| Rows::new()),
        }
    }
}

/// Sends statements, and gives the rows of every result that has columns.
pub(crate) async fn read_all(conn: &mut Conn, text: &str) -> mysql_async::Result<Rows> {
    let mut sets = Vec::new();
    let mut results = conn.query_iter(text).await?;
    while !results.is_empty() {
        let has_columns = !results.columns_ref().is_empty();
        let rows = results.collect::<Row>().await?;
        if has_columns {
            sets.push(rows);
        }
    }
    results.drop_result().await?; // an error that came after the first result waits here, and a commit's is one
    Ok(sets)
}

#[cfg(test)]
mod tests;
