//! The suite every store must pass, over the server's own sessions, on one server that all cases share, each case with a prefix
//! of its own.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure_core::{Backend, Result};
use tenure_testkit::Harness;
use tenure_testkit::servers::mariadb::{MariaDb, MariaDbOptions};

/// One with room for every waiter of every case that runs at the time.
fn server() -> &'static MariaDb {
    static SERVER: OnceLock<MariaDb> = OnceLock::new();
    SERVER.get_or_init(|| MariaDb::start(MariaDbOptions::new().max_connections(1_000)))
}

struct Session {
    prefix: String,
}

impl Session {
    fn address(&self) -> String {
        // A machine that is busy with the rest of the suite may take longer over an answer than a network would.
        let limits = "answer_limit=20s&connect_limit=60s";
        format!("{}?liveness=session&prefix={}&{limits}", server().url(), self.prefix)
    }
}

impl Harness for Session {
    async fn start() -> Self {
        static CASES: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("c{}_{}_", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed));
        Session { prefix }
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Self::open(&self.address()).await.expect("the server is there")
    }

    /// Whatever is shown of locks, and cells.
    async fn residue(&self) -> usize {
        let prefix = &self.prefix;
        let sql = format!("SELECT (SELECT COUNT(*) FROM {prefix}session) + (SELECT COUNT(*) FROM {prefix}cell)");
        server().sql(&sql)[0][0].parse().expect("a number")
    }

    fn url(&self) -> Option<String> {
        Some(self.address())
    }

    async fn open(url: &str) -> Result<Arc<dyn Backend>> {
        tenure_mysql::connect(&url.parse()?).await
    }
}

tenure_testkit::conformance!(session => Session);
