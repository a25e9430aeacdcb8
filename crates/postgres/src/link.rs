//! One connection to the primary: made when it is needed, watched while it is there, made anew when it is not.
//!
//! Asks run on the runtime of whoever happened to need the connection first: a request that hopped to a thread of our own and
//! back would cost a good part of what the server does. The price is that the connection vanishes with that runtime, which its
//! driver's end tells; or stands still, where the runtime has one thread and that is elsewhere: a connection that fell silent on
//! such a runtime is made anew on the keeper's, and so are all that follow it. Renewals, ends and the ear live there from the start;
//! an end whose caller finds the connection for asks idle, on its own runtime, goes there.
//!
//! Who can interleave: any number of tasks send through one [`Live`], one request at a time, each a transaction of its own. A
//! pooler lends the server's end to somebody else after every transaction: with a second request on its way behind the first, or
//! with one whose asker has gone, answers would reach the wrong client (seen with PgBouncer 1.18). So nobody sends before the
//! last answer has come, and a connection with an answer that nobody waits for is given up.
//!
//! All links of a client go to the same run of the same server: one that reaches another, after a failover, takes the others along. The
//! old one may still answer those that are connected to it, and would go on renewing what the new one has given to others.
//!
//! Only one task at a time connects; the others wait for it and share what it made. After a failed attempt the next one waits a
//! while, longer each time and at random, so that a restarted server is not stormed.

mod prepared;

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::ready;
use std::time::Duration;

use tenure_core::lease::{Failure, Listener, pause_after};
use tenure_core::{Address, Clock, Error, ErrorKind, HalfMade, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{self, Handle, RuntimeFlavor};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use self::prepared::{How, Prepared};
use crate::config::Settings;
use crate::error::{After, explain, explain_connect, refused};
use crate::examine::{self, Server};
use crate::login::ScramOnly;
use crate::verbs::Request;

/// How long a request that is sent again may go unanswered before its connection is given up.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// What a connection says unasked, and that it is over. Called on the driver's task: it must not wait.
pub(crate) trait Pushes: Send + Sync + 'static {
    /// A notification on a channel.
    fn said(&self, channel: &str, payload: &str);
    /// The connection is gone.
    fn over(&self);
}

/// A way to the primary, for one purpose.
pub(crate) struct Link {
    way: Way,
    /// Who hears what is said on its connections, if nobody else does.
    hears: OnceLock<Arc<dyn Pushes>>,
    current: Mutex<Option<Arc<Live>>>,
    connecting: tokio::sync::Mutex<Attempts>,
}

/// What it takes to make a connection, wherever that is done.
#[derive(Clone)]
struct Way {
    settings: Arc<Settings>,
    listener: Arc<dyn Listener>,
    /// The next connection lives on the keeper's runtime, if there is one.
    homeward: Arc<AtomicBool>,
    reached: Arc<Reached>,
}

/// Where the links of a client have got to.
#[derive(Default)]
struct Reached {
    /// Which server is tried first.
    first: AtomicUsize,
    /// The run that was reached last, and how many there were before it.
    run: Mutex<String>,
    number: AtomicU64,
}

impl Reached {
    /// A connection to this run was made: its number.
    fn reach(&self, run: &str) -> u64 {
        let mut last = self.run.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != run {
            run.clone_into(&mut last);
            self.number.fetch_add(1, Ordering::AcqRel);
        }
        self.number.load(Ordering::Acquire)
    }
}

/// What came of the last attempts to connect.
struct Attempts {
    failed: u32,
    not_before: Instant,
    half_made: HalfMade<Made>,
}

type Made = Result<(Arc<Live>, Instant), Failure>;

impl Default for Attempts {
    fn default() -> Self {
        Attempts { failed: 0, not_before: Instant::from_nanos(0), half_made: HalfMade::default() }
    }
}

/// A connection that was there when we last looked.
pub(crate) struct Live {
    client: Client,
    settings: Arc<Settings>,
    pub(crate) address: Address,
    pub(crate) server: Server,
    /// Of its run.
    number: u64,
    is_given_up: AtomicBool,
    /// When the last answer came.
    heard: AtomicU64,
    /// Which carries it.
    runtime: runtime::Id,
    /// To be set when it falls silent; `None` where its runtime cannot stand still.
    homeward: Option<Arc<AtomicBool>>,
    /// Whoever has it may send.
    turn: tokio::sync::Mutex<()>,
    prepared: Prepared,
}

impl Link {
    /// `home`: its connections live on the keeper's runtime from the start.
    pub(crate) fn new(settings: &Arc<Settings>, listener: &Arc<dyn Listener>, home: bool) -> Self {
        let (settings, listener) = (Arc::clone(settings), Arc::clone(listener));
        Self::to(Way { settings, listener, homeward: Arc::new(AtomicBool::new(home)), reached: Arc::default() })
    }

