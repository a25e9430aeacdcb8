//! The verbs of the contract.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Abilities, Backend, Fencing, Finding, Liveness, Reach, Waiting, async_trait, released};
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

#[async_trait]
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

    async fn acquire(&self, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        if self.inner.settings.layout == Layout::Concurrency && claim.kind != Kind::Mutex {
            return Err(Error::new(ErrorKind::Unsupported, "this layout has nothing but mutexes"));
        }
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

    async fn check(&self, sequencer: &Sequencer) -> Result<Standing> {
        self.inner.check(sequencer).await
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        self.inner.list(prefix, after, limit).await
    }

    async fn watch(&self, name: &LockName, seen: &View) -> Result<View> {
        self.inner.watch(name, seen).await
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

    /// A put and a delete in turns: what acquire and release could cost at the least.
    async fn probe(&self) -> Result<()> {
        self.inner.probe().await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.inner.examine().await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}
