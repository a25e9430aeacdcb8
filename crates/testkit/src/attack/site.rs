//! The stores under attack: their servers, where clients reach them, and what is left in them.

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::fault::some_of;
use crate::servers::Step;
use crate::servers::etcd::{Etcd, EtcdOptions};
use crate::servers::mariadb::{MariaDb, MariaDbOptions};
use crate::servers::postgres::{Postgres, PostgresOptions};
use crate::servers::redis::{Fsync, Redis, RedisOptions};
use crate::servers::zookeeper::{ZooKeeper, ZooKeeperOptions};

/// A store, in the way it is attacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // their names say it
pub enum Store {
    Memory,
    Sqlite,
    Redis,
    Redlock,
    Postgres,
    PostgresSessions,
    Mysql,
    #[serde(rename = "zookeeper")]
    ZooKeeper,
    Etcd,
}

impl Store {
    /// All of them.
    pub const ALL: [Store; 9] = [
        Store::Memory,
        Store::Sqlite,
        Store::Redis,
        Store::Redlock,
        Store::Postgres,
        Store::PostgresSessions,
        Store::Mysql,
        Store::ZooKeeper,
        Store::Etcd,
    ];

    /// Its name on the command line, and how it is set up.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            Store::Memory => ("memory", "in the process"),
            Store::Sqlite => ("sqlite", "one file"),
            Store::Redis => ("redis", "one server with an append-only file"),
            Store::Redlock => ("redlock", "three servers with append-only files, `durable=yes&fencing=majority`"),
            Store::Postgres => ("postgres", "one server, leases"),
            Store::PostgresSessions => ("postgres-sessions", "one server, `liveness=session`"),
            Store::Mysql => ("mysql", "one MariaDB, leases"),
            Store::ZooKeeper => ("zookeeper", "one server, ticks of 200 ms"),
            Store::Etcd => ("etcd", "one member"),
        }
    }

    /// How many histories run at a time on one server. Sessions are connections, of which a server has few.
    pub(super) fn batch(self) -> usize {
        if self == Store::PostgresSessions { 6 } else { 16 }
    }

    /// Whether readers that enter at the same time may have the same number.
    pub(super) fn readers_may_share(self) -> bool {
        self == Store::Redlock
    }

    /// For how long a name may be closed because of a client that is gone, beyond the ttl, and why; GUARANTEES has the table.
    pub(super) fn freed_within(self, ttl: Duration) -> Duration {
        let second = Duration::from_secs(1);
        match self {
            Store::Memory | Store::Sqlite => ttl,
            // A waiter's second look.
            Store::Redis | Store::Redlock | Store::Postgres | Store::Mysql => ttl + second,
            // An idle limit is whole seconds, a power of two of them.
            Store::PostgresSessions => second * 2,
            // A tick, and the shortest timeout of two.
            Store::ZooKeeper => ttl.max(Duration::from_millis(400)) + Duration::from_millis(200),
            // Whole seconds, two at least, and as much again when the leader has changed.
            Store::Etcd => second * 4,
        }
    }
}

/// A running store.
pub(super) struct Site {
    pub(super) store: Store,
    servers: Servers,
}

enum Servers {
    Memory(String),
    File(TempDir),
    Redis(Vec<Redis>),
    Postgres(Postgres),
    MariaDb(MariaDb),
    ZooKeeper(ZooKeeper),
    Etcd(Etcd),
}

/// What a machine that is busy with a hundred histories needs to answer is not what is looked for.
const LIMITS: &str = "answer_limit=5s&connect_limit=5s";
const CONNECTIONS: u32 = 800;

impl Site {
    /// Starts it; its clock can be set where a server has one that matters.
    pub(super) fn start(store: Store) -> Self {
        // What is in a file outlives a kill; only `appendfsync no` never puts a write off while the disk is slow.
        let redis = || Redis::start(RedisOptions::new().aof(Fsync::EverySecond).arg("appendfsync", "no").skewed());
        let servers = match store {
            Store::Memory => {
                Servers::Memory(format!("attack-{}-{}", std::process::id(), tenure_core::Instant::now().as_nanos()))
            }
            Store::Sqlite => Servers::File(tempfile::tempdir().expect("there is room for a directory")),
            Store::Redis => Servers::Redis(vec![redis()]),
            Store::Redlock => Servers::Redis((0..3).map(|_| redis()).collect()),
            Store::Postgres | Store::PostgresSessions => {
                Servers::Postgres(Postgres::start(PostgresOptions::new().skewed().max_connections(CONNECTIONS)))
            }
            Store::Mysql => Servers::MariaDb(MariaDb::start(MariaDbOptions::new().skewed().max_connections(CONNECTIONS))),
            Store::ZooKeeper => Servers::ZooKeeper(ZooKeeper::start(ZooKeeperOptions::new())),
            Store::Etcd => Servers::Etcd(Etcd::start(EtcdOptions::new().loopback())),
        };
        Site { store, servers }
    }

