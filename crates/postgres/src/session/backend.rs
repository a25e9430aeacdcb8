//! The contract, over sessions.

use std::sync::Arc;

use tenure_core::backend::{Abilities, Backend, Finding, async_trait, released};
use tenure_core::lease::Tries;
use tenure_core::{Ask, Claim, Grant, LockName, News, Renewal, Result, Token, Versioned, View, Wait};

use super::server::PostgresServer;
use super::{Inner, SESSION_ABILITIES};

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

impl Sessions {
    fn tries(&self) -> Tries {
        Tries::within(self.inner.answer_limit(), self.inner.server.describe())
    }
}

#[async_trait]
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

    async fn acquire(&self, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        self.inner.acquire(claim, wait).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        self.inner.renew(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<()> {
        released(self.inner.end(claim).await?, claim, self.describe())
    }

    async fn downgrade(&self, claim: &Claim) -> Result<bool> {
        self.inner.downgrade(claim).await
    }

    async fn view(&self, name: &LockName) -> Result<View> {
        let view = self.tries().insist(|| self.inner.server.view(name)).await?;
        // A server keeps nothing of a session that is over, so whoever holds is all that is known. Nobody was given 0: that is
        // a holder that shows nothing.
        let last = view.holders.iter().map(|holder| holder.token).filter(|token| *token > Token::new(0)).max();
        Ok(View { last, ..view })
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        self.tries().insist(|| self.inner.server.list(prefix, after, limit)).await
    }

    async fn ask(&self, name: &LockName, ask: &Ask) -> Result<usize> {
        self.tries().once(|| self.inner.server.request(name, ask)).await
    }

    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Result<usize> {
        self.tries().once(|| self.inner.server.break_holds(name, only)).await
    }

    async fn cell_get(&self, name: &LockName) -> Result<Versioned> {
        self.tries().insist(|| self.inner.server.cell_get(name)).await
    }

    async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Result<Option<u64>> {
        self.tries().once(|| self.inner.server.cell_set(name, expected, value)).await
    }

    async fn probe(&self) -> Result<()> {
        self.tries().insist(|| self.inner.server.probe()).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.inner.server.examine().await
    }

    async fn close(&self) -> Result<()> {
        self.inner.leave().await
    }
}
