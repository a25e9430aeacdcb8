//! The fence on a connection of its own, for resources that are not in the database: the row is the same as in [`super::fence()`].
//!
//! Who can interleave: other processes, between statements. Each statement is a transaction of its own.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use tenure_core::backend::{BoxFuture, async_trait};
use tenure_core::fence::{Fence, Marks, Raised};
use tenure_core::lease::{Failure, Fate};
use tenure_core::{Error, ErrorKind, LockName, Result, StoreUrl};

use super::TABLE;
use crate::config::Settings;
use crate::error::explained;
use crate::schema::{self, File};

/// Opens the fence in the SQLite database that a URL names, `sqlite:///path`: the file of the data that is protected, one of its own,
/// or a file of locks. It is made if it is not there, and so is the table `tenure_fence`, which is all that is needed.
///
/// What was accepted is on the disk (`synchronous=FULL` on this connection) before it is said.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// # use tenure_core::{LockName, Token, fence::Rule};
/// # let dir = tempfile::tempdir().unwrap();
/// # let url = format!("sqlite://{}/data.db", dir.path().display()).parse()?;
/// let fence = tenure_sqlite::open_fence(&url)?;
/// assert!(fence.advance(&LockName::new("account/7")?, Token::new(34), Rule::ANY).await?.is_accepted());
/// # Ok(()) }
/// ```
///
/// Its futures need a tokio runtime: the waiting for the disk is done on a thread for that.
pub fn open_fence(url: &StoreUrl) -> Result<Arc<dyn Fence>> {
    let settings = Settings::from_url(url)?;
    let path = url.file_path();
    if path.is_empty() {
        return Err(Error::new(ErrorKind::BadUrl, "the fence's URL names no file")
            .with_hint("It looks like sqlite:///var/lib/app/data.db"));
    }
    let (file, connection) = schema::open_for_fence(Path::new(&path), &settings)?;
    let failed = |error| explained(error, &file.path, "making the table of the fence");
    connection.prepare(TABLE).and_then(|mut table| table.execute([])).map_err(failed)?;
    Ok(Arc::new(Raised(Rows(Arc::new(Shared { file, connection: Mutex::new(connection) })))))
}

/// The rows of `tenure_fence`.
struct Rows(Arc<Shared>);

struct Shared {
    file: File,
    connection: Mutex<Connection>,
}

const RAISE: &str = "INSERT INTO main.tenure_fence (name, token) VALUES (?1, ?2)
                     ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE excluded.token > token";
const RAISE_FROM: &str = "UPDATE main.tenure_fence SET token = ?2 WHERE name = ?1 AND token < ?2 AND token >= ?3";
const LOOK: &str = "SELECT token FROM main.tenure_fence WHERE name = ?1";
/// The row without a name, which no lock has.
const PROBE: &str = "INSERT INTO main.tenure_fence (name, token) VALUES ('', ?1)
                     ON CONFLICT (name) DO UPDATE SET token = excluded.token";

impl Rows {
    /// Runs something where waiting for the disk, and for other processes, is in nobody's way.
    fn work<'a, T: Send + 'static>(
        &'a self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> BoxFuture<'a, Result<T, Failure>> {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            match tokio::task::spawn_blocking(move || shared.work(work)).await {
                Ok(done) => done.map_err(failed),
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Err(_) => Err(failed(Error::new(ErrorKind::Unavailable, "the runtime has ended"))),
            }
        })
    }
}

impl Shared {
    fn work<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        if !self.file.is_in_place() {
            return Err(Error::new(ErrorKind::Backend, "the file was removed or replaced while it was in use")
                .with_store(crate::error::describe(&self.file.path))
                .with_hint(
                    "What it remembered may be gone. Put it back, or start again and know that late writers may pass",
                ));
        }
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        work(&connection).map_err(|error| explained(error, &self.file.path, "showing a token to the fence"))
    }
}

/// SQLite has waited for others already, for as long as there is patience.
fn failed(error: Error) -> Failure {
    Failure { error, fate: Fate::Unknown, again: false }
}

#[async_trait]
impl Marks for Rows {
    fn describe(&self) -> String {
        crate::error::describe(&self.0.file.path)
    }

    /// More than SQLite's own, so that its words come through.
    fn limit(&self) -> Duration {
        schema::PATIENCE * 2
    }

    async fn raise(&self, name: &LockName, token: i64, least: Option<i64>) -> Result<bool, Failure> {
        let name = name.clone();
        self.work(move |connection| {
            let changed = match least {
                None => connection.prepare_cached(RAISE)?.execute(params![name.as_str(), token])?,
                Some(least) => connection.prepare_cached(RAISE_FROM)?.execute(params![name.as_str(), token, least])?,
            };
            Ok(changed > 0)
        })
        .await
    }

    async fn look(&self, name: &LockName) -> Result<Option<i64>, Failure> {
        let name = name.clone();
        self.work(move |connection| connection.prepare_cached(LOOK)?.query_row([name.as_str()], |row| row.get(0)).optional())
            .await
    }

    async fn probe(&self, number: i64) -> Result<(), Failure> {
        self.work(move |connection| connection.prepare_cached(PROBE)?.execute([number]).map(drop)).await
    }
}
