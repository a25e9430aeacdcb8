//! A node that can be cut off: before a request reaches it, or after it has done what was asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::Duration;

use tenure_core::backend::{Finding, async_trait};
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

#[async_trait]
impl Node for FlakyNode {
    async fn raise(&self, name: &LockName, at_least: Token) -> Result<Token> {
        self.through(async move {
            if self.is(Cut::Stubborn) {
                return Err(Error::new(ErrorKind::Unavailable, "refused, as this test wants it"));
            }
            self.inner.raise(name, at_least).await
        })
        .await
    }

    fn vote(&self) -> Result<()> {
        self.inner.vote()
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }
}

#[async_trait]
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

    async fn acquire(&self, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        self.through(self.inner.acquire(claim, wait)).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        match self.through(async { Ok(self.inner.renew(claims).await) }).await {
            Ok(answers) => answers,
            Err(_) => claims.iter().map(|_| Err(Error::new(ErrorKind::Unavailable, "refused"))).collect(),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<()> {
        self.through(self.inner.release(claim)).await
    }

    async fn downgrade(&self, claim: &Claim) -> Result<bool> {
        self.through(self.inner.downgrade(claim)).await
    }

    async fn view(&self, name: &LockName) -> Result<View> {
        self.through(self.inner.view(name)).await
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        self.through(self.inner.list(prefix, after, limit)).await
    }

    async fn watch(&self, name: &LockName, seen: &View) -> Result<View> {
        self.through(self.inner.watch(name, seen)).await
    }

    async fn ask(&self, name: &LockName, ask: &Ask) -> Result<usize> {
        self.through(self.inner.ask(name, ask)).await
    }

    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Result<usize> {
        self.through(self.inner.break_holds(name, only)).await
    }

    async fn cell_get(&self, name: &LockName) -> Result<Versioned> {
        self.inner.cell_get(name).await
    }

    async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Result<Option<u64>> {
        self.inner.cell_set(name, expected, value).await
    }

    async fn probe(&self) -> Result<()> {
        self.through(self.inner.probe()).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.through(self.inner.examine()).await
    }
}
