//! The file: how it is found to be ours, made, and opened.
//!
//! Nothing is written before the file is known to be ours or empty. The marks are SQLite's own: `application_id` says whose
//! it is, `user_version` which format it has.
//!
//! **Why commits need no fsync.** With `synchronous=NORMAL` a commit survives the death of any process, but not a power
//! cut, which may undo the last commits (never half of one). All that lives in the file is who holds what *now*, on a
//! machine that then restarts: nobody who held anything is still there. So the file carries the kernel's boot id, and
//! whoever first opens it after a restart voids every hold and ticket, in one transaction that *is* synced. Tokens must
//! rise even if the commits that gave the last ones were lost and the wall clock is now behind: the floor jumps by an hour
//! of microseconds, more tokens than an hour of commits can have given.
//!
//! Two processes may come here at once with a new file, or after a restart: both checks are made again inside the
//! immediate transaction that acts on them, so the second finds the work done.

use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};
use tenure_core::{Error, ErrorKind, Instant, Result};

use crate::codec;
use crate::config::Settings;
use crate::error::{describe, explained, garbled, is_busy};

/// "tenu", in the header of every file of ours.
const APPLICATION_ID: i32 = 0x7465_6e75;
/// The format that this version writes; a file with a higher one is refused.
const FORMAT: i32 = 1;
/// From here on SQLite does not corrupt a file whose log two connections reset at once.
const OLDEST_SQLITE: i32 = 3_051_003;
/// How long opening waits for somebody who has the file locked.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// How long shortening the log may wait for those who use it.
pub(crate) const SHORTENING: Duration = Duration::from_millis(500);
/// More than all tokens that lost commits can have given: an hour in microseconds.
const FLOOR_JUMP: u64 = 3_600_000_000;

const TABLES: &str = "
    CREATE TABLE lock   (name TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE client (key INTEGER PRIMARY KEY, pid INTEGER NOT NULL, start INTEGER NOT NULL,
                         namespace INTEGER NOT NULL, since INTEGER NOT NULL);
    CREATE TABLE cell   (name TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE meta   (what TEXT PRIMARY KEY, value ANY NOT NULL) WITHOUT ROWID;
    CREATE TABLE probe  (id INTEGER PRIMARY KEY, count INTEGER NOT NULL);
    INSERT INTO probe VALUES (1, 0);";

/// The file itself, told apart from another one that somebody puts in its place.
#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Whether this user may write it. Whoever may not sees who holds what, and can take nothing.
    pub(crate) is_writable: bool,
}

impl File {
    /// Whether the path still leads to the file that we have open.
    pub(crate) fn is_in_place(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|meta| (meta.dev(), meta.ino()) == (self.device, self.inode))
    }

    /// Another connection to the same file.
    pub(crate) fn connect(&self) -> Result<Connection> {
        if !self.is_in_place() {
            return Err(self.replaced());
        }
        connection(&self.path)
            .and_then(|connection| configure(&connection).map(|()| connection))
            .map_err(|error| explained(error, &self.path, "opening it once more"))
    }

    /// How long the log is, in bytes.
    pub(crate) fn log_length(&self) -> u64 {
        let mut log = self.path.clone().into_os_string();
        log.push("-wal");
        std::fs::metadata(log).map_or(0, |meta| meta.len())
    }

    /// Copies the log into the file and cuts it to nothing, if it is longer than that. SQLite does the first by itself, but
    /// the second only when nobody writes for a moment: among many busy processes the log would grow without end.
    pub(crate) fn shorten_log(&self, longest: u64, patience: Duration) -> Result<()> {
        if self.log_length() <= longest {
            return Ok(());
        }
        let connection = self.connect()?;
        connection
            .busy_timeout(patience)
            .and_then(|()| connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())))
            .map_err(|error| explained(error, &self.path, "shortening its log"))
    }

    pub(crate) fn replaced(&self) -> Error {
        Error::new(ErrorKind::Backend, REPLACED)
            .with_store(describe(&self.path))
            .with_hint("Holds of this client are lost. End every process that had the old file open, then connect again")
    }
}

/// Why holds in a file may no longer be trusted.
pub(crate) const REPLACED: &str = "the file was removed or replaced while it was in use";

