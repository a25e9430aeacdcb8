//! The lock that ends with the user's own commit or rollback.
//!
//! SQLite lets one writer in at a time, from `BEGIN IMMEDIATE` to the end of the transaction, so a transaction that may write
//! to the file of locks *is* alone there: nobody can be granted, released or renewed meanwhile. All that is left to do is to
//! see that nobody holds the name by a lease, and to take the name's next token, with tenure's own record and codec.
//!
//! # Who can interleave
//!
//! - **Another transaction**: nobody; it waits for the file.
//! - **A lease holder of the name**: it is in the record, which then is left as it is, and the answer is "not now". It cannot
//!   let go while the transaction lasts, which is why nothing here ever waits *inside* one: [`begin`] looks from outside,
//!   by reading only, and begins when the name seems free.
//! - **A waiter** for the name stands in the record too: whoever is in line is let in before a transaction is.
//! - **Lease holders of other names** cannot renew while the transaction lasts. Keep it shorter than a third of the ttl.
//!
//! What is written: the token, into the record if the name has one, else as the floor from which new records start. So a
//! transaction leaves no row behind. Rolled back, its token may be given again, to nobody who saw what it did.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use tenure_core::record::{Moment, Record, Stage};
use tenure_core::retry::pace;
use tenure_core::{Clock, Error, ErrorKind, Instant, Kind, LockName, Mode, Result, Sequencer, Token, Wait};

use crate::batch::pause;
use crate::codec;
use crate::config::Settings;
use crate::death::{Deaths, Process, Pulse};
use crate::error::{describe, explained, garbled, is_busy};
use crate::schema;

/// Makes a file of locks usable in transactions of this connection: beside the database it has open, as `tenure`.
///
/// The file is made if it is not there. Not needed for a connection to the file of locks itself, which may have tables of
/// yours in it. Call it once per connection, outside a transaction.
pub fn attach(connection: &Connection, path: impl AsRef<Path>) -> Result<()> {
    let (file, _) = schema::open(path.as_ref(), &Settings::default())?;
    let failed = |error| explained(error, &file.path, "attaching it");
    if Place::find(connection)?.is_some_and(|place| place.path == file.path) {
        return Ok(());
    }
    connection.execute("ATTACH ?1 AS tenure", [file.path.to_string_lossy()]).map(drop).map_err(failed)
}

/// Locks a name for the rest of a transaction that has begun: until its commit or rollback nobody else has it, by
/// transaction or by lease.
///
/// The transaction must be one that writes: `TransactionBehavior::Immediate`. A deferred one is made to write here, which
/// fails if it has read something that was changed since. To wait for somebody, use [`begin`].
///
/// ```
/// # use rusqlite::{Connection, TransactionBehavior::Immediate};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let (data, locks) = (directory.path().join("shop.db"), directory.path().join("locks.db"));
/// let mut db = Connection::open(data)?;
/// tenure_sqlite::attach(&db, locks)?;
/// db.execute_batch("CREATE TABLE stock (item TEXT, pieces INTEGER); INSERT INTO stock VALUES ('lamp', 3)")?;
///
/// let tx = db.transaction_with_behavior(Immediate)?;
/// if let Some(held) = tenure_sqlite::in_transaction(&tx, "stock/lamp").try_lock()? {
///     tx.execute("UPDATE stock SET pieces = pieces - 1 WHERE item = 'lamp'", [])?;
///     println!("sold one, fenced by {}", held.token);
///     tx.commit()?; // and the lock is free
/// }
/// # Ok(()) }
/// ```
pub fn in_transaction<'a>(transaction: &'a Transaction<'_>, name: impl AsRef<str>) -> InTransaction<'a> {
    InTransaction { transaction, name: LockName::new(name) }
}

/// A lock wanted in a transaction that has begun; see [`in_transaction`].
#[derive(Debug)]
#[must_use = "nothing is locked before `try_lock`"]
pub struct InTransaction<'a> {
    transaction: &'a Transaction<'a>,
    name: Result<LockName>,
}

impl InTransaction<'_> {
    /// Locks the name if nobody has it now. After `None` nothing is changed, and the transaction can go on without the lock;
    /// a holder cannot let go before it ends.
    pub fn try_lock(self) -> Result<Option<Sequencer>> {
        try_lock(self.transaction, &self.name?)
    }
}