    /// Another one of the same client.
    pub(crate) fn beside(&self, home: bool) -> Self {
        Self::to(Way { homeward: Arc::new(AtomicBool::new(home)), ..self.way.clone() })
    }

    fn to(way: Way) -> Self {
        Link { way, hears: OnceLock::new(), current: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    /// From now on this one hears what is said on its connections, whoever makes them.
    pub(crate) fn is_heard_by(&self, hears: Arc<dyn Pushes>) {
        let _ = self.hears.set(hears);
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Live>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, if there is one.
    pub(crate) fn open(&self) -> Option<Arc<Live>> {
        let number = self.way.reached.number.load(Ordering::Acquire);
        self.current().as_ref().filter(|live| live.is_open() && live.number == number).map(Arc::clone)
    }

    /// The connection, if a request of the caller's would be sent at once, and carried by the caller's own runtime: one that goes to
    /// another's takes longer, and must rely on it.
    pub(crate) fn at_hand(&self) -> Option<Arc<Live>> {
        let here = Handle::try_current().map(|runtime| runtime.id()).ok();
        self.open().filter(|live| Some(live.runtime) == here && live.turn.try_lock().is_ok())
    }

    /// The connection, made now if need be. Boxed where it is made: every request carries the room for this future.
    ///
    /// # Cancel safety
    /// Dropped, a half-made connection is closed, or finished on the keeper's runtime for whoever comes next.
    pub(crate) async fn live(&self) -> Result<Arc<Live>, Failure> {
        match self.open() {
            Some(live) => Ok(live),
            None => Box::pin(self.make(self.hears.get().map_or_else(|| Arc::new(Deaf) as _, Arc::clone))).await,
        }
    }

    /// The same, with somebody who hears what it says.
    ///
    /// # Cancel safety
    /// As of [`live`](Link::live).
    pub(crate) async fn make(&self, pushes: Arc<dyn Pushes>) -> Result<Arc<Live>, Failure> {
        let mut attempts = self.connecting.lock().await;
        if let Some(live) = self.open() {
            return Ok(live); // somebody was faster
        }
        self.current().take(); // where connections are short, the one that was given up may be the one that is needed
        Clock::Boot.sleep_until(attempts.not_before).await;
        let home = self.way.listener.home().filter(|_| self.way.homeward.load(Ordering::Relaxed));
        let made = match home {
            None => self.way.connect(pushes).await,
            Some(home) => {
                let way = self.way.clone();
                let made = attempts.half_made.finish(&home, async move { way.connect(pushes).await }).await;
                made.unwrap_or_else(|| Err(self.way.ended()))
            }
        };
        match made {
            Ok((live, sent)) => {
                *attempts = Attempts::default();
                *self.current() = Some(Arc::clone(&live));
                self.way.listener.connected(&live.server.run, sent, live.server.now);
                Ok(live)
            }
            Err(failure) => {
                attempts.failed += 1;
                attempts.not_before = Instant::now() + pause_after(attempts.failed);
                Err(failure)
            }
        }
    }
}

impl Way {
    /// Tries the servers in turn until one is the primary. A host that is gone says nothing: it may not take all the time there is
    /// from the others, and whoever gives up while it is tried begins with the next one when it comes again.
    async fn connect(&self, pushes: Arc<dyn Pushes>) -> Result<(Arc<Live>, Instant), Failure> {
        let servers = &self.settings.servers;
        let limit = self.settings.connect_limit / servers.len() as u32;
        let first = self.reached.first.load(Ordering::Relaxed);
        let mut failed: Option<Failure> = None;
        for place in (first..first + servers.len()).map(|place| place % servers.len()) {
            let address = &servers[place];
            self.reached.first.store(place + 1, Ordering::Relaxed);
            let attempt = tokio::time::timeout(limit, self.connect_to(address, Arc::clone(&pushes))).await;
            match attempt.unwrap_or_else(|_| Err(self.slow(address, limit))) {
                Ok(made) => {
                    self.reached.first.store(place, Ordering::Relaxed);
                    return Ok(made);
                }
                // What somebody must act on is told rather than that a standby is one.
                Err(failure) => match &failed {
                    Some(known) if !known.again || failure.again => {}
                    _ => failed = Some(failure),
                },
            }
        }
        Err(failed.unwrap_or_else(|| self.ended()))
    }

    async fn connect_to(&self, address: &Address, pushes: Arc<dyn Pushes>) -> Result<(Arc<Live>, Instant), Failure> {
        let failed = |error| explain_connect(error, address, &self.settings);
        let mut config = self.settings.driver(address);
        let client = match &self.settings.tls {
            None if self.settings.is_scram_only(address) => {
                ScramOnly::prepare(&mut config);
                let (client, connection) = config.connect(ScramOnly).await.map_err(failed)?;
                tokio::spawn(drive(connection, pushes));
                client
            }
            None => {
                config.ssl_mode(tokio_postgres::config::SslMode::Disable);
                let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
                tokio::spawn(drive(connection, pushes));
                client
            }
            Some(tls) => {
                config.ssl_mode(tokio_postgres::config::SslMode::Require);
                let rustls = MakeRustlsConnect::new((*tenure_tls::client_config(tls).map_err(refused)?).clone());
                if let Some(name) = &tls.server_name {
                    // The certificate is checked against this name, and the address is looked up here.
                    let ip = lookup(address).await.map_err(|error| refused(self.no_such_host(address, error)))?;
                    config = self.settings.driver(&Address::new(name.clone(), address.port));
                    config.ssl_mode(tokio_postgres::config::SslMode::Require).hostaddr(ip);
                }
                let (client, connection) = config.connect(rustls).await.map_err(failed)?;
                tokio::spawn(drive(connection, pushes));
                client
            }
        };
        let sent = Instant::now();
        let server = examine::look(&client, &self.settings).await.map_err(failed)?;
        examine::require(&server, address, &self.settings).map_err(refused)?;
        let runtime = Handle::current();
        let may_stand_still = runtime.runtime_flavor() == RuntimeFlavor::CurrentThread;
        let live = Live {
            client,
            settings: Arc::clone(&self.settings),
            address: address.clone(),
            number: self.reached.reach(&server.run),
            server,
            is_given_up: AtomicBool::new(false),
            turn: tokio::sync::Mutex::default(),
            prepared: Prepared::default(),
            heard: AtomicU64::new(Instant::now().as_nanos()),
            runtime: runtime.id(),
            homeward: may_stand_still.then(|| Arc::clone(&self.homeward)),
        };
        Ok((Arc::new(live), sent))
    }

    fn slow(&self, address: &Address, limit: Duration) -> Failure {
        refused(
            Error::new(ErrorKind::Unavailable, format!("{address} did not let us in within {limit:?}"))
                .with_store(self.settings.describe())
                .with_hint(
                    "Is it reachable from here, and is nothing keeping it busy? A pooler may have no connection free",
                ),
        )
    }

    fn no_such_host(&self, address: &Address, error: std::io::Error) -> Error {
        Error::new(ErrorKind::Unavailable, format!("the address of {address} could not be looked up"))
            .with_store(self.settings.describe())
            .with_source(error)
            .with_hint("Is the host right, and does its name exist here?")
    }

    fn ended(&self) -> Failure {
        let what = "the runtime that was to carry the connection has ended";
        refused(Error::new(ErrorKind::Unavailable, what).with_store(self.settings.describe()))
    }
}

impl Live {
    pub(crate) fn is_open(&self) -> bool {
        !self.is_given_up.load(Ordering::Acquire) && !self.client.is_closed()
    }

    /// Uses it no more: what was sent through it may or may not be executed. Nothing is cancelled: a pooler may have lent its
    /// server's connection to somebody else by then (and PgBouncer 1.18 was seen to end with it).
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Release);
    }

    /// Gives it up if nothing at all was heard since then: a connection that answered somebody else is not stuck.
    pub(crate) fn give_up_if_silent_since(&self, sent: Instant) {
        if self.heard.load(Ordering::Relaxed) < sent.as_nanos() {
            self.give_up();
            if let Some(homeward) = &self.homeward {
                homeward.store(true, Ordering::Relaxed);
            }
        }
    }

    fn has_answered(&self) {
        self.heard.store(Instant::now().as_nanos(), Ordering::Relaxed);
    }

    /// Sends when nobody else does, and waits for the answer.
    async fn alone<T>(&self, request: impl Future<Output = T>) -> T {
        let _turn = self.turn.lock().await;
        let mut unanswered = Unanswered(Some(self));
        let answer = request.await;
        unanswered.0 = None;
        answer
    }

    /// Sends one request; `doing` is for the error.
    ///
    /// # Cancel safety
    /// Dropped, the request may or may not be executed.
    pub(crate) async fn send(&self, request: &Request<'_>, doing: &str) -> Result<Vec<Row>, Failure> {
        self.exchange(request, self.plainly(request), doing).await
    }

    /// The same where the server's end is ours alone: what comes often is prepared.
    ///
    /// # Cancel safety
    /// As of [`send`](Live::send).
    pub(crate) async fn send_prepared(&self, request: &Request<'_>, doing: &str) -> Result<Vec<Row>, Failure> {
        let statement = match self.prepared.how(request.sql) {
            How::Plainly => return self.send(request, doing).await,
            How::ToBePrepared => None,
            How::Prepared(statement) => Some(statement),
        };
        let asking = async {
            let parameters = request.params();
            let statement = match statement {
                Some(statement) => statement,
                None => {
                    let types: Vec<Type> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
                    let statement = self.client.prepare_typed(request.sql, &types).await?;
                    self.prepared.keep(request.sql, &statement);
                    statement
                }
            };
            let values: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|(value, _)| *value).collect();
            match self.client.query(&statement, &values).await {
                Err(error) if prepared::is_over(&error) => {
                    self.prepared.forget(request.sql);
                    self.plainly(request).await
                }
                answer => answer,
            }
        };
        self.exchange(request, asking, doing).await
    }

