//! Fenced writes: the database refuses a holder that comes too late.
//!
//! A lease can end while its holder works; its write then arrives after somebody else's. The highest token that was ever
//! shown for a resource is kept in a table beside the data, checked and written in the transaction that writes the data. So
//! it does not matter who believes to hold what: whoever shows a lower token than another has shown is refused.
//!
//! Who can interleave: nobody. From the check to the commit the transaction is the only one that writes to this database.

use rusqlite::{OptionalExtension, Transaction, params};
use tenure_core::{Error, ErrorKind, LockName, Result, Token};

use crate::error::explained;

mod own;

pub use own::open_fence;

/// Where the highest tokens are. Made when it is first needed.
const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS main.tenure_fence (name TEXT PRIMARY KEY, token INTEGER NOT NULL) WITHOUT ROWID";

/// A write to `resource` under a token, in a transaction of yours; [`check`](Fence::check) it before you write.
///
/// The resource is a name of your choice for what is protected, usually that of the lock. Its highest token is kept in the table
/// `tenure_fence` of the connection's main database, which is where the data is; it is made when it is first needed.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use tenure_core::{ErrorKind, Token};
/// # let mut db = rusqlite::Connection::open_in_memory()?;
/// # db.execute_batch("CREATE TABLE account (id INTEGER, balance INTEGER)")?;
/// # let token = Token::new(34);
/// let tx = db.transaction()?;
/// tenure_sqlite::fence(&tx, "account/7", token).check()?; // an error of kind `Lost` for whoever comes too late
/// tx.execute("UPDATE account SET balance = 5 WHERE id = 7", [])?;
/// tx.commit()?;
/// # let tx = db.transaction()?;
/// # let late = tenure_sqlite::fence(&tx, "account/7", Token::new(33)).check().unwrap_err();
/// # assert_eq!(late.kind(), ErrorKind::Lost);
/// # Ok(()) }
/// ```
pub fn fence<'a>(transaction: &'a Transaction<'_>, resource: impl AsRef<str>, token: Token) -> Fence<'a> {
    Fence { transaction, resource: LockName::new(resource), token }
}

/// A fenced write; see [`fence()`].
#[derive(Debug)]
#[must_use = "nothing is refused before `check`"]
pub struct Fence<'a> {
    transaction: &'a Transaction<'a>,
    resource: Result<LockName>,
    token: Token,
}

impl Fence<'_> {
    /// `Ok` if nobody has shown a higher token, and from the commit on everybody with a lower one is refused. Else an error of
    /// kind [`Lost`](ErrorKind::Lost): roll back.
    pub fn check(self) -> Result<()> {
        let resource = self.resource?;
        let highest = highest(self.transaction, resource.as_str(), self.token).map_err(|error| {
            let path = self.transaction.path().unwrap_or_default();
            explained(error, path.as_ref(), "checking a fencing token").with_name(&resource)
        })?;
        if highest <= self.token {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Lost, format!("the token {} is superseded by {highest}", self.token))
            .with_name(&resource)
            .with_hint(
                "Somebody else has held the lock since and has written. Roll back; nothing of this hold may be written",
            ))
    }
}

/// Shows the token, and gives the highest that was ever shown.
fn highest(transaction: &Transaction<'_>, resource: &str, token: Token) -> rusqlite::Result<Token> {
    transaction.prepare_cached(TABLE)?.execute([])?;
    let show = "INSERT INTO main.tenure_fence (name, token) VALUES (?1, ?2)
                ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE excluded.token >= token
                RETURNING token";
    let number = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
    let token = token.get() as i64;
    let shown = transaction.prepare_cached(show)?.query_row(params![resource, token], number).optional()?;
    let highest = match shown {
        Some(highest) => highest,
        None => {
            let sql = "SELECT token FROM main.tenure_fence WHERE name = ?1";
            transaction.prepare_cached(sql)?.query_row([resource], number)?
        }
    };
    Ok(Token::new(highest.max(0) as u64))
}
