//! The drivers whose transactions can lock and fence: one private trait, so that both are written once.
//!
//! Nothing is decided by affected rows: with CLIENT_FOUND_ROWS, which sqlx sets, they count what was found and not what was
//! changed. The procedures say in words what they did.

use mysql_async::prelude::Queryable as _;
use tenure_core::backend::BoxFuture;
use tenure_core::{Error, ErrorKind};

use crate::error::code;

/// A transaction of the user's, in whichever driver: [`mysql_async::Transaction`], and with the feature `sqlx` also
/// `sqlx::Transaction<'_, sqlx::MySql>`.
pub trait Driver: Send {
    /// Calls a procedure with a name and a number, which gives a word and perhaps a number.
    #[doc(hidden)]
    fn call<'a>(&'a mut self, sql: &'a str, name: &'a [u8], number: i64) -> BoxFuture<'a, Result<Said, Refusal>>;

    /// Undoes the transaction and begins it anew, with the same characteristics.
    #[doc(hidden)]
    fn restart(&mut self) -> BoxFuture<'_, Result<(), Refusal>>;
}

/// A word and perhaps a number.
pub(crate) type Said = (String, Option<i64>);

/// What the server refused, or the driver.
#[doc(hidden)]
#[derive(Debug)]
pub struct Refusal {
    /// The server's number for it, if the server spoke, and what it said.
    code: Option<u16>,
    words: String,
    source: Box<dyn std::error::Error + Send + Sync>,
}

const RESTART: &str = "ROLLBACK AND CHAIN";

impl Driver for mysql_async::Transaction<'_> {
    fn call<'a>(&'a mut self, sql: &'a str, name: &'a [u8], number: i64) -> BoxFuture<'a, Result<Said, Refusal>> {
        Box::pin(async move { Ok(self.exec_first(sql, (name, number)).await?.unwrap_or_default()) })
    }

    fn restart(&mut self) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move { Ok(self.query_drop(RESTART).await?) })
    }
}

impl From<mysql_async::Error> for Refusal {
    fn from(error: mysql_async::Error) -> Self {
        let words = match &error {
            mysql_async::Error::Server(error) => error.message.clone(),
            _ => String::new(),
        };
        Refusal { code: code(&error), words, source: Box::new(error) }
    }
}

#[cfg(feature = "sqlx")]
impl Driver for sqlx::Transaction<'_, sqlx::MySql> {
    fn call<'a>(&'a mut self, sql: &'a str, name: &'a [u8], number: i64) -> BoxFuture<'a, Result<Said, Refusal>> {
        Box::pin(async move {
            let query = sqlx::query_as::<_, Said>(sqlx::AssertSqlSafe(sql)).bind(name).bind(number).persistent(false);
            Ok(query.fetch_one(&mut **self).await?)
        })
    }

    fn restart(&mut self) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move { Ok(sqlx::raw_sql(RESTART).execute(&mut **self).await.map(drop)?) })
    }
}

#[cfg(feature = "sqlx")]
impl From<sqlx::Error> for Refusal {
    fn from(error: sqlx::Error) -> Self {
        let words = error.as_database_error().map(|error| error.message().to_owned()).unwrap_or_default();
        Refusal { code: sqlx_code(&error), words, source: Box::new(error) }
    }
}

#[cfg(feature = "sqlx")]
fn sqlx_code(error: &sqlx::Error) -> Option<u16> {
    let error = error.as_database_error()?.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()?;
    Some(error.number())
}

/// Deadlocks, locks that were waited for too long, and a row that was changed since the transaction's snapshot.
const CONFLICTS: [u16; 5] = [1205, 1213, 3572, 3101, STALE];
/// What MariaDB says of such a row, where it goes by snapshots.
const STALE: u16 = 1020;

/// Whether a statement failed because of somebody else's and may succeed when the transaction is run again: deadlocks, lock
/// timeouts, snapshots that are too old. The loop around an optimistic write, with [`Retries`](tenure_core::retry::Retries),
/// takes them like a version that has changed.
///
/// Looks through the error's sources, so that it may be wrapped in one of yours.
pub fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut error = Some(error);
    while let Some(this) = error {
        let known = this.downcast_ref::<mysql_async::Error>().and_then(code);
        #[cfg(feature = "sqlx")]
        let known = known.or_else(|| this.downcast_ref::<sqlx::Error>().and_then(sqlx_code));
        if known.is_some_and(|code| CONFLICTS.contains(&code)) || this.is::<Stale>() {
            return true;
        }
        error = this.source();
    }
    false
}

/// What the server does not call an error: the snapshot is older than the lock's last change.
#[derive(Debug)]
pub(crate) struct Stale;

impl std::fmt::Display for Stale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("somebody else has had the lock since")
    }
}

impl std::error::Error for Stale {}

impl Refusal {
    /// Whether the transaction's snapshot was too old, and the server has undone it.
    pub(crate) fn is_stale(&self) -> bool {
        self.code == Some(STALE)
    }

    /// The error for whoever must act; `doing` completes "while …".
    pub(crate) fn explain(self, prefix: &str, doing: &str) -> Error {
        use ErrorKind::{Backend, Lost, Unavailable};
        let (kind, what, hint) = match self.code {
            Some(1644) if self.words.contains("superseded by") => {
                let hint =
                    "Somebody else has held the lock since and has written. Roll back; nothing of this hold may be written";
                return Error::new(Lost, format!("{} while {doing}", self.words)).with_source(self.source).with_hint(hint);
            }
            Some(1213) => (
                Unavailable,
                "two transactions waited for each other, and the server undid this one",
                "Run it again, and lock names in the same order everywhere".to_owned(),
            ),
            Some(code) if CONFLICTS.contains(&code) => {
                (Unavailable, "others were at the same rows", "Roll back and run the transaction again".to_owned())
            }
            Some(1792) => (Backend, "the transaction is read-only", "A lock writes: begin one that may".to_owned()),
            Some(1146 | 1305 | 1049) => (
                Backend,
                "tenure's tables or procedures are not there",
                format!(
                    "`tenure migrate --store URL` makes them; looked for {prefix}* in the connection's database. Another \
                     prefix is named with prefix()"
                ),
            ),
            Some(1142 | 1143 | 1370 | 1044) => (
                Backend,
                "the user lacks a right",
                "`tenure schema --store URL` says which rights whoever locks must be granted".to_owned(),
            ),
            Some(_) => (Backend, "the server refused", String::new()),
            None => (Unavailable, "the connection failed", "Nothing of the transaction was committed".to_owned()),
        };
        let error = Error::new(kind, format!("{what} while {doing}")).with_source(self.source);
        if hint.is_empty() { error } else { error.with_hint(hint) }
    }
}
