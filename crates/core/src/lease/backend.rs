//! The contract, over a [`Desk`].

use std::sync::Arc;

use super::tries::Tries;
use super::{Desk, Inner};
use crate::backend::{Abilities, Backend, Finding, async_trait, released};
use crate::keeper::News;
use crate::{Ask, Claim, Grant, LockName, Renewal, Result, Token, Versioned, View, Wait};

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

impl<D: Desk> Lease<D> {
    fn tries(&self) -> Tries {
        Tries::of(&self.inner.desk)
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
        Ok(self.tries().insist(|| self.inner.desk.downgrade(claim)).await?.value)
    }

    async fn view(&self, name: &LockName) -> Result<View> {
        Ok(self.tries().insist(|| self.inner.desk.view(name)).await?.value)
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        Ok(self.tries().insist(|| self.inner.desk.list(prefix, after, limit)).await?.value)
    }

    async fn ask(&self, name: &LockName, ask: &Ask) -> Result<usize> {
        Ok(self.tries().once(|| self.inner.desk.request(name, ask)).await?.value)
    }

    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Result<usize> {
        Ok(self.tries().once(|| self.inner.desk.break_holds(name, only)).await?.value)
    }

    async fn cell_get(&self, name: &LockName) -> Result<Versioned> {
        Ok(self.tries().insist(|| self.inner.desk.cell_get(name)).await?.value)
    }

    async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Result<Option<u64>> {
        Ok(self.tries().once(|| self.inner.desk.cell_set(name, expected, value)).await?.value)
    }

    async fn probe(&self) -> Result<()> {
        self.tries().insist(|| self.inner.desk.probe()).await?;
        Ok(())
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.inner.desk.examine().await
    }

    async fn close(&self) -> Result<()> {
        self.inner.leave().await
    }
}
