//! The contract, over a [`Desk`].

use std::sync::Arc;
use std::time::Duration;

use super::tries::Tries;
use super::{Answer, Desk, Inner};
use crate::backend::{Abilities, Backend, BoxFuture, Finding, released};
use crate::keeper::News;
use crate::{Ask, Claim, Grant, LockName, Renewal, Result, Token, Versioned, View, Wait};

/// How often a watcher looks: the server tells those who hold and wait, not those who only watch.
const WATCH_EVERY: Duration = Duration::from_millis(75);

/// A store that is a [`Desk`], as a backend.
pub struct Lease<D: Desk> {
    inner: Arc<Inner<D>>,
}

impl<D: Desk> Lease<D> {
    /// A client of the store behind this desk.
    pub fn new(desk: D) -> Self {
        Lease { inner: Inner::new(desk) }
    }

    /// The desk.
    pub fn desk(&self) -> &D {
        &self.inner.desk
    }
}

impl<D: Desk> std::fmt::Debug for Lease<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lease({})", self.inner.desk.describe())
    }
}

impl<D: Desk> Drop for Lease<D> {
    fn drop(&mut self) {
        self.inner.ear.bell.notify_one(); // the heart finds nobody to beat for
    }
}

/// Tries a verb again that is the same when it is done twice.
macro_rules! insist {
    ($self:ident, $attempt:expr) => {{
        let mut tries = Tries::of(&$self.inner.desk);
        loop {
            match tries.limit($attempt).await {
                Ok(said) => break Ok(said),
                Err(failure) if tries.again(&failure).await => {}
                Err(failure) => break Err(failure.error),
            }
        }
    }};
}

impl<D: Desk> Lease<D> {
    /// A verb that is not the same when it is done twice: only what certainly was not executed is tried again.
    async fn once<'a, T>(&'a self, attempt: impl Fn() -> BoxFuture<'a, Answer<T>> + Send) -> Result<T> {
        let mut tries = Tries::of(&self.inner.desk);
        loop {
            match tries.limit(attempt()).await {
                Ok(said) => return Ok(said.value),
                Err(failure) if failure.fate == super::Fate::Refused && tries.again(&failure).await => {}
                Err(failure) => return Err(failure.error),
            }
        }
    }
}

impl<D: Desk> Backend for Lease<D> {
    fn abilities(&self) -> Abilities {
        self.inner.desk.abilities()
    }

    fn describe(&self) -> String {
        self.inner.desk.describe()
    }

    fn attach(&self, news: News) {
        self.inner.ear.attach(news);
    }

    fn acquire<'a>(&'a self, claim: &'a Claim, wait: Wait) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(self.inner.acquire(claim, wait))
    }

    fn renew<'a>(&'a self, claims: &'a [Claim]) -> BoxFuture<'a, Vec<Result<Renewal>>> {
        Box::pin(self.inner.renew(claims))
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { released(self.inner.end(claim, claim.min_hold).await?, claim, self.describe()) })
    }

    fn downgrade<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move { insist!(self, self.inner.desk.downgrade(claim)).map(|said| said.value) })
    }

    fn view<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<View>> {
        Box::pin(async move { insist!(self, self.inner.desk.view(name)).map(|said| said.value) })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a LockName>, limit: usize) -> BoxFuture<'a, Result<Vec<View>>> {
        Box::pin(async move { insist!(self, self.inner.desk.list(prefix, after, limit)).map(|said| said.value) })
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
        Box::pin(self.once(move || self.inner.desk.request(name, ask)))
    }

    fn break_holds<'a>(&'a self, name: &'a LockName, only: Option<Token>) -> BoxFuture<'a, Result<usize>> {
        Box::pin(self.once(move || self.inner.desk.break_holds(name, only)))
    }

    fn cell_get<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Versioned>> {
        Box::pin(async move { insist!(self, self.inner.desk.cell_get(name)).map(|said| said.value) })
    }

    fn cell_set<'a>(
        &'a self,
        name: &'a LockName,
        expected: u64,
        value: Option<&'a [u8]>,
    ) -> BoxFuture<'a, Result<Option<u64>>> {
        Box::pin(self.once(move || self.inner.desk.cell_set(name, expected, value)))
    }

    fn probe(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { insist!(self, self.inner.desk.probe()).map(|said| said.value) })
    }

    fn examine(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
        self.inner.desk.examine()
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.inner.leave())
    }
}