/// Opens the file at `path`, and makes it if it is not there.
pub(crate) fn open(path: &Path, settings: &Settings) -> Result<(File, Connection)> {
    check_surroundings()?;
    let path = absolute(path)?;
    check_directory(&path, settings)?;
    let failed = |error| explained(error, &path, "opening it");
    make_file(&path, settings.mode)?;
    let mut connection = connection(&path).map_err(failed)?;
    let is_ours = patiently(|| read_mark(&connection)).map_err(failed)?.is_ours(&path)?;
    if is_ours && connection.is_readonly("main").map_err(failed)? {
        return Ok((found(path, false)?, connection));
    }
    if !is_ours {
        check_writable(&connection, &path)?;
        create(&mut connection, &path)?;
    }
    patiently(|| use_wal(&connection)).map_err(failed)?;
    configure(&connection).map_err(failed)?;
    void_if_restarted(&mut connection, &path)?;
    Ok((found(path, true)?, connection))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| {
        Error::new(ErrorKind::BadUrl, format!("{} is not a path to a file", path.display())).with_source(error)
    })
}

/// The file that a path leads to, right after it was opened.
fn found(path: PathBuf, is_writable: bool) -> Result<File> {
    let meta = std::fs::metadata(&path).map_err(|error| {
        Error::new(ErrorKind::Backend, "the file vanished while it was opened")
            .with_store(describe(&path))
            .with_source(error)
    })?;
    Ok(File { device: meta.dev(), inode: meta.ino(), path, is_writable })
}

/// Opens any SQLite file to keep a fence in, whoever's it is, and makes it if it is not there. Its commits wait for the disk: a
/// fence must remember across a power cut.
pub(crate) fn open_for_fence(path: &Path, settings: &Settings) -> Result<(File, Connection)> {
    check_version()?;
    let path = absolute(path)?;
    check_directory(&path, settings)?;
    let failed = |error| explained(error, &path, "opening it");
    make_file(&path, settings.mode)?;
    let connection = connection(&path).map_err(failed)?;
    check_writable(&connection, &path)?;
    let mark = patiently(|| read_mark(&connection)).map_err(failed)?;
    if mark.tables == 0 {
        patiently(|| use_wal(&connection)).map_err(failed)?; // nobody's yet: whoever reads then waits for nobody
    }
    connection.execute_batch("PRAGMA synchronous = FULL").map_err(failed)?;
    Ok((found(path, true)?, connection))
}

/// What the file's header says, and whether there is anything in it.
#[derive(Debug)]
struct Mark {
    application: i32,
    format: i32,
    tables: i64,
}

impl Mark {
    /// Whether it is ours (`true`) or empty and free to take (`false`); else an error.
    fn is_ours(&self, path: &Path) -> Result<bool> {
        let refuse = |what: String, hint: String| {
            Err(Error::new(ErrorKind::Backend, what).with_store(describe(path)).with_hint(hint))
        };
        match *self {
            Mark { application: APPLICATION_ID, format: FORMAT, .. } => Ok(true),
            Mark { application: APPLICATION_ID, format, .. } => refuse(
                format!("the file has format {format}, and this version of tenure knows only {FORMAT}"),
                "Nothing was changed. A newer tenure made it: update this one, or use another file".to_owned(),
            ),
            Mark { application: 0, format: 0, tables: 0 } => Ok(false),
            Mark { .. } => refuse(
                "the file is an SQLite database of another program".to_owned(),
                format!("Nothing was changed. Locks need a file of their own: choose another path than {}", path.display()),
            ),
        }
    }
}

fn read_mark(connection: &Connection) -> rusqlite::Result<Mark> {
    connection.query_row(
        "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),
                (SELECT count(*) FROM sqlite_schema)",
        [],
        |row| Ok(Mark { application: row.get(0)?, format: row.get(1)?, tables: row.get(2)? }),
    )
}

/// Whether one of a connection's databases bears our mark; `schema` is its name, quoted.
pub(crate) fn is_ours(connection: &Connection, schema: &str, path: &Path) -> Result<bool> {
    let number = |what: &str| {
        let number = connection.prepare_cached(&format!("PRAGMA {schema}.{what}"));
        number
            .and_then(|mut number| number.query_row([], |row| row.get(0)))
            .map_err(|error| explained(error, path, "opening it"))
    };
    let application = number("application_id")?;
    if application != APPLICATION_ID {
        return Ok(false);
    }
    Mark { application, format: number("user_version")?, tables: 1 }.is_ours(path)
}

/// Makes the tables, unless somebody else did so meanwhile.
fn create(connection: &mut Connection, path: &Path) -> Result<()> {
    let failed = |error| explained(error, path, "making its tables");
    patiently(|| use_wal(connection)).map_err(failed)?;
    let transaction = begin(connection).map_err(failed)?;
    if read_mark(&transaction).map_err(failed)?.is_ours(path)? {
        return Ok(());
    }
    transaction.execute_batch(TABLES).map_err(failed)?;
    transaction
        .execute("INSERT INTO meta VALUES ('boot', ?1), ('floor', 0)", [boot_id()?])
        .and_then(|_| transaction.pragma_update(None, "application_id", APPLICATION_ID))
        .and_then(|()| transaction.pragma_update(None, "user_version", FORMAT))
        .and_then(|()| transaction.commit())
        .map_err(failed)
}

