//! Redis: one server, n unrelated ones, a Cluster, and a master with replicas under Sentinels.

mod cluster;
mod options;
mod resp;
mod sentinel;

pub use super::ClientCertificate;
pub use cluster::{Move, RedisCluster};
pub use options::{Fsync, RedisOptions};
pub use resp::{Connection, Reply};
pub use sentinel::{SentinelOptions, Sentinels};

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::OnceLock;

use super::process::{Program, Server};
use super::skew::Skew;
use super::{Certificates, Port, Step};

/// One running Redis. Ends when dropped.
pub struct Redis {
    server: Server,
    ports: Ports,
    options: RedisOptions,
    certificates: Option<Certificates>,
    skew: Option<Skew>,
}

struct Ports {
    main: Port,
    tls: Option<Port>,
    bus: Option<Port>,
}

/// Starts so many that know nothing of each other, as Redlock wants them.
pub fn independent(many: usize) -> Vec<Redis> {
    (0..many).map(|_| Redis::start(RedisOptions::new())).collect()
}

/// Five that know nothing of each other, for the whole test binary. Nobody may kill or flush them.
pub fn shared_independent() -> &'static [Redis] {
    static SHARED: OnceLock<Vec<Redis>> = OnceLock::new();
    SHARED.get_or_init(|| independent(5))
}

/// `SCHEME://` and where they listen: `redlock`, `redis+cluster`.
pub fn url_of(scheme: &str, servers: &[Redis]) -> String {
    format!("{scheme}://{}", hosts_of(servers))
}

impl Redis {
    /// Starts one; returns when it answers.
    pub fn start(options: RedisOptions) -> Self {
        // A port can be taken by a program that knows nothing of our reservations; then another one will do.
        let mut said = String::new();
        for _ in 0..5 {
            match Self::attempt(&options) {
                Ok(redis) => return redis,
                Err(log) => said = log,
            }
        }
        panic!("{} does not start:\n{said}", program_of(&options).0)
    }

    /// One for the whole test binary. It remembers nothing, and nobody may kill or flush it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Redis> = OnceLock::new();
        SHARED.get_or_init(|| Redis::start(RedisOptions::new()))
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.ports.main.number()
    }

    /// Where it listens, with the host.
    pub fn address(&self) -> SocketAddr {
        self.ports.main.address()
    }

    /// `redis://127.0.0.1:PORT`, with the default user's password if there is one.
    pub fn url(&self) -> String {
        match &self.options.password {
            Some(password) => format!("redis://:{password}@{}", self.address()),
            None => format!("redis://{}", self.address()),
        }
    }

    /// The URL with another user and password.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@{}", self.address())
    }

    /// Where it listens for TLS; panics if it does not.
    pub fn tls_port(&self) -> u16 {
        self.ports.tls.as_ref().expect("started with `tls`").number()
    }

    /// `rediss://127.0.0.1:PORT`, with the default user's password if there is one. [`certificates`](Redis::certificates)
    /// has what a client must know.
    pub fn tls_url(&self) -> String {
        let user = self.options.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("rediss://{user}127.0.0.1:{}", self.tls_port())
    }

    /// The certificates of a server with TLS; panics if it has none.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("started with `tls`")
    }

    /// Sets its wall clock, from what it shows now: what `TIME` says, and by which keys expire. Panics unless it was
    /// started [`skewed`](RedisOptions::skewed).
    pub fn step_clock(&self, step: Step) {
        self.skew.as_ref().expect("started as `skewed`").step(step);
    }

    /// SIGKILL; returns when it is dead. It keeps its port and its files.
    pub fn kill(&self) {
        self.server.kill();
    }

    /// Kills it if it lives, starts it again on the same port with the same files, and waits until it answers.
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

    /// Runs a command on a connection of its own, as the default user; panics if that fails.
    #[track_caller]
    pub fn command(&self, command: &[&str]) -> Reply {
        self.try_command(command).unwrap_or_else(|error| panic!("{command:?} on port {}: {error}", self.port()))
    }

    /// The same, with an error for a refusal and for a server that is not there.
    pub fn try_command(&self, command: &[&str]) -> io::Result<Reply> {
        self.connect()?.call(command)
    }

    /// A connection for several commands, as the default user.
    pub fn connect(&self) -> io::Result<Connection> {
        connect(self.address(), self.options.password.as_deref())
    }

    /// The fields of a section of INFO: `redis.info("replication")["role"]`.
    #[track_caller]
    pub fn info(&self, section: &str) -> BTreeMap<String, String> {
        fields(&self.command(&["INFO", section]).text())
    }

    /// `master`, `slave` or `sentinel`; nothing if it does not answer. Sentinels cut all connections of a server whose
    /// role they change, so whoever waits for that must not mind.
    pub fn role(&self) -> Option<String> {
        self.try_command(&["ROLE"]).ok()?.list().into_iter().next().map(Reply::text)
    }

    /// Whether it is a replica that hears its master.
    pub fn follows(&self) -> bool {
        let info = self.try_command(&["INFO", "replication"]);
        info.is_ok_and(|info| info.text().contains("master_link_status:up"))
    }

    /// How often each command was run since the server started or `CONFIG RESETSTAT`, in lower case, those that scripts
    /// called included; `INFO`'s own are left out.
    pub fn calls(&self) -> BTreeMap<String, u64> {
        let calls = |stats: &str| stats.strip_prefix("calls=")?.split(',').next()?.parse().ok();
        let stats = self.info("commandstats").into_iter();
        stats
            .filter_map(|(name, stats)| Some((name.strip_prefix("cmdstat_")?.to_owned(), calls(&stats)?)))
            .filter(|(name, _)| name != "info")
            .collect()
    }

    /// Its name among the nodes of a cluster.
    fn id(&self) -> String {
        self.command(&["CLUSTER", "MYID"]).text()
    }

    fn attempt(options: &RedisOptions) -> Result<Self, String> {
        let dir = tempfile::Builder::new().prefix("tenure-redis-").tempdir().expect("there is a temporary directory");
        let ports = Ports {
            main: Port::reserve(),
            tls: options.tls.map(|_| Port::reserve()),
            bus: options.cluster.then(Port::reserve),
        };
        let certificates = options.tls.map(|_| Certificates::make(dir.path()));
        let skew = options.skewed.then(|| Skew::prepare(dir.path()));
        let file = dir.path().join("redis.conf");
        let text = configuration(options, &ports, certificates.as_ref(), dir.path());
        std::fs::write(&file, text).expect("the directory is ours");
        let (name, package) = program_of(options);
        let env = skew.as_ref().map(Skew::env).unwrap_or_default();
        let program = Program { wrapper: vec![], name, package, args: vec![file.into()], env, dir };
        let (address, password) = (ports.main.address(), options.password.clone());
        let server = Server::start(program, move |pid| answers(address, password.as_deref(), pid).unwrap_or(false))?;
        Ok(Redis { server, ports, options: options.clone(), certificates, skew })
    }
}

