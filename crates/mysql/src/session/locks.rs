//! One session of the server's, and each verb on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::backend::BoxFuture;
use tenure_core::lease::{Failure, Fate};
use tenure_core::session::{Answer, Held, Notice, Session, Tried};
use tenure_core::{Claim, ClaimId, Error, ErrorKind, Kind, Mode, Token};

use super::texts::Texts;
use super::wire::Wire;
use crate::dialect::Dialect;
use crate::link::Rows;
use crate::verbs::{ask_of, id, number};

/// One session.
pub(super) struct Locks {
    wire: Wire,
    pub(super) conn: u64,
    client: u64,
    dialect: Dialect,
    texts: Arc<Texts>,
    /// Something may be shown of it that nobody told us is.
    is_shown: AtomicBool,
}

impl Locks {
    /// Makes a connection a session that the server ends when it has not heard of it for `idle`.
    ///
    /// # Cancel safety
    /// Dropped, the connection is closed.
    pub(super) async fn begin(
        wire: Wire,
        client: u64,
        texts: &Arc<Texts>,
        dialect: Dialect,
        idle: Duration,
    ) -> Answer<Locks> {
        let sets = wire.send("opening a session", texts.begin(idle)).await?;
        let conn = last(&sets).ok_or_else(|| nonsense("opening a session"))? as u64;
        let texts = Arc::clone(texts);
        Ok(Locks { wire, conn, client, dialect, texts, is_shown: AtomicBool::new(false) })
    }

    /// What an attempt or a wait has answered.
    fn tried(&self, sets: &Rows, doing: &str) -> Answer<Tried> {
        let first = sets.first().and_then(|rows| rows.first()).and_then(|row| number(row, 0));
        match first {
            Some(0) => Ok(Tried::Busy),
            Some(got @ 1..) => {
                let token = if sets.len() > 1 { last(sets) } else { Some(got) }; // drawn by a statement of its own, or with it
                let token = token.and_then(|token| u64::try_from(token).ok()).ok_or_else(|| nonsense(doing))?;
                Ok(Tried::Granted(Token::new(token)))
            }
            Some(other) => {
                let kind = usize::try_from(-1 - other).ok().and_then(|kind| Kind::ALL.get(kind));
                kind.copied().map(Tried::Mismatch).ok_or_else(|| nonsense(doing))
            }
            None => {
                let error = Error::new(ErrorKind::Unavailable, format!("the server was interrupted while {doing}"))
                    .with_hint("Did somebody kill the statement? Else its log says more");
                Err(Failure { error, fate: Fate::Unknown, again: true })
            }
        }
    }
}

/// The last number that was answered.
pub(super) fn last(sets: &Rows) -> Option<i64> {
    sets.last().and_then(|rows| rows.first()).and_then(|row| number(row, 0))
}

pub(super) fn nonsense(doing: &str) -> Failure {
    let error = Error::new(ErrorKind::Backend, format!("the server's answer is not what was asked for while {doing}"));
    Failure { error, fate: Fate::Unknown, again: false }
}

/// Rows of id, broken, and what somebody asked.
pub(super) fn mail(sets: &Rows) -> Option<Vec<(ClaimId, Notice)>> {
    let letter = |row| {
        let notice = if number(row, 1)? != 0 { Notice::Broken } else { Notice::Asked(ask_of(row, 2)) };
        Some((id(row, 0)?, notice))
    };
    sets.first().into_iter().flatten().map(letter).collect()
}

impl Session for Locks {
    fn is_open(&self) -> bool {
        self.wire.is_open()
    }

    fn close(&self) {
        self.wire.close();
    }

    fn ended(&self) -> BoxFuture<'static, ()> {
        Box::pin(self.wire.ended())
    }

    fn try_lock<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Answer<Tried>> {
        Box::pin(async move {
            let text = self.texts.attempt(self.dialect, self.conn, claim);
            let sets = match self.dialect {
                Dialect::MariaDb => self.wire.send_one("locking", text).await?,
                Dialect::MySql => self.wire.send("locking", text).await?, // draws its token with statements of their own
            };
            self.tried(&sets, "locking")
        })
    }

    fn wait<'a>(&'a self, claim: &'a Claim, limit: Option<Duration>) -> BoxFuture<'a, Answer<Tried>> {
        Box::pin(async move {
            self.is_shown.store(true, Ordering::Relaxed);
            let text = self.texts.wait(self.dialect, self.client, claim, limit);
            let sets = self.wire.send("waiting for a lock", text).await?;
            self.tried(&sets, "waiting for a lock")
        })
    }

    fn shows_grants(&self) -> bool {
        false
    }

    fn unlock<'a>(&'a self, claim: &'a Claim, held: Held) -> BoxFuture<'a, Answer<()>> {
        Box::pin(async move {
            let is_shown = held.shown || self.is_shown.load(Ordering::Relaxed);
            let text = self.texts.unlock(self.conn, claim, is_shown);
            let sets = match is_shown {
                true => self.wire.send("unlocking", text).await?, // and hides it, which answers with no rows
                false => self.wire.send_one("unlocking", text).await?,
            };
            match sets.first().and_then(|rows| rows.first()).and_then(|row| number(row, 1)) {
                Some(1) => Ok(()),
                _ => Err(nonsense("unlocking")),
            }
        })
    }

    fn give_up<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Answer<()>> {
        Box::pin(async move {
            // Whoever was told to stop waiting and did not wait any more would stop with the next statement.
            let _ = self.wire.send("giving up a lock", "DO 0".to_owned()).await;
            let sets = self.wire.send("giving up a lock", self.texts.give_up(self.conn, claim)).await?;
            match last(&sets) {
                Some(0) => Ok(()),
                _ => Err(nonsense("giving up a lock")),
            }
        })
    }

    fn convert<'a>(&'a self, _: &'a Claim, _: Held, _: Mode) -> BoxFuture<'a, Answer<Option<Token>>> {
        Box::pin(async move {
            let error = Error::new(ErrorKind::Unsupported, "the server's own locks have one mode only");
            Err(Failure { error, fate: Fate::Refused, again: false })
        })
    }

    fn show<'a>(&'a self, holds: &'a [(Claim, Held)]) -> BoxFuture<'a, Answer<()>> {
        Box::pin(async move {
            self.wire.send("showing what is held", self.texts.show(self.conn, self.client, holds)).await.map(drop)
        })
    }

    fn ping(&self) -> BoxFuture<'_, Answer<Vec<(ClaimId, Notice)>>> {
        Box::pin(async move {
            let sets = self.wire.send("renewing", self.texts.ping()).await?;
            mail(&sets).ok_or_else(|| nonsense("renewing"))
        })
    }
}
