//! Opening sessions, and what is asked of the server about all of them.
//!
//! A client has one connection for this. The server tells nobody anything: sessions that hold something are looked after twice a
//! second.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mysql_async::Row;
use tenure_core::backend::{Abilities, BoxFuture, Finding, Level};
use tenure_core::lease::{self, Desk as _, Failure, Fate};
use tenure_core::session::{Answer, Limits, Listener, Looks, Notice, Server, refuse_lent};
use tenure_core::{
    Ask, ClaimId, Error, ErrorKind, Fingerprint, Holder, Instant, LockName, Mode, Note, Origin, Result, Token, Versioned,
    View, Waiter,
};
use tokio::runtime::Handle;

use super::SESSION_ABILITIES;
use super::in_vain::InVain;
use super::locks::{Locks, last, mail, nonsense};
use super::texts::{self, Texts};
use super::wire::Wire;
use crate::config::Settings;
use crate::desk::Tables;
use crate::dialect::Dialect;
use crate::error;
use crate::link::Rows;
use crate::verbs::{ask_of, id, kind, number, text};

/// How often sessions that hold something are looked after.
const MAIL: Duration = Duration::from_millis(500);
/// How often it is looked whether a holder that was told to has let go.
const LOOK_AGAIN: Duration = Duration::from_millis(9);
/// How long a holder may take to let go by itself, before its session is ended: more than it takes to find its mail.
const LET_GO_WITHIN: Duration = Duration::from_millis(1_500);

/// A server, as one client sees it.
pub(super) struct MySqlServer {
    settings: Arc<Settings>,
    desk: Tables,
    client: u64,
    texts: Arc<Texts>,
    in_vain: Arc<InVain>,
    ears: Arc<Ears>,
}

impl MySqlServer {
    /// Refuses what has no sessions worth the name, and sees to what tokens come from.
    ///
    /// # Cancel safety
    /// Dropped before it completes, nothing is left but tables.
    pub(super) async fn connect(settings: Settings, client: u64) -> Result<Self> {
        let desk = Tables::new(settings.clone(), client);
        let ears = Arc::new(Ears::default());
        desk.attach(Arc::clone(&ears) as Arc<dyn lease::Listener>);
        let doing = "looking where this is";
        let sets = desk.asks.send_once(doing, "SELECT DATABASE()".to_owned()).await?;
        let database = sets.first().and_then(|rows| rows.first()).map(|row| text(row, 0)).ok_or_else(|| nonsense(doing))?;
        let texts = Arc::new(Texts::new(&settings.prefix, database));
        let in_vain = Arc::new(InVain::new());
        let server = MySqlServer { settings: Arc::new(settings), desk, client, texts, in_vain, ears };
        server.prepare().await?;
        Ok(server)
    }

    async fn prepare(&self) -> Result<()> {
        let server = self.desk.asks.server().await?;
        if server.is_on("wsrep_on") {
            let what = "this server is a node of a Galera cluster, and its locks are that node's alone";
            return Err(Error::new(ErrorKind::Unsupported, what)
                .with_store(self.settings.describe())
                .with_hint("Two nodes would both grant the same lock. Use liveness=lease"));
        }
        if !self.settings.assume_direct {
            let (one, other) = tokio::try_join!(self.dial(), self.dial())?;
            refuse_lent(&one, &other, self.settings.describe()).await?;
        }
        if self.seed(server.dialect).await.is_err() {
            for statement in texts::statements(&self.settings.prefix, server.dialect) {
                self.send("making what sessions need", statement).await?;
            }
            self.seed(server.dialect).await?;
        }
        self.send("tidying", self.texts.tidy()).await?;
        Ok(())
    }

    /// Sees to it that tokens are not behind the server's clock.
    async fn seed(&self, dialect: Dialect) -> Answer<()> {
        let now = last(&self.send("looking at the clock", self.texts.clock()).await?);
        let now = now.ok_or_else(|| nonsense("looking at the clock"))?;
        match self.send("seeding tokens", self.texts.seed(dialect, now)).await {
            // A server that does not wait for its disk was killed just after the sequence was made: it is there, and empty.
            Err(failure) if error::code_of(&failure) == Some(error::NO_RECORD) && dialect == Dialect::MariaDb => {
                self.send("making the sequence of tokens anew", self.texts.begin_tokens_at(now)).await.map(drop)
            }
            seeded => seeded.map(drop),
        }
    }

    async fn send(&self, doing: &str, text: String) -> Answer<Rows> {
        self.desk.asks.send_once(doing, text).await
    }

    async fn open_session(&self, idle: Duration) -> Answer<Arc<Locks>> {
        let dialect = self.desk.asks.server().await?.dialect;
        // A server that was started anew may have forgotten tokens.
        self.seed(dialect).await?;
        let opening = async {
            let wire = Wire::connect(&self.settings).await?;
            Locks::begin(wire, self.client, (&self.texts, &self.in_vain), dialect, idle).await
        };
        self.in_time(opening).await.map(Arc::new)
    }

