//! What Curator's layout has passes the suite, too, over an ensemble that all cases share, each case with a root of its own.

#[path = "common/raw.rs"]
mod raw;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use raw::Raw;
use tenure_core::{Backend, Result};
use tenure_testkit::Harness;
use tenure_testkit::servers::zookeeper::{Ensemble, ZooKeeperOptions};

/// Three members that grant any timeout: the suite has cases with ttls of a day.
fn ensemble() -> &'static Ensemble {
    static SHARED: OnceLock<Ensemble> = OnceLock::new();
    SHARED
        .get_or_init(|| Ensemble::start_with(ZooKeeperOptions::new().loopback().calm().arg("maxSessionTimeout", "86400000")))
}

struct Recipes {
    root: String,
}

impl Recipes {
    fn address(&self) -> String {
        // A machine that is busy with the rest of the suite may take longer over an answer than a network would.
        format!("{}?layout=curator&root={}&connect_limit=20s&answer_limit=20s", ensemble().url(), self.root)
    }
}

impl Harness for Recipes {
    async fn start() -> Self {
        static CASES: AtomicU32 = AtomicU32::new(0);
        Recipes { root: format!("/curator-{}-{}", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed)) }
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Self::open(&self.address()).await.expect("the servers are there")
    }

    async fn residue(&self) -> usize {
        Raw::connect(ensemble().member(0).address()).beneath(&self.root)
    }

    /// A name is a path there.
    fn names(&self) -> Vec<String> {
        tenure_testkit::names::corpus().into_iter().filter(|name| is_path(name)).collect()
    }

    /// Any node of the whole tree may be a lock there.
    fn lists(&self) -> bool {
        false
    }

    fn url(&self) -> Option<String> {
        Some(self.address())
    }

    async fn open(url: &str) -> Result<Arc<dyn Backend>> {
        tenure_zookeeper::connect(&url.parse()?).await
    }
}

/// Whether a name is a path of ZooKeeper's that no other name is.
fn is_path(name: &str) -> bool {
    let is_legal = |c: char| matches!(c, '\u{20}'..='\u{7e}' | '\u{a0}'..='\u{d7ff}' | '\u{f900}'..='\u{ffef}');
    name.split('/').all(|part| !part.is_empty() && part != "." && part != "..") && name.chars().all(is_legal)
}

tenure_testkit::conformance!(recipes => Recipes);
