//! The contract, over sessions.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Abilities, Backend, Finding, async_trait, released};
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
        let view = insist!(self, self.inner.server.view(name))?;
        // A server keeps nothing of a session that is over, so whoever holds is all that is known. Nobody was given 0: that is
        // a holder that shows nothing.
        let last = view.holders.iter().map(|holder| holder.token).filter(|token| *token > Token::new(0)).max();
        Ok(View { last, ..view })
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        insist!(self, self.inner.server.list(prefix, after, limit))
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
        self.once(move || self.inner.server.request(name, ask)).await
    }

    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Result<usize> {
        self.once(move || self.inner.server.break_holds(name, only)).await
    }

    async fn cell_get(&self, name: &LockName) -> Result<Versioned> {
        insist!(self, self.inner.server.cell_get(name))
    }

    async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Result<Option<u64>> {
        self.once(move || self.inner.server.cell_set(name, expected, value)).await
    }

    async fn probe(&self) -> Result<()> {
        insist!(self, self.inner.server.probe())
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.inner.server.examine().await
    }

    async fn close(&self) -> Result<()> {
        self.inner.leave().await
    }
}
