//! PgBouncer: a pooler between clients and a PostgreSQL, which lends a server's connection for a transaction or a session.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::OnceLock;

use super::{Postgres, Session, USER, account, socket_of};
use crate::servers::Port;
use crate::servers::process::{LOG, Program, Server};

/// One running PgBouncer, which asks nobody for a password. Ends when dropped.
///
/// It is as its Debian package configures it, but for what [`BouncerOptions`] say and where it listens; so a client that
/// sends startup parameters which PgBouncer does not know is sent away here too.
pub struct PgBouncer {
    server: Server,
    port: Port,
}

/// How a PgBouncer is to be started.
#[derive(Clone, Debug)]
pub struct BouncerOptions {
    mode: PoolMode,
    pool_size: u32,
    users: Vec<String>,
    settings: Vec<(String, String)>,
}

/// For how long a client gets a connection of the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// For one transaction; the next may run on another.
    Transaction,
    /// Until the client is gone.
    Session,
}

impl BouncerOptions {
    /// With PgBouncer's own pool size: 20 connections for each user of each database.
    pub fn new(mode: PoolMode) -> Self {
        BouncerOptions { mode, pool_size: 20, users: vec![USER.to_owned()], settings: vec![] }
    }

    /// With so many connections for each user of each database.
    pub fn pool_size(self, pool_size: u32) -> Self {
        BouncerOptions { pool_size, ..self }
    }

    /// For another user, whom the server must know too.
    pub fn user(mut self, name: &str) -> Self {
        self.users.push(name.to_owned());
        self
    }

    /// With a setting of `pgbouncer.ini`: `.set("query_wait_timeout", "2")`.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }
}

impl PgBouncer {
    /// Starts one in front of a server; returns when it answers. It reaches the server by its Unix socket.
    pub fn start(postgres: &Postgres, options: BouncerOptions) -> Self {
        let mut said = String::new();
        for _ in 0..5 {
            match Self::attempt(postgres, &options) {
                Ok(bouncer) => return bouncer,
                Err(log) => said = log,
            }
        }
        panic!("pgbouncer does not start:\n{said}")
    }

    /// One in transaction mode in front of [`Postgres::shared`], for the whole test binary. Nobody may kill it.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<PgBouncer> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(Postgres::shared(), BouncerOptions::new(PoolMode::Transaction)))
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Where it listens, with the host.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// `postgres://postgres@127.0.0.1:PORT/postgres`, and PORT is the pooler's.
    pub fn url(&self) -> String {
        self.url_as(USER, USER)
    }

    /// The URL with another user and database.
    pub fn url_as(&self, user: &str, database: &str) -> String {
        format!("postgres://{user}@{}/{database}", self.address())
    }

    /// SIGKILL; returns when it is dead. It keeps its port.
    pub fn kill(&self) {
        self.server.kill();
    }

    /// Kills it if it lives, starts it again on the same port, and waits until it answers.
    pub fn restart(&self) {
        self.server.restart();
    }

    /// SIGSTOP: accepts connections, as its kernel does that, and passes nothing on.
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

    /// What it has printed so far.
    pub fn log(&self) -> String {
        self.server.log()
    }

    /// A session through the pooler, as the superuser.
    pub fn session(&self) -> io::Result<Session> {
        self.session_in(USER)
    }

    /// What its own console says: `bouncer.console("SHOW POOLS")`.
    #[track_caller]
    pub fn console(&self, command: &str) -> Vec<Vec<String>> {
        let answer = self.session_in(CONSOLE).and_then(|mut session| session.sql(command));
        answer.unwrap_or_else(|error| panic!("{command:?} on port {}: {error}", self.port()))
    }

    fn session_in(&self, database: &str) -> io::Result<Session> {
        Session::open(&socket_of(self.server.dir(), &self.port), USER, database)
    }

    fn attempt(postgres: &Postgres, options: &BouncerOptions) -> Result<Self, String> {
        let dir = account().tempdir("tenure-pgbouncer-");
        let port = Port::reserve();
        let users: String = options.users.iter().map(|user| format!("\"{user}\" \"\"\n")).collect();
        std::fs::write(dir.path().join("users"), users).expect("the directory is ours");
        let file = dir.path().join("pgbouncer.ini");
        std::fs::write(&file, configuration(postgres, options, &port, dir.path())).expect("the directory is ours");
        let args = vec![file.into()];
        let (socket, log, address) = (socket_of(dir.path(), &port), dir.path().join(LOG), port.address());
        let wrapper = account().wrapper();
        let program = Program { wrapper, name: "/usr/sbin/pgbouncer", package: "pgbouncer", args, env: vec![], dir };
        // Without its port it would go on with its Unix socket alone.
        let listens = move |pid| {
            let listening = format!("[{pid}] LOG listening on {address}");
            std::fs::read_to_string(&log).is_ok_and(|log| log.contains(&listening))
        };
        let server = Server::start(program, move |pid| listens(pid) && Session::open(&socket, USER, CONSOLE).is_ok())?;
        Ok(PgBouncer { server, port })
    }
}

/// A database that is not there: PgBouncer answers itself.
const CONSOLE: &str = "pgbouncer";

/// What stands in `pgbouncer.ini`.
fn configuration(postgres: &Postgres, options: &BouncerOptions, port: &Port, dir: &Path) -> String {
    let mut text = format!("[databases]\n* = host={} port={}\n[pgbouncer]\n", postgres.dir().display(), postgres.port());
    let mut line = |name: &str, value: &str| writeln!(text, "{name} = {value}").expect("a String takes everything");
    line("listen_addr", "127.0.0.1");
    line("listen_port", &port.number().to_string());
    line("unix_socket_dir", &dir.display().to_string());
    line("auth_type", "trust");
    line("auth_file", &dir.join("users").display().to_string());
    line("admin_users", USER);
    line("pool_mode", if options.mode == PoolMode::Session { "session" } else { "transaction" });
    line("default_pool_size", &options.pool_size.to_string());
    line("max_client_conn", "1000");
    for (name, value) in &options.settings {
        line(name, value);
    }
    text
}