    async fn plainly(&self, request: &Request<'_>) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.client.query_typed(request.sql, &request.params()).await
    }

    /// Asks when nobody else does, and says what came of it.
    async fn exchange(
        &self,
        request: &Request<'_>,
        asking: impl Future<Output = Result<Vec<Row>, tokio_postgres::Error>>,
        doing: &str,
    ) -> Result<Vec<Row>, Failure> {
        let limit = if request.is_sent_once { self.settings.answer_limit.max(ANSWER_LIMIT) } else { ANSWER_LIMIT };
        let sent = Instant::now();
        match tokio::time::timeout(limit, self.alone(asking)).await {
            Ok(Ok(rows)) => {
                self.has_answered();
                Ok(rows)
            }
            Ok(Err(error)) => {
                self.has_answered();
                let (failure, after) = explain(error, Some(&self.address), &self.settings, doing);
                if after == After::Over {
                    self.give_up();
                }
                Err(failure)
            }
            Err(_) => {
                self.give_up_if_silent_since(sent);
                let error = Error::new(ErrorKind::Unavailable, format!("no answer within {limit:?} while {doing}"))
                    .with_store(self.settings.describe())
                    .with_hint("Is the server reachable, and is nobody altering or vacuuming tenure's tables?");
                Err(Failure { error, fate: tenure_core::lease::Fate::Unknown, again: true })
            }
        }
    }

