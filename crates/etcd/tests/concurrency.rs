//! What the layout of etcd's own recipe has passes the suite, too. Its keys are the locks' names, so cases that run at the same time have
//! different servers.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::{Backend, Client, Environment, Result};
use tenure_testkit::Harness;
use tenure_testkit::servers::etcd::{Etcd, EtcdCluster, EtcdOptions};

/// Servers that no case uses now.
fn idle() -> MutexGuard<'static, Vec<Etcd>> {
    static IDLE: Mutex<Vec<Etcd>> = Mutex::new(Vec::new());
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Recipe {
    /// There until it is given back.
    server: Option<Etcd>,
    prefix: String,
    /// What earlier cases have left that ended without closing their clients.
    leases_before: HashSet<String>,
}

impl Recipe {
    fn server(&self) -> &Etcd {
        self.server.as_ref().expect("the case goes on")
    }

    fn address(&self) -> String {
        format!("{}?layout=concurrency&prefix={}&answer_limit=60s", self.server().url(), self.prefix)
    }
}

impl Drop for Recipe {
    fn drop(&mut self) {
        idle().extend(self.server.take());
    }
}

impl Harness for Recipe {
    async fn start() -> Self {
        static CASES: AtomicU32 = AtomicU32::new(0);
        let is_idle = idle().pop();
        let server = is_idle.unwrap_or_else(|| Etcd::start(EtcdOptions::new()));
        server.clear(); // what a process had that was killed stays for its ttl
        let leases_before = server.lease_ids();
        Recipe { server: Some(server), prefix: format!("case-{}", CASES.fetch_add(1, Ordering::Relaxed)), leases_before }
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Self::open(&self.address()).await.expect("the server is there")
    }

    /// All keys but the marks of ended claims.
    async fn residue(&self) -> usize {
        let marks = self.server().versions(&format!("{}/ended/", self.prefix)).len();
        self.server().count_keys().saturating_sub(marks)
    }

    async fn leases(&self) -> usize {
        self.server().lease_ids().difference(&self.leases_before).count()
    }

    /// A lock named `a` waits for one named `a/b`, as in that recipe.
    fn names(&self) -> Vec<String> {
        let all = tenure_testkit::names::corpus();
        let is_within =
            |name: &&String, other: &&String| other.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('/'));
        all.iter().filter(|name| !all.iter().any(|other| is_within(name, &other))).cloned().collect()
    }

    fn url(&self) -> Option<String> {
        Some(self.address())
    }

    async fn open(url: &str) -> Result<Arc<dyn Backend>> {
        tenure_etcd::connect(&url.parse()?).await
    }
}

tenure_testkit::conformance!(recipe => Recipe);

/// The names that the suite leaves out here: they are in one line, as `etcdctl lock` has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_waits_for_what_is_within_it() {
    let url = format!("{}?layout=concurrency&answer_limit=60s", EtcdCluster::shared().url());
    let backend = tenure_etcd::connect(&url.parse().unwrap()).await.unwrap();
    let client = Client::with_environment(backend, Environment::real()).unwrap();
    let (outer, within) = (client.mutex("within").unwrap(), client.mutex("within/it").unwrap());
    let held = within.lock().await.unwrap();
    assert!(outer.try_lock().await.unwrap().is_none());
    held.release().await.unwrap();
    let held = outer.try_lock().await.unwrap().expect("nobody is within it");
    within.try_lock().await.unwrap().expect("what is around it is nothing to it").release().await.unwrap();
    held.release().await.unwrap();
}
