//! PostgreSQL: one server, standbys that follow it and can be promoted, and the pooler that many put before it.

mod bouncer;
mod options;
mod wire;

pub use bouncer::{BouncerOptions, PgBouncer, PoolMode};
pub use options::PostgresOptions;
pub use wire::Session;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::process::Signal;

use super::account::Account;
use super::disk::Disk;
use super::process::{Program, Server, run_as};
use super::skew::Skew;
use super::template::Template;
use super::{Certificates, ClientCertificate, Port, Step, wait_until};

/// One running PostgreSQL. Ends when dropped.
///
/// By TCP it is as the [`PostgresOptions`] say. The test itself comes by its Unix socket, needs no password there, and is
/// the superuser.
pub struct Postgres {
    server: Server,
    port: Port,
    options: PostgresOptions,
    certificates: Option<Certificates>,
    skew: Option<Skew>,
    disk: Option<Disk>,
}

/// The superuser, and the database that is always there.
const USER: &str = "postgres";
const PACKAGE: &str = "postgresql";

impl Postgres {
    /// Starts one; returns when it answers.
    pub fn start(options: PostgresOptions) -> Self {
        Self::start_from(options, |data| template().copy_to(data))
    }

    /// One for the whole test binary. Nobody may kill it or change its settings; cases differ by their names, or by the
    /// prefix of their tables.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| Postgres::start(PostgresOptions::new().max_connections(400)))
    }

    /// A standby that follows this one as it is now; see [`promote`](Postgres::promote).
    pub fn replica(&self) -> Self {
        self.replica_at(&format!("host='{}' port={}", self.dir().display(), self.port()))
    }

    /// A standby that follows this one through an address, such as that of a proxy which can stall it.
    pub fn replica_through(&self, address: SocketAddr) -> Self {
        self.replica_at(&format!("host={} port={}", address.ip(), address.port()))
    }

    /// Makes a standby a server of its own; returns when it takes writes.
    pub fn promote(&self) {
        self.sql("SELECT pg_promote()");
        assert!(wait_until(|| !self.is_standby()), "it stays a standby:\n{}", self.log());
    }

    /// Whether it follows another one, and takes no writes.
    pub fn is_standby(&self) -> bool {
        self.sql("SELECT pg_is_in_recovery()") == [["t"]]
    }

    /// Waits until this standby shows all that the other one has committed by now.
    pub fn catch_up_with(&self, other: &Postgres) {
        let there = other.sql("SELECT pg_current_wal_lsn()")[0][0].clone();
        let shown = format!("SELECT pg_last_wal_replay_lsn() >= '{there}'");
        assert!(wait_until(|| self.sql(&shown) == [["t"]]), "it does not catch up:\n{}", self.log());
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Where it listens, with the host.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// `postgres://postgres@127.0.0.1:PORT/postgres`, with the password if there is one.
    pub fn url(&self) -> String {
        self.url_as(USER, self.options.password.as_deref().unwrap_or_default(), USER)
    }

    /// The URL with another user, password (or none, if it is empty) and database.
    pub fn url_as(&self, user: &str, password: &str, database: &str) -> String {
        let colon = if password.is_empty() { "" } else { ":" };
        format!("postgres://{user}{colon}{password}@{}/{database}", self.address())
    }

    /// The certificates of a server with TLS; panics if it has none.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("started with `tls`")
    }

    /// Sets its wall clock, from what it shows now: what `now()` and `clock_timestamp()` say. Panics unless it was started
    /// [`skewed`](PostgresOptions::skewed).
    pub fn step_clock(&self, step: Step) {
        self.skew.as_ref().expect("started as `skewed`").step(step);
    }

    /// Leaves no byte free on its disk. Panics unless it was started with a small [`disk`](PostgresOptions::disk).
    pub fn fill_disk(&self) {
        self.disk.as_ref().expect("started with `disk`").fill();
    }

    /// Takes back what [`fill_disk`](Postgres::fill_disk) has taken.
    pub fn free_disk(&self) {
        self.disk.as_ref().expect("started with `disk`").free();
    }

    /// Ends it in an orderly way: everybody is disconnected, everything is written.
    pub fn stop(&self) {
        self.server.stop(Signal::INT);
    }

    /// SIGKILL to all its processes; returns when they are dead. It keeps its port and its files.
    pub fn kill(&self) {
        self.server.kill();
    }

    /// Kills it if it lives, starts it again on the same port with the same files, and waits until it answers.
    pub fn restart(&self) {
        self.server.restart();
    }

    /// SIGSTOP to all its processes: it accepts connections, as its kernel does that, and answers nothing.
    pub fn pause(&self) {
        self.server.pause();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.server.resume();
    }

    /// The process id of its first process; another one after a restart.
    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Whether its first process lives, paused or not.
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

    /// Makes a database that is not there yet.
    #[track_caller]
    pub fn create_database(&self, name: &str) {
        self.sql(&format!("CREATE DATABASE \"{name}\""));
    }

    /// Runs one or more statements in a session of its own, and gives the rows of all of them as text; NULL is an empty
    /// one. Panics if that fails.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> Vec<Vec<String>> {
        self.try_sql(sql).unwrap_or_else(|error| panic!("{sql:?} on port {}: {error}", self.port()))
    }

    /// The same, with an error for a refusal and for a server that is not there.
    pub fn try_sql(&self, sql: &str) -> io::Result<Vec<Vec<String>>> {
        self.session()?.sql(sql)
    }

    /// A session for several statements.
    pub fn session(&self) -> io::Result<Session> {
        self.session_in(USER)
    }

    /// The same in another database.
    pub fn session_in(&self, database: &str) -> io::Result<Session> {
        Session::open(&socket_of(self.dir(), &self.port), USER, database)
    }

    fn replica_at(&self, conninfo: &str) -> Self {
        let standby_of = Some(format!("{conninfo} user={USER}"));
        let options = PostgresOptions { standby_of, disk: None, ..self.options.clone() };
        Self::start_from(options, |data| {
            run_as(account(), program("pg_basebackup"), PACKAGE, |backup| {
                backup.args(["--no-sync", "--checkpoint=fast", "--wal-method=stream", "--username", USER]);
                backup.arg("--host").arg(self.dir()).args(["--port", &self.port().to_string(), "--pgdata"]).arg(data)
            });
            std::fs::write(data.join("standby.signal"), "").expect("the directory is ours");
        })
    }

    fn start_from(options: PostgresOptions, make: impl Fn(&Path)) -> Self {
        // A port can be taken by a program that knows nothing of our reservations; then another one will do.
        let mut said = String::new();
        for _ in 0..5 {
            match Self::attempt(&options, &make) {
                Ok(postgres) => return postgres,
                Err(log) => said = log,
            }
        }
        panic!("postgres does not start:\n{said}")
    }

    fn attempt(options: &PostgresOptions, make: impl Fn(&Path)) -> Result<Self, String> {
        let account = account();
        let dir = account.tempdir("tenure-postgres-");
        let port = Port::reserve();
        let certificates = options.tls.map(|_| Certificates::make(dir.path()));
        let skew = options.skewed.then(|| Skew::prepare(dir.path()));
        if let Some(pem) = &certificates {
            account.own(&pem.server_key);
        }
        let data = dir.path().join("data");
        let disk = options.disk.map(|bytes| Disk::make(bytes, account, data.clone()));
        let seen = disk.as_ref().map_or(data.clone(), Disk::root);
        make(&seen);
        std::fs::write(seen.join("pg_hba.conf"), admission(options)).expect("the directory is ours");
        let settings = settings(options, &port, certificates.as_ref(), dir.path());
        let settings = settings.into_iter().flat_map(|setting| ["-c".into(), setting]);
        let args = [OsString::from("-D"), data.into()].into_iter().chain(settings).collect();
        let env = skew.as_ref().map(Skew::env).unwrap_or_default();
        let wrapper = disk.as_ref().map(Disk::wrapper).into_iter().flatten().chain(account.wrapper()).collect();
        let program = Program { wrapper, name: program("postgres"), package: PACKAGE, args, env, dir };
        let server = Server::start(program, move |pid| is_ready(&seen, pid).unwrap_or(false))?;
        let postgres = Postgres { server, port, options: options.clone(), certificates, skew, disk };
        if let (Some(password), None) = (&options.password, &options.standby_of) {
            postgres.sql(&format!("ALTER USER {USER} PASSWORD '{password}'"));
        }
        Ok(postgres)
    }
}

