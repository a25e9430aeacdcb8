//! The verbs of the contract, each one transaction.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{OptionalExtension, params};
use tenure_core::backend::{Abilities, Backend, Fencing, Finding, Liveness, Reach, Waiting, async_trait, released};
use tenure_core::record::Record;
use tenure_core::{
    Ask, Claim, ClaimId, Clock, Grant, Instant, Kind, LockName, MIN_TTL, News, Renewal, Result, Token, View, Wait,
};
use tokio::sync::oneshot;

use crate::codec;
use crate::config::Settings;
use crate::ear::{ALIVE, Verdict};
use crate::error::{Fault, describe, explained, garbled};
use crate::store::{Message, Store};
use crate::transaction::{Asked, Transaction, past_place, past_token};

/// What this store does.
pub const ABILITIES: Abilities = Abilities {
    store: "sqlite",
    kinds: &Kind::ALL,
    fencing: Fencing::DataOrClock,
    waiting: Waiting::Notified,
    liveness: Liveness::LeaseAndProcess,
    reach: Reach::Host,
    cells: true,
    delays: true,
    downgrade: true,
    shortest_ttl: MIN_TTL,
};

/// A client's end of a file of locks. Every [`Sqlite`] is a client of its own, also in the same process.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("locks.db");
/// use tenure_core::Client;
/// use tenure_sqlite::{Settings, Sqlite};
/// let client = Client::new(Sqlite::open(&path, Settings::default())?)?;
/// let guard = client.mutex("invoices")?.lock().await?;
/// // … only one process of this host is here …
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub struct Sqlite {
    store: Arc<Store>,
}

impl std::fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sqlite({})", self.store.file.path.display())
    }
}

impl Sqlite {
    /// Opens the file, and makes it if it is not there. Blocks, for a millisecond or so.
    pub fn open(path: impl AsRef<Path>, settings: Settings) -> Result<Self> {
        Ok(Sqlite { store: Store::open(path.as_ref(), settings)? })
    }

    /// How many rows of names, clients and cells the file has right now: what "nothing is left behind" is measured by.
    pub fn residue(&self) -> Result<usize> {
        let sql = "SELECT (SELECT count(*) FROM lock) + (SELECT count(*) FROM client) + (SELECT count(*) FROM cell)";
        self.store.read(|connection| {
            let count = connection.query_row(sql, [], |row| row.get::<_, i64>(0));
            count.map(|count| count as usize).map_err(|error| explained(error, &self.store.file.path, "counting"))
        })
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        if self.store.check_process().is_err() {
            std::mem::forget(Arc::clone(&self.store)); // a fork's copy of a connection must not even be closed
            return;
        }
        self.store.tidy_up_at_once();
        self.store.leave();
    }
}

impl Store {
    /// Asks once: the grant, or the channel through which it comes.
    async fn ask_for(
        self: &Arc<Self>,
        claim: &Claim,
        queue: bool,
    ) -> Result<Result<Option<Grant>, oneshot::Receiver<Verdict>>> {
        let sent = Instant::now();
        let asking = claim.clone();
        let asked = self
            .ask(move |tx| {
                let queue_until = queue.then(|| tx.at.now + ALIVE);
                match tx.ask_for(&asking, sent, queue_until)? {
                    Asked::Granted(grant) => Ok(Ok(Some(grant))),
                    Asked::Busy => Ok(Ok(None)),
                    Asked::Queued { in_the_way, changes } => {
                        // Before the commit, so that the wake which may follow it at once finds somebody.
                        let (verdict, waiting) = oneshot::channel();
                        let mut waits = tx.store.waits();
                        tx.after.poke_ear |= waits.insert(asking.name.clone(), asking.id, verdict, in_the_way, changes);
                        Ok(Err(waiting))
                    }
                }
            })
            .await?;
        if !matches!(asked, Ok(None)) {
            self.need_ear()?;
        }
        Ok(asked)
    }

    async fn acquire(self: &Arc<Self>, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        tokio::task::coop::consume_budget().await; // a task that locks in a loop must let others run
        let deadline = wait.deadline(Instant::now());
        loop {
            let waiting = match self.ask_for(claim, wait != Wait::No).await? {
                Ok(answer) => return Ok(answer),
                Err(waiting) => waiting,
            };
            let place = Place { store: self, id: claim.id };
            let verdict = tokio::select! {
                biased;
                verdict = waiting => verdict,
                () = Clock::Boot.sleep_until(deadline) => {
                    drop(place);
                    self.end(claim, Duration::ZERO).await?; // nobody has used it: it owes nobody a minimum hold
                    return Ok(None);
                }
            };
            match verdict {
                Ok(Verdict::Granted(Grant { token, until })) => {
                    // Whatever the file says, nobody has more than it asked for.
                    return Ok(Some(Grant { token, until: until.min(claim.window(Instant::now())) }));
                }
                Ok(Verdict::Failed(error)) => return Err(error),
                Ok(Verdict::Gone) | Err(_) => {} // thought dead, perhaps since we were stopped for long: queue again
            }
        }
    }