    async fn dial(&self) -> Answer<Wire> {
        self.in_time(Wire::connect(&self.settings)).await
    }

    /// What opens a session, if it does not take too long.
    async fn in_time<T>(&self, opening: impl Future<Output = Answer<T>>) -> Answer<T> {
        let limit = self.settings.connect_limit;
        tokio::time::timeout(limit, opening).await.unwrap_or_else(|_| {
            Err(Failure { fate: Fate::Refused, ..error::silent(&self.settings, limit, "opening a session") })
        })
    }

    async fn view_of(&self, name: &LockName) -> Answer<View> {
        let mut looks = Looks::default();
        loop {
            let sets = self.send("looking at a lock", self.texts.view(name)).await?;
            let seen = || {
                let first = sets.first()?.first()?;
                seen(name, number(first, 0), number(first, 1)?, sets.get(1)?)
            };
            let (view, is_all) = seen().ok_or_else(|| nonsense("looking at a lock"))?;
            if looks.were_enough(u64::from(!is_all)).await {
                return Ok(view);
            }
        }
    }

    /// A hold of a few milliseconds is not shown yet, and a list knows only names that are: so whoever lists waits a moment.
    async fn listed(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Answer<Vec<View>> {
        let (doing, mut looks) = ("listing locks", Looks::default());
        loop {
            let unshown = last(&self.send(doing, self.texts.how_many_unshown()).await?);
            let sets = self.send(doing, self.texts.list(prefix, after)).await?;
            let rows = sets.first().map_or(&[][..], |rows| &rows[..]);
            let mut views = Vec::new();
            let mut missing = unshown.map_or(1, i64::unsigned_abs);
            for rows in rows.chunk_by(|one, other| text(one, 15) == text(other, 15)) {
                if views.len() >= limit {
                    break;
                }
                let name = LockName::new(text(&rows[0], 15)).map_err(|_| nonsense(doing))?;
                let now = number(&rows[0], 17).ok_or_else(|| nonsense(doing))?;
                let (view, is_shown) = seen(&name, number(&rows[0], 16), now, rows).ok_or_else(|| nonsense(doing))?;
                missing += u64::from(!is_shown);
                views.extend(Some(view).filter(|view| !view.is_free()));
            }
            if looks.were_enough(missing).await {
                return Ok(views);
            }
        }
    }

    async fn break_them(&self, name: &LockName, only: Option<Token>) -> Answer<usize> {
        self.view_of(name).await?; // whoever can be told shows itself
        let doing = "breaking a lock";
        let sets = self.send(doing, self.texts.break_holds(name, only)).await?;
        let mut told = sets.first().and_then(|rows| rows.first()).and_then(|row| number(row, 0));
        if told.is_none() && only.is_none() {
            told = last(&self.send(doing, self.texts.holder(name)).await?); // whoever shows nothing can be told nothing
        }
        let Some(conn) = told else { return Ok(0) };
        let (begun, mut was_ended) = (Instant::now(), false);
        loop {
            if last(&self.send(doing, self.texts.still_has(name, conn as u64)).await?) == Some(0) {
                return Ok(1);
            }
            let waited = Instant::now().since(begun);
            if waited > LET_GO_WITHIN && !was_ended {
                self.send("ending a session", format!("KILL {conn}")).await?;
                was_ended = true;
            }
            if waited > LET_GO_WITHIN + self.settings.answer_limit {
                let what = format!("the server did not end the session {conn}");
                let error = Error::new(ErrorKind::Unavailable, what).with_name(name).with_store(self.settings.describe());
                return Err(Failure { error, fate: Fate::Unknown, again: false });
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

impl Server for MySqlServer {
    type Session = Locks;

    fn abilities(&self) -> Abilities {
        SESSION_ABILITIES
    }

    fn describe(&self) -> String {
        self.settings.describe()
    }

    fn limits(&self) -> Limits {
        let Settings { answer_limit: answer, patience, max_sessions: sessions, .. } = *self.settings;
        Limits { answer, patience, sessions, mail: Some(MAIL), finds_vanished: false }
    }

    fn attach(&self, listener: Arc<dyn Listener>) {
        let _ = self.ears.listener.set(listener);
    }

    fn open(&self, idle: Duration) -> BoxFuture<'_, Answer<Arc<Locks>>> {
        Box::pin(self.open_session(idle))
    }

    fn interrupt<'a>(&'a self, session: &'a Locks) -> BoxFuture<'a, Answer<()>> {
        Box::pin(async move { self.send("ending a wait", format!("KILL QUERY {}", session.conn)).await.map(drop) })
    }

    fn mail(&self) -> BoxFuture<'_, Answer<Vec<(ClaimId, Notice)>>> {
        Box::pin(async move {
            let sets = self.send("fetching messages", self.texts.mail(self.client)).await?;
            mail(&sets).ok_or_else(|| nonsense("fetching messages"))
        })
    }

    fn view<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Answer<View>> {
        Box::pin(self.view_of(name))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a LockName>, limit: usize) -> BoxFuture<'a, Answer<Vec<View>>> {
        Box::pin(self.listed(prefix, after, limit))
    }

    fn request<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> BoxFuture<'a, Answer<usize>> {
        Box::pin(async move {
            self.view_of(name).await?; // whoever can be asked shows itself
            let many = last(&self.send("asking holders", self.texts.request(name, ask)).await?);
            many.and_then(|many| usize::try_from(many).ok()).ok_or_else(|| nonsense("asking holders"))
        })
    }

    fn break_holds<'a>(&'a self, name: &'a LockName, only: Option<Token>) -> BoxFuture<'a, Answer<usize>> {
        Box::pin(self.break_them(name, only))
    }

    fn cell_get<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Answer<Versioned>> {
        Box::pin(async move { self.desk.cell_get(name).await.map(|said| said.value) })
    }

    fn cell_set<'a>(
        &'a self,
        name: &'a LockName,
        expected: u64,
        value: Option<&'a [u8]>,
    ) -> BoxFuture<'a, Answer<Option<u64>>> {
        Box::pin(async move { self.desk.cell_set(name, expected, value).await.map(|said| said.value) })
    }

    fn tidy<'a>(&'a self, over: Option<&'a Locks>) -> BoxFuture<'a, Answer<()>> {
        Box::pin(async move {
            if let Some(over) = over {
                self.send("tidying", self.texts.hide_all(over.conn, self.client)).await?;
            }
            self.send("tidying", self.texts.tidy()).await.map(drop)
        })
    }

    fn say_goodbye(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.desk.asks.close())
    }

    fn probe(&self) -> BoxFuture<'_, Answer<()>> {
        Box::pin(async move { self.send("probing", PROBE.to_owned()).await.map(drop) })
    }

    fn examine(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
        Box::pin(async move {
            let mut findings = self.desk.examine().await?;
            let says = format!(
                "the server's own sessions: a vanished host frees its locks within its ttl, rounded up to a power of two in \
                 seconds. Each claim that waits needs a connection ({} at most)",
                self.settings.max_sessions
            );
            findings.push(Finding { level: Level::Good, what: "liveness".to_owned(), says });
            Ok(findings)
        })
    }
}