/// Debian keeps these programs out of PATH, a directory for each version; the newest is taken.
fn program(name: &str) -> &'static str {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let number = |dir: &PathBuf| dir.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|version| version.path()).filter(|dir| dir.join("bin/initdb").is_file()).max_by_key(number);
    let newest = newest.unwrap_or_else(|| PathBuf::from("/usr/lib/postgresql/15"));
    String::leak(newest.join("bin").join(name).display().to_string())
}

fn account() -> Account {
    static ACCOUNT: OnceLock<Account> = OnceLock::new();
    *ACCOUNT.get_or_init(|| Account::of("postgres", PACKAGE))
}

fn template() -> &'static Template {
    static TEMPLATE: OnceLock<Template> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        Template::make(account(), "tenure-postgres-template-", |data| {
            run_as(account(), program("initdb"), PACKAGE, |initdb| {
                initdb.args(["--auth=trust", "--no-sync", "--no-instructions", "--encoding=UTF8", "--no-locale"]);
                initdb.args(["--username", USER, "--pgdata"]).arg(data)
            });
        })
    })
}

/// Where a server's Unix socket is, and PgBouncer's too.
fn socket_of(dir: &Path, port: &Port) -> PathBuf {
    dir.join(format!(".s.PGSQL.{}", port.number()))
}

