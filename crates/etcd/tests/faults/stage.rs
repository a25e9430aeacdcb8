//! What the faults happen to: a cluster, clients of it, and one member behind a proxy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Backend, Client, Environment, ErrorKind, Instant, Result};
use tenure_testkit::faults::{Crowd, Record};
use tenure_testkit::proxy::Proxy;
use tenure_testkit::servers::etcd::{Etcd, EtcdCluster};
use tenure_testkit::{Harness, eventually, eventually_async};

/// Longer than any test: whoever has it loses it by a fault, not by the machine's slowness.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A client of the cluster at this URL, with a keeper of its own.
pub(crate) async fn client(url: &str) -> Client {
    let backend = tenure_etcd::connect(&url.parse().unwrap()).await.expect("the cluster is there");
    Client::with_environment(backend, Environment::real()).unwrap()
}

/// A client that puts up with an election on a busy machine.
pub(crate) async fn patient(cluster: &EtcdCluster) -> Client {
    client(&format!("{}?answer_limit=20s", cluster.url())).await
}

/// A cluster, and a proxy in front of one of its members.
pub(crate) struct Stage {
    pub(crate) cluster: EtcdCluster,
    pub(crate) proxy: Proxy,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let cluster = EtcdCluster::start();
        let address: SocketAddr = cluster.member(0).address();
        Stage { proxy: Proxy::start(address), cluster }
    }

    /// A client that no fault of the network meets.
    pub(crate) async fn direct(&self) -> Client {
        patient(&self.cluster).await
    }

    /// A client that knows one member, and that only through the proxy. It has a lease for this ttl, and everything is connected.
    pub(crate) async fn proxied(&self, ttl: Duration) -> Client {
        let client = client(&format!("etcd://{}?answer_limit=12s", self.proxy.address())).await;
        lets_go(client.mutex("first").unwrap().ttl(ttl).unwrap().lock().await.unwrap().release().await);
        client
    }
}

/// How long a crowd is without a grant after something happened to its cluster: for longer than a waiter is kept in line unheard
/// it may lose its place.
pub(crate) async fn silence_after(crowd: &Crowd, record: &Record, happens: impl FnOnce()) -> Duration {
    let began = Instant::now();
    happens();
    crowd.has_had(record, 1).await;
    Instant::now().since(began)
}

/// How many leases a member has seen end that it did not end itself, as the leader does with those that nobody keeps alive.
pub(crate) fn ended_by_others(member: &Etcd) -> i64 {
    let of = |name| member.count(name) as i64;
    of("etcd_debugging_lease_revoked_total") - of("etcd_debugging_server_lease_expired_total")
}

/// The keys of a cluster, without the marks of ended claims.
pub(crate) fn residue(cluster: &EtcdCluster) -> Vec<String> {
    let keys = cluster.ctl(&["get", "--prefix", "--keys-only", "tenure/"]);
    keys.lines().filter(|key| !key.is_empty() && !key.contains("/ended/")).map(str::to_owned).collect()
}

/// How many claims are marked as ended.
pub(crate) fn marks(cluster: &EtcdCluster) -> usize {
    let keys = cluster.ctl(&["get", "--prefix", "--keys-only", "tenure/ended/"]);
    keys.lines().filter(|key| !key.is_empty()).count()
}

/// How many leases there are.
pub(crate) fn leases(cluster: &EtcdCluster) -> usize {
    cluster.ctl(&["lease", "list"]).lines().skip(1).count() // the first line says how many
}

/// Has `etcdctl` change something. It sends a write once only: one that an election has swallowed is made again, and one that was
/// done without an answer need not be.
pub(crate) async fn change(cluster: &EtcdCluster, args: &[&str]) {
    let is_done = || {
        let output = cluster.etcdctl(args).output().expect("etcdctl is there");
        let said = String::from_utf8_lossy(&output.stderr);
        output.status.success() || said.contains("lease not found") || said.contains("has been compacted")
    };
    eventually(&format!("etcdctl {}", args.join(" ")), is_done).await;
}

/// A hold that was handed over stands on a short lease at first: a machine that stands still for that long loses it, as it should.
pub(crate) fn lets_go(released: Result<()>) {
    if let Err(error) = released {
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
}

/// Waits until nothing is left but marks.
pub(crate) async fn leaves_nothing(cluster: &EtcdCluster, clients: impl IntoIterator<Item = Client>) {
    for client in clients {
        client.close().await.unwrap();
    }
    eventually("nothing is left", || residue(cluster).is_empty()).await;
}

/// Waits until so many wait for the name.
pub(crate) async fn line_is(client: &Client, name: &str, long: usize) {
    let what = format!("{long} wait for {name:?}");
    eventually_async(&what, async || client.view(name).await.is_ok_and(|view| view.line.len() == long)).await;
}

/// A cluster's URL as a store of the suite: what a second process opens.
pub(crate) struct Store;

impl Harness for Store {
    async fn start() -> Self {
        Store
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        unreachable!("it is only opened by its URL")
    }

    async fn residue(&self) -> usize {
        0
    }

    async fn open(url: &str) -> Result<Arc<dyn Backend>> {
        tenure_etcd::connect(&url.parse()?).await
    }
}