/// If the machine was restarted since the file was last used: voids every hold and ticket, and lifts the floor.
fn void_if_restarted(connection: &mut Connection, path: &Path) -> Result<()> {
    let failed = |error| explained(error, path, "voiding what was held before the machine restarted");
    let boot = boot_id()?;
    let known = |connection: &Connection| -> Result<String> {
        let known = connection.query_row("SELECT value FROM meta WHERE what = 'boot'", [], |row| row.get(0)).optional();
        Ok(known.map_err(failed)?.unwrap_or_default())
    };
    if known(connection)? == boot {
        return Ok(());
    }
    connection.execute_batch("PRAGMA synchronous = FULL").map_err(failed)?;
    {
        let transaction = begin(connection).map_err(failed)?;
        if known(&transaction)? != boot {
            let floor = highest_token(&transaction, path)?.saturating_add(FLOOR_JUMP).min(i64::MAX as u64 / 2) as i64;
            transaction
                .execute_batch("DELETE FROM lock; DELETE FROM client; DELETE FROM meta WHERE what GLOB 'past *'")
                .and_then(|()| transaction.execute("INSERT OR REPLACE INTO meta VALUES ('boot', ?1)", [&boot]))
                .and_then(|_| transaction.execute("INSERT OR REPLACE INTO meta VALUES ('floor', ?1)", [floor]))
                .and_then(|_| transaction.commit())
                .map_err(failed)?;
        }
    }
    configure(connection).map_err(failed)
}

/// The highest token and version that the file knows of.
fn highest_token(connection: &Connection, path: &Path) -> Result<u64> {
    let failed = |error| explained(error, path, "reading its tokens");
    let numbers = "SELECT max((SELECT ifnull(max(value), 0) FROM meta WHERE what = 'floor'),
                              (SELECT ifnull(max(version), 0) FROM cell))";
    let mut highest = connection.query_row(numbers, [], |row| row.get::<_, i64>(0)).map_err(failed)? as u64;
    let mut statement = connection.prepare("SELECT record FROM lock").map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let bytes = row.get_ref(0).map_err(failed)?.as_bytes().unwrap_or_default();
        highest = highest.max(codec::decode_last(bytes).map_err(|error| garbled(error, path))?.get());
    }
    Ok(highest)
}

/// Makes the file, empty, with this mode, unless it is there. SQLite gives the log and its index beside it the same mode.
///
/// SQLite would make it too, readable for everybody.
fn make_file(path: &Path, mode: u32) -> Result<()> {
    // Closing a file drops every POSIX lock that this process has on it, also those of an SQLite connection that somebody
    // else here has just opened to it: nobody opens a file that is just being made.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::Backend, "the file cannot be made")
            .with_store(describe(path))
            .with_source(error)
            .with_hint("Whoever takes locks must be able to write the file and to create files beside it")
    };
    if path.exists() {
        return Ok(());
    }
    match OpenOptions::new().write(true).create_new(true).mode(mode).open(path) {
        Ok(file) => file.set_permissions(Permissions::from_mode(mode)).map_err(failed), // whatever the umask took away
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.exists() => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

fn connection(path: &Path) -> rusqlite::Result<Connection> {
    // Each connection is behind a mutex of ours: SQLite need not lock it once more.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(PATIENCE)?;
    // The last one to close would copy the log into the file and sync both: milliseconds at the end of every short
    // command, and a write to a file that may turn out not to be ours. The next one finds the log as it is.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA temp_store = MEMORY;")
}

fn use_wal(connection: &Connection) -> rusqlite::Result<()> {
    let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    if mode != "wal" {
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    }
    Ok(())
}

/// Tries again while somebody has the file locked. SQLite's own waiting gives up at once where it fears a deadlock.
fn patiently<T>(mut attempt: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            answer => return answer,
        }
    }
}

/// A transaction that writes; the busy handler set in [`connection`] waits for it.
fn begin(connection: &mut Connection) -> rusqlite::Result<rusqlite::Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

fn check_writable(connection: &Connection, path: &Path) -> Result<()> {
    // SQLite opens a file that it may not write all the same, and says so only at the first write.
    if connection.is_readonly("main").map_err(|error| explained(error, path, "opening it"))? {
        return Err(Error::new(ErrorKind::Backend, "the file is read-only")
            .with_store(describe(path))
            .with_hint("Whoever takes locks must be able to write the file and to create files beside it"));
    }
    Ok(())
}

