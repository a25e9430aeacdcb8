//! Opening sessions, and what is asked of the server about all of them.
//!
//! A client has one connection for this, on which it is also told when somebody has something to say about its holds. Its sessions
//! are connections of their own.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tenure_core::backend::Finding;
use tenure_core::lease::{self, Desk as _, Failure, Fate, QUIET};
use tenure_core::{
    Address, Ask, ClaimId, Error, ErrorKind, Fingerprint, Holder, Instant, LockName, Mode, Note, Origin, Result, Token,
    Versioned, View, Waiter,
};
use tokio::runtime::Handle;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::advisory::{Advisory, Statements, garbled, mail};
use super::looks::Looks;
use super::pooler_check::refuse_lent;
use super::wire::Wire;
use super::{Answer, Inner, Notice};
use crate::config::Settings;
use crate::connect;
use crate::desk::{PostgresDesk, Shared};
use crate::link::{Live, Pushes};
use crate::schema::Layout;
use crate::verbs::{self, Garbled, Request, length};

/// The oldest version whose server ends a session that is idle for too long.
const OLDEST: i32 = 140_000;
/// How often it is looked whether a holder that was told to has let go.
const LOOK_AGAIN: Duration = Duration::from_millis(3);
/// How many names are tidied in one request, and in how many requests by whoever connects.
const TIDIED_AT_ONCE: usize = 64;
const TIDIED_FIRST: usize = 64;
/// How long a holder may take to let go by itself, before its session is ended.
const LET_GO_WITHIN: Duration = Duration::from_secs(1);

/// A server, as one client sees it.
pub(super) struct PostgresServer {
    settings: Arc<Settings>,
    layout: Layout,
    desk: PostgresDesk,
    statements: Arc<Statements>,
    texts: Texts,
    ears: Arc<Ears>,
    /// Which servers came first the last time, and their version.
    found: Mutex<Option<(Address, i32)>>,
    /// The name that was tidied last.
    came_by: Mutex<Option<LockName>>,
}

/// The statements, with the tables' names in them.
struct Texts {
    view: String,
    list: String,
    unshown: String,
    mail: String,
    request: String,
    break_holds: String,
    broken: String,
    end_broken: String,
    tidy: String,
    hide: String,
    seed: String,
}

impl Texts {
    fn new(layout: &Layout) -> Self {
        Texts {
            view: layout.fill("SELECT * FROM {session_view}(ARRAY[$1])"),
            list: layout.fill("SELECT * FROM {session_view}(ARRAY(SELECT {session_names}($1, $2, $3)))"),
            unshown: layout.fill("SELECT {session_unshown}()"),
            mail: layout.fill(
                "SELECT id, broken, asked_pid, asked_host, asked_reason FROM {session} \
                 WHERE client = $1 AND (broken OR asked_reason IS NOT NULL)",
            ),
            request: layout.fill("SELECT {session_request}($1, $2, $3, $4)"),
            break_holds: layout.fill("SELECT {session_break}($1, $2)"),
            broken: layout.fill("SELECT {session_broken}($1, $2)"),
            end_broken: layout.fill("SELECT pg_terminate_backend(pid) FROM unnest({session_broken}($1, $2)) pid"),
            tidy: layout.fill("SELECT {session_tidy}()"),
            hide: layout.fill("DELETE FROM {session} WHERE pid = $1 AND client = $2"),
            seed: layout.fill("SELECT {session_seed}()"),
        }
    }
}

impl PostgresServer {
    pub(super) fn new(settings: Settings) -> Result<Self> {
        let layout = settings.check()?;
        let desk = PostgresDesk::new(settings.clone())?;
        let ears = Arc::new(Ears::default());
        desk.attach(Arc::clone(&ears) as Arc<dyn lease::Listener>);
        desk.shared().asks.is_heard_by(Arc::new(Heard(Arc::downgrade(&ears))));
        let (statements, texts) = (Arc::new(Statements::new(&layout)), Texts::new(&layout));
        let (settings, found, came_by) = (Arc::new(settings), Mutex::default(), Mutex::default());
        Ok(PostgresServer { settings, layout, desk, statements, texts, ears, found, came_by })
    }

