//! The row lock that ends with the user's own commit or rollback.
//!
//! One name, one algorithm: the lock is the name's own row, which every verb of a lease client locks too. Before it a row in the
//! table `tx` is locked: verbs that find a name's row taken look there, without waiting, and are told "locked".
//! `sql/in_transaction.sql` is all of it.
//!
//! # Who can interleave
//!
//! - **Other transactions** wait for the row in `tx`, in the server's own queue.
//! - **Verbs of lease clients** that are under way are waited for at the name's row. A lease that is held, or somebody in line,
//!   is seen before that row is locked: the answer is "leased".
//! - **Renewals** come without the name's row. The tickets of holds that time has ended are locked one by one, and closed, so that
//!   a renewal that began in time brings none back. Nothing else is locked: a range of them would reach to the next names.
//! - **An old snapshot**, at `REPEATABLE READ`, MySQL's default: plain reads show what was there when the transaction first
//!   read. So the name's row is looked at plainly, and then with its lock, which shows what is there now: if the two differ,
//!   whatever the caller would read under the lock may be old too, and the transaction must be run again. Where the lock is
//!   the first thing in a transaction, its snapshot begins after the wait, and this is never seen.
//!
//! # Why it may have to begin anew
//!
//! InnoDB lets go of row locks only when a transaction ends, and a snapshot cannot be renewed. So a transaction that waited for
//! a lease would keep others from the name all the while, and at `REPEATABLE READ` it would never see the lease end. Waiting for
//! a lease is therefore `ROLLBACK AND CHAIN` and looking again, at a pace that grows; which is only right while nothing was
//! done in the transaction yet, and only the caller knows that: [`InTransaction::first`].

use std::time::Duration;

use tenure_core::retry::pace;
use tenure_core::{Clock, Error, ErrorKind, Instant, Kind, LockName, Mode, Result, Sequencer, Token, Wait};

use crate::config::Settings;
use crate::driver::{Driver, Refusal, Stale};

/// Locks a name for the rest of a transaction: until its commit or rollback nobody else has it, by transaction or by lease. On a Galera
/// cluster that is so at its own node; whoever was let in at another one meanwhile makes the commit fail.
///
/// ```no_run
/// # use mysql_async::{TxOpts, prelude::Queryable as _};
/// # async fn sell(db: &mut mysql_async::Conn) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = db.start_transaction(TxOpts::default()).await?;
/// let held = tenure_mysql::in_transaction(&mut tx, "stock/lamp").first().lock().await?;
/// tx.query_drop("UPDATE stock SET pieces = pieces - 1 WHERE item = 'lamp'").await?;
/// println!("sold one, fenced by {}", held.token);
/// tx.commit().await?; // and the lock is free
/// # Ok(()) }
/// ```
///
/// Call it first thing, and say so by [`first`](InTransaction::first): at `REPEATABLE READ`, the default, whatever the
/// transaction reads later is as old as its first read, which may be older than the lock.
///
/// Locked again in the same transaction, a name has a new token, and both are its. Lock several names in the same order
/// everywhere; where two transactions wait for each other all the same, the server undoes one of them.
pub fn in_transaction<D: Driver>(transaction: &mut D, name: impl AsRef<str>) -> InTransaction<'_, D> {
    InTransaction { transaction, name: LockName::new(name), settings: Settings::default(), is_first: false }
}

/// A lock wanted in a transaction; see [`in_transaction`].
///
/// After `None` and after most errors the transaction can go on; but InnoDB keeps row locks to its end, so others may be
/// told that the name is locked until then. Renewals of leases do not wait for it, except in two cases without
/// [`first`](InTransaction::first): after an error that says to run the transaction again, until it was rolled back; and at
/// `SERIALIZABLE`, where every look is a lock. A transaction that stays open then for a ttl costs the holder its lease.
///
/// Other names are not concerned, but at `SERIALIZABLE`: there, a transaction that finds somebody at its name, alive or not, keeps
/// the names next to it from being renewed too.
#[derive(Debug)]
#[must_use = "nothing is locked before `lock`, `try_lock` or `try_lock_for`"]
pub struct InTransaction<'a, D> {
    transaction: &'a mut D,
    name: Result<LockName>,
    settings: Settings,
    is_first: bool,
}

/// How long one request waits in the server for another transaction.
const AT_ONCE: Duration = Duration::from_secs(30);

impl<D: Driver> InTransaction<'_, D> {
    /// What the tables' names begin with, if it is not `tenure_`: as in the URL of those who lock outside.
    pub fn prefix(self, prefix: &str) -> Self {
        InTransaction { settings: Settings { prefix: prefix.to_owned(), ..self.settings }, ..self }
    }

    /// Nothing was done in the transaction before, so it may be rolled back and begun anew while it waits. Without this,
    /// whoever would have to wait for a lease gets an error that says to run the transaction again.
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

    /// `None` if somebody else has it now. MySQL, unlike MariaDB, takes up to a second to say that another transaction has it.
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
        self.settings.check()?;
        let prefix = &self.settings.prefix;
        let failed = |refusal: Refusal| refusal.explain(prefix, "locking in a transaction").with_name(&name);
        let sql = format!("CALL {prefix}in_transaction(?, ?)");
        let began = Instant::now();
        let deadline = wait.deadline(began);
        loop {
            let longest = match wait {
                Wait::No => Duration::ZERO,
                Wait::For(_) | Wait::Forever => deadline.since(Instant::now()).min(AT_ONCE),
            };
            let called = self.transaction.call(&sql, name.as_str().as_bytes(), longest.as_secs() as i64).await;
            let (says, token) = match called {
                // The server undid it, since somebody else was at the name after its snapshot.
                Err(refusal) if self.is_first && refusal.is_stale() => ("stale".to_owned(), None),
                called => called.map_err(failed)?,
            };
            match says.as_str() {
                "locked" => {
                    let token = Token::new(token.unwrap_or_default().max(0) as u64);
                    let issued_ms = Clock::Boot.wall_micros() / 1_000;
                    return Ok(Some(Sequencer::new(name, Kind::Mutex, Mode::Exclusive, token, issued_ms)));
                }
                "leased" | "taken" | "stale" => {}
                other => return Err(refused(other).with_name(&name)),
            }
            if self.is_first {
                self.transaction.restart().await.map_err(failed)?;
            } else if says == "stale" || says == "leased" && wait != Wait::No {
                return Err(stuck(&says).with_name(&name));
            }
            let now = Instant::now();
            if wait == Wait::No || now >= deadline {
                return Ok(None);
            }
            Clock::Boot.sleep_until((now + pace(now.since(began))).min(deadline)).await;
        }
    }
}

/// Nothing can be done in this transaction any more, since it may not be begun anew.
fn stuck(says: &str) -> Error {
    let what = match says {
        "stale" => "the transaction's snapshot is older than the last change of the lock",
        _ => "a lease holder has it, and a transaction cannot see that end",
    };
    Error::new(ErrorKind::Unavailable, what).with_source(Stale).with_hint(
        "Roll back and run the transaction again. With the lock as the first thing in it, and .first(), that is done for you",
    )
}

fn refused(says: &str) -> Error {
    match says {
        "undone" => Error::new(ErrorKind::Unavailable, "the server undid the transaction because it had to wait")
            .with_hint("innodb_rollback_on_timeout is on. Run the transaction again, with .lock(), or switch that off"),
        other => Error::new(ErrorKind::Backend, format!("the procedure in_transaction says {other:?}"))
            .with_hint("Is it of another version? `tenure migrate --store URL` makes it anew"),
    }
}
