//! The contract, over sessions.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Abilities, Backend, BoxFuture, Finding, released};
use tenure_core::lease::{Fate, Tries};
use tenure_core::{Ask, Claim, Grant, LockName, News, Renewal, Result, Token, Versioned, View, Wait};

use super::server::PostgresServer;
use super::{Answer, Inner, SESSION_ABILITIES};

/// How often a watcher looks: servers tell nobody who only watches.
const WATCH_EVERY: Duration = Duration::from_millis(75);

/// The server's own locks, as a backend.
pub(super) struct Sessions {
    inner: Arc<Inner>,
}

impl Sessions {
    /// A client of this server.
    pub(super) fn new(server: PostgresServer) -> Self {
        Sessions { inner: Inner::new(server) }
    }
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sessions({})", self.inner.server.describe())
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.inner.bell.notify_one(); // the heart finds nobody to beat for
        self.inner.book().seats().for_each(|seat| seat.session.close());
    }
}

/// Tries a verb again that is the same when it is done twice.
macro_rules! insist {
    ($self:ident, $attempt:expr) => {{
        let mut tries = Tries::within($self.inner.answer_limit(), $self.inner.server.describe());
        loop {
            match tries.limit($attempt).await {
                Ok(said) => break Ok(said),
                Err(failure) if tries.again(&failure).await => {}
                Err(failure) => break Err(failure.error),
            }
        }
    }};
}

impl Sessions {
    /// A verb that is not the same when it is done twice: only what certainly was not executed is tried again.
    async fn once<T, F: Future<Output = Answer<T>>>(&self, attempt: impl Fn() -> F) -> Result<T> {
        let mut tries = Tries::within(self.inner.answer_limit(), self.inner.server.describe());
        loop {
            match tries.limit(attempt()).await {
                Ok(said) => return Ok(said),
                Err(failure) if failure.fate == Fate::Refused && tries.again(&failure).await => {}
                Err(failure) => return Err(failure.error),
            }
        }
    }
}

impl Backend for Sessions {
    fn abilities(&self) -> Abilities {
        SESSION_ABILITIES
    }

    fn describe(&self) -> String {
        self.inner.server.describe()
    }

    fn attach(&self, news: News) {
        let _ = self.inner.news.set(news);
    }

    fn acquire<'a>(&'a self, claim: &'a Claim, wait: Wait) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(self.inner.acquire(claim, wait))
    }

    fn renew<'a>(&'a self, claims: &'a [Claim]) -> BoxFuture<'a, Vec<Result<Renewal>>> {
        Box::pin(self.inner.renew(claims))
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { released(self.inner.end(claim).await?, claim, self.describe()) })
    }

    fn downgrade<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<bool>> {
        Box::pin(self.inner.downgrade(claim))
    }

    fn view<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<View>> {
        Box::pin(async move {
            let view = insist!(self, self.inner.server.view(name))?;
            // A server keeps nothing of a session that is over, so whoever holds is all that is known. Nobody was given 0: that is
            // a holder that shows nothing.
            let last = view.holders.iter().map(|holder| holder.token).filter(|token| *token > Token::new(0)).max();
            Ok(View { last, ..view })
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a LockName>, limit: usize) -> BoxFuture<'a, Result<Vec<View>>> {
        Box::pin(async move { insist!(self, self.inner.server.list(prefix, after, limit)) })
    }

    fn watch<'a>(&'a self, name: &'a LockName, seen: &'a View) -> BoxFuture<'a, Result<View>> {
        Box::pin(async move {
            loop {
                let view = self.view(name).await?;
                if !view.says_the_same_as(seen) {
                    return Ok(view);
                }
                tokio::time::sleep(WATCH_EVERY).await;
            }
        })
    }

    fn ask<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> BoxFuture<'a, Result<usize>> {
        Box::pin(self.once(move || self.inner.server.request(name, ask)))
    }

    fn break_holds<'a>(&'a self, name: &'a LockName, only: Option<Token>) -> BoxFuture<'a, Result<usize>> {
        Box::pin(self.once(move || self.inner.server.break_holds(name, only)))
    }

    fn cell_get<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Versioned>> {
        Box::pin(async move { insist!(self, self.inner.server.cell_get(name)) })
    }

    fn cell_set<'a>(
        &'a self,
        name: &'a LockName,
        expected: u64,
        value: Option<&'a [u8]>,
    ) -> BoxFuture<'a, Result<Option<u64>>> {
        Box::pin(self.once(move || self.inner.server.cell_set(name, expected, value)))
    }

    fn probe(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { insist!(self, self.inner.server.probe()) })
    }

    fn examine(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
        Box::pin(self.inner.server.examine())
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.inner.leave())
    }
}
