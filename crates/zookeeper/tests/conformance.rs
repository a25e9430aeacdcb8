//! The suite every store must pass, over an ensemble that all cases share, each case with a root of its own.

#[path = "common/raw.rs"]
mod raw;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

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

struct Three {
    root: String,
    looks: Mutex<Option<(Instant, Raw)>>,
}

impl Three {
    fn address(&self) -> String {
        // A machine that is busy with the rest of the suite may take longer over an answer than a network would.
        format!("{}?root={}&connect_limit=20s&answer_limit=20s", ensemble().url(), self.root)
    }

    fn look<T>(&self, at: impl FnOnce(&mut Raw) -> T) -> T {
        let mut looks = self.looks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Nobody keeps this session alive between two looks.
        let raw = looks.take().filter(|(used, _)| used.elapsed() < Duration::from_secs(3)).map(|(_, raw)| raw);
        let mut raw = raw.unwrap_or_else(|| Raw::connect(ensemble().member(0).address()));
        let seen = at(&mut raw);
        *looks = Some((Instant::now(), raw));
        seen
    }
}

impl Harness for Three {
    async fn start() -> Self {
        static CASES: AtomicU32 = AtomicU32::new(0);
        let root = format!("/case-{}-{}", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed));
        Three { root, looks: Mutex::default() }
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        Self::open(&self.address()).await.expect("the servers are there")
    }

    async fn residue(&self) -> usize {
        self.look(|raw| raw.beneath(&self.root) + raw.beneath(&format!("{}-cells", self.root)))
    }

    fn url(&self) -> Option<String> {
        Some(self.address())
    }

    async fn open(url: &str) -> Result<Arc<dyn Backend>> {
        tenure_zookeeper::connect(&url.parse()?).await
    }
}

tenure_testkit::conformance!(ensemble => Three);
