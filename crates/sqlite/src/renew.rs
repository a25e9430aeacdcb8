//! Renewals: on a thread and a connection of their own, so that nothing a user does can delay them.
//!
//! The keeper sends all holds that are due at once, and they are renewed in one transaction. It waits for a while only, and
//! then drops the future, which means that this connection may be stuck: then the next renewal gets a new thread and a new
//! connection, and the old ones end by themselves whenever they come back.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use tenure_core::{Claim, Error, ErrorKind, Instant, Renewal, Result};
use tokio::sync::oneshot;

use crate::batch::Patience;
use crate::error::{Fault, describe, explained};
use crate::schema::SHORTENING;
use crate::store::Store;
use crate::transaction::Transaction;

/// The way to a renewal thread.
pub(crate) struct Renewer {
    requests: Sender<Request>,
}

struct Request {
    claims: Vec<Claim>,
    sent: Instant,
    reply: oneshot::Sender<Vec<Result<Renewal>>>,
}

impl Store {
    /// Renews a batch of holds.
    ///
    /// # Cancel safety
    /// Dropped, the connection that carried it carries nothing more.
    pub(crate) async fn renew(self: &Arc<Self>, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let sent = Instant::now();
        let renewer = match self.check_process().and_then(|()| self.renewer()) {
            Ok(renewer) => renewer,
            Err(error) => return claims.iter().map(|_| Err(error.clone())).collect(),
        };
        let stuck = Stuck { store: self, renewer: &renewer };
        let (reply, answer) = oneshot::channel();
        let _ = renewer.requests.send(Request { claims: claims.to_vec(), sent, reply });
        match answer.await {
            Ok(answers) => {
                std::mem::forget(stuck);
                answers
            }
            Err(_) => {
                let gone =
                    Error::new(ErrorKind::Unavailable, "the renewal thread ended").with_store(describe(&self.file.path));
                claims.iter().map(|_| Err(gone.clone())).collect()
            }
        }
    }

    fn renewer(self: &Arc<Self>) -> Result<Arc<Renewer>> {
        let mut renewer = self.renewer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(renewer) = &*renewer {
            return Ok(Arc::clone(renewer));
        }
        let (requests, inbox) = channel();
        let store = Arc::clone(self);
        std::thread::Builder::new().name("tenure-renew".to_owned()).spawn(move || serve(&store, &inbox)).map_err(
            |error| {
                Error::new(ErrorKind::Unavailable, "a thread for renewals could not be started")
                    .with_source(error)
                    .with_hint("Look at the process's limit on threads")
            },
        )?;
        Ok(Arc::clone(renewer.insert(Arc::new(Renewer { requests }))))
    }
}

/// A renewal under way; dropped, its thread gets no more to do.
struct Stuck<'a> {
    store: &'a Store,
    renewer: &'a Arc<Renewer>,
}

impl Drop for Stuck<'_> {
    fn drop(&mut self) {
        let mut current = self.store.renewer.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, self.renewer)) {
            *current = None;
        }
    }
}

/// The renewal thread's life: until nobody can ask it any more.
fn serve(store: &Store, inbox: &Receiver<Request>) {
    let mut connection = None;
    while let Ok(Request { claims, sent, reply }) = inbox.recv() {
        if reply.is_closed() {
            continue;
        }
        let _ = reply.send(renew(store, &mut connection, &claims, sent));
        // A process that only holds must empty the log too, or it would grow for as long as it holds; but not while a
        // keeper waits for its answer.
        let _ = store.file.shorten_log(LOG_OF_RENEWALS, SHORTENING);
    }
}

/// About as long as SQLite itself lets the log become.
const LOG_OF_RENEWALS: u64 = 4 << 20;

fn renew(store: &Store, connection: &mut Option<Connection>, claims: &[Claim], sent: Instant) -> Vec<Result<Renewal>> {
    if store.check_file().is_err() {
        // Others may be locking in another file by now: these holds protect nothing.
        return claims.iter().map(|_| Ok(Renewal::Lost)).collect();
    }
    if connection.is_none() {
        match prepare(store) {
            Ok(made) => *connection = Some(made),
            Err(error) => return claims.iter().map(|_| Err(error.clone())).collect(),
        }
    }
    let carrier = connection.as_ref().expect("it was just made");
    match renew_all(store, carrier, claims, sent) {
        Ok(answers) => answers,
        Err(error) => {
            *connection = None;
            let error = explained(error, &store.file.path, "renewing");
            claims.iter().map(|_| Err(error.clone())).collect()
        }
    }
}

fn prepare(store: &Store) -> Result<Connection> {
    let connection = store.file.connect()?;
    // Copying the log into the file is for later, when the keeper has its answer: see `serve`.
    connection
        .busy_timeout(Duration::ZERO)
        .and_then(|()| connection.execute_batch("PRAGMA wal_autocheckpoint = 0"))
        .map_err(|error| explained(error, &store.file.path, "opening it for renewals"))?;
    Ok(connection)
}

fn renew_all(
    store: &Store,
    connection: &Connection,
    claims: &[Claim],
    sent: Instant,
) -> rusqlite::Result<Vec<Result<Renewal>>> {
    store.begin(connection, Patience::Renewal)?;
    let mut transaction = Transaction::new(store, connection, true);
    let mut answers = Vec::with_capacity(claims.len());
    for claim in claims {
        answers.push(match transaction.with(&claim.name, |tx, record| Ok(record.renew(claim.id, tx.at))) {
            Ok(renewed) => Ok(match renewed.flatten() {
                Some(asked) => Renewal::Held { until: claim.window(sent), asked },
                None => Renewal::Lost,
            }),
            Err(Fault::Verb(error)) => Err(error),
            Err(Fault::Store(error)) => {
                let _ = connection.execute_batch("ROLLBACK");
                return Err(error);
            }
        });
    }
    connection.prepare_cached("COMMIT")?.execute([])?;
    Ok(answers)
}
