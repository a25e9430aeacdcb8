//! MariaDB: one server, replicas that follow it and can be promoted, and two that are one Galera cluster.

mod galera;
mod options;
mod wire;

pub use galera::Galera;
pub use options::MariaDbOptions;
pub use wire::Session;

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::OnceLock;

use rustix::process::Signal;

use super::account::Account;
use super::disk::Disk;
use super::process::{Program, Server, run_as};
use super::skew::Skew;
use super::template::Template;
use super::{Certificates, ClientCertificate, Port, Step};
use crate::LIMIT;

/// One running MariaDB. Ends when dropped.
///
/// By TCP it is as the [`MariaDbOptions`] say. The test itself comes by its Unix socket, where root needs no password.
pub struct MariaDb {
    server: Server,
    port: Port,
    options: MariaDbOptions,
    certificates: Option<Certificates>,
    skew: Option<Skew>,
    disk: Option<Disk>,
}

const USER: &str = "root";
/// Made when the server is.
const DATABASE: &str = "tenure";
/// Who replicas say they are.
const FOLLOWER: &str = "follower";
const PACKAGE: &str = "mariadb-server";

impl MariaDb {
    /// Starts one; returns when it answers.
    pub fn start(options: MariaDbOptions) -> Self {
        // A port can be taken by a program that knows nothing of our reservations; then another one will do.
        let mut said = String::new();
        for _ in 0..5 {
            match Self::attempt(&options) {
                Ok(mariadb) => return mariadb,
                Err(log) => said = log,
            }
        }
        panic!("mariadbd does not start:\n{said}")
    }

    /// One for the whole test binary. Nobody may kill it or change its settings; cases differ by their names, or by the
    /// prefix of their tables.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<MariaDb> = OnceLock::new();
        SHARED.get_or_init(|| MariaDb::start(MariaDbOptions::new().max_connections(400)))
    }

    /// A server that follows this one, which must have been started with a [`binlog`](MariaDbOptions::binlog). It takes
    /// writes from nobody but those who may write anywhere, as root may; see [`promote`](MariaDb::promote).
    pub fn replica(&self) -> Self {
        self.replica_through(self.address())
    }

    /// The same through an address, such as that of a proxy which can stall it.
    pub fn replica_through(&self, address: SocketAddr) -> Self {
        assert!(self.options.binlog, "only a server with a `binlog` can be followed");
        let replica = Self::start(MariaDbOptions { disk: None, ..self.options.clone() }.set("read_only", "1"));
        let (host, port, ssl) = (address.ip(), address.port(), u8::from(self.certificates.is_some()));
        replica.sql(&format!(
            "CHANGE MASTER TO master_host='{host}', master_port={port}, master_user='{FOLLOWER}', master_ssl={ssl}, \
             master_use_gtid=slave_pos, master_connect_retry=1; START SLAVE"
        ));
        replica.catch_up_with(self);
        replica
    }

    /// Makes a replica a server of its own, which takes writes.
    pub fn promote(&self) {
        self.sql("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = 0");
    }

    /// Waits until this replica has all that the other one has committed by now.
    pub fn catch_up_with(&self, other: &MariaDb) {
        let there = &other.sql("SELECT @@gtid_binlog_pos")[0][0];
        let waited = self.sql(&format!("SELECT MASTER_GTID_WAIT('{there}', {})", LIMIT.as_secs()));
        assert_eq!(waited, [["0"]], "it does not catch up: {:?}", self.sql("SHOW SLAVE STATUS"));
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Where it listens, with the host.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// `mysql://root@127.0.0.1:PORT/tenure`, with the password if there is one.
    pub fn url(&self) -> String {
        self.url_as(USER, self.options.password.as_deref().unwrap_or_default(), DATABASE)
    }

    /// The URL with another user, password (or none, if it is empty) and database. A user of `'NAME'@'127.0.0.1'` or
    /// `'NAME'@'%'` can come that way.
    pub fn url_as(&self, user: &str, password: &str, database: &str) -> String {
        let colon = if password.is_empty() { "" } else { ":" };
        format!("mysql://{user}{colon}{password}@{}/{database}", self.address())
    }

    /// The certificates of a server with TLS; panics if it has none.
    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("started with `tls`")
    }

    /// Sets its wall clock, from what it shows now: what `NOW()` and `SYSDATE()` say. Panics unless it was started
    /// [`skewed`](MariaDbOptions::skewed).
    pub fn step_clock(&self, step: Step) {
        self.skew.as_ref().expect("started as `skewed`").step(step);
    }

    /// Leaves no byte free on its disk. Panics unless it was started with a small [`disk`](MariaDbOptions::disk).
    pub fn fill_disk(&self) {
        self.disk.as_ref().expect("started with `disk`").fill();
    }

    /// Takes back what [`fill_disk`](MariaDb::fill_disk) has taken.
    pub fn free_disk(&self) {
        self.disk.as_ref().expect("started with `disk`").free();
    }

    /// Ends it in an orderly way: everybody is disconnected, everything is written.
    pub fn stop(&self) {
        self.server.stop(Signal::TERM);
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

    /// Makes a database that is not there yet.
    #[track_caller]
    pub fn create_database(&self, name: &str) {
        self.sql(&format!("CREATE DATABASE `{name}`"));
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
        self.session_in(DATABASE)
    }

    /// The same in another database.
    pub fn session_in(&self, database: &str) -> io::Result<Session> {
        Session::open(&self.dir().join(SOCKET), USER, database)
    }

    fn attempt(options: &MariaDbOptions) -> Result<Self, String> {
        let account = account();
        let dir = account.tempdir("tenure-mariadb-");
        let port = Port::reserve();
        let certificates = options.tls.map(|_| Certificates::make(dir.path()));
        let skew = options.skewed.then(|| Skew::prepare(dir.path()));
        if let Some(pem) = &certificates {
            account.own(&pem.server_key);
        }
        let data = dir.path().join("data");
        let disk = options.disk.map(|bytes| Disk::make(bytes, account, data.clone()));
        template().copy_to(&disk.as_ref().map_or(data, Disk::root));
        let args = arguments(options, &port, certificates.as_ref(), dir.path());
        let env = skew.as_ref().map(Skew::env).unwrap_or_default();
        let socket = dir.path().join(SOCKET);
        let wrapper = disk.as_ref().map(Disk::wrapper).into_iter().flatten().chain(account.wrapper()).collect();
        let program = Program { wrapper, name: "/usr/sbin/mariadbd", package: PACKAGE, args, env, dir };
        // The socket is in a directory that nobody else knows, and is made after the port was taken.
        let ask = if options.galera.is_some() { galera::IS_SYNCED } else { "SELECT 1" };
        let answer = move || Session::open(&socket, USER, "mysql")?.sql(ask);
        let server = Server::start(program, move |_| answer().is_ok_and(|answer| answer == [["1"]]))?;
        let mariadb = MariaDb { server, port, options: options.clone(), certificates, skew, disk };
        mariadb.prepare().map_err(|error| error.to_string())?;
        Ok(mariadb)
    }

    /// What a server must know that no argument can tell it.
    fn prepare(&self) -> io::Result<()> {
        let mut session = self.session_in("mysql")?;
        // Not for replicas, which are prepared in the same way.
        session.sql("SET sql_log_bin = 0")?;
        session.sql(&format!("CREATE DATABASE IF NOT EXISTS {DATABASE}"))?;
        if self.options.binlog {
            session
                .sql(&format!("CREATE USER {FOLLOWER}@127.0.0.1; GRANT REPLICATION SLAVE ON *.* TO {FOLLOWER}@127.0.0.1"))?;
        }
        if let Some(password) = &self.options.password {
            session.sql(&format!("ALTER USER root@127.0.0.1 IDENTIFIED BY '{password}'"))?;
        }
        if self.options.tls == Some(ClientCertificate::Demanded) {
            session.sql("ALTER USER root@127.0.0.1 REQUIRE X509")?;
        }
        Ok(())
    }
}

