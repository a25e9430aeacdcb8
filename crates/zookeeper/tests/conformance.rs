//! The suite every store must pass, over an ensemble that all cases share, each case with a root of its own.

#[path = "common/raw.rs"]
mod raw;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use raw::Raw;
use tenure_core::{Backend, Result};
use tenure_testkit::Harness;
use tenure_testkit::servers::zookeeper::{Ensemble, ZooKeeperOptions};

/// Three members that grant any timeout: the suite has cases with ttls of a day.
fn ensemble() -> &'static Ensemble {
    static SHARED: OnceLock<Ensemble> = OnceLock::new();
    SHARED.get_or_init(|| Ensemble::start_with(ZooKeeperOptions::new().loopback().arg("maxSessionTimeout", "86400000")))
}

struct Three {
    root: String,
    looks: Mutex<Option<Raw>>,
}

impl Harness for Three {
    async fn start() -> Self {
        static CASES: AtomicU32 = AtomicU32::new(0);
        let root = format!("/case-{}-{}", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed));
        Three { root, looks: Mutex::default() }
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        let url = format!("{}?root={}", ensemble().url(), self.root);
        tenure_zookeeper::connect(&url.parse().expect("a good URL")).await.expect("the servers are there")
    }

    async fn residue(&self) -> usize {
        let mut looks = self.looks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A fresh one each time: this session is not kept alive between two looks.
        let raw = looks.insert(Raw::connect(ensemble().member(0).address()));
        raw.beneath(&self.root) + raw.beneath(&format!("{}-cells", self.root))
    }

    fn url(&self) -> Option<String> {
        Some(format!("{}?root={}", ensemble().url(), self.root))
    }

    async fn open(url: &str) -> Result<Arc<dyn Backend>> {
        tenure_zookeeper::connect(&url.parse()?).await
    }
}

tenure_testkit::conformance!(ensemble => Three);
