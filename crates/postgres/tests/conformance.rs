//! The suite every store must pass, over servers that all cases share, each case with a prefix of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use tenure_core::{Backend, Result};
use tenure_testkit::Harness;
use tenure_testkit::servers::postgres::{BouncerOptions, PgBouncer, PoolMode, Postgres};
use tokio::sync::{Semaphore, SemaphorePermit};

/// A prefix that no other case has, in no other process either.
fn fresh_prefix() -> String {
    static CASES: AtomicU32 = AtomicU32::new(0);
    format!("t{}_{}_", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed))
}

/// So many cases at a time: each makes its tables and functions, and every session of the server reads that others have.
static TURNS: Semaphore = Semaphore::const_new(4);

/// How many rows a prefix has: all but those that stay (`floor`, `fence`, `setup`) and the marks of ended claims, which a test
/// of their own sees go.
fn residue(prefix: &str) -> usize {
    let tables = ["name", "ticket", "client", "notify_key", "mail", "cell"];
    let counts = tables.map(|table| format!("SELECT count(*) FROM {prefix}{table}"));
    let sql = format!("SELECT sum(count) FROM ({}) AS counts", counts.join(" UNION ALL "));
    match Postgres::shared().try_sql(&sql) {
        Ok(rows) => rows[0][0].parse().expect("a number"),
        Err(error) if error.to_string().starts_with("42P01") => 0, // nobody has made the tables yet
        Err(error) => panic!("{error}"),
    }
}

async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    tenure_postgres::connect(&url.parse()?).await
}

/// A harness over a way to the server that all cases share.
macro_rules! harness {
    ($harness:ident, $url:expr, $tells:expr) => {
        struct $harness {
            prefix: String,
            _turn: SemaphorePermit<'static>,
        }

        impl $harness {
            fn address(&self) -> String {
                // A machine that is busy with the rest of the suite may take longer over an answer than a network would.
                format!("{}?prefix={}&answer_limit=20s&connect_limit=60s", $url, self.prefix)
            }
        }

        impl Harness for $harness {
            async fn start() -> Self {
                $harness { prefix: fresh_prefix(), _turn: TURNS.acquire().await.expect("it is never closed") }
            }

            async fn backend(&self) -> Arc<dyn Backend> {
                open(&self.address()).await.expect("the server is there")
            }

            async fn residue(&self) -> usize {
                residue(&self.prefix)
            }

            fn url(&self) -> Option<String> {
                Some(self.address())
            }

            async fn open(url: &str) -> Result<Arc<dyn Backend>> {
                open(url).await
            }

            fn tells_holders(&self) -> bool {
                $tells
            }
        }
    };
}

/// A pooler in transaction mode with few connections: no client can count on having one to itself.
fn pooler() -> &'static PgBouncer {
    static POOLER: OnceLock<PgBouncer> = OnceLock::new();
    POOLER.get_or_init(|| PgBouncer::start(Postgres::shared(), BouncerOptions::new(PoolMode::Transaction).pool_size(4)))
}

harness!(Direct, Postgres::shared().url(), true);
harness!(Pooled, pooler().url(), false);

tenure_testkit::conformance!(direct => Direct);
tenure_testkit::conformance!(pgbouncer => Pooled);