    fn shared(&self) -> &Arc<Shared> {
        self.desk.shared()
    }

    /// Sees to it that the tables are there, that they are used as we use them, and that a session is one.
    pub(super) async fn prepare(&self) -> Result<()> {
        let live = self.control().await?;
        connect::prepare(self.shared()).await?;
        if live.server.number < OLDEST {
            let what = format!("PostgreSQL {} does not end idle sessions", live.server.version);
            return Err(Error::new(ErrorKind::Unsupported, what)
                .with_store(self.settings.describe())
                .with_hint("liveness=session needs PostgreSQL 14 or later; liveness=lease works with this one"));
        }
        if !self.settings.assume_direct {
            let (one, other) = tokio::try_join!(self.dial(&live.address), self.dial(&live.address))?;
            refuse_lent(&one, &other, self.settings.describe()).await?;
        }
        self.ask(Request::new(&self.texts.seed), "seeding tokens").await?;
        self.ask(Request::new(&self.texts.tidy), "tidying").await?;
        for _ in 0..TIDIED_FIRST {
            if self.tidy_names().await? {
                break;
            }
        }
        Ok(())
    }

    /// Removes some names that transactions of somebody's own have left, and that nobody uses any more. Whether that were all.
    async fn tidy_names(&self) -> Answer<bool> {
        let came_by = || self.came_by.lock().unwrap_or_else(PoisonError::into_inner);
        let after = came_by().clone();
        let said = self.desk.tidy_after(after.as_ref(), TIDIED_AT_ONCE, QUIET).await?;
        let is_the_end = said.value.is_none();
        *came_by() = said.value;
        Ok(is_the_end)
    }

    async fn dial(&self, address: &Address) -> Answer<Wire> {
        Wire::connect(&self.settings, address).await
    }

    /// The connection for everything that is about no session of ours, and on which we are told.
    async fn control(&self) -> Answer<Arc<Live>> {
        let live = self.shared().asks.live().await?;
        if !self.ears.listen_to(&live) {
            let channel = self.layout.channel(self.desk.client());
            live.batch(&format!("SET search_path = pg_catalog, pg_temp; LISTEN \"{channel}\""), "listening").await?;
            *self.ears.on() = Arc::downgrade(&live);
            self.ears.ring(); // what was said before nobody has heard
        }
        Ok(live)
    }

    async fn ask(&self, request: Request<'_>, doing: &str) -> Answer<Vec<Row>> {
        self.control().await?.send(&request.once(), doing).await
    }