const SOCKET: &str = "socket";

/// Never waits for the disk, which takes seconds where others use it too.
const NO_SYNC: [&str; 2] = ["--debug-no-sync", "--innodb-flush-method=nosync"];

fn account() -> Account {
    static ACCOUNT: OnceLock<Account> = OnceLock::new();
    *ACCOUNT.get_or_init(|| Account::of("mysql", PACKAGE))
}

fn template() -> &'static Template {
    static TEMPLATE: OnceLock<Template> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        Template::make(account(), "tenure-mariadb-template-", |data| {
            run_as(account(), "mariadb-install-db", PACKAGE, |install| {
                install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
                install.args(NO_SYNC).arg(argument("datadir", data.as_os_str()))
            });
        })
    })
}

fn arguments(options: &MariaDbOptions, port: &Port, certificates: Option<&Certificates>, dir: &Path) -> Vec<OsString> {
    let mut arguments = vec!["--no-defaults".into()]; // this or another file must be the first
    if let Some(cluster) = &options.galera {
        galera::write_address(dir, cluster);
        arguments = vec![argument("defaults-file", dir.join(galera::FILE).as_os_str())];
    }
    let mut set = |name: &str, value: OsString| arguments.push(argument(name, &value));
    set("datadir", dir.join("data").into());
    set("tmpdir", dir.into());
    set("socket", dir.join(SOCKET).into());
    set("pid-file", dir.join("pid").into());
    set("bind-address", "127.0.0.1".into());
    set("port", port.number().to_string().into());
    set("skip-name-resolve", "1".into());
    // Both give to the kernel what is committed, and so survive a kill.
    set("innodb-flush-log-at-trx-commit", if options.fsync { "1" } else { "2" }.into());
    // Neither helps a server whose whole data is in memory anyway.
    set("innodb-buffer-pool-load-at-startup", "0".into());
    set("innodb-buffer-pool-dump-at-shutdown", "0".into());
    if options.binlog {
        set("log-bin", "binlog".into());
        set("server-id", port.number().to_string().into());
    }
    if let Some(pem) = certificates {
        set("ssl-ca", pem.ca.clone().into());
        set("ssl-cert", pem.server.clone().into());
        set("ssl-key", pem.server_key.clone().into());
        set("require-secure-transport", "1".into()); // a Unix socket is secure
    }
    for (name, value) in &options.settings {
        set(name, value.into());
    }
    if !options.fsync {
        arguments.extend(NO_SYNC.map(OsString::from));
    }
    arguments
}

/// `--NAME=VALUE`
fn argument(name: &str, value: &std::ffi::OsStr) -> OsString {
    let mut argument = OsString::from(format!("--{name}="));
    argument.push(value);
    argument
}
