//! The verbs of the contract, and the thread that sessions live on.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Abilities, Backend, Fencing, Finding, Liveness, Reach, Waiting, async_trait, released};
use tenure_core::{
    Ask, Claim, DEFAULT_TTL, Error, ErrorKind, Grant, Kind, LockName, MIN_TTL, News, Renewal, Result, Token, Versioned,
    View, Wait,
};
use tokio::sync::oneshot;

use crate::ask::kinds;
use crate::config::Settings;
use crate::inner::Inner;
use crate::layout::Layout;
use crate::session::Session;
use crate::tidy;
use crate::wire::Request;

/// What this store does.
pub const ABILITIES: Abilities = Abilities {
    store: "zookeeper",
    kinds: &Kind::ALL,
    fencing: Fencing::Data,
    waiting: Waiting::Notified,
    liveness: Liveness::Session,
    reach: Reach::Network,
    cells: true,
    delays: false,
    downgrade: true,
    shortest_ttl: MIN_TTL,
};

/// How long the sessions of a client that is gone may take to say farewell.
const FAREWELL: Duration = Duration::from_secs(2);

/// A client's end of a ZooKeeper ensemble.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// use tenure_core::Client;
/// use tenure_zookeeper::{Settings, ZooKeeper};
/// let settings = Settings::from_url(&"zk://zk1,zk2,zk3".parse()?)?;
/// let client = Client::new(ZooKeeper::connect(settings).await?)?;
/// let guard = client.mutex("invoices")?.lock().await?;
/// // … only one of us is here …
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub struct ZooKeeper {
    inner: Arc<Inner>,
    /// Dropped with this, which ends the thread.
    _stop: oneshot::Sender<()>,
}

impl std::fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ZooKeeper({})", self.describe())
    }
}

impl ZooKeeper {
    /// Connects: opens a session with whichever member answers.
    ///
    /// # Cancel safety
    /// Dropped before it completes, nothing is left.
    pub async fn connect(settings: Settings) -> Result<Self> {
        settings.check()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(not_started)?;
        let inner = Inner::new(settings, runtime.handle().clone());
        let (_stop, stopped) = oneshot::channel();
        let shared = Arc::clone(&inner);
        let living = async move {
            tokio::spawn(tidy::tidy(Arc::downgrade(&shared)));
            let _ = stopped.await;
            let _ = tokio::time::timeout(FAREWELL, all_over(shared.close_all())).await;
        };
        // A thread of its own: a session must be kept though every thread of the user's is busy, and whatever ends there.
        let thread = std::thread::Builder::new().name("tenure-zookeeper".to_owned());
        thread.spawn(move || runtime.block_on(living)).map_err(not_started)?;
        let store = ZooKeeper { inner, _stop };
        drop(store.inner.session(DEFAULT_TTL).await?); // most locks have this ttl
        Ok(store)
    }
}

async fn all_over(sessions: Vec<Arc<Session>>) {
    for session in sessions {
        session.over().await;
    }
}

fn not_started(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Backend, "the thread of the ZooKeeper sessions could not be started")
        .with_source(error)
        .with_hint("Look at the process's limits on threads and open files")
}

#[async_trait]
impl Backend for ZooKeeper {
    fn abilities(&self) -> Abilities {
        let layout = self.inner.settings.layout;
        Abilities { kinds: kinds(layout), cells: layout == Layout::Tenure, ..ABILITIES }
    }

    fn describe(&self) -> String {
        self.inner.settings.describe()
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
        self.inner.view(name).await
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        self.inner.list_names(prefix, after, limit).await
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

    /// One write: a grant is one, and a release is another.
    async fn probe(&self) -> Result<()> {
        self.inner.once(Request::Delete { path: self.inner.settings.proof(), version: -1 }).await.map(drop)
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.inner.examine().await
    }

    async fn close(&self) -> Result<()> {
        self.inner.tidy_names(Duration::ZERO).await;
        self.inner.close_idle(Duration::ZERO);
        Ok(())
    }
}
