//! The verbs of the contract.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Abilities, Backend, BoxFuture, Fencing, Finding, Liveness, Reach, Waiting, released};
use tenure_core::{
    Ask, Claim, Error, ErrorKind, Grant, Kind, LockName, News, Renewal, Result, Sequencer, Standing, Token, Versioned, View,
    Wait,
};

use crate::config::{Layout, Settings};
use crate::inner::Inner;

/// What this store does in its own layout. In that of etcd's own recipe it does less: [`CONCURRENCY_ABILITIES`].
pub const ABILITIES: Abilities = Abilities {
    store: "etcd",
    kinds: &Kind::ALL,
    fencing: Fencing::Data,
    waiting: Waiting::Notified,
    liveness: Liveness::Lease,
    reach: Reach::Network,
    cells: true,
    delays: true,
    downgrade: true,
    shortest_ttl: SHORTEST_TTL,
};

/// What it does with `layout=concurrency`: a mutex, as `etcdctl lock` has it.
pub const CONCURRENCY_ABILITIES: Abilities = Abilities { kinds: &[Kind::Mutex], downgrade: false, ..ABILITIES };

/// What a cluster with etcd's defaults grants at least: a lease outlives an election.
const SHORTEST_TTL: Duration = Duration::from_secs(2);

/// A client's end of an etcd cluster.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// use tenure_core::Client;
/// use tenure_etcd::{Etcd, Settings};
/// let settings = Settings::from_url(&"etcd://host1,host2,host3".parse()?)?;
/// let client = Client::new(Etcd::connect(settings).await?)?;
/// let guard = client.mutex("invoices")?.lock().await?;
/// // … only one of us is here …
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub struct Etcd {
    pub(crate) inner: Arc<Inner>,
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Etcd({})", self.describe())
    }
}

impl Etcd {
    /// Connects, and looks whether the cluster can do what is needed.
    ///
    /// # Cancel safety
    /// Dropped before it completes, nothing is left.
    pub async fn connect(settings: Settings) -> Result<Self> {
        let etcd = Etcd { inner: Inner::new(settings)? };
        etcd.inner.reach().await?;
        Ok(etcd)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.inner.bell.notify_one(); // its tasks find nobody to work for
        self.inner.ear.bell.notify_one();
    }
}

impl Backend for Etcd {
    fn abilities(&self) -> Abilities {
        match self.inner.settings.layout {
            Layout::Tenure => ABILITIES,
            Layout::Concurrency => CONCURRENCY_ABILITIES,
        }
    }

    fn describe(&self) -> String {
        self.inner.settings.describe()
    }

    fn attach(&self, news: News) {
        self.inner.attach(news);
    }

    fn acquire<'a>(&'a self, claim: &'a Claim, wait: Wait) -> BoxFuture<'a, Result<Option<Grant>>> {
        Box::pin(async move {
            if self.inner.settings.layout == Layout::Concurrency && claim.kind != Kind::Mutex {
                return Err(Error::new(ErrorKind::Unsupported, "this layout has nothing but mutexes"));
            }
            self.inner.acquire(claim, wait).await
        })
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

    fn check<'a>(&'a self, sequencer: &'a Sequencer) -> BoxFuture<'a, Result<Standing>> {
        Box::pin(self.inner.check(sequencer))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a LockName>, limit: usize) -> BoxFuture<'a, Result<Vec<View>>> {
        Box::pin(self.inner.list(prefix, after, limit))
    }

    fn watch<'a>(&'a self, name: &'a LockName, seen: &'a View) -> BoxFuture<'a, Result<View>> {
        Box::pin(self.inner.watch(name, seen))
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

    /// A put and a delete in turns: what acquire and release could cost at the least.
    fn probe(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.inner.probe())
    }

    fn examine(&self) -> BoxFuture<'_, Result<Vec<Finding>>> {
        Box::pin(self.inner.examine())
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.inner.close())
    }
}
