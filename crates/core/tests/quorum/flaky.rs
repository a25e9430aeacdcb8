//! A node that can be cut off: before a request reaches it, or after it has done what was asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::Duration;

use tenure_core::backend::{BoxFuture, Finding};
use tenure_core::memory::Memory;
use tenure_core::quorum::Node;
use tenure_core::{
    Abilities, Ask, Backend, Claim, Error, ErrorKind, Grant, LockName, News, Renewal, Result, Token, Versioned, View, Wait,
};

/// How a node is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cut {
    /// Not at all.
    No,
    /// Requests fail at once.
    Down,
    /// Requests get lost, and nobody says so.
    Silent,
    /// Requests arrive, answers do not.
    Deaf,
    /// Does everything but take over a token.
    Stubborn,
    /// Requests arrive once this is over.
    Slow,
}

/// One memory store, and its switch.
#[derive(Clone)]
pub(crate) struct Flaky {
    pub(crate) store: Memory,
    switch: Arc<AtomicU8>,
}

impl Flaky {
    pub(crate) fn new() -> Self {
        Flaky { store: Memory::new(), switch: Arc::default() }
    }

    /// The same store over another network.
    pub(crate) fn seen_from_elsewhere(&self) -> Self {
        Flaky { store: self.store.clone(), switch: Arc::default() }
    }

    pub(crate) fn cut(&self, how: Cut) {
        self.switch.store(how as u8, SeqCst);
    }

    pub(crate) fn node(&self) -> Arc<dyn Node> {
        Arc::new(FlakyNode { inner: self.store.node(), switch: Arc::clone(&self.switch) })
    }
}

struct FlakyNode {
    inner: Arc<dyn Node>,
    switch: Arc<AtomicU8>,
}

impl FlakyNode {
    fn is(&self, how: Cut) -> bool {
        self.switch.load(SeqCst) == how as u8
    }

    /// The request on its way there and back.
    async fn through<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        if self.is(Cut::Down) {
            return Err(Error::new(ErrorKind::Unavailable, "refused, as this test wants it"));
        }
        if self.is(Cut::Silent) {
            std::future::pending::<()>().await;
        }
        while self.is(Cut::Slow) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let answer = request.await;
        if self.is(Cut::Deaf) {
            std::future::pending::<()>().await;
        }
        answer
    }
}

impl Node for FlakyNode {
    fn raise<'a>(&'a self, name: &'a LockName, at_least: Token) -> BoxFuture<'a, Result<Token>> {
        Box::pin(self.through(async move {
            if self.is(Cut::Stubborn) {
                return Err(Error::new(ErrorKind::Unavailable, "refused, as this test wants it"));
            }
            self.inner.raise(name, at_least).await
        }))
    }

    fn vote(&self) -> Result<()> {
        self.inner.vote()
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }
}

impl Backend for FlakyNode {
    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn describe(&self) -> String {
        self.inner.identity()
    }

    fn attach(&self, news: News) {
        self.inner.attach(news);
    }

    fn acquire<'a>(&'a self, claim: &'a Claim, wait: Wait) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(self.through(self.inner.acquire(claim, wait)))
    }

    fn renew<'a>(&'a self, claims: &'a [Claim]) -> BoxFuture<'a, Vec<Result<Renewal>>> {
        Box::pin(async move {
            match self.through(async { Ok(self.inner.renew(claims).await) }).await {
                Ok(answers) => answers,
                Err(_) => claims.iter().map(|_| Err(Error::new(ErrorKind::Unavailable, "refused"))).collect(),
            }
        })
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.through(self.inner.release(claim)))
    }

    fn downgrade<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<bool>> {
        Box::pin(self.through(self.inner.downgrade(claim)))
    }

    fn view<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<View>> {
        Box::pin(self.through(self.inner.view(name)))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a LockName>, limit: usize) -> BoxFuture<'a, Result<Vec<View>>> {
        Box::pin(self.through(self.inner.list(prefix, after, limit)))
    }

    fn watch<'a>(&'a self, name: &'a LockName, seen: &'a View) -> BoxFuture<'a, Result<View>> {
        Box::pin(self.through(self.inner.watch(name, seen)))
    }

    fn ask<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> BoxFuture<'a, Result<usize>> {
        Box::pin(self.through(self.inner.ask(name, ask)))
    }

    fn break_holds<'a>(&'a self, name: &'a LockName, only: Option<Token>) -> BoxFuture<'a, Result<usize>> {
        Box::pin(self.through(self.inner.break_holds(name, only)))
    }

    fn cell_get<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Versioned>> {
        self.inner.cell_get(name)
    }

    fn cell_set<'a>(
        &'a self,
        name: &'a LockName,
        expected: u64,
        value: Option<&'a [u8]>,
    ) -> BoxFuture<'a, Result<Option<u64>>> {
        self.inner.cell_set(name, expected, value)
    }

    fn probe(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.through(self.inner.probe()))
    }

    fn examine(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
        Box::pin(self.through(self.inner.examine()))
    }
}
