//! Finding out that something between us and the server lends our sessions to others.
//!
//! A pooler in transaction mode gives a connection another session after every transaction: a lock taken on one statement's
//! session is not on the next one's, and may be found by somebody else who believes to be alone with it. Two connections that
//! take turns in holding a transaction open see that: a session that changes under a connection, or is the same under two.

use tenure_core::backend::BoxFuture;
use tenure_core::{Error, ErrorKind, Result};

use super::Answer;
use super::advisory::garbled;
use super::wire::Wire;

/// How often they take turns: a pooler has many sessions to lend, and somebody else may use it meanwhile.
const TURNS: usize = 3;

/// A connection of which nobody knows yet whether it is a session.
pub(super) trait Connection: Send + Sync {
    /// Begins a transaction.
    fn begin(&self) -> BoxFuture<'_, Answer<()>>;
    /// Which session the server believes it is.
    fn session(&self) -> BoxFuture<'_, Answer<u64>>;
    /// Ends the transaction.
    fn end(&self) -> BoxFuture<'_, Answer<()>>;
}

/// Refuses if these two connections to `store` are not sessions of their own.
///
/// # Cancel safety
/// It only reads.
pub(super) async fn refuse_lent(one: &impl Connection, other: &impl Connection, store: String) -> Result<()> {
    let mut seen: Option<(u64, u64)> = None;
    for turn in 0..TURNS * 2 {
        // Twice each: a pooler that lends the one that was idle longest would give those who alternate the same ones every time.
        let is_one = turn / 2 % 2 == 0;
        let (busy, idle): (&dyn Connection, &dyn Connection) = if is_one { (one, other) } else { (other, one) };
        busy.begin().await?;
        let (busy_session, idle_session) = (busy.session().await?, idle.session().await?);
        busy.end().await?;
        let sessions = if is_one { (busy_session, idle_session) } else { (idle_session, busy_session) };
        if sessions.0 == sessions.1 || *seen.get_or_insert(sessions) != sessions {
            return Err(Error::new(ErrorKind::Unsupported, "a pooler lends this connection's session to others in between")
                .with_store(store)
                .with_hint(
                    "Session locks need sessions of their own: connect to the server directly or to a pool in session mode, or \
                     use liveness=lease, which works through every pooler. If this is wrong: assume_direct=yes",
                ));
        }
    }
    Ok(())
}

const DOING: &str = "looking for a pooler";

impl Connection for Wire {
    fn begin(&self) -> BoxFuture<'_, Answer<()>> {
        Box::pin(async { self.client().batch_execute("BEGIN").await.map_err(|error| self.failed(error, DOING)) })
    }

    /// By the simple protocol, which every pooler understands.
    fn session(&self) -> BoxFuture<'_, Answer<u64>> {
        Box::pin(async {
            let said = self.client().simple_query("SELECT pg_backend_pid()").await;
            let said = said.map_err(|error| self.failed(error, DOING))?;
            let text = said.iter().find_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            });
            text.and_then(|text| text.parse().ok()).ok_or_else(|| garbled(DOING))
        })
    }

    fn end(&self) -> BoxFuture<'_, Answer<()>> {
        Box::pin(async { self.client().batch_execute("COMMIT").await.map_err(|error| self.failed(error, DOING)) })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;

    use super::*;

    /// A pooler with some sessions, which it lends for a transaction.
    struct Pooler {
        free: Mutex<VecDeque<u64>>,
        /// It lends the one that was idle longest, and not the one that came back last.
        in_turn: bool,
    }

    impl Pooler {
        fn lend(&self) -> u64 {
            let mut free = self.free.lock().unwrap();
            if self.in_turn { free.pop_front() } else { free.pop_back() }.expect("there are enough")
        }
    }

    struct Through<'a> {
        pooler: &'a Pooler,
        has: Mutex<Option<u64>>,
    }

    impl Connection for Through<'_> {
        fn begin(&self) -> BoxFuture<'_, Answer<()>> {
            *self.has.lock().unwrap() = Some(self.pooler.lend());
            Box::pin(async { Ok(()) })
        }

        fn session(&self) -> BoxFuture<'_, Answer<u64>> {
            let kept = *self.has.lock().unwrap();
            let session = kept.unwrap_or_else(|| {
                let lent = self.pooler.lend();
                self.pooler.free.lock().unwrap().push_back(lent);
                lent
            });
            Box::pin(async move { Ok(session) })
        }

        fn end(&self) -> BoxFuture<'_, Answer<()>> {
            let had = self.has.lock().unwrap().take().expect("it has begun");
            self.pooler.free.lock().unwrap().push_back(had);
            Box::pin(async { Ok(()) })
        }
    }

    /// A connection that is a session.
    struct Direct(u64);

    impl Connection for Direct {
        fn begin(&self) -> BoxFuture<'_, Answer<()>> {
            Box::pin(async { Ok(()) })
        }

        fn session(&self) -> BoxFuture<'_, Answer<u64>> {
            Box::pin(async { Ok(self.0) })
        }

        fn end(&self) -> BoxFuture<'_, Answer<()>> {
            Box::pin(async { Ok(()) })
        }
    }

    #[tokio::test]
    async fn whoever_lends_is_refused_however_many_it_has() {
        for (sessions, in_turn) in (2..6).flat_map(|sessions| [(sessions, false), (sessions, true)]) {
            let pooler = Pooler { free: Mutex::new((0..sessions).collect()), in_turn };
            let [one, other] = [(); 2].map(|()| Through { pooler: &pooler, has: Mutex::default() });
            let refused = refuse_lent(&one, &other, "there".to_owned()).await;
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported, "{sessions} sessions, in turn: {in_turn}");
        }
        refuse_lent(&Direct(1), &Direct(2), "there".to_owned()).await.unwrap();
        refuse_lent(&Direct(1), &Direct(1), "there".to_owned()).await.unwrap_err();
    }
}
