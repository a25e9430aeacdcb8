//! The contract, over a [`Server`].

use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Inner, Server, Session};
use crate::backend::{Abilities, Backend, BoxFuture, Finding};
use crate::keeper::News;
use crate::lease::Fate;
use crate::lease::tries::Tries;
use crate::{Ask, Claim, Grant, LockName, Renewal, Result, Token, Versioned, View, Wait};

/// How often a watcher looks: servers tell nobody who only watches.
const WATCH_EVERY: Duration = Duration::from_millis(75);

/// A store that is a [`Server`] with locks of its own, as a backend.
pub struct Sessions<S: Server> {
    inner: Arc<Inner<S>>,
}

impl<S: Server> Sessions<S> {
    /// A client of this server.
    pub fn new(server: S) -> Self {
        Sessions { inner: Inner::new(server) }
    }
}

impl<S: Server> std::fmt::Debug for Sessions<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sessions({})", self.inner.server.describe())
    }
}

impl<S: Server> Drop for Sessions<S> {
    fn drop(&mut self) {
        self.inner.bell.notify_one(); // the heart finds nobody to beat for
        self.inner.book().seats().for_each(|seat| seat.session.close());
    }
}

/// Tries a verb again that is the same when it is done twice.
macro_rules! insist {
    ($self:ident, $attempt:expr) => {{
        let mut tries = Tries::within($self.inner.server.limits().answer, $self.inner.server.describe());
        loop {
            match tries.limit($attempt).await {
                Ok(said) => break Ok(said),
                Err(failure) if tries.again(&failure).await => {}
                Err(failure) => break Err(failure.error),
            }
        }
    }};
}

impl<S: Server> Sessions<S> {
    /// A verb that is not the same when it is done twice: only what certainly was not executed is tried again.
    async fn once<'a, T>(&'a self, attempt: impl Fn() -> BoxFuture<'a, Answer<T>> + Send) -> Result<T> {
        let mut tries = Tries::within(self.inner.server.limits().answer, self.inner.server.describe());
        loop {
            match tries.limit(attempt()).await {
                Ok(said) => return Ok(said),
                Err(failure) if failure.fate == Fate::Refused && tries.again(&failure).await => {}
                Err(failure) => return Err(failure.error),
            }
        }
    }
}

impl<S: Server> Backend for Sessions<S> {
    fn abilities(&self) -> Abilities {
        self.inner.server.abilities()
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
        Box::pin(self.inner.end(claim))
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
        self.inner.server.examine()
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.inner.leave())
    }
}
