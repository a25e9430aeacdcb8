//! ZooKeeper: one server, and ensembles whose members can be killed, paused and cut off.
//!
//! It is started by `java` itself, without the scripts of its package, whose daemon would come with them.

mod config;
mod curator;
mod ensemble;
mod options;

pub use super::ClientCertificate;
pub use curator::{Curator, Recipe};
pub use ensemble::Ensemble;
pub use options::ZooKeeperOptions;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::OnceLock;

use tempfile::TempDir;

use super::Certificates;
use super::probe::{ask, is_open};
use super::process::{Program, Server};
use super::site::{Spot, tempdir_in_memory};

/// One running server. Ends when dropped.
pub struct ZooKeeper {
    server: Server,
    spot: Spot<4>,
    certificates: Option<Certificates>,
}

/// The ports of a server: for clients, for clients with TLS, for the other members, and for elections among them.
const CLIENTS: usize = 0;
const TLS: usize = 1;
const PEERS: usize = 2;
const ELECTION: usize = 3;
const USUAL: [u16; 4] = [2181, 2281, 2888, 3888];

/// What a server must know before it is started.
struct Plan {
    spot: Spot<4>,
    dir: TempDir,
    certificates: Option<Certificates>,
    /// Its number among the members, from one, and who they all are as `zoo.cfg` wants them; nothing if it is alone.
    ensemble: Option<(usize, String)>,
}

impl ZooKeeper {
    /// Starts one that is alone, on ports of 127.0.0.1; returns when it answers.
    pub fn start(options: ZooKeeperOptions) -> Self {
        // A port can be taken by a program that knows nothing of our reservations; then another one will do.
        let mut said = String::new();
        for _ in 0..5 {
            let (spot, dir) = (Spot::on_loopback(), dir(&options));
            let certificates = options.tls.map(|_| Certificates::make(dir.path()));
            match Self::launch(&options, Plan { spot, dir, certificates, ensemble: None }) {
                Ok(zookeeper) => return zookeeper,
                Err(log) => said = log,
            }
        }
        panic!("ZooKeeper does not start:\n{said}")
    }

    /// One for the whole test binary. Nobody may kill it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<ZooKeeper> = OnceLock::new();
        SHARED.get_or_init(|| ZooKeeper::start(ZooKeeperOptions::new()))
    }

    /// Where it listens for clients.
    pub fn address(&self) -> SocketAddr {
        self.spot.for_clients(CLIENTS)
    }

    /// Where it listens for clients with TLS; panics if it does not.
    pub fn tls_address(&self) -> SocketAddr {
        assert!(self.certificates.is_some(), "started with `tls`");
        self.spot.for_clients(TLS)
    }

    /// `zk://HOST:PORT`.
    pub fn url(&self) -> String {
        format!("zk://{}", self.address())
    }

    /// `zks://HOST:PORT`. [`certificates`](ZooKeeper::certificates) has what a client must know.
    pub fn tls_url(&self) -> String {
        format!("zks://{}", self.tls_address())
    }

    /// The certificates of a server with TLS; panics if it has none.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("started with `tls`")
    }

    /// SIGKILL; returns when it is dead. It keeps its ports and its files.
    pub fn kill(&self) {
        self.server.kill();
    }

    /// Kills it if it lives, starts it again on the same ports with the same files, and waits until it serves. It cannot
    /// while most others are dead: [`Ensemble::restart_all`] is for that.
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

    /// `leader`, `follower` or `standalone`; nothing if it does not serve.
    pub fn mode(&self) -> Option<String> {
        mode_at(self.address())
    }

    /// Whether it serves.
    pub fn is_healthy(&self) -> bool {
        self.mode().is_some()
    }

    /// What it answers to one of its four-letter words: `dump`, `wchs`, `cons`, `stat` …; panics if it does not answer.
    #[track_caller]
    pub fn four_letters(&self, word: &str) -> String {
        let mut answer = None;
        super::wait_until(|| {
            answer = ask(self.address(), word.as_bytes()); // a busy machine may need more than one try
            answer.is_some()
        });
        answer.unwrap_or_else(|| panic!("{} does not answer to {word}:\n{}", self.address(), self.log()))
    }

    /// All that it counts: `zookeeper.mntr()["zk_packets_received"]`; panics if it does not answer.
    #[track_caller]
    pub fn mntr(&self) -> BTreeMap<String, String> {
        let mut fields = None;
        super::wait_until(|| {
            fields = ask(self.address(), b"mntr").filter(|fields| fields.contains("zk_")); // a busy machine may need more than one try
            fields.is_some()
        });
        let fields = fields.unwrap_or_else(|| panic!("{} does not say how it is:\n{}", self.address(), self.log()));
        fields.lines().filter_map(|line| line.split_once('\t')).map(|(key, value)| (key.into(), value.into())).collect()
    }

    /// One of its counters, such as `zk_packets_received`, `zk_watch_count`, `zk_znode_count`; zero if it has none of
    /// that name.
    #[track_caller]
    pub fn count(&self, name: &str) -> u64 {
        self.mntr().get(name).and_then(|value| value.parse::<f64>().ok()).unwrap_or_default() as u64
    }

    /// The error is what a server that ended instead had to say.
    fn launch(options: &ZooKeeperOptions, plan: Plan) -> Result<Self, String> {
        let Plan { spot, dir, certificates, ensemble } = plan;
        let file = config::write(options, &spot, dir.path(), certificates.as_ref(), ensemble.as_ref());
        let mut args = config::java(options, dir.path());
        args.extend(["org.apache.zookeeper.server.quorum.QuorumPeerMain".into(), OsString::from(file)]);
        let wrapper = spot.wrapper.clone();
        let package = "openjdk-17-jre-headless";
        let program = Program { wrapper, name: "java", package, args, env: vec![], dir };
        let address = spot.for_clients(CLIENTS);
        // One that is alone answers on its first port before it has opened its second.
        let tls = options.tls.map(|_| spot.for_clients(TLS));
        let server = Server::start(program, move |_| mode_at(address).is_some() && tls.is_none_or(is_open))?;
        Ok(ZooKeeper { server, spot, certificates })
    }
}

/// A server's directory.
fn dir(options: &ZooKeeperOptions) -> TempDir {
    let prefix = "tenure-zookeeper-";
    if options.disk {
        tempfile::Builder::new().prefix(prefix).tempdir().expect("there is a temporary directory")
    } else {
        tempdir_in_memory(prefix)
    }
}

fn mode_at(address: SocketAddr) -> Option<String> {
    ask(address, b"srvr")?.lines().find_map(|line| Some(line.strip_prefix("Mode: ")?.to_owned()))
}
