//! The drivers whose transactions can lock and fence: one private trait, so that both are written once.

use tenure_core::backend::BoxFuture;
use tenure_core::{Error, ErrorKind};
use tokio_postgres::types::Type;

use crate::schema::Layout;

/// A transaction of the user's, in whichever driver: [`tokio_postgres::Transaction`], and with the feature `sqlx` also
/// `sqlx::Transaction<'_, sqlx::Postgres>`. Poolers' transactions that deref to one of these are given as `&mut *tx`.
pub trait Driver: Send {
    /// Runs a statement with a text and a number, which gives one number.
    #[doc(hidden)]
    fn ask<'a>(&'a mut self, sql: &'a str, text: &'a str, number: i64) -> BoxFuture<'a, Result<i64, Refusal>>;

    /// Undoes the transaction and begins it anew, with the same characteristics.
    #[doc(hidden)]
    fn restart(&mut self) -> BoxFuture<'_, Result<(), Refusal>>;
}

/// What the server refused, or the driver.
#[doc(hidden)]
#[derive(Debug)]
pub struct Refusal {
    /// The SQLSTATE, if the server spoke, and what it said.
    code: Option<String>,
    words: String,
    source: Box<dyn std::error::Error + Send + Sync>,
}

const RESTART: &str = "ROLLBACK AND CHAIN";

impl Driver for tokio_postgres::Transaction<'_> {
    fn ask<'a>(&'a mut self, sql: &'a str, text: &'a str, number: i64) -> BoxFuture<'a, Result<i64, Refusal>> {
        Box::pin(async move {
            // Typed, it is one round trip, and leaves no prepared statement that a pooler could trip over.
            let rows = self.query_typed(sql, &[(&text, Type::TEXT), (&number, Type::INT8)]).await;
            rows.and_then(|rows| rows.first().map_or(Ok(0), |row| row.try_get(0))).map_err(Refusal::from)
        })
    }

    fn restart(&mut self) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move { Ok(self.batch_execute(RESTART).await?) })
    }
}

impl From<tokio_postgres::Error> for Refusal {
    fn from(error: tokio_postgres::Error) -> Self {
        let code = error.code().map(|code| code.code().to_owned());
        let words = error.as_db_error().map(|error| error.message().to_owned()).unwrap_or_default();
        Refusal { code, words, source: Box::new(error) }
    }
}

#[cfg(feature = "sqlx")]
impl From<sqlx::Error> for Refusal {
    fn from(error: sqlx::Error) -> Self {
        let server = error.as_database_error();
        let code = server.and_then(|error| error.code()).map(|code| code.into_owned());
        let words = server.map(|error| error.message().to_owned()).unwrap_or_default();
        Refusal { code, words, source: Box::new(error) }
    }
}

#[cfg(feature = "sqlx")]
impl Driver for sqlx::Transaction<'_, sqlx::Postgres> {
    fn ask<'a>(&'a mut self, sql: &'a str, text: &'a str, number: i64) -> BoxFuture<'a, Result<i64, Refusal>> {
        Box::pin(async move {
            let query = sqlx::query_scalar::<_, i64>(sqlx::AssertSqlSafe(sql)).bind(text).bind(number).persistent(false);
            Ok(query.fetch_one(&mut **self).await?)
        })
    }

    fn restart(&mut self) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move { Ok(sqlx::raw_sql(RESTART).execute(&mut **self).await.map(drop)?) })
    }
}

/// Whether a statement failed because of somebody else's and may succeed when the transaction is run again: serialization
/// failures and deadlocks. The loop around an optimistic write, with [`Retries`](tenure_core::retry::Retries), takes them like
/// a version that has changed.
///
/// Looks through the error's sources, so that it may be wrapped in one of yours.
pub fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut error = Some(error);
    while let Some(this) = error {
        let code = this.downcast_ref::<tokio_postgres::Error>().and_then(|error| error.code()).map(|code| code.code());
        #[cfg(feature = "sqlx")]
        let own = this.downcast_ref::<sqlx::Error>().and_then(|error| error.as_database_error()?.code());
        #[cfg(feature = "sqlx")]
        let code = code.or(own.as_deref());
        if matches!(code, Some("40001" | "40P01")) {
            return true;
        }
        error = this.source();
    }
    false
}

impl Refusal {
    /// Whether the transaction's snapshot is too old.
    pub(crate) fn is_stale(&self) -> bool {
        self.code.as_deref() == Some("40001")
    }

    /// The error for whoever must act; `doing` completes "while …".
    pub(crate) fn explain(self, layout: &Layout, doing: &str) -> Error {
        use ErrorKind::{Backend, Lost, Unavailable};
        let code = self.code.as_deref().unwrap_or_default();
        let (kind, what, hint) = match code {
            "TN001" => (
                Lost,
                self.words.as_str(),
                "Somebody else has held the lock since and has written. Roll back; nothing of this hold may be written"
                    .to_owned(),
            ),
            "40001" => (
                Unavailable,
                "the transaction's snapshot is older than the last change of the lock",
                "Roll back and run the transaction again; with the lock as the first thing in it, and .first(), that is done for you"
                    .to_owned(),
            ),
            "40P01" => (
                Unavailable,
                "two transactions wait for each other",
                "Roll back and run it again, and lock names in the same order everywhere".to_owned(),
            ),
            "57014" => (
                Unavailable,
                "the server cancelled the statement",
                "A statement_timeout also counts while waiting for a lock: use try_lock_for with less. Roll back".to_owned(),
            ),
            "25P02" => (Backend, "the transaction has failed before", "Roll back and begin anew".to_owned()),
            "25006" => (Backend, "the transaction is read-only", "A lock writes: begin one that may".to_owned()),
            "42883" | "42P01" | "3F000" => (
                Backend,
                "tenure's tables or functions are not there",
                format!(
                    "`tenure migrate --store URL` makes them; looked for {}. Another place is named with schema() and prefix(). \
                     The transaction is aborted: roll back",
                    layout.full("*")
                ),
            ),
            "42501" => (
                Backend,
                "the user lacks a right",
                format!("As the tables' owner: {} The transaction is aborted: roll back", layout.grants("APP").join(" ")),
            ),
            "" => (Unavailable, "the connection failed", "Nothing of the transaction was committed".to_owned()),
            _ => (Backend, "the server refused", "The transaction is aborted: roll back".to_owned()),
        };
        let what = match code {
            "" | "TN001" => format!("{what} while {doing}"),
            code => format!("{what} while {doing} ({code}: {})", self.words),
        };
        Error::new(kind, what).with_source(self.source).with_hint(hint)
    }
}
