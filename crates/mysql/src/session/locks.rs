//! One session of the server's, and each verb on it.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::BoxFuture;
use tenure_core::lease::{Failure, Fate};
use tenure_core::session::{Answer, Held, Notice, Session, Tried, Waited};
use tenure_core::{Claim, ClaimId, Error, ErrorKind, Instant, Kind, Token};

use super::in_vain::InVain;
use super::texts::{A_MOMENT, Texts};
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
    in_vain: Arc<InVain>,
}

impl Locks {
    /// Makes a connection a session that the server ends when it has not heard of it for `idle`.
    ///
    /// # Cancel safety
    /// Dropped, the connection is closed.
    pub(super) async fn begin(
        wire: Wire,
        client: u64,
        (texts, in_vain): (&Arc<Texts>, &Arc<InVain>),
        dialect: Dialect,
        idle: Duration,
    ) -> Answer<Locks> {
        let sets = wire.send("opening a session", texts.begin(dialect, idle)).await?;
        let conn = last(&sets).ok_or_else(|| nonsense("opening a session"))? as u64;
        let (texts, in_vain) = (Arc::clone(texts), Arc::clone(in_vain));
        Ok(Locks { wire, conn, client, dialect, texts, in_vain })
    }

    /// What an attempt has answered.
    fn tried(&self, sets: &Rows, doing: &str) -> Answer<Tried> {
        let first = sets.first().and_then(|rows| rows.first()).and_then(|row| number(row, 0));
        match first {
            Some(0) => Ok(Tried::Busy),
            Some(got @ 1..) => {
                let token = if sets.len() > 1 { last(sets) } else { Some(got) }; // drawn by a statement of its own, or with it
                let token = token.and_then(drawn).ok_or_else(|| nonsense(doing))?;
                Ok(Tried::Granted(token))
            }
            Some(other) => {
                let kind = usize::try_from(-1 - other).ok().and_then(|kind| Kind::ALL.get(kind));
                kind.copied().map(Tried::Mismatch).ok_or_else(|| nonsense(doing))
            }
            None => Err(interrupted(doing)),
        }
    }
}

/// The last number that was answered.
pub(super) fn last(sets: &Rows) -> Option<i64> {
    sets.last().and_then(|rows| rows.first()).and_then(|row| number(row, 0))
}

/// The token that was drawn last of all.
fn token(sets: &Rows) -> Option<Token> {
    last(sets).and_then(drawn)
}

/// A token; 0 is none, which a server says that has lost where they are drawn from.
fn drawn(number: i64) -> Option<Token> {
    u64::try_from(number).ok().filter(|number| *number > 0).map(Token::new)
}

fn interrupted(doing: &str) -> Failure {
    let error = Error::new(ErrorKind::Unavailable, format!("the server was interrupted while {doing}"))
        .with_hint("Did somebody kill the statement? Else its log says more");
    Failure { error, fate: Fate::Unknown, again: true }
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
                Dialect::MariaDb => self.wire.used().send_one("locking", text).await?,
                Dialect::MySql => self.wire.used().send("locking", text).await?, // draws its token with statements of their own
            };
            self.tried(&sets, "locking")
        })
    }

    fn wait<'a>(&'a self, claim: &'a Claim, limit: Option<Duration>) -> BoxFuture<'a, Answer<Option<Waited>>> {
        Box::pin(async move {
            let doing = "waiting for a lock";
            let mut limit = limit;
            let moment = limit.map_or(A_MOMENT, |limit| limit.min(A_MOMENT));
            if !self.in_vain.was_lately(&claim.name, Instant::now())
                && let Some(text) = self.texts.wait_a_moment(self.dialect, self.conn, claim, moment)
            {
                if let Tried::Granted(token) = self.tried(&self.wire.wait(doing, text).await?, doing)? {
                    return Ok(Some(Waited { token, shown: false }));
                }
                self.in_vain.note(&claim.name, Instant::now());
                limit = limit.map(|limit| limit - moment);
            }
            let sets = self.wire.wait(doing, self.texts.wait(self.dialect, self.client, claim, limit)).await?;
            match sets.first().and_then(|rows| rows.first()).and_then(|row| number(row, 0)) {
                Some(1) => {
                    let token = token(&sets).ok_or_else(|| nonsense(doing))?;
                    Ok(Some(Waited { token, shown: true }))
                }
                Some(_) => Ok(None),
                None => Err(interrupted(doing)),
            }
        })
    }

    fn enter<'a>(&'a self, claim: &'a Claim, before: Option<&'a Claim>) -> BoxFuture<'a, Answer<Token>> {
        Box::pin(async move {
            let mut text = self.texts.enter(self.dialect, claim);
            if let Some(before) = before {
                text = format!("{text}; {}", self.texts.replace(self.conn, before.id)); // which answers with no rows
            }
            let sets = self.wire.used().send("being let in", text).await?;
            token(&sets).ok_or_else(|| nonsense("being let in"))
        })
    }

    fn unlock<'a>(&'a self, claim: &'a Claim, held: Held) -> BoxFuture<'a, Answer<()>> {
        Box::pin(async move {
            let text = self.texts.unlock(self.conn, claim, held.shown);
            let sets = match held.shown {
                true => self.wire.used().send("unlocking", text).await?, // and hides it, which answers with no rows
                false => self.wire.used().send_one("unlocking", text).await?,
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

    fn downgrade<'a>(&'a self, _: &'a Claim, _: Held) -> BoxFuture<'a, Answer<()>> {
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

#[cfg(test)]
mod tests;
