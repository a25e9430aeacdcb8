//! Statements that are parsed once for a connection and not with every request.
//!
//! The server takes as long over parsing and planning a call of a function of ours as over a statement inside of it: between two processes
//! a tenth of a hand-over. But what is prepared belongs to the server's end of the connection, and a pooler that lends those for a
//! transaction gives the next request to another one. So nothing is prepared unless the caller knows that there is none; and a server that
//! does not know a statement any more is simply asked without.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_postgres::Statement;
use tokio_postgres::error::SqlState;

/// So often a request must have been made on a connection: to prepare it costs a round trip, once.
const USES: u32 = 8;

/// What is prepared on a connection.
#[derive(Default)]
pub(super) struct Prepared(Mutex<Vec<Known>>);

struct Known {
    sql: String,
    uses: u32,
    statement: Option<Statement>,
}

/// How a request goes.
pub(super) enum How {
    /// As it is.
    Plainly,
    /// As what is prepared first, and [kept](Prepared::keep).
    ToBePrepared,
    /// As what was prepared.
    Prepared(Statement),
}

impl Prepared {
    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How this one goes, which is made now.
    pub(super) fn how(&self, sql: &str) -> How {
        let mut known = self.known();
        let Some(one) = known.iter_mut().find(|known| known.sql == sql) else {
            known.push(Known { sql: sql.to_owned(), uses: 1, statement: None });
            return How::Plainly;
        };
        one.uses = one.uses.saturating_add(1);
        match &one.statement {
            Some(statement) => How::Prepared(statement.clone()),
            None if one.uses > USES => How::ToBePrepared,
            None => How::Plainly,
        }
    }

    pub(super) fn keep(&self, sql: &str, statement: &Statement) {
        if let Some(one) = self.known().iter_mut().find(|known| known.sql == sql) {
            one.statement = Some(statement.clone());
        }
    }

    /// It goes as it is from now on, until it has been made as often again.
    pub(super) fn forget(&self, sql: &str) {
        self.known().retain(|known| known.sql != sql);
    }
}

/// Whether nothing was done because the statement is not what it was: the server does not know it, or its function was made anew.
pub(super) fn is_over(error: &tokio_postgres::Error) -> bool {
    let over = [SqlState::INVALID_SQL_STATEMENT_NAME, SqlState::FEATURE_NOT_SUPPORTED];
    error.code().is_some_and(|code| over.contains(code))
}