    /// Runs statements, all in one transaction.
    ///
    /// # Cancel safety
    /// Dropped, they may or may not be executed.
    pub(crate) async fn batch(&self, sql: &str, doing: &str) -> Result<(), Failure> {
        let done = self.alone(self.client.batch_execute(sql)).await;
        done.map_err(|error| explain(error, Some(&self.address), &self.settings, doing).0)
    }

    /// Runs one statement without parameters, for what is looked up once.
    ///
    /// # Cancel safety
    /// It only reads.
    pub(crate) async fn read(&self, sql: &str, doing: &str) -> Result<Vec<Row>, Failure> {
        let rows = tokio::time::timeout(self.settings.answer_limit, self.alone(self.client.query_typed(sql, &[]))).await;
        match rows {
            Ok(rows) => rows.map_err(|error| explain(error, Some(&self.address), &self.settings, doing).0),
            Err(_) => Err(refused(
                Error::new(ErrorKind::Unavailable, format!("no answer in time while {doing}"))
                    .with_store(self.settings.describe()),
            )),
        }
    }
}

/// A request that was sent. Dropped before its answer came, the connection is given up: nothing may be sent behind it.
struct Unanswered<'a>(Option<&'a Live>);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(live) = self.0 {
            live.give_up();
        }
    }
}

/// Drives a connection until its end, and passes on what the server says unasked.
async fn drive<S, T>(mut connection: Connection<S, T>, pushes: Arc<dyn Pushes>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let _over = Over(Arc::clone(&pushes)); // however it ends, also with its runtime
    poll_fn(|cx| {
        loop {
            match ready!(connection.poll_message(cx)) {
                Some(Ok(AsyncMessage::Notification(said))) => pushes.said(said.channel(), said.payload()),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return std::task::Poll::Ready(()), // each request has its own error
            }
        }
    })
    .await;
}

struct Over(Arc<dyn Pushes>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.over();
    }
}

/// For a connection that nobody listens to.
struct Deaf;

impl Pushes for Deaf {
    fn said(&self, _: &str, _: &str) {}
    fn over(&self) {}
}

async fn lookup(address: &Address) -> std::io::Result<std::net::IpAddr> {
    let mut found = tokio::net::lookup_host((address.host.as_str(), address.port)).await?;
    found.next().map(|found| found.ip()).ok_or_else(|| std::io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests;