fn check_directory(path: &Path, settings: &Settings) -> Result<()> {
    // A file that is there already may be a link to another file system.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let directory = target.parent().unwrap_or(Path::new("/"));
    let refuse = |kind, what: String| Error::new(kind, what).with_store(describe(path));
    if path.is_dir() {
        return Err(refuse(ErrorKind::BadUrl, "the path is a directory".to_owned()).with_hint("Name a file inside it"));
    }
    let system = rustix::fs::statfs(directory).map_err(|error| {
        refuse(ErrorKind::Backend, format!("the directory {} cannot be used", directory.display()))
            .with_source(std::io::Error::from(error))
            .with_hint("Make it first; only the default directory is made by itself")
    })?;
    match network_file_system(system.f_type as u32) {
        Some(name) if !settings.allow_network => {
            Err(refuse(ErrorKind::Unsupported, format!("the file would be on {name}, which other hosts may share"))
                .with_hint(
                    "SQLite's locks reach no further than one host: use a local disk, or a store with a server. \
                    If only this host uses the file, add ?network=allow",
                ))
        }
        _ => Ok(()),
    }
}

/// The name of a file system that other hosts may share, by its `statfs` number. FUSE is among them, since what is behind
/// it cannot be told.
pub(crate) fn network_file_system(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x0000_6969 => "NFS",
        0x0000_517b | 0xff53_4d42 | 0xfe53_4d42 => "SMB",
        0x0102_1997 => "9p",
        0x00c3_6400 => "CephFS",
        0x0bd0_0bd0 => "Lustre",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7372_7545 => "Coda",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x4750_4653 => "GPFS",
        0x1983_0326 => "BeeGFS",
        0xaad7_aaea => "PanFS",
        0x786f_4256 => "a VirtualBox shared folder",
        0xbacb_acbc => "a VMware shared folder",
        0x6573_5546 => "FUSE",
        _ => return None,
    })
}

/// What must be true of the program and the machine, whatever the file.
fn check_surroundings() -> Result<()> {
    check_version()?;
    // Expiry is counted on the boot clock, which must be the same for all who use the file.
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let shifted = offsets
        .lines()
        .filter_map(|line| line.strip_prefix("boottime"))
        .any(|offsets| offsets.split_ascii_whitespace().any(|number| number != "0"));
    if shifted {
        return Err(Error::new(ErrorKind::Unsupported, "this process lives in a time namespace with a shifted boot clock")
            .with_hint("Expiry is counted on that clock by all processes of the host: run without the time namespace"));
    }
    Ok(())
}

fn check_version() -> Result<()> {
    if rusqlite::version_number() < OLDEST_SQLITE {
        let what = format!("SQLite {} is too old: it may corrupt files that several processes write", rusqlite::version());
        return Err(Error::new(ErrorKind::Unsupported, what)
            .with_hint("3.51.3 is the first without that fault; build with the `bundled` SQLite"));
    }
    Ok(())
}

/// This start of the machine.
pub(crate) fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    std::fs::read_to_string(path).map(|id| id.trim().to_owned()).map_err(|error| {
        Error::new(ErrorKind::Unsupported, "this system does not say when it was started")
            .with_source(error)
            .with_hint(format!("{path} must be readable: it is how holds from before a restart are told apart"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_that_others_may_share_are_known() {
        // NFS, SMB2, 9p, Ceph, FUSE; ext4, tmpfs, overlayfs, XFS, btrfs.
        for shared in [0x6969, 0xfe53_4d42, 0x0102_1997, 0x00c3_6400, 0x6573_5546] {
            assert!(network_file_system(shared).is_some(), "{shared:x}");
        }
        for local in [0xef53, 0x0102_1994, 0x794c_7630, 0x5846_5342, 0x9123_683e] {
            assert!(network_file_system(local).is_none(), "{local:x}");
        }
    }

    #[test]
    fn a_mark_is_ours_or_empty_or_foreign() {
        let mark = |application, format, tables| Mark { application, format, tables }.is_ours(Path::new("/x"));
        assert!(mark(APPLICATION_ID, FORMAT, 5).unwrap());
        assert!(!mark(0, 0, 0).unwrap());
        for (application, format, tables) in
            [(APPLICATION_ID, FORMAT + 1, 5), (0, 0, 1), (0, 3, 0), (7, 0, 0), (7, FORMAT, 5)]
        {
            assert!(mark(application, format, tables).is_err());
        }
    }
}