/// What a lock of the server's costs at least: one that nobody waits for, and that ends with its statement.
const PROBE: &str = "SELECT GET_LOCK('tenure probe', 0) + RELEASE_LOCK('tenure probe')";

/// Who has a name and who waits for it, and whether whoever has it shows so.
fn seen(name: &LockName, holder: Option<i64>, now: i64, rows: &[Row]) -> Option<(View, bool)> {
    let mut view = View::free(name.clone());
    let mut is_shown = holder.is_none();
    for row in rows {
        let claim = id(row, 1)?.fingerprint();
        let note = Note::new(text(row, 8)).unwrap_or_else(|_| Note::none());
        let origin = Origin { host: text(row, 7).into(), pid: number(row, 6).unwrap_or(0) as u32 };
        let age = Duration::from_micros((now - number(row, 4)?).max(0) as u64);
        let (conn, token) = (number(row, 0)?, number(row, 5));
        if holder == Some(conn) {
            let Some(token) = token else { continue };
            is_shown = true;
            let idle = Duration::from_secs(number(row, 14)?.max(0) as u64);
            let ttl = Duration::from_micros(number(row, 3)?.max(0) as u64);
            view.kind = kind(number(row, 2));
            view.holders.push(Holder {
                claim,
                mode: Mode::Exclusive,
                token: Token::new(token as u64),
                note,
                origin,
                held_for: age,
                expires_in: ttl.saturating_sub(idle),
                closing: false,
                asked: (number(row, 9)? != 0).then(|| ask_of(row, 10)),
            });
        } else if token.is_none() && number(row, 13)? != 0 {
            view.kind = view.kind.or(kind(number(row, 2)));
            view.line.push(Waiter { claim, mode: Mode::Exclusive, note, origin, waiting_for: age });
        }
    }
    if let (Some(conn), false) = (holder, is_shown) {
        view.holders.push(stranger(conn)); // not one of ours, or one that stands still
    }
    Some((view, is_shown))
}

fn stranger(conn: i64) -> Holder {
    Holder {
        claim: Fingerprint(0),
        mode: Mode::Exclusive,
        token: Token::new(0),
        note: Note::new(format!("session {conn}, which shows nothing")).unwrap_or_else(|_| Note::none()),
        origin: Origin { host: "?".into(), pid: 0 },
        held_for: Duration::ZERO,
        expires_in: Duration::ZERO,
        closing: false,
        asked: None,
    }
}

/// On behalf of the engine.
#[derive(Default)]
struct Ears {
    listener: OnceLock<Arc<dyn Listener>>,
}

impl lease::Listener for Ears {
    fn told(&self, _: lease::Message) {}
    fn listening(&self) {}
    fn silenced(&self) {}
    fn connected(&self, _: &str, _: Instant, _: u64) {}
    fn home(&self) -> Option<Handle> {
        self.listener.get().and_then(|listener| listener.home())
    }
}
