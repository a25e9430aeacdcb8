//! Fenced writes: the database refuses a holder that comes too late.
//!
//! A lease can end while its holder works; its write then arrives after somebody else's. The highest token that was ever
//! shown for a resource is kept in a table beside the data, checked and written in the transaction that writes the data. So
//! it does not matter who believes to hold what: whoever shows a lower token than another has shown is refused.
//!
//! Who can interleave: nobody. From the check to the commit the transaction is the only one that writes to this database.

use rusqlite::{OptionalExtension, Transaction, params};
use tenure_core::fence::writers_token;
use tenure_core::{Error, ErrorKind, LockName, Result, Sequencer};

use crate::error::explained;

mod own;

pub use own::open_fence;

/// Where the highest tokens are. Made when it is first needed.
const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS main.tenure_fence (name TEXT PRIMARY KEY, token INTEGER NOT NULL) WITHOUT ROWID";

/// A write to what the lock `name` protects, in a transaction of yours; [`check`](Fence::check) it before you write.
///
/// `held` is the [`Guard`](tenure_core::Guard), or a [`Sequencer`] of it that was handed to whoever writes. It must be of this very
/// lock, and of a holder that is alone inside: no reader. The highest token is kept in the table `tenure_fence` of the
/// connection's main database, which is where the data is; it is made when it is first needed.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use tenure_core::{ErrorKind, Sequencer};
/// # let mut db = rusqlite::Connection::open_in_memory()?;
/// # db.execute_batch("CREATE TABLE account (id INTEGER, balance INTEGER)")?;
/// # let held: Sequencer = "tenure1:mutex:exclusive:34:0:account/7".parse()?;
/// let tx = db.transaction()?;
/// tenure_sqlite::fence(&tx, "account/7", &held).check()?; // an error of kind `Lost` for whoever comes too late
/// tx.execute("UPDATE account SET balance = 5 WHERE id = 7", [])?;
/// tx.commit()?;
/// # let tx = db.transaction()?;
/// # let late: Sequencer = "tenure1:mutex:exclusive:33:0:account/7".parse()?;
/// # let late = tenure_sqlite::fence(&tx, "account/7", &late).check().unwrap_err();
/// # assert_eq!(late.kind(), ErrorKind::Lost);
/// # Ok(()) }
/// ```
pub fn fence<'a>(transaction: &'a Transaction<'_>, name: impl AsRef<str>, held: impl Into<Sequencer>) -> Fence<'a> {
    Fence { transaction, name: LockName::new(name), held: held.into() }
}

/// A fenced write; see [`fence()`].
#[derive(Debug)]
#[must_use = "nothing is refused before `check`"]
pub struct Fence<'a> {
    transaction: &'a Transaction<'a>,
    name: Result<LockName>,
    held: Sequencer,
}

impl Fence<'_> {
    /// `Ok` if nobody has shown a higher token; from the commit on everybody with a lower one is refused. Else an error of kind
    /// [`Lost`](ErrorKind::Lost): roll back.
    /// Another lock's sequencer and a reader's are refused before the database is asked, as by [`writers_token`].
    pub fn check(self) -> Result<()> {
        let name = self.name?;
        let token = writers_token(&name, &self.held)?;
        let highest = highest(self.transaction, name.as_str(), token).map_err(|error| {
            let path = self.transaction.path().unwrap_or_default();
            explained(error, path.as_ref(), "checking a fencing token").with_name(&name)
        })?;
        if highest <= token {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Lost, format!("the token {token} is superseded by {highest}")).with_name(&name).with_hint(
            "Somebody else has held the lock since and has written. Roll back; nothing of this hold may be written",
        ))
    }
}

/// Shows the token, and gives the highest that was ever shown.
fn highest(transaction: &Transaction<'_>, resource: &str, token: i64) -> rusqlite::Result<i64> {
    transaction.prepare_cached(TABLE)?.execute([])?;
    let show = "INSERT INTO main.tenure_fence (name, token) VALUES (?1, ?2)
                ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE excluded.token >= token
                RETURNING token";
    let number = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
    let shown = transaction.prepare_cached(show)?.query_row(params![resource, token], number).optional()?;
    let highest = match shown {
        Some(highest) => highest,
        None => {
            let sql = "SELECT token FROM main.tenure_fence WHERE name = ?1";
            transaction.prepare_cached(sql)?.query_row([resource], number)?
        }
    };
    Ok(highest)
}
