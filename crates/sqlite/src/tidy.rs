//! Nothing is left: rows of names that nobody uses, and what killed processes left behind.
//!
//! A name's row is kept for a while after its last release, for a hot name is locked again at once and then costs one update
//! and no insert. Who made a row idle removes it: after a second of quiet, and when it closes. The highest token among the
//! removed becomes the *floor*, in the same transaction, and new rows start there; so forgetting a name never sends its
//! tokens back. The last token of a removed name stays in one of 1,024 places until another name needs that place: so the
//! store can say of a hold that it was released, and the file does not grow.
//!
//! A client that was killed cannot do that, so its row in `client` stays as the sign that there may be leftovers. Whoever
//! had to bury it, and whoever opens the file and finds it among a few clients looked at, finishes what it left: tickets are
//! buried, idle rows removed, and the sign last, when everything was seen.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, params};
use tenure_core::record::ClientKey;
use tenure_core::{ClaimId, Instant, LockName, Result, Token, random};

use crate::death::{Deaths, Process, Pulse};
use crate::error::Fault;
use crate::schema::SHORTENING;
use crate::store::Store;
use crate::transaction::Transaction;

/// How many clients somebody who opens the file looks at.
const CLIENTS_AT_ONCE: usize = 8;
/// How many rows are looked at in one transaction.
const ROWS_AT_ONCE: usize = 256;
/// Whoever opens the file next reads the whole log: in a quiet moment it is made shorter than that, in bytes.
const LOG_WHEN_QUIET: u64 = 1 << 20;
/// The same for one who closes: a hundred commands in a row would otherwise each read what all before them wrote.
const LOG_WHEN_CLOSED: u64 = 256 << 10;
/// How many rows are looked at by the way, by somebody who has other things to do.
const ROWS_BY_THE_WAY: usize = 64;
/// How many transactions somebody who opens the file spends on what others left.
const MOST_ROUNDS: usize = 4;

impl Store {
    /// What the worker does when it is quiet: removes the rows of names that nobody has used since `before`, finishes what
    /// the dead left, and comes by a few other names, for some may be nobody's.
    pub(crate) fn do_chores(self: &Arc<Self>, before: Instant) -> Result<()> {
        self.sweep(self.take_dead())?;
        for names in self.take_loose(Some(before)).chunks(ROWS_AT_ONCE) {
            let names = names.to_vec();
            self.ask_blocking(move |tx| tidy(tx, &names))?;
        }
        let from = self.came_by(None);
        let last = self.ask_blocking(move |tx| {
            let last = sweep(tx, &[], &from, ROWS_BY_THE_WAY)?;
            tx.unregister()?;
            Ok(last)
        })?;
        self.came_by(last);
        self.file.shorten_log(LOG_WHEN_QUIET, SHORTENING)
    }

