//! What the two database servers have in common when they are to be hurt.

use std::any::Any;
use std::net::SocketAddr;
use std::path::Path;

use crate::servers::Step;
use crate::servers::mariadb::{MariaDb, MariaDbOptions};
use crate::servers::postgres::{Postgres, PostgresOptions};

/// How a server is to be started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish {
    /// It waits for its disk at every commit.
    pub fsync: bool,
    /// Its clock can be set.
    pub skewed: bool,
    /// Its disk can be filled.
    pub small_disk: bool,
    /// So many connections at most.
    pub connections: Option<u32>,
}

/// A server with one store's tables in it, under the default prefix.
#[allow(missing_docs)] // as the servers' own methods
pub trait Database: Send + Sync + 'static {
    fn start(wish: Wish) -> Self;
    fn url(&self) -> String;
    fn address(&self) -> SocketAddr;
    fn dir(&self) -> &Path;
    fn kill(&self);
    fn restart(&self);
    fn pause(&self);
    fn resume(&self);
    fn step_clock(&self, step: Step);
    fn fill_disk(&self);
    fn free_disk(&self);

    /// The URL through another address, such as a proxy's.
    fn url_at(&self, address: SocketAddr) -> String {
        super::through(&self.url(), self.address(), address)
    }

    /// The URL of an ordinary user, made now, for whom the last connections are not kept.
    fn ordinary_url(&self) -> String;

    /// What only the connection says on which a client is told, or looks after its waiters.
    const EAR: &'static str;

    /// The levels of isolation that a session may begin with.
    const LEVELS: &'static [&'static str];

    /// Sessions that come from now on begin with this level.
    fn set_level(&self, level: &str);

    /// Whether a client can tell by now that this run of the server is not the one before.
    fn is_told_apart(&self) -> bool;

    /// How many rows there are besides what stays on purpose, and marks.
    fn rows(&self) -> usize;

    /// How many claims are marked as ended.
    fn marks(&self) -> usize;

    /// Leaves a mark whose time is over.
    fn leave_a_mark(&self);

    /// Whether such a mark is there.
    fn has_an_old_mark(&self) -> bool;

    /// What clients of the store have locked or left open, in words.
    fn locks(&self) -> Vec<String>;

    /// Ends every connection that a client of the store has; how many.
    fn end_connections(&self) -> usize;

    /// Takes every connection that an ordinary user could have; dropped, they are free again.
    fn take_connections(&self) -> Box<dyn Any + Send>;
}

/// The tables that are empty when nobody is there.
const TABLES: [&str; 5] = ["name", "ticket", "client", "mail", "cell"];

fn count(tables: &[&str]) -> String {
    let counts: Vec<String> = tables.iter().map(|table| format!("(SELECT count(*) FROM tenure_{table})")).collect();
    format!("SELECT {}", counts.join(" + "))
}

fn number(rows: &[Vec<String>]) -> usize {
    rows[0][0].parse().expect("a number")
}

/// Opens sessions until none is to be had.
fn take_all<T: Send + 'static>(mut open: impl FnMut() -> std::io::Result<T>, spare: usize) -> Box<dyn Any + Send> {
    let mut taken = Vec::new();
    while let Ok(session) = open() {
        taken.push(session);
    }
    taken.truncate(taken.len().saturating_sub(spare)); // for the test itself
    Box::new(taken)
}

impl Database for Postgres {
    fn start(wish: Wish) -> Self {
        let mut options = PostgresOptions::new();
        if wish.fsync {
            options = options.fsync();
        }
        if wish.skewed {
            options = options.skewed();
        }
        if wish.small_disk {
            options = options.disk(96 << 20);
        }
        if let Some(connections) = wish.connections {
            options = options.max_connections(connections);
        }
        Postgres::start(options)
    }

    fn url(&self) -> String {
        self.url()
    }

    fn dir(&self) -> &Path {
        Postgres::dir(self)
    }

    fn address(&self) -> SocketAddr {
        self.address()
    }

    fn kill(&self) {
        self.kill();
    }

    fn restart(&self) {
        self.restart();
    }

    fn pause(&self) {
        self.pause();
    }

    fn resume(&self) {
        self.resume();
    }

    fn step_clock(&self, step: Step) {
        self.step_clock(step);
    }

    fn fill_disk(&self) {
        self.fill_disk();
    }

    fn free_disk(&self) {
        self.free_disk();
    }

    fn ordinary_url(&self) -> String {
        self.sql("CREATE ROLE ordinary LOGIN; GRANT ALL ON SCHEMA public TO ordinary");
        self.url_as("ordinary", "", "postgres")
    }

    const EAR: &'static str = "LISTEN \"tenure_";

