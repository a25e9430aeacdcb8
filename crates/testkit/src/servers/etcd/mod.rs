//! etcd: one member, and clusters whose members can be killed, paused and cut off.

mod cluster;
mod ctl;
mod options;

pub use super::ClientCertificate;
pub use cluster::EtcdCluster;
pub use options::EtcdOptions;

use std::collections::HashSet;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::Certificates;
use super::probe::{http_get, http_post};
use super::process::{Program, Server};
use super::site::{Spot, tempdir_in_memory};

/// One running member. Ends when dropped.
pub struct Etcd {
    server: Server,
    spot: Spot<3>,
    options: EtcdOptions,
    certificates: Option<Certificates>,
}

/// The ports of a member: for clients, for the other members, and for who wants to know how it is, always without TLS.
const CLIENTS: usize = 0;
const PEERS: usize = 1;
const METRICS: usize = 2;
const USUAL: [u16; 3] = [2379, 2380, 2381];

/// What a member must know before it is started.
struct Plan {
    spot: Spot<3>,
    dir: TempDir,
    certificates: Option<Certificates>,
    name: String,
    /// All members, as `--initial-cluster` wants them.
    cluster: String,
}

impl Etcd {
    /// Starts one that is alone, on ports of 127.0.0.1; returns when it answers.
    pub fn start(options: EtcdOptions) -> Self {
        // A port can be taken by a program that knows nothing of our reservations; then another one will do.
        let mut said = String::new();
        for _ in 0..5 {
            let (spot, dir) = (Spot::on_loopback(), dir(&options));
            let certificates = options.tls.map(|_| Certificates::make(dir.path()));
            let (name, cluster) = ("m0".to_owned(), format!("m0=http://{}", spot.for_peers(PEERS)));
            match Self::launch(&options, Plan { spot, dir, certificates, name, cluster }) {
                Ok(etcd) => {
                    ctl::authenticate(&etcd.options, |args| etcd.etcdctl(args));
                    return etcd;
                }
                Err(log) => said = log,
            }
        }
        panic!("etcd does not start:\n{said}")
    }

