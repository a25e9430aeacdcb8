//! The verbs of the contract, each one script.

use std::sync::Arc;

use tenure_core::backend::{Abilities, Backend, Fencing, Finding, Liveness, Reach, Waiting, async_trait, released};
use tenure_core::{Ask, Claim, Grant, Kind, LockName, MIN_TTL, News, Renewal, Result, Token, Versioned, View, Wait};

use crate::config::Settings;
use crate::inner::Inner;

/// What this store does, on one server, behind sentinels and in a cluster. Over Redlock it does less.
pub const ABILITIES: Abilities = Abilities {
    store: "redis",
    kinds: &Kind::ALL,
    fencing: Fencing::DataOrClock,
    waiting: Waiting::Notified,
    liveness: Liveness::Lease,
    reach: Reach::Network,
    cells: true,
    delays: true,
    downgrade: true,
    shortest_ttl: MIN_TTL,
};

/// A client's end of a Redis: a single server, a master that sentinels watch over, or a cluster.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// use tenure_core::Client;
/// use tenure_redis::{Redis, Settings};
/// let settings = Settings::from_url(&"redis://localhost".parse()?)?;
/// let client = Client::new(Redis::connect(settings).await?)?;
/// let guard = client.mutex("invoices")?.lock().await?;
/// // … only one of us is here …
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub struct Redis {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redis({})", self.describe())
    }
}

impl Redis {
    /// Connects, and looks whether the server can do what is needed.
    ///
    /// # Cancel safety
    /// Dropped before it completes, nothing is left.
    pub async fn connect(settings: Settings) -> Result<Self> {
        let redis = Redis { inner: Inner::new(settings)? };
        redis.inner.reach().await?;
        Ok(redis)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.inner.ear.bell.notify_one(); // the heart finds nobody to beat for
    }
}

#[async_trait]
impl Backend for Redis {
    fn abilities(&self) -> Abilities {
        ABILITIES
    }

    fn describe(&self) -> String {
        self.inner.fleet.settings.describe()
    }

    fn attach(&self, news: News) {
        let _ = self.inner.ear.news.set(news);
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
        self.inner.downgrade(claim).await
    }

    async fn view(&self, name: &LockName) -> Result<View> {
        self.inner.view(name).await
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        self.inner.list(prefix, after, limit).await
    }

    async fn ask(&self, name: &LockName, ask: &Ask) -> Result<usize> {
        self.inner.request(name, ask).await
    }

    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Result<usize> {
        self.inner.break_holds(name, only).await
    }

    async fn cell_get(&self, name: &LockName) -> Result<Versioned> {
        self.inner.cell_get(name).await
    }

    async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Result<Option<u64>> {
        self.inner.cell_set(name, expected, value).await
    }

    async fn probe(&self) -> Result<()> {
        self.inner.probe().await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.inner.examine().await
    }
}
