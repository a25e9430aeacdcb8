//! Fenced writes: the database refuses a holder that comes too late.
//!
//! A lease can end while its holder works; its write then arrives after somebody else's. The highest token that was ever
//! shown for a resource is kept in a row beside the data, checked and written in the transaction that writes the data. So it
//! does not matter who believes to hold what: whoever shows a lower token than another has shown is refused.
//!
//! Who can interleave: of two holders at once, the second waits for the first one's row and then sees its token: with a lock,
//! InnoDB reads what is there now, whatever the isolation level. `sql/check_fence.sql` is all of it. `own` is the same row, for
//! resources that are elsewhere.

use tenure_core::fence::writers_token;
use tenure_core::{LockName, Result, Sequencer};

use crate::config::Settings;
use crate::driver::Driver;

mod own;

pub use own::open_fence;

/// A write to what the lock `name` protects, in a transaction of yours; [`check`](Fence::check) it before you write.
///
/// `held` is the [`Guard`](tenure_core::Guard), or a [`Sequencer`] of it that was handed to whoever writes. It must be of this very
/// lock, and of a holder that is alone inside: no reader.
///
/// ```no_run
/// # use mysql_async::{TxOpts, prelude::Queryable as _};
/// # async fn pay(db: &mut mysql_async::Conn, guard: tenure_core::Guard) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = db.start_transaction(TxOpts::default()).await?;
/// tenure_mysql::fence(&mut tx, "account/7", &guard).check().await?; // an error of kind `Lost` for the late
/// tx.query_drop("UPDATE account SET balance = 5 WHERE id = 7").await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// Without Rust it is `CALL tenure_check_fence('account/7', 1731664000000001)`.
pub fn fence<D: Driver>(transaction: &mut D, name: impl AsRef<str>, held: impl Into<Sequencer>) -> Fence<'_, D> {
    Fence { transaction, name: LockName::new(name), held: held.into(), settings: Settings::default() }
}

/// A fenced write; see [`fence()`].
#[derive(Debug)]
#[must_use = "nothing is refused before `check`"]
pub struct Fence<'a, D> {
    transaction: &'a mut D,
    name: Result<LockName>,
    held: Sequencer,
    settings: Settings,
}

impl<D: Driver> Fence<'_, D> {
    /// What the tables' names begin with, if it is not `tenure_`.
    pub fn prefix(self, prefix: &str) -> Self {
        Fence { settings: Settings { prefix: prefix.to_owned(), ..self.settings }, ..self }
    }

    /// `Ok` if nobody has shown a higher token; from the commit on everybody with a lower one is refused. Else an error of kind
    /// [`Lost`](tenure_core::ErrorKind::Lost): roll back.
    /// Another lock's sequencer and a reader's are refused before the database is asked, as by [`writers_token`].
    ///
    /// # Cancel safety
    /// Dropped, the token may or may not have been shown; it counts from the commit on.
    pub async fn check(self) -> Result<()> {
        let name = self.name?;
        let token = writers_token(&name, &self.held)?;
        self.settings.check()?;
        let prefix = &self.settings.prefix;
        let sql = format!("CALL {prefix}check_fence(?, ?)");
        let shown = self.transaction.call(&sql, name.as_str().as_bytes(), token).await;
        shown.map(drop).map_err(|refusal| refusal.explain(prefix, "checking a fencing token").with_name(&name))
    }
}