    /// Ends a claim. Says whether it was there.
    async fn end(self: &Arc<Self>, claim: &Claim, min_hold: Duration) -> Result<bool> {
        if self.is_replaced() || !self.file.is_writable {
            return Ok(false); // whatever it left is in a file that nobody finds any more; or it could leave nothing
        }
        let (name, id) = (claim.name.clone(), claim.id);
        self.ask(move |tx| {
            tx.store.waits().remove(id);
            tx.end(&name, id, min_hold)
        })
        .await
    }

    fn view(&self, name: &LockName) -> Result<(View, Instant)> {
        let Some(record) = self.record(name)? else {
            let view = View { last: self.past(name)?, ..View::free(name.clone()) };
            return Ok((view, Instant::NEVER));
        };
        Ok((record.view(name, Instant::now()), record.next_change().unwrap_or(Instant::NEVER)))
    }

    /// What the file says of a name, as of now.
    pub(crate) fn record(&self, name: &LockName) -> Result<Option<Record>> {
        let bytes: Option<Vec<u8>> = self.read(|connection| {
            let sql = "SELECT record FROM lock WHERE name = ?1 AND ?2 = (SELECT value FROM meta WHERE what = 'boot')";
            let select = connection.prepare_cached(sql);
            let values = [name.as_str(), &self.boot];
            let bytes = select.and_then(|mut select| select.query_row(values, |row| row.get(0)).optional());
            bytes.map_err(|error| explained(error, &self.file.path, "reading"))
        })?;
        let decoded = bytes.map(|bytes| codec::decode(&bytes)).transpose();
        decoded.map_err(|error| garbled(error, &self.file.path).with_name(name))
    }

    /// The last token of a name whose row was removed, if it is still remembered.
    fn past(&self, name: &LockName) -> Result<Option<Token>> {
        self.read(|connection| {
            let select = connection.prepare_cached("SELECT value FROM meta WHERE what = ?1");
            let past = select.and_then(|mut select| {
                select.query_row([past_place(name)], |row| Ok(past_token(name, row.get_ref(0)?.as_bytes()?))).optional()
            });
            past.map(Option::flatten).map_err(|error| explained(error, &self.file.path, "reading"))
        })
    }

    /// A number that changes with every commit of anybody else's, our own writer included.
    fn data_version(&self) -> Result<i64> {
        self.read(|connection| {
            let version = connection
                .prepare_cached("PRAGMA data_version")
                .and_then(|mut version| version.query_row([], |row| row.get(0)));
            version.map_err(|error| explained(error, &self.file.path, "watching"))
        })
    }

    async fn watch(&self, name: &LockName, seen: &View) -> Result<View> {
        let mut looked_at = None;
        let mut changes = Instant::NEVER;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable(); // listen first, then look
            let version = self.data_version()?;
            if looked_at != Some(version) || changes <= Instant::now() {
                let view;
                (view, changes) = self.view(name)?;
                if !view.says_the_same_as(seen) {
                    return Ok(view);
                }
                looked_at = Some(version);
            }
            tokio::select! {
                () = changed => {}
                () = Clock::Boot.sleep_until(changes) => {}
                () = tokio::time::sleep(WATCH_EVERY) => {} // other processes do not tell those who only watch
            }
        }
    }

    /// One page of names in use. Each read is short, so that the log can be emptied in between.
    fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        let mut views = Vec::new();
        let mut from = after.map(|after| after.as_str().to_owned());
        while views.len() < limit {
            let rows = self.rows(prefix, from.as_deref())?;
            let is_last = rows.len() < LIST_AT_ONCE;
            let now = Instant::now();
            for (name, bytes) in rows {
                if views.len() == limit || !name.starts_with(prefix) {
                    return Ok(views);
                }
                let name = LockName::new(&name)?;
                let record = codec::decode(&bytes).map_err(|error| garbled(error, &self.file.path).with_name(&name))?;
                let view = record.view(&name, now);
                if !view.is_free() {
                    views.push(view);
                }
                from = Some(name.as_str().to_owned());
            }
            if is_last {
                break;
            }
        }
        Ok(views)
    }

    fn rows(&self, prefix: &str, after: Option<&str>) -> Result<Vec<(String, Vec<u8>)>> {
        // Names compare byte by byte, as SQLite's texts do; those that begin with the prefix stand together.
        let sql = "SELECT name, record FROM lock WHERE name >= ?1 AND name > ?2
                   AND ?4 = (SELECT value FROM meta WHERE what = 'boot') ORDER BY name LIMIT ?3";
        self.read(|connection| {
            let read = || -> rusqlite::Result<_> {
                let mut select = connection.prepare_cached(sql)?;
                let values = params![prefix, after.unwrap_or_default(), LIST_AT_ONCE as i64, self.boot];
                let rows = select.query_map(values, |row| Ok((row.get(0)?, row.get(1)?)))?;
                rows.collect()
            };
            read().map_err(|error| explained(error, &self.file.path, "listing"))
        })
    }
}