fn program_of(options: &RedisOptions) -> (&'static str, &'static str) {
    if options.sentinel { ("redis-sentinel", "redis-sentinel") } else { ("redis-server", "redis-server") }
}

/// What stands in `redis.conf`.
fn configuration(options: &RedisOptions, ports: &Ports, certificates: Option<&Certificates>, dir: &Path) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| writeln!(text, "{name} {value}").expect("a String takes everything");
    line("port", &ports.main.number().to_string());
    line("bind", "127.0.0.1");
    line("protected-mode", "no");
    line("dir", &quoted(dir));
    if !options.sentinel {
        line("save", "\"\"");
        line("appendonly", if options.aof.is_some() { "yes" } else { "no" });
        line("appendfsync", if options.aof == Some(Fsync::Always) { "always" } else { "everysec" });
        line("enable-debug-command", "local");
        line("repl-diskless-sync-delay", "0"); // a replica that begins need not wait for others to begin too
    }
    if let Some(bus) = &ports.bus {
        line("cluster-enabled", "yes");
        line("cluster-port", &bus.number().to_string());
        line("cluster-announce-ip", "127.0.0.1");
    }
    if let (Some(port), Some(pem), Some(clients)) = (&ports.tls, certificates, options.tls) {
        line("tls-port", &port.number().to_string());
        line("tls-ca-cert-file", &quoted(&pem.ca));
        line("tls-cert-file", &quoted(&pem.server));
        line("tls-key-file", &quoted(&pem.server_key));
        line("tls-auth-clients", if clients == ClientCertificate::Demanded { "yes" } else { "no" });
    }
    // In the file and not in an `aclfile`, which would forbid `requirepass`.
    if let Some(password) = &options.password {
        line("requirepass", password);
    }
    for rules in &options.users {
        line("user", rules);
    }
    for (name, value) in &options.lines {
        line(name, value);
    }
    text
}

/// Whether the process with this id answers there, and has loaded its data.
fn answers(at: SocketAddr, password: Option<&str>, pid: u32) -> io::Result<bool> {
    let mut connection = connect(at, password)?;
    let id = fields(&connection.call(&["INFO", "server"])?.text()).remove("process_id");
    Ok(id == Some(pid.to_string()) && connection.call(&["PING"])?.text() == "PONG")
}

fn connect(to: SocketAddr, password: Option<&str>) -> io::Result<Connection> {
    let mut connection = Connection::open(to)?;
    if let Some(password) = password {
        connection.call(&["AUTH", password])?;
    }
    Ok(connection)
}

/// The lines of INFO.
fn fields(info: &str) -> BTreeMap<String, String> {
    info.lines().filter_map(|line| line.split_once(':')).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn quoted(path: &Path) -> String {
    format!("\"{}\"", path.display())
}

/// Where they listen, as a URL lists them.
fn hosts_of(servers: &[Redis]) -> String {
    let hosts: Vec<String> = servers.iter().map(|server| server.address().to_string()).collect();
    hosts.join(",")
}
