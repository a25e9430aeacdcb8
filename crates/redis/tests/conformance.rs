//! The suite every store must pass, over servers that all cases share, each case with a prefix of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure_core::{Backend, Result};
use tenure_testkit::Harness;
use tenure_testkit::servers::redis::{Redis, RedisCluster, Sentinels, shared_independent, url_of};

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
    texts.filter(|key| !key.ends_with(":token") && !key.contains(":ended:") && !key.contains(":past:")).count()
}

async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    tenure_redis::connect(&url.parse()?).await
}

/// A machine may stand still for seconds, which is not what anybody gives up for here.
const PATIENT: &str = "answer_limit=20s&connect_limit=60s";

/// A harness over servers that all cases share: where they are, and which of them have keys.
macro_rules! harness {
    ($harness:ident, $url:expr, $servers:expr) => {
        struct $harness {
            prefix: String,
        }

        impl $harness {
            fn address(&self) -> String {
                let url: String = $url;
                let mark = if url.contains('?') { '&' } else { '?' };
                format!("{url}{mark}{PATIENT}&prefix={}", self.prefix)
            }
        }

        impl Harness for $harness {
            async fn start() -> Self {
                $harness { prefix: fresh_prefix() }
            }

            async fn backend(&self) -> Arc<dyn Backend> {
                open(&self.address()).await.expect("the servers are there")
            }

            async fn residue(&self) -> usize {
                let servers: Vec<&Redis> = $servers;
                servers.into_iter().map(|server| residue(server, &self.prefix)).sum()
            }

            fn numbers_readers_apart(&self) -> bool {
                !self.address().starts_with("redlock")
            }

            fn url(&self) -> Option<String> {
                Some(self.address())
            }

            async fn open(url: &str) -> Result<Arc<dyn Backend>> {
                open(url).await
            }
        }
    };
}

harness!(Single, Redis::shared().url(), vec![Redis::shared()]);
harness!(Sentinel, Sentinels::shared().url(), vec![Sentinels::shared().master().expect("there is a master")]);
harness!(Cluster, RedisCluster::shared().url(), RedisCluster::shared().nodes().iter().collect());
// The servers have just started and would have no vote for a minute; they do not restart while the suite runs. And a machine
// that is busy with the rest of the suite may take longer over an answer than a network would: as long as there can be.
harness!(
    Redlock,
    url_of("redlock", shared_independent()) + "?durable=yes&node_limit=5s",
    shared_independent().iter().collect()
);
harness!(
    Fenced,
    url_of("redlock", shared_independent()) + "?durable=yes&node_limit=5s&fencing=majority",
    shared_independent().iter().collect()
);

tenure_testkit::conformance!(single => Single);
tenure_testkit::conformance!(sentinel => Sentinel);
tenure_testkit::conformance!(cluster => Cluster);
tenure_testkit::conformance!(redlock => Redlock);
tenure_testkit::conformance!(redlock_fenced => Fenced);
