//! The suite every store must pass, over one cluster that all cases share, each case with a prefix of its own.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tenure_core::{Backend, Result};
use tenure_testkit::Harness;
use tenure_testkit::servers::etcd::{EtcdCluster, EtcdOptions};
use tokio::sync::{Mutex, OwnedMutexGuard};

/// A prefix that no other case has, in no other process either.
fn fresh_prefix() -> String {
    static CASES: AtomicU32 = AtomicU32::new(0);
    format!("case-{}-{}", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed))
}

/// The cases whose leases are counted. A lease does not say whose it is, so they have a cluster each to itself while it runs: the same,
/// one after the other.
const COUNTED: [&str; 5] = [
    "::residue::",
    "::cancel::",
    "::closing::",
    "::mutex::plain::leaves_nothing",
    "::mutex::plain::cancelled_at_any_poll_it_leaves_nothing",
];

/// Whether that is one of them; also where cases run on a thread without a name, which they do one after the other.
fn is_counted() -> bool {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("main");
    name == "main" || COUNTED.iter().any(|case| name.contains(case))
}

/// Three members, and a prefix.
struct Cluster {
    prefix: String,
    counted: Option<Counted>,
}

/// What a case whose leases are counted has.
struct Counted {
    members: OwnedMutexGuard<EtcdCluster>,
    /// What earlier cases have left that ended without closing their clients.
    leases_before: HashSet<String>,
}

impl Cluster {
    fn members(&self) -> &EtcdCluster {
        match &self.counted {
            Some(counted) => &counted.members,
            None => EtcdCluster::shared(),
        }
    }

    fn address(&self) -> String {
        // A machine that is busy with the rest of the suite may take longer over an answer than a network would.
        format!("{}?prefix={}&answer_limit=60s", self.members().url(), self.prefix)
    }
}

impl Harness for Cluster {
    async fn start() -> Self {
        static COUNTING: LazyLock<Arc<Mutex<EtcdCluster>>> = LazyLock::new(|| {
            // Nothing waits for its elections, so a machine that stands still for a moment need not cost one.
            let options = EtcdOptions::new().loopback().election(Duration::from_secs(1));
            Arc::new(Mutex::new(EtcdCluster::start_with(options)))
        });
        let mut counted = None;
        if is_counted() {
            let members = Arc::clone(&COUNTING).lock_owned().await;
            let leases_before = members.member(0).lease_ids();
            counted = Some(Counted { members, leases_before });
        }
        Cluster { prefix: fresh_prefix(), counted }
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Self::open(&self.address()).await.expect("the cluster is there")
    }

    /// All keys but the marks of ended claims, which go with the lease of their ask: tests of their own see that.
    async fn residue(&self) -> usize {
        let keys = |under: &str| self.members().member(0).versions(&format!("{}/{under}", self.prefix)).len();
        keys("").saturating_sub(keys("ended/"))
    }

    async fn leases(&self) -> usize {
        let Some(counted) = &self.counted else { return 0 };
        counted.members.member(0).lease_ids().difference(&counted.leases_before).count()
    }

    /// Whoever waits is put on a short lease a moment after it joined, which writes its key a second time.
    async fn is_settled(&self, name: &str) -> bool {
        let versions = self.members().member(0).versions(&format!("{}/lock/{name} ", self.prefix));
        versions.iter().skip(1).all(|version| *version != 1)
    }

    fn url(&self) -> Option<String> {
        Some(self.address())
    }

    async fn open(url: &str) -> Result<Arc<dyn Backend>> {
        tenure_etcd::connect(&url.parse()?).await
    }
}

tenure_testkit::conformance!(cluster => Cluster);
