//! The row lock that ends with the user's own commit or rollback.
//!
//! One name, one algorithm: the lock is the name's own row, which every verb of a lease client locks too, and the name's
//! advisory lock before it, which verbs take shared and for a moment, and this takes exclusively until the transaction ends.
//! `sql/in_transaction.sql` is all of it.
//!
//! # Who can interleave
//!
//! - **Verbs of lease clients** ask for the advisory lock without waiting. They are told "locked", come again, and hold nobody
//!   up. A lease that is held is seen in the name's row: the answer is "leased", and everything that was locked on the way is let
//!   go of, since it happened in a subtransaction.
//! - **Other transactions** wait for the advisory lock in the server's own queue, for as long as they like.
//! - **Session locks** of the same prefix are advisory locks with a key of their own, which is taken along.
//! - **An old snapshot**, at `REPEATABLE READ` or `SERIALIZABLE`: every grant writes the name's row, every renewal that or its
//!   ticket, and both are read here with a lock. A transaction that began before the last of them fails with 40001, and must be run
//!   again; it never holds the name beside somebody else. So at these levels whoever had to wait fails, by design of
//!   PostgreSQL: nothing that a transaction reads can be newer than its first statement. Where the caller says that nothing was
//!   done yet ([`InTransaction::first`]), it is begun anew here (`ROLLBACK AND CHAIN`) until it need not wait.
//!
//! Waiting for a lease is looking again, at a pace that grows: a lease is nothing that the server could queue for. Whoever
//! stands in line for the name comes before a transaction.

use std::time::Duration;

use tenure_core::retry::pace;
use tenure_core::{Clock, Instant, Kind, LockName, Mode, Result, Sequencer, Token, Wait};

use crate::config::Settings;
use crate::driver::{Driver, Refusal};
use crate::schema::Layout;

/// Locks a name for the rest of a transaction: until its commit or rollback nobody else has it, by transaction, by lease or by
/// session.
///
/// ```no_run
/// # async fn sell(db: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = db.transaction().await?;
/// let held = tenure_postgres::in_transaction(&mut tx, "stock/lamp").lock().await?;
/// tx.execute("UPDATE stock SET pieces = pieces - 1 WHERE item = 'lamp'", &[]).await?;
/// println!("sold one, fenced by {}", held.token);
/// tx.commit().await?; // and the lock is free
/// # Ok(()) }
/// ```
///
/// Call it first thing: what the transaction has read before may have changed since. `READ COMMITTED`, the default, is the
/// level to use with it; at higher ones, whoever had to wait gets an error that says to run the transaction again, unless
/// [`first`](InTransaction::first) allows it to be begun anew.
///
/// Locked again in the same transaction, a name has a new token, and both are its. Lock several names in the same order
/// everywhere; where two transactions wait for each other all the same, the server ends one of them with an error.
pub fn in_transaction<D: Driver>(transaction: &mut D, name: impl AsRef<str>) -> InTransaction<'_, D> {
    let Settings { schema, prefix, .. } = Settings::default();
    InTransaction { transaction, name: LockName::new(name), schema, prefix, is_first: false }
}

/// A lock wanted in a transaction; see [`in_transaction`].
///
/// After an error the transaction is aborted, as after every error in PostgreSQL: roll back. Contention is not an error, and
/// leaves the transaction as it was.
#[derive(Debug)]
#[must_use = "nothing is locked before `lock`, `try_lock` or `try_lock_for`"]
pub struct InTransaction<'a, D> {
    transaction: &'a mut D,
    name: Result<LockName>,
    schema: String,
    prefix: String,
    is_first: bool,
}

impl<D: Driver> InTransaction<'_, D> {
    /// What the tables' names begin with, if it is not `tenure_`: as in the URL of those who lock outside.
    pub fn prefix(self, prefix: &str) -> Self {
        InTransaction { prefix: prefix.to_owned(), ..self }
    }

    /// Which schema the tables are in, if it is not `public`.
    pub fn schema(self, schema: &str) -> Self {
        InTransaction { schema: schema.to_owned(), ..self }
    }

    /// Nothing was done in the transaction before, so it may be rolled back and begun anew while it waits: at `REPEATABLE READ`
    /// and `SERIALIZABLE` a transaction that has waited could not go on otherwise. Not for savepoints inside a transaction.
    pub fn first(self) -> Self {
        InTransaction { is_first: true, ..self }
    }

    /// Waits for as long as it takes.
    ///
    /// # Cancel safety
    /// Dropped, the lock may or may not have been taken; it ends with the transaction.
    pub async fn lock(self) -> Result<Sequencer> {
        Ok(self.wait(Wait::Forever).await?.expect("waiting without end ends with the lock"))
    }

    /// `None` if somebody else has it now.
    ///
    /// # Cancel safety
    /// Dropped, the lock may or may not have been taken; it ends with the transaction.
    pub async fn try_lock(self) -> Result<Option<Sequencer>> {
        self.wait(Wait::No).await
    }

    /// `None` if it was not to be had in this time.
    ///
    /// # Cancel safety
    /// Dropped, the lock may or may not have been taken; it ends with the transaction.
    pub async fn try_lock_for(self, wait: Duration) -> Result<Option<Sequencer>> {
        self.wait(Wait::For(wait)).await
    }

    async fn wait(self, wait: Wait) -> Result<Option<Sequencer>> {
        let name = self.name?;
        let layout = Layout::new(&self.schema, &self.prefix)?;
        let sql = format!("SELECT {}($1, $2)", layout.full("in_transaction"));
        let began = Instant::now();
        let deadline = wait.deadline(began);
        loop {
            let longest = match wait {
                Wait::No => 0,
                Wait::Forever => -1,
                Wait::For(_) => deadline.since(Instant::now()).as_millis().min(i32::MAX as u128) as i64,
            };
            let failed = |refusal: Refusal| refusal.explain(&layout, "locking in a transaction").with_name(&name);
            let answer = match self.transaction.ask(&sql, name.as_str(), longest).await {
                Err(refusal) if self.is_first && refusal.is_stale() => {
                    self.transaction.restart().await.map_err(failed)?;
                    continue; // others have had it meanwhile, so somebody goes on
                }
                answer => answer.map_err(failed)?,
            };
            if answer > 0 {
                let (token, issued_ms) = (Token::new(answer as u64), Clock::Boot.wall_micros() / 1_000);
                return Ok(Some(Sequencer::new(name, Kind::Mutex, Mode::Exclusive, token, issued_ms)));
            }
            let now = Instant::now();
            if wait == Wait::No || now >= deadline {
                return Ok(None);
            }
            if self.is_first {
                self.transaction.restart().await.map_err(failed)?;
            }
            Clock::Boot.sleep_until((now + pace(now.since(began))).min(deadline)).await;
        }
    }
}
