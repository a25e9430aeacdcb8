//! The suite every store must pass, over a server that all cases share, each with a prefix of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure_core::{Backend, Result};
use tenure_testkit::Harness;
use tenure_testkit::servers::redis::Redis;

/// A prefix that no other case has, in no other process either.
fn fresh_prefix() -> String {
    static CASES: AtomicU32 = AtomicU32::new(0);
    format!("case-{}-{}", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed))
}

/// How many keys of a prefix a server has: all but the last token and the marks of ended claims, which a test of their own
/// sees expire.
fn residue(server: &Redis, prefix: &str) -> usize {
    let keys = server.command(&["KEYS", &format!("{prefix}:*")]).list();
    let texts = keys.into_iter().map(|key| key.text());
    texts.filter(|key| !key.ends_with(":token") && !key.contains(":ended:")).count()
}

async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    tenure_redis::connect(&url.parse()?).await
}

struct Single {
    prefix: String,
}

impl Single {
    fn address(&self) -> String {
        format!("{}?prefix={}", Redis::shared().url(), self.prefix)
    }
}

impl Harness for Single {
    async fn start() -> Self {
        Single { prefix: fresh_prefix() }
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        open(&self.address()).await.expect("the server is there")
    }

    async fn residue(&self) -> usize {
        residue(Redis::shared(), &self.prefix)
    }

    fn url(&self) -> Option<String> {
        Some(self.address())
    }

    async fn open(url: &str) -> Result<Arc<dyn Backend>> {
        open(url).await
    }
}

tenure_testkit::conformance!(single => Single);
