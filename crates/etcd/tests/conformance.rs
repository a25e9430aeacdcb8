//! The suite every store must pass, over clusters that cases use one after the other, each case with a prefix of its own.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::{Backend, Result};
use tenure_testkit::Harness;
use tenure_testkit::servers::etcd::{EtcdCluster, EtcdOptions};

/// A prefix that no other case has, in no other process either.
fn fresh_prefix() -> String {
    static CASES: AtomicU32 = AtomicU32::new(0);
    format!("case-{}-{}", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed))
}

/// Three members, and a prefix. Cases that run at the same time have different clusters, since a lease does not say whose it is.
struct Cluster {
    /// There until it is given back.
    members: Option<EtcdCluster>,
    prefix: String,
    /// What earlier cases have left that ended without closing their clients.
    leases_before: HashSet<String>,
}

/// Clusters that no case uses now.
fn idle() -> MutexGuard<'static, Vec<EtcdCluster>> {
    static IDLE: Mutex<Vec<EtcdCluster>> = Mutex::new(Vec::new());
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    fn members(&self) -> &EtcdCluster {
        self.members.as_ref().expect("the case goes on")
    }

    fn address(&self) -> String {
        // A machine that is busy with the rest of the suite may take longer over an answer than a network would.
        format!("{}?prefix={}&answer_limit=60s", self.members().url(), self.prefix)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        idle().extend(self.members.take());
    }
}

/// The ids of all leases: the first line says how many there are.
fn lease_ids(members: &EtcdCluster) -> HashSet<String> {
    members.ctl(&["lease", "list"]).lines().skip(1).map(str::to_owned).collect()
}

impl Harness for Cluster {
    async fn start() -> Self {
        let is_idle = idle().pop();
        let members = is_idle.unwrap_or_else(|| {
            // Nothing waits for its elections, so a machine that stands still for a moment need not cost one.
            EtcdCluster::start_with(EtcdOptions::new().loopback().election(Duration::from_secs(1)))
        });
        let leases_before = lease_ids(&members);
        Cluster { members: Some(members), prefix: fresh_prefix(), leases_before }
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Self::open(&self.address()).await.expect("the cluster is there")
    }

    /// All keys but the marks of ended claims, which go with the lease of their ask: tests of their own see that.
    async fn residue(&self) -> usize {
        let keys = self.members().ctl(&["get", "--prefix", "--keys-only", &format!("{}/", self.prefix)]);
        keys.lines().filter(|key| !key.is_empty() && !key.contains("/ended/")).count()
    }

    async fn leases(&self) -> usize {
        lease_ids(self.members()).difference(&self.leases_before).count()
    }

    /// Whoever waits is put on a short lease a moment after it joined, which writes its key a second time.
    async fn is_settled(&self, name: &str) -> bool {
        let prefix = format!("{}/lock/{name} ", self.prefix);
        let keys = self.members().ctl(&["get", "--prefix", "--sort-by", "CREATE", "-w", "fields", &prefix]);
        let versions = keys.lines().filter_map(|line| line.strip_prefix("\"Version\" : "));
        versions.skip(1).all(|version| version != "1")
    }

    fn url(&self) -> Option<String> {
        Some(self.address())
    }

    async fn open(url: &str) -> Result<Arc<dyn Backend>> {
        tenure_etcd::connect(&url.parse()?).await
    }
}

tenure_testkit::conformance!(cluster => Cluster);
