//! The suite every store must pass, over a server that all cases share, each case with tables of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure_core::{Backend, Result};
use tenure_testkit::Harness;
use tenure_testkit::servers::mariadb::MariaDb;

/// Tables that no other case has, in no other process either.
fn fresh_prefix() -> String {
    static CASES: AtomicU32 = AtomicU32::new(0);
    format!("c{}_{}_", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed))
}

/// How many rows are in the tables of a prefix: all but those that stay on purpose, and the marks of ended claims, which a
/// test of their own sees removed.
fn residue(prefix: &str) -> usize {
    let counts =
        ["name", "ticket", "client", "mail", "cell", "tx"].map(|table| format!("(SELECT COUNT(*) FROM {prefix}{table})"));
    let sum = MariaDb::shared().try_sql(&format!("SELECT {}", counts.join(" + ")));
    match sum {
        Ok(rows) => rows[0][0].parse().expect("a number"),
        Err(error) if error.to_string().starts_with("1146") => 0, // nobody has come yet
        Err(error) => panic!("{error}"),
    }
}

struct Lease {
    prefix: String,
}

impl Lease {
    fn address(&self) -> String {
        // A machine that is busy with the rest of the suite may take longer over an answer than a network would.
        format!("{}?prefix={}&answer_limit=20s&connect_limit=60s", MariaDb::shared().url(), self.prefix)
    }
}

impl Harness for Lease {
    async fn start() -> Self {
        Lease { prefix: fresh_prefix() }
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Self::open(&self.address()).await.expect("the server is there")
    }

    async fn residue(&self) -> usize {
        residue(&self.prefix)
    }

    fn url(&self) -> Option<String> {
        Some(self.address())
    }

    fn tells_holders(&self) -> bool {
        false
    }

    async fn open(url: &str) -> Result<Arc<dyn Backend>> {
        tenure_mysql::connect(&url.parse()?).await
    }
}

tenure_testkit::conformance!(lease => Lease);
