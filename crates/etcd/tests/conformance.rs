//! The suite every store must pass, over a cluster that all cases share, each case with a prefix of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure_core::{Backend, Result};
use tenure_testkit::Harness;
use tenure_testkit::servers::etcd::EtcdCluster;

/// A prefix that no other case has, in no other process either.
fn fresh_prefix() -> String {
    static CASES: AtomicU32 = AtomicU32::new(0);
    format!("case-{}-{}", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed))
}

/// Three members, and a prefix.
struct Cluster {
    prefix: String,
}

impl Cluster {
    fn address(&self) -> String {
        // A machine that is busy with the rest of the suite may take longer over an answer than a network would.
        format!("{}?prefix={}&answer_limit=60s", EtcdCluster::shared().url(), self.prefix)
    }
}

impl Harness for Cluster {
    async fn start() -> Self {
        Cluster { prefix: fresh_prefix() }
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Self::open(&self.address()).await.expect("the cluster is there")
    }

    /// All keys but the marks of ended claims, which go with the lease of their ask: tests of their own see that.
    async fn residue(&self) -> usize {
        let keys = EtcdCluster::shared().ctl(&["get", "--prefix", "--keys-only", &format!("{}/", self.prefix)]);
        keys.lines().filter(|key| !key.is_empty() && !key.contains("/ended/")).count()
    }

    /// Whoever waits is put on a short lease a moment after it joined, which writes its key a second time.
    async fn is_settled(&self, name: &str) -> bool {
        let prefix = format!("{}/lock/{name} ", self.prefix);
        let keys = EtcdCluster::shared().ctl(&["get", "--prefix", "--sort-by", "CREATE", "-w", "fields", &prefix]);
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