    /// Forgets claims of ours that time has ended, whether or not their guards know: for a guard may never be heard of again.
    pub(crate) fn look_after_claims(self: &Arc<Self>) -> Result<()> {
        let claims: Vec<(ClaimId, LockName)> =
            self.claims().iter().take(ROWS_AT_ONCE).map(|(id, name)| (*id, name.clone())).collect();
        self.ask_blocking(move |tx| {
            for (id, name) in &claims {
                let is_there = tx.with(name, |tx, record| {
                    record.sweep(tx.at, &mut tx.after.woken);
                    Ok(record.line.iter().any(|ticket| ticket.id == *id))
                });
                match is_there {
                    Ok(Some(true)) | Err(Fault::Verb(_)) => {}
                    Ok(Some(false) | None) => tx.after.ended.push(*id),
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
    }

    /// Removes everything this client leaves behind, its own row last. Holds that have not ended stay, and the row with them.
    pub(crate) async fn tidy_up(self: &Arc<Self>) -> Result<()> {
        let dead = self.take_dead();
        let mut from = (!dead.is_empty()).then(String::new);
        while let Some(after) = from {
            let dead = dead.clone();
            from = self.ask(move |tx| sweep(tx, &dead, &after, ROWS_AT_ONCE)).await?;
        }
        for names in self.take_loose(None).chunks(ROWS_AT_ONCE) {
            let names = names.to_vec();
            self.ask(move |tx| tidy(tx, &names)).await?;
        }
        if self.is_registered() {
            self.ask(|tx| tx.unregister()).await?;
        }
        if !self.file.is_writable {
            return Ok(());
        }
        // Not worth waiting for: if somebody else uses the file now, they will do it.
        self.file.shorten_log(LOG_WHEN_CLOSED, Duration::ZERO)
    }

    /// The same from a destructor: nobody waits for it.
    pub(crate) fn tidy_up_at_once(self: &Arc<Self>) {
        let names = self.take_loose(None);
        if self.is_registered() || !names.is_empty() {
            self.ask_and_forget(move |tx| {
                tidy(tx, &names)?;
                tx.unregister()
            });
        }
    }

    /// Finishes what killed clients left. Bounded: what remains is left to the next one who opens the file.
    pub(crate) fn sweep(self: &Arc<Self>, dead: Vec<ClientKey>) -> Result<()> {
        let mut from = (!dead.is_empty()).then(String::new);
        for _ in 0..MOST_ROUNDS {
            let Some(after) = from else { break };
            let dead = dead.clone();
            from = self.ask_blocking(move |tx| sweep(tx, &dead, &after, ROWS_AT_ONCE))?;
        }
        Ok(())
    }
}

/// A few clients, from a random place on, of which the dead.
pub(crate) fn find_dead(connection: &Connection, deaths: &Deaths) -> rusqlite::Result<Vec<ClientKey>> {
    let from = i64::from_le_bytes(random()) & i64::MAX;
    let mut statement = connection.prepare(
        "SELECT key, pid, start, namespace FROM client WHERE key >= ?1
         UNION ALL SELECT key, pid, start, namespace FROM client WHERE key < ?1 LIMIT ?2",
    )?;
    let mut rows = statement.query(params![from, CLIENTS_AT_ONCE as i64])?;
    let mut dead = Vec::new();
    while let Some(row) = rows.next()? {
        let (key, start, namespace): (i64, i64, i64) = (row.get(0)?, row.get(2)?, row.get(3)?);
        let process = Process { pid: row.get(1)?, start: start as u64, namespace: namespace as u64 };
        if let Ok(Pulse::Dead) = deaths.pulse::<()>(key as ClientKey, || Ok(Some(process))) {
            dead.push(key as ClientKey);
        }
    }
    Ok(dead)
}

fn tidy(tx: &mut Transaction<'_>, names: &[LockName]) -> Result<(), Fault> {
    let mut floor = Token::new(0);
    for name in names {
        let idle = tx.with(name, |tx, record| {
            record.sweep(tx.at, &mut tx.after.woken);
            Ok(record.is_idle().then_some(record.last))
        });
        match idle {
            Ok(Some(Some(last))) => {
                tx.connection.prepare_cached("DELETE FROM lock WHERE name = ?1")?.execute([name.as_str()])?;
                tx.after.loose.pop(); // what `with` has just noted about this name
                tx.remember(name, last)?;
                floor = floor.max(last);
            }
            Ok(_) | Err(Fault::Verb(_)) => {} // in use again, gone, or damaged: not ours to remove
            Err(error) => return Err(error),
        }
    }
    if floor > Token::new(0) {
        tx.raise_floor(floor)?;
    }
    Ok(())
}

/// Looks at some rows after `from`; the last name looked at, or `None` when all were seen and the dead are forgotten.
fn sweep(tx: &mut Transaction<'_>, dead: &[ClientKey], from: &str, count: usize) -> Result<Option<String>, Fault> {
    let names: Vec<String> = {
        let mut select = tx.connection.prepare_cached("SELECT name FROM lock WHERE name > ?1 ORDER BY name LIMIT ?2")?;
        let rows = select.query_map(params![from, count as i64], |row| row.get(0))?;
        rows.collect::<Result<_, _>>()?
    };
    let noted = tx.after.loose.len();
    let mut parsed = Vec::with_capacity(names.len());
    for name in names.iter().filter_map(|name| LockName::new(name).ok()) {
        let buried = tx.with(&name, |tx, record| {
            for client in dead {
                record.bury(*client, tx.at, &mut tx.after.woken);
            }
            Ok(())
        });
        if let Err(error @ Fault::Store(_)) = buried {
            return Err(error);
        }
        parsed.push(name);
    }
    tidy(tx, &parsed)?;
    tx.after.loose.truncate(noted); // what is still in use here is looked after by those who use it
    if names.len() == count {
        return Ok(names.into_iter().next_back());
    }
    for client in dead {
        tx.connection.prepare_cached("DELETE FROM client WHERE key = ?1")?.execute([*client as i64])?;
    }
    Ok(None)
}
