//! The suite every fence must pass, over servers that most cases share, each with a prefix of its own; and what a Redis may not be.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure_core::fence::{Fence, Rule, Verdict};
use tenure_core::{ErrorKind, LockName, Result, Token};
use tenure_redis::open_fence;
use tenure_testkit::fences::FenceHarness;
use tenure_testkit::servers::redis::{Fsync, Redis, RedisCluster, RedisOptions, Sentinels, shared_independent, url_of};

fn fresh_prefix() -> String {
    static CASES: AtomicU32 = AtomicU32::new(0);
    format!("fence-{}-{}", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed))
}

async fn open(url: &str) -> Result<Arc<dyn Fence>> {
    open_fence(&url.parse()?).await
}

fn with_prefix(url: String, prefix: &str) -> Option<String> {
    Some(format!("{url}{}prefix={prefix}", if url.contains('?') { '&' } else { '?' }))
}

struct Single {
    prefix: String,
    /// One of its own, which may be killed.
    server: Option<Redis>,
}

impl FenceHarness for Single {
    async fn start() -> Self {
        Single { prefix: fresh_prefix(), server: None }
    }

    async fn start_alone() -> Self {
        Single { prefix: fresh_prefix(), server: Some(Redis::start(RedisOptions::new().aof(Fsync::Always))) }
    }

    async fn fence(&self) -> Arc<dyn Fence> {
        open(&self.url().expect("it has one")).await.expect("the fence can be opened")
    }

    fn url(&self) -> Option<String> {
        with_prefix(self.server.as_ref().unwrap_or_else(|| Redis::shared()).url(), &self.prefix)
    }

    async fn open(url: &str) -> Result<Arc<dyn Fence>> {
        open(url).await
    }

    fn crash(&self) -> bool {
        let server = self.server.as_ref().expect("only its own is killed");
        server.kill();
        server.restart();
        true
    }
}

/// Several servers that all cases share: none of them is killed here, failovers forget (see GUARANTEES).
macro_rules! several {
    ($harness:ident, $url:expr) => {
        struct $harness(String);

        impl FenceHarness for $harness {
            async fn start() -> Self {
                $harness(fresh_prefix())
            }

            async fn fence(&self) -> Arc<dyn Fence> {
                open(&self.url().expect("it has one")).await.expect("the fence can be opened")
            }

            fn url(&self) -> Option<String> {
                with_prefix($url, &self.0)
            }

            async fn open(url: &str) -> Result<Arc<dyn Fence>> {
                open(url).await
            }
        }
    };
}

several!(Sentinel, Sentinels::shared().url());
several!(Cluster, RedisCluster::shared().url());

tenure_testkit::fences!(single => Single);
tenure_testkit::fences!(sentinel => Sentinel);
tenure_testkit::fences!(cluster => Cluster);

fn a() -> LockName {
    LockName::new("a").unwrap()
}

/// As it stands in the documentation, word by word.
#[tokio::test]
async fn a_user_with_the_documented_rights_and_no_others() {
    let server = Redis::start(RedisOptions::new());
    let docs = include_str!("../src/docs.md");
    let line = docs.lines().find(|line| line.starts_with("ACL SETUSER door")).expect("the page has it");
    server.command(&line.split_whitespace().collect::<Vec<_>>());
    let fence = open(&server.url_as("door", "SECRET")).await.unwrap();
    assert!(fence.advance(&a(), Token::new(10), Rule::ANY).await.unwrap().is_accepted());
    let stale = Verdict::Stale { highest: Token::new(10) };
    assert_eq!(fence.advance(&a(), Token::new(9), Rule::ANY).await.unwrap(), stale);
    assert_eq!(fence.highest(&a()).await.unwrap(), Some(Token::new(10)));
    let refusals = server.command(&["ACL", "LOG"]).list();
    assert!(refusals.is_empty(), "{refusals:?}");
}

#[tokio::test]
async fn a_server_that_throws_any_key_away_is_refused() {
    let server = Redis::start(RedisOptions::new());
    server.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let refused = open(&server.url()).await.err().expect("it would forget");
    assert!(refused.to_string().contains("allkeys-lru") && refused.hint().is_some(), "{refused}");
    server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    let fence = open(&server.url()).await.expect("a fence has no expiry");
    assert!(fence.advance(&a(), Token::new(10), Rule::ANY).await.unwrap().is_accepted());
    let key = server.command(&["KEYS", "*"]).list()[0].clone().text();
    assert_eq!(server.command(&["TTL", &key]), tenure_testkit::servers::redis::Reply::Int(-1), "{key} never expires");
}

#[tokio::test]
async fn a_vote_keeps_no_fence() {
    let refused = open(&url_of("redlock", shared_independent())).await.err().expect("it cannot");
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
}

/// Whatever else is under the key is not taken for a token, and not overwritten.
#[tokio::test]
async fn a_key_that_is_not_ours_is_an_error() {
    let single = Single::start().await;
    let fence = single.fence().await;
    assert!(fence.advance(&a(), Token::new(10), Rule::ANY).await.unwrap().is_accepted());
    let key = Redis::shared().command(&["KEYS", &format!("{}:*", single.prefix)]).list()[0].clone().text();
    for value in ["", "7", "00000000000000000000007"] {
        Redis::shared().command(&["SET", &key, value]);
        let refused = fence.advance(&a(), Token::new(11), Rule::ANY).await.expect_err(value);
        assert_eq!(refused.kind(), ErrorKind::Backend, "{value:?}: {refused}");
        assert_eq!(Redis::shared().command(&["GET", &key]).text(), value);
    }
}

/// With `min_replicas` a token counts when replicas have it, and not before.
#[tokio::test]
async fn without_the_replicas_that_were_asked_for_nothing_is_said() {
    let server = Redis::start(RedisOptions::new());
    let fence = open(&format!("{}?min_replicas=1&replica_wait=50ms", server.url())).await.unwrap();
    let unknown = fence.advance(&a(), Token::new(10), Rule::ANY).await.unwrap_err();
    assert!(unknown.is_transient() && unknown.to_string().contains("replicas"), "{unknown}");
}

/// What GUARANTEES says breaks is seen to break: a server that writes nothing down forgets, and a late writer passes.
#[tokio::test]
async fn a_server_that_keeps_nothing_forgets() {
    let server = Redis::start(RedisOptions::new());
    let fence = open(&server.url()).await.unwrap();
    assert!(fence.advance(&a(), Token::new(10), Rule::ANY).await.unwrap().is_accepted());
    server.kill();
    server.restart();
    assert_eq!(fence.highest(&a()).await.unwrap(), None);
    assert!(fence.advance(&a(), Token::new(9), Rule::ANY).await.unwrap().is_accepted());
}
