//! The contract, over a [`Desk`].

use std::sync::Arc;
use std::time::Duration;

use super::tries::Tries;
use super::{Answer, Desk, Inner};
use crate::backend::{Abilities, Backend, BoxFuture, Finding, async_trait, released};
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

#[async_trait]
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

    async fn acquire(&self, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        self.inner.acquire(claim, wait).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.inner.renew(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<()> {
        released(self.inner.end(claim, claim.min_hold).await?, claim, self.describe())
    }

    async fn downgrade(&self, claim: &Claim) -> Result<bool> {
        insist!(self, self.inner.desk.downgrade(claim)).map(|said| said.value)
    }

    async fn view(&self, name: &LockName) -> Result<View> {
        insist!(self, self.inner.desk.view(name)).map(|said| said.value)
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        insist!(self, self.inner.desk.list(prefix, after, limit)).map(|said| said.value)
    }

    async fn watch(&self, name: &LockName, seen: &View) -> Result<View> {
        loop {
            let view = self.view(name).await?;
            if !view.says_the_same_as(seen) {
                return Ok(view);
            }
            tokio::time::sleep(WATCH_EVERY).await;
        }
    }

    async fn ask(&self, name: &LockName, ask: &Ask) -> Result<usize> {
        self.once(move || self.inner.desk.request(name, ask)).await
    }

    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Result<usize> {
        self.once(move || self.inner.desk.break_holds(name, only)).await
    }

    async fn cell_get(&self, name: &LockName) -> Result<Versioned> {
        insist!(self, self.inner.desk.cell_get(name)).map(|said| said.value)
    }

    async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Result<Option<u64>> {
        self.once(move || self.inner.desk.cell_set(name, expected, value)).await
    }

    async fn probe(&self) -> Result<()> {
        insist!(self, self.inner.desk.probe()).map(|said| said.value)
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.inner.desk.examine().await
    }

    async fn close(&self) -> Result<()> {
        self.inner.leave().await
    }
}