/// How often a watcher looks whether anything at all was written.
const WATCH_EVERY: Duration = Duration::from_millis(75);
/// How many rows a listing reads at once.
const LIST_AT_ONCE: usize = 256;

/// A place in line; dropped, nobody waits there any more. The ticket itself is ended by its id.
struct Place<'a> {
    store: &'a Store,
    id: ClaimId,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.store.waits().remove(self.id);
    }
}

#[async_trait]
impl Backend for Sqlite {
    fn abilities(&self) -> Abilities {
        ABILITIES
    }

    fn describe(&self) -> String {
        describe(&self.store.file.path)
    }

    fn attach(&self, news: News) {
        let _ = self.store.news.set(news);
    }

    async fn acquire(&self, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        self.store.acquire(claim, wait).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.store.renew(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<()> {
        released(self.store.end(claim, claim.min_hold).await?, claim, self.describe())
    }

    async fn downgrade(&self, claim: &Claim) -> Result<bool> {
        let (name, id) = (claim.name.clone(), claim.id);
        let downgraded =
            self.store.ask(move |tx| tx.with(&name, |tx, record| Ok(record.downgrade(id, tx.at, &mut tx.after.woken))));
        Ok(downgraded.await?.unwrap_or_default())
    }

    async fn view(&self, name: &LockName) -> Result<View> {
        self.store.view(name).map(|(view, _)| view)
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        self.store.list(prefix, after, limit)
    }

    async fn watch(&self, name: &LockName, seen: &View) -> Result<View> {
        self.store.watch(name, seen).await
    }

    async fn ask(&self, name: &LockName, ask: &Ask) -> Result<usize> {
        let (name, ask) = (name.clone(), ask.clone());
        let verb = move |tx: &mut Transaction<'_>| {
            let told = tx.with(&name, |_, record| Ok(record.ask(&ask)))?.unwrap_or_default();
            let messages = told.iter().map(|(client, id)| (*client, Message::Asked(*id, ask.clone())));
            tx.after.messages.extend(messages);
            Ok(told.len())
        };
        self.store.ask(verb).await
    }

    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Result<usize> {
        let name = name.clone();
        let verb = move |tx: &mut Transaction<'_>| {
            let broken = tx.with(&name, |tx, record| Ok(record.break_holds(only, tx.at, &mut tx.after.woken)))?;
            let broken = broken.unwrap_or_default();
            tx.after.messages.extend(broken.iter().map(|(client, id)| (*client, Message::Lost(*id))));
            Ok(broken.len())
        };
        self.store.ask(verb).await
    }

    async fn cell_get(&self, name: &LockName) -> Result<tenure_core::Versioned> {
        self.store.read(|connection| {
            let sql = "SELECT value, version FROM cell WHERE name = ?1";
            let found = connection.prepare_cached(sql).and_then(|mut select| {
                select.query_row([name.as_str()], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64))).optional()
            });
            let found = found.map_err(|error| explained(error, &self.store.file.path, "reading a cell"))?;
            Ok(found.map_or((None, 0), |(value, version)| (Some(value), version)))
        })
    }

    async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Result<Option<u64>> {
        let (name, value) = (name.clone(), value.map(<[u8]>::to_vec));
        let verb = move |tx: &mut Transaction<'_>| set_cell(tx, &name, expected, value.as_deref());
        self.store.ask(verb).await
    }

    async fn probe(&self) -> Result<()> {
        self.store.probe()
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        crate::examine::examine(&self.store)
    }

    async fn close(&self) -> Result<()> {
        // Threads and connections stay: somebody may hold, wait or ask through this client all the while.
        if self.store.is_replaced() { Ok(()) } else { self.store.tidy_up().await }
    }
}

/// Versions follow the rule for tokens: they never start over, not even after the cell was removed.
fn set_cell(tx: &mut Transaction<'_>, name: &LockName, expected: u64, value: Option<&[u8]>) -> Result<Option<u64>, Fault> {
    let sql = "SELECT version FROM cell WHERE name = ?1";
    let current: Option<i64> = tx.connection.prepare_cached(sql)?.query_row([name.as_str()], |row| row.get(0)).optional()?;
    let current = current.unwrap_or(0) as u64;
    if current != expected {
        return Ok(None);
    }
    let floor = Token::new(current).max(tx.floor()?);
    let version = Token::next(floor, tx.at.wall_micros);
    match value {
        Some(value) => {
            let sql = "INSERT INTO cell VALUES (?1, ?2, ?3)
                       ON CONFLICT (name) DO UPDATE SET value = excluded.value, version = excluded.version";
            tx.connection.prepare_cached(sql)?.execute(params![name.as_str(), value, version.get() as i64])?;
        }
        None => {
            tx.connection.prepare_cached("DELETE FROM cell WHERE name = ?1")?.execute([name.as_str()])?;
            tx.raise_floor(version)?;
        }
    }
    Ok(Some(version.get()))
}