    const LEVELS: &'static [&'static str] = &["read committed", "repeatable read", "serializable"];

    fn set_level(&self, level: &str) {
        self.sql(&format!("ALTER DATABASE postgres SET default_transaction_isolation = '{level}'"));
    }

    fn is_told_apart(&self) -> bool {
        true // it says when it was started, to the microsecond
    }

    fn rows(&self) -> usize {
        number(&self.sql(&count(&TABLES)))
    }

    fn marks(&self) -> usize {
        number(&self.sql(&count(&["mark"])))
    }

    fn leave_a_mark(&self) {
        self.sql("INSERT INTO tenure_mark (id, until) VALUES (gen_random_uuid(), 1)");
    }

    fn has_an_old_mark(&self) -> bool {
        number(&self.sql("SELECT count(*) FROM tenure_mark WHERE until = 1")) > 0
    }

    fn locks(&self) -> Vec<String> {
        let rows = self.sql(
            "SELECT concat_ws(' ', a.pid, a.state, a.query, l.locktype, l.mode, l.relation::regclass)
               FROM pg_stat_activity a LEFT JOIN pg_locks l ON l.pid = a.pid AND l.locktype <> 'virtualxid'
              WHERE a.application_name = 'tenure' AND (a.state LIKE 'idle in%' OR l.pid IS NOT NULL)
              UNION ALL SELECT 'prepared ' || gid FROM pg_prepared_xacts",
        );
        rows.into_iter().map(|row| row.concat()).collect()
    }

    fn end_connections(&self) -> usize {
        self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenure'").len()
    }

    fn take_connections(&self) -> Box<dyn Any + Send> {
        take_all(|| self.session(), 2) // three are kept for superusers, as we are
    }
}

impl Database for MariaDb {
    fn start(wish: Wish) -> Self {
        let mut options = MariaDbOptions::new();
        if wish.fsync {
            options = options.fsync();
        }
        if wish.skewed {
            options = options.skewed();
        }
        if wish.small_disk {
            options = options.disk(128 << 20).set("innodb_log_file_size", "8M");
        }
        if let Some(connections) = wish.connections {
            options = options.max_connections(connections);
        }
        MariaDb::start(options)
    }

    fn url(&self) -> String {
        self.url()
    }

    fn dir(&self) -> &Path {
        MariaDb::dir(self)
    }

    fn address(&self) -> SocketAddr {
        self.address()
    }

    fn kill(&self) {
        self.kill();
    }

    fn restart(&self) {
        self.restart();
    }

    fn pause(&self) {
        self.pause();
    }

    fn resume(&self) {
        self.resume();
    }

    fn step_clock(&self, step: Step) {
        self.step_clock(step);
    }

    fn fill_disk(&self) {
        self.fill_disk();
    }

    fn free_disk(&self) {
        self.free_disk();
    }

    fn ordinary_url(&self) -> String {
        self.sql("CREATE USER ordinary@127.0.0.1; GRANT ALL ON tenure.* TO ordinary@127.0.0.1");
        self.url_as("ordinary", "", "tenure")
    }

    const EAR: &'static str = "CALL tenure_touch";

    const LEVELS: &'static [&'static str] = &["READ-UNCOMMITTED", "READ-COMMITTED", "REPEATABLE-READ", "SERIALIZABLE"];

    fn set_level(&self, level: &str) {
        self.sql(&format!("SET GLOBAL tx_isolation = '{level}'"));
    }

    fn is_told_apart(&self) -> bool {
        // It says for how long it has been up, to the second, and a client allows for three.
        self.sql("SHOW GLOBAL STATUS LIKE 'Uptime'")[0][1].parse::<u32>().expect("a number") >= 5
    }

    fn rows(&self) -> usize {
        number(&self.sql(&count(&[&TABLES[..], &["tx"]].concat())))
    }

    fn marks(&self) -> usize {
        number(&self.sql(&count(&["mark"])))
    }

    fn leave_a_mark(&self) {
        self.sql("INSERT INTO tenure_mark (id, ends) VALUES (RANDOM_BYTES(16), 1)");
    }

    fn has_an_old_mark(&self) -> bool {
        number(&self.sql("SELECT COUNT(*) FROM tenure_mark WHERE ends = 1")) > 0
    }

    fn locks(&self) -> Vec<String> {
        // Those of connections. The server has others of its own, and undoes by itself what a killed one of before has left; one was seen
        // to be there minutes after the last client had gone, on a server whose clock had been set.
        let open = self.sql(
            "SELECT trx_mysql_thread_id, trx_state, COALESCE(trx_query, '') FROM information_schema.innodb_trx
              WHERE trx_mysql_thread_id > 0",
        );
        open.into_iter().map(|row| row.join(" ")).collect()
    }

    fn end_connections(&self) -> usize {
        let theirs = self.sql("SELECT id FROM information_schema.processlist WHERE host LIKE '127.0.0.1:%'");
        // One that has ended by itself meanwhile is as good.
        theirs.iter().filter(|row| self.try_sql(&format!("KILL CONNECTION {}", row[0])).is_ok()).count()
    }

    fn take_connections(&self) -> Box<dyn Any + Send> {
        take_all(|| self.session(), 1) // one more than there are is kept for root, as we are
    }
}