    /// One for the whole test binary. Nobody may kill it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Etcd> = OnceLock::new();
        SHARED.get_or_init(|| Etcd::start(EtcdOptions::new()))
    }

    /// Where it listens for clients.
    pub fn address(&self) -> SocketAddr {
        self.spot.for_clients(CLIENTS)
    }

    /// `etcd://HOST:PORT`, or `etcds://` with TLS, with root's password if there is one.
    pub fn url(&self) -> String {
        ctl::url_of(&self.options, std::slice::from_ref(self))
    }

    /// The URL with another user and password.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        ctl::url_as(&self.options, &format!("{user}:{password}@"), std::slice::from_ref(self))
    }

    /// The certificates of a server with TLS; panics if it has none.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("started with `tls`")
    }

    /// SIGKILL; returns when it is dead. It keeps its ports and its files.
    pub fn kill(&self) {
        self.server.kill();
    }

    /// Kills it if it lives, starts it again on the same ports with the same files, and waits until it is healthy. It
    /// cannot be while most others are dead: [`EtcdCluster::restart_all`] is for that.
    pub fn restart(&self) {
        self.server.restart();
    }

    /// SIGSTOP: accepts connections, as its kernel does that, and answers nothing.
    pub fn pause(&self) {
        self.server.pause();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.server.resume();
    }

    /// Its process id; another one after a restart.
    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Whether its process lives, paused or not.
    pub fn is_alive(&self) -> bool {
        self.server.is_alive()
    }

    /// Where its files are.
    pub fn dir(&self) -> &Path {
        self.server.dir()
    }

    /// What it has printed so far.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// Whether it answers and knows a leader.
    pub fn is_healthy(&self) -> bool {
        is_healthy(self.spot.for_clients(METRICS))
    }

    /// Whether it says that it leads. One that is paused or cut off from us says nothing; one that is cut off from the
    /// others says so until it notices.
    pub fn says_it_leads(&self) -> bool {
        self.try_metrics().is_some_and(|metrics| value_of(&metrics, "etcd_server_is_leader") == Some(1.0))
    }

    /// All that it counts, as Prometheus reads it; panics if it does not answer.
    #[track_caller]
    pub fn metrics(&self) -> String {
        let mut metrics = None;
        crate::servers::wait_until(|| {
            metrics = self.try_metrics(); // a busy machine may need more than one try
            metrics.is_some()
        });
        metrics.unwrap_or_else(|| panic!("{} does not say how it is:\n{}", self.address(), self.log()))
    }

    /// The sum of a counter over all its labels: `etcd.count("etcd_mvcc_put_total")`. Part of the labels can be asked
    /// for, in the order in which etcd writes them: `grpc_server_handled_total{grpc_code="OK",grpc_method="Txn"`.
    #[track_caller]
    pub fn count(&self, name: &str) -> u64 {
        value_of(&self.metrics(), name).unwrap_or_default() as u64
    }

    /// How often each key that begins so was written, the oldest key first. Only where there are neither TLS nor users.
    #[track_caller]
    pub fn versions(&self, prefix: &str) -> Vec<u64> {
        let mut end = prefix.as_bytes().to_vec();
        *end.last_mut().expect("a prefix") += 1;
        let (key, end) = (base64(prefix.as_bytes()), base64(&end));
        let asked =
            json!({ "key": key, "range_end": end, "keys_only": true, "sort_order": "ASCEND", "sort_target": "CREATE" });
        let answer = self.post("/v3/kv/range", &asked);
        let keys = answer["kvs"].as_array().into_iter().flatten();
        keys.map(|kv| kv["version"].as_str().and_then(|version| version.parse().ok()).expect("a version")).collect()
    }

    /// The ids of all leases. Only where there are neither TLS nor users.
    #[track_caller]
    pub fn lease_ids(&self) -> HashSet<String> {
        let answer = self.post("/v3/lease/leases", &json!({}));
        let leases = answer["leases"].as_array().into_iter().flatten();
        leases.map(|lease| lease["ID"].as_str().expect("an id").to_owned()).collect()
    }

    /// How many keys there are. Only where there are neither TLS nor users.
    #[track_caller]
    pub fn count_keys(&self) -> usize {
        let everything = base64(&[0]); // from a zero byte to a zero byte
        let answer = self.post("/v3/kv/range", &json!({ "key": everything, "range_end": everything, "count_only": true }));
        answer["count"].as_str().map_or(0, |count| count.parse().expect("a number"))
    }

    /// Removes every key. Only where there are neither TLS nor users.
    #[track_caller]
    pub fn clear(&self) {
        let everything = base64(&[0]);
        self.post("/v3/kv/deleterange", &json!({ "key": everything, "range_end": everything }));
    }

    /// A call in JSON; panics if there is no answer.
    #[track_caller]
    fn post(&self, path: &str, body: &Value) -> Value {
        let mut answer = None;
        crate::servers::wait_until(|| {
            let said = http_post(self.address(), path, &body.to_string()); // none between two leaders
            answer = said.and_then(|said| serde_json::from_str(&said).ok());
            answer.is_some()
        });
        answer.unwrap_or_else(|| panic!("{} does not answer {path}:\n{}", self.address(), self.log()))
    }

    /// `etcdctl`, told where this member is and who we are: root, where there are users.
    pub fn etcdctl(&self, args: &[&str]) -> Command {
        ctl::command(&self.options, self.certificates.as_ref(), std::slice::from_ref(self), args)
    }

    /// Runs `etcdctl` to its end and returns what it printed; panics if it failed.
    #[track_caller]
    pub fn ctl(&self, args: &[&str]) -> String {
        ctl::run(self.etcdctl(args))
    }

    fn try_metrics(&self) -> Option<String> {
        http_get(self.spot.for_clients(METRICS), "/metrics")
    }

    /// The error is what a server that ended instead had to say.
    fn launch(options: &EtcdOptions, plan: Plan) -> Result<Self, String> {
        let Plan { spot, dir, certificates, name, cluster } = plan;
        let args = arguments(options, &spot, &dir, certificates.as_ref(), &name, &cluster);
        let wrapper = spot.wrapper.clone();
        let program = Program { wrapper, name: "etcd", package: "etcd-server", args, env: vec![], dir };
        let health = spot.for_clients(METRICS);
        let server = Server::start(program, move |_| is_healthy(health))?;
        Ok(Etcd { server, spot, options: options.clone(), certificates })
    }
}

