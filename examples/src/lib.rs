//! Programs to copy from, one idea each: `cargo run -p tenure-examples --bin leader`.
//!
//! - `nightly_job`: a job that must not run twice, and what to do when its lock is lost
//! - `last_item`: selling the last item in stock; the race without a lock, then a mutex, a lock in one's own transaction, a cell
//! - `leader`: a leader with a standby
//! - `connection_limit`: at most three at once, by a semaphore
//! - `blocking`: the same without async
//! - `late-writer`: a demonstration in several files: a write that comes too late, with a fence and without (docs/fencing.md)
//!
//! Each runs on a temporary SQLite file, or on the store given as its first argument: `memory`, or any URL.
//! `late-writer` says `--store URL`.

use tempfile::TempDir;

/// The store an example runs on. In a program of your own this is a URL in its configuration.
pub struct Store {
    /// What to connect to.
    pub url: String,
    /// A place for files of the example's own, removed at its end.
    pub dir: TempDir,
}

impl Store {
    /// The first argument, or a temporary SQLite file.
    pub fn from_args() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let url = match std::env::args().nth(1).as_deref() {
            // With a name, all clients of this process meet in it.
            Some("memory") => "memory://examples".to_owned(),
            Some(url) => url.to_owned(),
            None => format!("sqlite://{}/locks.db", dir.path().display()),
        };
        Store { url, dir }
    }

    /// A database of the example's own, in a file, which can lock in its transactions: beside it is a file of locks.
    pub fn open_stock(&self, table: &str) -> rusqlite::Connection {
        let path = |name: &str| self.dir.path().join(name);
        let db = rusqlite::Connection::open(path("stock.db")).expect("a new database");
        db.busy_timeout(std::time::Duration::from_secs(60)).expect("it can wait");
        db.execute_batch("PRAGMA journal_mode = wal; PRAGMA synchronous = normal").expect("it is ours");
        tenure::sqlite::attach(&db, path("stock-locks.db")).expect("a file of locks");
        db.execute_batch(table).expect("a table");
        db
    }

    /// A new client. Examples make one per pretended host or process; in one process, one is enough.
    pub async fn connect(&self) -> tenure::Result<tenure::Client> {
        tenure::connect(&self.url).await
    }
}