    /// Opens a session on whichever server is the primary, which ends it when it has not heard of it for `idle`. Called on a runtime
    /// that outlives it.
    pub(super) async fn open(&self, idle: Duration) -> Answer<Arc<Advisory>> {
        let known = self.found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let known = match known {
            Some((address, version)) => match self.dial(&address).await {
                Ok(wire) => Some((wire, version)),
                Err(_) => None,
            },
            None => None,
        };
        let (wire, version) = match known {
            Some(known) => known,
            None => {
                let live = self.control().await?; // it finds the primary
                let found = (live.address.clone(), live.server.number);
                *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(found.clone());
                (self.dial(&found.0).await?, found.1)
            }
        };
        let begun = Advisory::begin(wire, self.desk.client(), &self.statements, idle, version).await;
        if begun.is_err() {
            // It may be a primary no more, and have come back as a standby: the next one is looked for.
            *self.found.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        Ok(Arc::new(begun?))
    }

    /// Who holds and who waits.
    pub(super) async fn view(&self, name: &LockName) -> Answer<View> {
        let doing = "looking at a lock";
        let mut looks = Looks::default();
        loop {
            let rows = self.ask(Request::new(&self.texts.view).arg(name.as_str(), Type::TEXT), doing).await?;
            let (mut views, is_all) = seen(&rows).map_err(|Garbled| garbled(doing))?;
            if looks.were_enough(u64::from(!is_all)).await {
                return Ok(views.pop().unwrap_or_else(|| View::free(name.clone())));
            }
        }
    }

    /// See [`Backend::list`](tenure_core::Backend::list).
    pub(super) async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Answer<Vec<View>> {
        let doing = "listing locks";
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut looks = Looks::default();
        loop {
            let unshown = self.ask(Request::new(&self.texts.unshown), doing).await?;
            let unshown: i64 = unshown.first().and_then(|row| row.try_get(0).ok()).ok_or_else(|| garbled(doing))?;
            let request = Request::new(&self.texts.list)
                .arg(prefix, Type::TEXT)
                .arg(after.map(LockName::as_str), Type::TEXT)
                .arg(limit, Type::INT8);
            let rows = self.ask(request, doing).await?;
            let (views, _) = seen(&rows).map_err(|Garbled| garbled(doing))?;
            if looks.were_enough(unshown.unsigned_abs()).await {
                return Ok(views);
            }
        }
    }

    /// Has holders let go, and ends the sessions of those who do not; returns when nothing of their holds is left. How many.
    pub(super) async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Answer<usize> {
        self.view(name).await?; // whoever can be told shows itself
        let doing = "breaking a lock";
        let only = only.map(|token| token.get() as i64);
        let request = Request::new(&self.texts.break_holds).arg(name.as_str(), Type::TEXT).arg(only, Type::INT8);
        let told = pids(&self.ask(request, doing).await?)?;
        let (begun, mut were_ended) = (Instant::now(), false);
        loop {
            let request =
                Request::new(&self.texts.broken).arg(name.as_str(), Type::TEXT).arg(told.clone(), Type::INT4_ARRAY);
            let left = pids(&self.ask(request, doing).await?)?;
            if left.is_empty() {
                return Ok(told.len());
            }
            let waited = Instant::now().since(begun);
            if waited > LET_GO_WITHIN && !were_ended {
                // Looked for in the same statement: the number of one that has ended meanwhile may be somebody else's.
                let request =
                    Request::new(&self.texts.end_broken).arg(name.as_str(), Type::TEXT).arg(told.clone(), Type::INT4_ARRAY);
                self.ask(request, "ending a session").await?;
                were_ended = true;
            }
            if waited > LET_GO_WITHIN + self.settings.answer_limit {
                let what = format!("the server did not end the sessions {left:?}");
                let error = Error::new(ErrorKind::Unavailable, what).with_name(name).with_store(self.settings.describe());
                return Err(Failure { error, fate: Fate::Unknown, again: false });
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

fn pids(rows: &[Row]) -> Answer<Vec<i32>> {
    rows.first().and_then(|row| row.try_get(0).ok()).ok_or_else(|| garbled("breaking a lock"))
}

/// Every method is one attempt; trying again is the caller's.
impl PostgresServer {
    /// The store in words, without secrets.
    pub(super) fn describe(&self) -> String {
        self.settings.describe()
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Called once, before anything else: who is told what others have to say.
    pub(super) fn attach(&self, client: &Arc<Inner>) {
        let _ = self.ears.client.set(Arc::downgrade(client));
    }

    /// Ends what the session waits for. When this has an answer, nothing sent on the session afterwards is ended by it.
    pub(super) async fn interrupt(&self, session: &Advisory) -> Answer<()> {
        // A server that was started anew may have given the number to somebody else.
        let sql = "SELECT pg_cancel_backend(pid) FROM pg_stat_get_activity($1) \
                   WHERE (extract(epoch FROM backend_start) * 1000000)::bigint = $2";
        let request = Request::new(sql).arg(session.pid, Type::INT4).arg(session.began, Type::INT8);
        self.ask(request, "ending a wait").await.map(drop)
    }

    /// What others had to say to this client about its holds.
    pub(super) async fn mail(&self) -> Answer<Vec<(ClaimId, Notice)>> {
        let request = Request::new(&self.texts.mail).arg(self.desk.client() as i64, Type::INT8);
        let rows = self.ask(request, "fetching messages").await?;
        mail(&rows).map_err(|Garbled| garbled("fetching messages"))
    }

    /// Leaves a request with every holder, and tells them. How many.
    pub(super) async fn request(&self, name: &LockName, ask: &Ask) -> Answer<usize> {
        self.view(name).await?; // whoever can be asked shows itself
        let request = Request::new(&self.texts.request)
            .arg(name.as_str(), Type::TEXT)
            .arg(i64::from(ask.by.pid), Type::INT8)
            .arg(&*ask.by.host, Type::TEXT)
            .arg(ask.reason.as_str(), Type::TEXT);
        let rows = self.ask(request, "asking holders").await?;
        let many: Option<i64> = rows.first().and_then(|row| row.try_get(0).ok());
        many.map(|many| many as usize).ok_or_else(|| garbled("asking holders"))
    }

    /// See [`Backend::cell_get`](tenure_core::Backend::cell_get).
    pub(super) async fn cell_get(&self, name: &LockName) -> Answer<Versioned> {
        self.control().await?;
        self.desk.cell_get(name).await.map(|said| said.value)
    }

    /// See [`Backend::cell_set`](tenure_core::Backend::cell_set).
    pub(super) async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Answer<Option<u64>> {
        self.control().await?;
        self.desk.cell_set(name, expected, value).await.map(|said| said.value)
    }

    /// Removes what sessions that are no more have left; this one is over, whether or not the server knows already.
    pub(super) async fn tidy(&self, over: Option<&Advisory>) -> Answer<()> {
        if let Some(over) = over {
            let hide = Request::new(&self.texts.hide).arg(over.pid, Type::INT4).arg(self.desk.client() as i64, Type::INT8);
            self.ask(hide, "tidying").await?;
        }
        self.ask(Request::new(&self.texts.tidy), "tidying").await?;
        self.tidy_names().await.map(drop)
    }

    /// The smallest request that a grant could possibly cost.
    pub(super) async fn probe(&self) -> Answer<()> {
        self.ask(Request::new(PROBE), "probing").await.map(drop)
    }

    /// What could hurt.
    pub(super) async fn examine(&self) -> Result<Vec<Finding>> {
        self.control().await?;
        let mut findings = self.shared().examine().await?;
        let says = format!(
            "the server's own sessions: a vanished host frees its locks within its ttl, rounded up to a power of two in \
             seconds. Each claim that waits needs a connection ({} at most) and holds back VACUUM while it waits",
            self.settings.max_sessions
        );
        findings.push(Finding::good("liveness", says));
        Ok(findings)
    }
}

/// What a lock of the server's costs at least: one that nobody waits for, and that ends with its statement.
const PROBE: &str = "SELECT pg_try_advisory_xact_lock_shared(hashtextextended('tenure probe', 0))";

/// Rows of `session_view` as views, and whether everybody shows what they hold.
fn seen(rows: &[Row]) -> std::result::Result<(Vec<View>, bool), Garbled> {
    let mut views: Vec<View> = Vec::new();
    let mut is_all = true;
    for row in rows {
        let name: &str = get(row, 0)?;
        if views.last().is_none_or(|view| view.name.as_str() != name) {
            views.push(View::free(LockName::new(name).map_err(|_| Garbled)?));
        }
        let view = views.last_mut().ok_or(Garbled)?;
        let granted: bool = get(row, 1)?;
        let mode = if get(row, 5)? { Mode::Shared } else { Mode::Exclusive };
        let Some(id) = get::<Option<&[u8]>>(row, 3)? else {
            is_all &= !granted;
            if granted {
                view.holders.push(stranger(get(row, 2)?, mode)); // not one of ours, or one that stands still
            }
            continue;
        };
        let claim = ClaimId::from_bytes(id.try_into().map_err(|_| Garbled)?).fingerprint();
        let note = verbs::note(get(row, 11)?)?;
        let os_pid: i64 = get(row, 9)?;
        let origin = Origin { host: get::<&str>(row, 10)?.into(), pid: u32::try_from(os_pid).map_err(|_| Garbled)? };
        let age = length(get::<i64>(row, 7)?.max(0));
        view.kind = Some(verbs::kind(get(row, 4)?)?);
        let token: Option<i64> = get(row, 6)?;
        if !granted {
            view.line.push(Waiter { claim, mode, note, origin, waiting_for: age });
            continue;
        }
        is_all &= token.is_some();
        let token = Token::new(token.unwrap_or(0) as u64);
        let asked = verbs::ask(get(row, 12)?, get(row, 13)?, get(row, 14)?)?;
        let expires_in = length(get::<i64>(row, 8)?);
        view.holders.push(Holder { claim, mode, token, note, origin, held_for: age, expires_in, closing: false, asked });
    }
    Ok((views, is_all))
}

fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, column: usize) -> std::result::Result<T, Garbled> {
    row.try_get(column).map_err(|_| Garbled)
}

fn stranger(pid: i32, mode: Mode) -> Holder {
    Holder {
        claim: Fingerprint(0),
        mode,
        token: Token::new(0),
        note: Note::new(format!("session {pid}, which shows nothing")).unwrap_or_else(|_| Note::none()),
        origin: Origin { host: "?".into(), pid: 0 },
        held_for: Duration::ZERO,
        expires_in: Duration::ZERO,
        closing: false,
        asked: None,
    }
}

/// Who is told, on behalf of the client.
#[derive(Default)]
struct Ears {
    client: OnceLock<Weak<Inner>>,
    /// The connection on which we listen.
    on: Mutex<Weak<Live>>,
}

impl Ears {
    fn on(&self) -> MutexGuard<'_, Weak<Live>> {
        self.on.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen_to(&self, live: &Arc<Live>) -> bool {
        std::ptr::eq(self.on().as_ptr(), Arc::as_ptr(live))
    }

    fn client(&self) -> Option<Arc<Inner>> {
        self.client.get().and_then(Weak::upgrade)
    }

    fn ring(&self) {
        if let Some(client) = self.client() {
            client.ring();
        }
    }
}

/// What hears the connection.
struct Heard(Weak<Ears>);

impl Pushes for Heard {
    fn said(&self, _: &str, _: &str) {
        if let Some(ears) = self.0.upgrade() {
            ears.ring();
        }
    }

    fn over(&self) {
        if let Some(ears) = self.0.upgrade() {
            ears.ring(); // whoever fetches the mail listens again, on another one
        }
    }
}

impl lease::Listener for Ears {
    fn told(&self, _: lease::Message) {}
    fn listening(&self) {}
    fn silenced(&self) {}
    fn connected(&self, _: &str, _: Instant, _: u64) {}
    fn home(&self) -> Option<Handle> {
        self.client().and_then(|client| client.keepers_runtime())
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::StoreUrl;
    use tenure_testkit::servers::postgres::Postgres;
    use tenure_testkit::{eventually, in_time};
    use tokio_postgres::NoTls;

    use super::*;

    /// The server was started anew, and has given the number of our session to somebody else, who waits for something.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn whoever_has_our_sessions_number_later_is_not_interrupted() {
        let database = Postgres::shared();
        let url = format!("{}?liveness=session&prefix=i{}_", database.url(), std::process::id());
        let server = PostgresServer::new(Settings::from_url(&url.parse::<StoreUrl>().unwrap()).unwrap()).unwrap();
        server.prepare().await.unwrap();
        let mut session = server.open(Duration::from_secs(60)).await.unwrap();
        let (other, connection) = tokio_postgres::connect(&database.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        let pid: i32 = other.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let mut holder = database.session().unwrap();
        holder.sql("SELECT pg_advisory_lock(4711)").unwrap();
        let waiting = tokio::spawn(async move { other.batch_execute("SELECT pg_advisory_lock(4711)").await });
        let waits = format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND NOT granted");
        eventually("somebody else waits", || database.sql(&waits) == [["1"]]).await;
        Arc::get_mut(&mut session).expect("nobody else has it").pid = pid;
        server.interrupt(&session).await.unwrap();
        holder.sql("SELECT pg_advisory_unlock(4711)").unwrap();
        in_time("it has what it waited for", waiting).await.unwrap().expect("it was interrupted");
    }
}