    /// Where its servers listen.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        match &self.servers {
            Servers::Memory(_) | Servers::File(_) => vec![],
            Servers::Redis(nodes) => nodes.iter().map(Redis::address).collect(),
            Servers::Postgres(server) => vec![server.address()],
            Servers::MariaDb(server) => vec![server.address()],
            Servers::ZooKeeper(server) => vec![server.address()],
            Servers::Etcd(server) => vec![server.address()],
        }
    }

    /// Its URL, with these addresses in place of the servers' own.
    pub(super) fn url(&self, addresses: &[SocketAddr]) -> String {
        let url = match &self.servers {
            Servers::Memory(name) => return format!("memory://{name}"),
            Servers::File(dir) => return format!("sqlite://{}", dir.path().join("locks.db").display()),
            Servers::Redis(nodes) if self.store == Store::Redlock => {
                let options = "durable=yes&fencing=majority&node_limit=1s";
                format!("{}?{options}&{LIMITS}", crate::servers::redis::url_of("redlock", nodes))
            }
            Servers::Redis(nodes) => format!("{}?{LIMITS}", nodes[0].url()),
            Servers::Postgres(server) if self.store == Store::PostgresSessions => {
                format!("{}?liveness=session&{LIMITS}", server.url())
            }
            Servers::Postgres(server) => format!("{}?{LIMITS}", server.url()),
            Servers::MariaDb(server) => format!("{}?{LIMITS}", server.url()),
            Servers::ZooKeeper(server) => format!("{}?{LIMITS}", server.url()),
            Servers::Etcd(server) => format!("{}?{LIMITS}", server.url()),
        };
        let pairs = self.addresses().into_iter().zip(addresses);
        pairs.fold(url, |url, (own, other)| url.replacen(&own.to_string(), &other.to_string(), 1))
    }

    /// Stops some of its servers.
    pub(super) fn pause(&self, seed: u64) {
        match &self.servers {
            Servers::Memory(_) | Servers::File(_) => {}
            Servers::Redis(nodes) => some_of(nodes, seed).for_each(Redis::pause),
            Servers::Postgres(server) => server.pause(),
            Servers::MariaDb(server) => server.pause(),
            Servers::ZooKeeper(server) => server.pause(),
            Servers::Etcd(server) => server.pause(),
        }
    }

    /// Lets all of them go on.
    pub(super) fn resume(&self) {
        match &self.servers {
            Servers::Memory(_) | Servers::File(_) => {}
            Servers::Redis(nodes) => nodes.iter().for_each(Redis::resume),
            Servers::Postgres(server) => server.resume(),
            Servers::MariaDb(server) => server.resume(),
            Servers::ZooKeeper(server) => server.resume(),
            Servers::Etcd(server) => server.resume(),
        }
    }

    /// Kills some of its servers.
    pub(super) fn kill(&self, seed: u64) {
        match &self.servers {
            Servers::Memory(_) | Servers::File(_) => {}
            Servers::Redis(nodes) => some_of(nodes, seed).for_each(Redis::kill),
            Servers::Postgres(server) => server.kill(),
            Servers::MariaDb(server) => server.kill(),
            Servers::ZooKeeper(server) => server.kill(),
            Servers::Etcd(server) => server.kill(),
        }
    }

    /// Starts those that are dead, with the same data.
    pub(super) fn restart(&self) {
        match &self.servers {
            Servers::Memory(_) | Servers::File(_) => {}
            Servers::Redis(nodes) => nodes.iter().filter(|node| !node.is_alive()).for_each(Redis::restart),
            Servers::Postgres(server) => server.restart(),
            Servers::MariaDb(server) => server.restart(),
            Servers::ZooKeeper(server) => server.restart(),
            Servers::Etcd(server) => server.restart(),
        }
    }

    /// Sets the wall clock of some of its servers.
    pub(super) fn step_clock(&self, seed: u64, step: Step) {
        match &self.servers {
            Servers::Redis(nodes) => some_of(nodes, seed).for_each(|node| node.step_clock(step)),
            Servers::Postgres(server) => server.step_clock(step),
            Servers::MariaDb(server) => server.step_clock(step),
            Servers::Memory(_) | Servers::File(_) | Servers::ZooKeeper(_) | Servers::Etcd(_) => {}
        }
    }

    /// How much there is in the servers when every client is closed, besides what stays on purpose and the marks of ended claims.
    pub(super) fn residue(&self) -> usize {
        match &self.servers {
            Servers::Memory(name) => tenure_core::memory::Memory::shared(name).residue(),
            Servers::File(_) => 0, // `list` has seen all there is
            Servers::Redis(nodes) => nodes.iter().map(keys).sum(),
            Servers::Postgres(server) if self.store == Store::PostgresSessions => {
                number(&server.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))
            }
            Servers::Postgres(server) => number(&server.sql(&rows())),
            Servers::MariaDb(server) => number(&server.sql(&rows())),
            Servers::ZooKeeper(server) => server.count("zk_ephemerals_count") as usize,
            Servers::Etcd(server) => {
                let keys = server.ctl(&["get", "--prefix", "--keys-only", ""]);
                let kept = keys.lines().filter(|key| !key.is_empty() && !key.contains("/ended/")).count();
                kept + server.ctl(&["lease", "list"]).lines().skip(1).count()
            }
        }
    }
}

/// All but the last tokens and the marks of ended claims.
fn keys(node: &Redis) -> usize {
    let keys = node.command(&["KEYS", "*"]).list();
    let texts = keys.into_iter().map(|key| key.text());
    texts.filter(|key| !key.ends_with(":token") && !key.contains(":ended:") && !key.contains(":past:")).count()
}

fn rows() -> String {
    let counts = ["name", "ticket", "client", "mail"].map(|table| format!("(SELECT count(*) FROM tenure_{table})"));
    format!("SELECT {}", counts.join(" + "))
}

fn number(rows: &[Vec<String>]) -> usize {
    rows[0][0].parse().expect("a number")
}
