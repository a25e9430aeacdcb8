//! Fenced writes: the database refuses a holder that comes too late.
//!
//! A lease can end while its holder works; its write then arrives after somebody else's. The highest token that was ever
//! shown for a resource is kept in a row beside the data, checked and written in the transaction that writes the data. So it
//! does not matter who believes to hold what: whoever shows a lower token than another has shown is refused.
//!
//! Who can interleave: of two holders at once, the second waits for the first one's row and then sees its token, or fails with
//! 40001 where its snapshot is older than that. `sql/fence.sql` is all of it. `own` is the same row, for resources that are
//! elsewhere.

use tenure_core::fence::writers_token;
use tenure_core::{LockName, Result, Sequencer};

use crate::config::Settings;
use crate::driver::Driver;
use crate::schema::Layout;

mod own;

pub use own::open_fence;

/// A write to what the lock `name` protects, in a transaction of yours; [`check`](Fence::check) it before you write.
///
/// `held` is the [`Guard`](tenure_core::Guard), or a [`Sequencer`] of it that was handed to whoever writes. It must be of this very
/// lock, and of a holder that is alone inside: no reader.
///
/// ```no_run
/// # async fn pay(db: &mut tokio_postgres::Client, guard: tenure_core::Guard) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = db.transaction().await?;
/// tenure_postgres::fence(&mut tx, "account/7", &guard).check().await?; // an error of kind `Lost` for the late
/// tx.execute("UPDATE account SET balance = 5 WHERE id = 7", &[]).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// Without Rust it is `SELECT tenure_check_fence('account/7', 1731664000000001)`.
pub fn fence<D: Driver>(transaction: &mut D, name: impl AsRef<str>, held: impl Into<Sequencer>) -> Fence<'_, D> {
    let Settings { schema, prefix, .. } = Settings::default();
    Fence { transaction, name: LockName::new(name), held: held.into(), schema, prefix }
}

/// A fenced write; see [`fence()`].
#[derive(Debug)]
#[must_use = "nothing is refused before `check`"]
pub struct Fence<'a, D> {
    transaction: &'a mut D,
    name: Result<LockName>,
    held: Sequencer,
    schema: String,
    prefix: String,
}

impl<D: Driver> Fence<'_, D> {
    /// What the tables' names begin with, if it is not `tenure_`.
    pub fn prefix(self, prefix: &str) -> Self {
        Fence { prefix: prefix.to_owned(), ..self }
    }

    /// Which schema the tables are in, if it is not `public`.
    pub fn schema(self, schema: &str) -> Self {
        Fence { schema: schema.to_owned(), ..self }
    }

    /// `Ok` if nobody has shown a higher token; from the commit on everybody with a lower one is refused. Else an error of kind
    /// [`Lost`](tenure_core::ErrorKind::Lost), and the transaction is aborted: even who ignores the error writes nothing.
    /// Another lock's sequencer and a reader's are refused before the database is asked, as by [`writers_token`].
    ///
    /// # Cancel safety
    /// Dropped, the token may or may not have been shown; it counts from the commit on.
    pub async fn check(self) -> Result<()> {
        let name = self.name?;
        let token = writers_token(&name, &self.held)?;
        let layout = Layout::new(&self.schema, &self.prefix)?;
        let sql = format!("SELECT {}($1, $2)", layout.full("check_fence"));
        let shown = self.transaction.ask(&sql, name.as_str(), token).await;
        shown.map(drop).map_err(|refusal| refusal.explain(&layout, "checking a fencing token").with_name(&name))
    }
}
