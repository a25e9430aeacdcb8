//! The verbs of the contract, each one script.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Abilities, Backend, BoxFuture, Fencing, Finding, Liveness, Reach, Waiting, released};
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
        Box::pin(self.inner.downgrade(claim))
    }

    fn view<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<View>> {
        Box::pin(self.inner.view(name))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a LockName>, limit: usize) -> BoxFuture<'a, Result<Vec<View>>> {
        Box::pin(self.inner.list(prefix, after, limit))
    }

    fn watch<'a>(&'a self, name: &'a LockName, seen: &'a View) -> BoxFuture<'a, Result<View>> {
        Box::pin(async move {
            loop {
                let view = self.inner.view(name).await?;
                if !view.says_the_same_as(seen) {
                    return Ok(view);
                }
                tokio::time::sleep(WATCH_EVERY).await;
            }
        })
    }

    fn ask<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> BoxFuture<'a, Result<usize>> {
        Box::pin(self.inner.request(name, ask))
    }

    fn break_holds<'a>(&'a self, name: &'a LockName, only: Option<Token>) -> BoxFuture<'a, Result<usize>> {
        Box::pin(self.inner.break_holds(name, only))
    }

    fn cell_get<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Versioned>> {
        Box::pin(self.inner.cell_get(name))
    }

    fn cell_set<'a>(
        &'a self,
        name: &'a LockName,
        expected: u64,
        value: Option<&'a [u8]>,
    ) -> BoxFuture<'a, Result<Option<u64>>> {
        Box::pin(self.inner.cell_set(name, expected, value))
    }

    fn probe(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.inner.probe())
    }

    fn examine(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
        Box::pin(self.inner.examine())
    }
}

/// How often a watcher looks: scripts tell those who hold and wait, not those who only watch.
const WATCH_EVERY: Duration = Duration::from_millis(75);