/// Begins a transaction that has a name locked, and waits for both where it must: [`in_transaction`] for those who can wait.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let mut db = rusqlite::Connection::open_in_memory()?;
/// # tenure_sqlite::attach(&db, directory.path().join("locks.db"))?;
/// # db.execute_batch("CREATE TABLE stock (item TEXT, pieces INTEGER); INSERT INTO stock VALUES ('lamp', 3)")?;
/// let (tx, held) = tenure_sqlite::begin(&mut db, "stock/lamp").lock()?;
/// tx.execute("UPDATE stock SET pieces = pieces - 1 WHERE item = 'lamp'", [])?;
/// tx.commit()?;
/// # assert!(held.token.get() > 0);
/// # Ok(()) }
/// ```
pub fn begin(connection: &mut Connection, name: impl AsRef<str>) -> Begin<'_> {
    Begin { connection, name: LockName::new(name) }
}

/// A transaction to be begun with a lock; see [`begin`]. Its verbs block the thread.
#[derive(Debug)]
#[must_use = "nothing is begun before `lock`, `try_lock` or `try_lock_for`"]
pub struct Begin<'a> {
    connection: &'a Connection,
    name: Result<LockName>,
}

impl<'a> Begin<'a> {
    /// Waits for as long as it takes.
    pub fn lock(self) -> Result<(Transaction<'a>, Sequencer)> {
        Ok(self.wait(Wait::Forever)?.expect("waiting without end ends with the lock"))
    }

    /// `None` if somebody else has the name, or the file, right now.
    pub fn try_lock(self) -> Result<Option<(Transaction<'a>, Sequencer)>> {
        self.wait(Wait::No)
    }

    /// `None` if it was not to be had in this time.
    pub fn try_lock_for(self, wait: Duration) -> Result<Option<(Transaction<'a>, Sequencer)>> {
        self.wait(Wait::For(wait))
    }

    fn wait(self, wait: Wait) -> Result<Option<(Transaction<'a>, Sequencer)>> {
        let name = self.name?;
        let place = Place::find(self.connection)?.ok_or_else(|| nowhere(self.connection).with_name(&name))?;
        let began = Instant::now();
        let deadline = wait.deadline(began);
        loop {
            // By reading, which is in nobody's way; only what seems free is worth being in everybody's.
            let is_leased = place.is_leased(self.connection, &name)?;
            if !is_leased {
                // SQLite's own waiting sleeps ever longer: a thousand transactions of eight processes took 6.5 s so, and 1.9 s like this.
                let immediate = TransactionBehavior::Immediate;
                match with_patience(self.connection, Duration::ZERO, |db| Transaction::new_unchecked(db, immediate)) {
                    Ok(transaction) => {
                        if let Some(held) = try_lock(&transaction, &name)? {
                            return Ok(Some((transaction, held)));
                        }
                    }
                    Err(error) if is_busy(&error) => {}
                    Err(error) => return Err(place.failed(error, "beginning a transaction").with_name(&name)),
                }
            }
            let now = Instant::now();
            if wait == Wait::No || now >= deadline {
                return Ok(None);
            }
            let waited = now.since(began);
            let nap = if is_leased { pace(waited) } else { pause(waited) };
            std::thread::sleep(nap.min(deadline.since(now)));
        }
    }
}

/// Whether a write failed because of somebody else's and may succeed when the transaction is run again: what the loop around
/// an optimistic write, with [`Retries`](tenure_core::retry::Retries), takes like a version that has changed.
pub fn is_conflict(error: &rusqlite::Error) -> bool {
    is_busy(error)
}

fn try_lock(transaction: &Transaction<'_>, name: &LockName) -> Result<Option<Sequencer>> {
    let place = Place::find(transaction)?.ok_or_else(|| nowhere(transaction).with_name(name))?;
    match place.take(transaction, name) {
        Ok(Some(token)) => {
            let issued_ms = Clock::Boot.wall_micros() / 1_000;
            Ok(Some(Sequencer::new(name.clone(), Kind::Mutex, Mode::Exclusive, token, issued_ms)))
        }
        Ok(None) => Ok(None),
        Err(error) => Err(error.with_name(name)),
    }
}