/// What goes behind `-c`.
fn settings(options: &PostgresOptions, port: &Port, certificates: Option<&Certificates>, dir: &Path) -> Vec<OsString> {
    let mut settings = Vec::new();
    let mut set = |name: &str, value: &str| settings.push(format!("{name}={value}").into());
    set("listen_addresses", "127.0.0.1");
    set("port", &port.number().to_string());
    set("unix_socket_directories", &dir.display().to_string());
    set("fsync", if options.fsync { "on" } else { "off" });
    if let Some(primary) = &options.standby_of {
        set("primary_conninfo", primary);
        set("wal_retrieve_retry_interval", "100ms"); // a primary that was away is found again soon
    }
    if let Some(pem) = certificates {
        set("ssl", "on");
        set("ssl_ca_file", &pem.ca.display().to_string());
        set("ssl_cert_file", &pem.server.display().to_string());
        set("ssl_key_file", &pem.server_key.display().to_string());
    }
    for (name, value) in &options.settings {
        set(name, value);
    }
    settings
}

/// What stands in `pg_hba.conf`. Whoever comes by the Unix socket can read the server's directory, and is the test.
fn admission(options: &PostgresOptions) -> String {
    let transport = if options.tls.is_some() { "hostssl" } else { "host" };
    let method = if options.password.is_some() { "scram-sha-256" } else { "trust" };
    let certificate = if options.tls == Some(ClientCertificate::Demanded) { "clientcert=verify-ca" } else { "" };
    let mut text = String::new();
    for line in [
        "local all all trust",
        "local replication all trust",
        "host replication all 127.0.0.1/32 trust",
        &format!("{transport} all all 127.0.0.1/32 {method} {certificate}"),
    ] {
        writeln!(text, "{line}").expect("a String takes everything");
    }
    text
}

/// Whether the process with this id has written that it serves.
fn is_ready(data: &Path, pid: u32) -> Option<bool> {
    let file = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
    let mut lines = file.lines();
    Some(lines.next()? == pid.to_string() && lines.nth(6)?.trim_end() == "ready")
}