/// A member's directory.
fn dir(options: &EtcdOptions) -> TempDir {
    let prefix = "tenure-etcd-";
    if options.disk {
        tempfile::Builder::new().prefix(prefix).tempdir().expect("there is a temporary directory")
    } else {
        tempdir_in_memory(prefix)
    }
}

fn arguments(
    options: &EtcdOptions,
    spot: &Spot<3>,
    dir: &TempDir,
    certificates: Option<&Certificates>,
    name: &str,
    cluster: &str,
) -> Vec<OsString> {
    let scheme = if certificates.is_some() { "https" } else { "http" };
    let mut args: Vec<OsString> = vec![];
    let mut flag = |name: &str, value: &str| args.push(format!("--{name}={value}").into());
    flag("name", name);
    flag("data-dir", &dir.path().join("data").display().to_string());
    for which in ["listen-client-urls", "advertise-client-urls"] {
        flag(which, &format!("{scheme}://{}", spot.for_clients(CLIENTS)));
    }
    for which in ["listen-peer-urls", "initial-advertise-peer-urls"] {
        flag(which, &format!("http://{}", spot.for_peers(PEERS)));
    }
    flag("listen-metrics-urls", &format!("http://{}", spot.for_clients(METRICS)));
    flag("initial-cluster", cluster);
    // No other cluster's member can be taken for one of ours, whatever port it once had.
    flag("initial-cluster-token", cluster);
    flag("heartbeat-interval", &(options.election.as_millis() / 10).to_string());
    flag("election-timeout", &options.election.as_millis().to_string());
    flag("logger", "zap");
    flag("log-level", "warn");
    if let (Some(pem), Some(clients)) = (certificates, options.tls) {
        flag("cert-file", &pem.server.display().to_string());
        flag("key-file", &pem.server_key.display().to_string());
        if clients == ClientCertificate::Demanded {
            flag("client-cert-auth", "true");
            flag("trusted-ca-file", &pem.ca.display().to_string()); // which alone would demand one too
        }
    }
    args.extend(options.args.iter().map(OsString::from));
    args
}

fn is_healthy(at: SocketAddr) -> bool {
    http_get(at, "/health").is_some_and(|body| body.contains("\"true\""))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit)) as usize & 63;
            text.push(if digit <= three.len() { char::from(DIGITS[index]) } else { '=' });
        }
    }
    text
}

/// The sum of all lines of a metric whose name and labels begin so.
fn value_of(metrics: &str, name: &str) -> Option<f64> {
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let is_whole = name.contains('{') || rest.starts_with([' ', '{']);
        if is_whole { rest.rsplit_once(' ')?.1.parse::<f64>().ok() } else { None }
    };
    metrics.lines().filter_map(value).reduce(|sum, value| sum + value)
}

#[cfg(test)]
mod tests {
    use super::{base64, value_of};

    #[test]
    fn base64_is_as_others_write_it() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob~?", "Zm9vYn4/")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn a_metric_is_found_by_its_whole_name_and_summed_over_its_labels() {
        let metrics = "# TYPE a counter\na 1\na_b 20\nc{x=\"1\",y=\"1\"} 300\nc{x=\"1\",y=\"2\"} 4e3\nc{x=\"2\"} 50000\n";
        assert_eq!(value_of(metrics, "a"), Some(1.0));
        assert_eq!(value_of(metrics, "c"), Some(54_300.0));
        assert_eq!(value_of(metrics, "c{x=\"1\""), Some(4_300.0));
        assert_eq!(value_of(metrics, "b"), None);
    }
}