/// Where the file of locks is among a connection's databases.
struct Place {
    /// The database's name, quoted.
    schema: String,
    path: PathBuf,
}

impl Place {
    /// The first of the connection's databases that is one of ours.
    fn find(connection: &Connection) -> Result<Option<Place>> {
        let databases = || -> rusqlite::Result<Vec<(String, String)>> {
            let mut list = connection.prepare_cached("SELECT name, file FROM pragma_database_list ORDER BY seq")?;
            let rows = list.query_map([], |row| Ok((row.get(0)?, row.get::<_, Option<String>>(1)?.unwrap_or_default())))?;
            rows.collect()
        };
        let failed = |error| explained(error, Path::new("a connection"), "looking for the file of locks");
        for (name, file) in databases().map_err(failed)? {
            let place = Place { schema: format!("\"{}\"", name.replace('"', "\"\"")), path: PathBuf::from(file) };
            if schema::is_ours(connection, &place.schema, &place.path)? {
                place.check_boot(connection)?;
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// What was held before the machine restarted is held by nobody; but only an open file was told so.
    fn check_boot(&self, connection: &Connection) -> Result<()> {
        let sql = format!("SELECT value FROM {}.meta WHERE what = 'boot'", self.schema);
        let known = connection.prepare_cached(&sql).and_then(|mut select| select.query_row([], |row| row.get(0)).optional());
        let known: Option<String> = known.map_err(|error| self.failed(error, "opening it"))?;
        if known.as_deref() == Some(schema::boot_id()?.as_str()) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Backend, "the machine was restarted since the file of locks was last opened")
            .with_store(describe(&self.path))
            .with_hint("Call tenure_sqlite::attach(&connection, path) first: it voids what was held before"))
    }

    /// Whether a lease is in the way, as far as a look from outside can tell.
    fn is_leased(&self, connection: &Connection, name: &LockName) -> Result<bool> {
        let Some(record) = self.load(connection, name)? else { return Ok(false) };
        Ok(!self.without_the_ended(connection, record)?.is_idle())
    }

    /// Takes the name's next token; `None` if a lease is in the way, or the file cannot be written now.
    fn take(&self, connection: &Connection, name: &LockName) -> Result<Option<Token>> {
        let failed = |error| self.failed(error, "locking in a transaction");
        // The right to write, first of all: what is read before it may be old. In an immediate transaction it is there.
        let right = format!("UPDATE {}.meta SET value = value WHERE what = 'floor'", self.schema);
        match with_patience(connection, Duration::ZERO, |db| db.prepare_cached(&right)?.execute([])) {
            Ok(_) => {}
            Err(error) if is_stale(&error) => {
                return Err(Error::new(ErrorKind::Unavailable, "the transaction has read what others have changed since")
                    .with_store(describe(&self.path))
                    .with_source(error)
                    .with_hint("Roll back and run it again, as TransactionBehavior::Immediate, which reads nothing old"));
            }
            Err(error) if is_busy(&error) => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        let stored = self.load(connection, name)?;
        let floor = format!("SELECT value FROM {}.meta WHERE what = 'floor'", self.schema);
        let floor = connection.prepare_cached(&floor).and_then(|mut floor| floor.query_row([], |row| row.get::<_, i64>(0)));
        let floor = Token::new(floor.map_err(failed)?.max(0) as u64);
        let wall_micros = Clock::Boot.wall_micros();
        let Some(record) = stored else {
            let token = Token::next(floor, wall_micros);
            let raise = format!("UPDATE {}.meta SET value = ?1 WHERE what = 'floor'", self.schema);
            let raised = connection.prepare_cached(&raise).and_then(|mut raise| raise.execute([token.get() as i64]));
            raised.map_err(failed)?;
            return Ok(Some(token));
        };
        let mut record = self.without_the_ended(connection, record)?;
        if !record.is_idle() {
            return Ok(None);
        }
        record.last = Token::next(record.last.max(floor), wall_micros);
        let mut bytes = Vec::new();
        codec::encode(&record, &mut bytes);
        let save = format!("UPDATE {}.lock SET record = ?2 WHERE name = ?1", self.schema);
        let saved = connection.prepare_cached(&save).and_then(|mut save| save.execute(params![name.as_str(), bytes]));
        saved.map_err(failed)?;
        Ok(Some(record.last))
    }

    fn load(&self, connection: &Connection, name: &LockName) -> Result<Option<Record>> {
        let sql = format!("SELECT record FROM {}.lock WHERE name = ?1", self.schema);
        let bytes = connection
            .prepare_cached(&sql)
            .and_then(|mut select| select.query_row([name.as_str()], |row| row.get::<_, Vec<u8>>(0)).optional())
            .map_err(|error| self.failed(error, "reading a record"))?;
        bytes.map(|bytes| codec::decode(&bytes).map_err(|error| garbled(error, &self.path))).transpose()
    }

    /// The record without holds that time has ended and without what killed processes left. Whoever waited for those is let
    /// in by that, in this copy: then the name is not free. Only what is free is ever stored.
    fn without_the_ended(&self, connection: &Connection, mut record: Record) -> Result<Record> {
        let at = Moment { now: Instant::now(), wall_micros: 0 };
        let nobody = &mut Vec::new();
        let swept = catch_unwind(AssertUnwindSafe(|| {
            record.sweep(at, nobody);
            if record.is_idle() {
                return Ok(());
            }
            let here = Deaths::new(Process::current());
            let mut clients: Vec<_> = record.line.iter().filter(|ticket| holds(&ticket.stage)).map(|t| t.client).collect();
            clients.dedup();
            for client in clients {
                let sql = format!("SELECT pid, start, namespace FROM {}.client WHERE key = ?1", self.schema);
                let pulse = here.pulse(client, || {
                    let process = |row: &rusqlite::Row<'_>| {
                        let (start, namespace): (i64, i64) = (row.get(1)?, row.get(2)?);
                        Ok(Process { pid: row.get(0)?, start: start as u64, namespace: namespace as u64 })
                    };
                    connection.prepare_cached(&sql)?.query_row([client as i64], process).optional()
                });
                if let Pulse::Dead = pulse.map_err(|error| self.failed(error, "looking for a process"))? {
                    record.bury(client, at, nobody);
                }
            }
            Ok(())
        }));
        match swept {
            Ok(swept) => swept.map(|()| record),
            Err(_) => Err(Error::new(ErrorKind::Backend, "the record of this name contradicts itself")
                .with_store(describe(&self.path))
                .with_hint("Was the file written by something else? `tenure break` ends what it says about this name")),
        }
    }

    fn failed(&self, error: rusqlite::Error, doing: &str) -> Error {
        explained(error, &self.path, doing)
    }
}

/// Does something that may wait for another transaction, for at most so long. The connection's own patience may be shorter.
/// A busy handler of the user's own is left in place, and decides.
fn with_patience<'a, T>(
    connection: &'a Connection,
    longest: Duration,
    work: impl FnOnce(&'a Connection) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    let own: i64 = connection.prepare_cached("PRAGMA busy_timeout")?.query_row([], |row| row.get(0))?;
    let own = Duration::from_millis(own.max(0) as u64);
    if own <= longest {
        return work(connection);
    }
    connection.busy_timeout(longest)?;
    let done = work(connection);
    connection.busy_timeout(own)?;
    done
}

fn holds(stage: &Stage) -> bool {
    !matches!(stage, Stage::Waiting { .. })
}

/// Whether a transaction that has read cannot write any more: somebody else wrote meanwhile.
fn is_stale(error: &rusqlite::Error) -> bool {
    const SQLITE_BUSY_SNAPSHOT: i32 = 517;
    matches!(error.sqlite_error(), Some(error) if error.extended_code == SQLITE_BUSY_SNAPSHOT)
}

fn nowhere(connection: &Connection) -> Error {
    let path = connection.path().filter(|path| !path.is_empty()).unwrap_or("in memory");
    Error::new(ErrorKind::Backend, "none of the connection's databases is a file of locks")
        .with_store(describe(Path::new(path)))
        .with_hint("Call tenure_sqlite::attach(&connection, \"/path/to/locks.db\") once, after opening the connection")
}
