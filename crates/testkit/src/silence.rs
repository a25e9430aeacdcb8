//! How long this machine stood still.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::{Client, Instant};
use tokio::task::JoinHandle;

/// Looks again and again. The longest time between two answers is how long this machine stood still at most.
#[derive(Debug)]
pub struct Silence {
    over: Arc<AtomicBool>,
    watching: JoinHandle<Duration>,
}

impl Silence {
    /// Somebody looks whom no fault meets.
    pub fn watched_by(observer: &Client) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let watching = tokio::spawn(watch(observer.clone(), Arc::clone(&over)));
        Silence { over, watching }
    }

    /// The longest time between two answers until now.
    pub async fn longest(self) -> Duration {
        self.over.store(true, Ordering::Relaxed);
        self.watching.await.expect("it only looks")
    }
}

async fn watch(observer: Client, over: Arc<AtomicBool>) -> Duration {
    let (mut longest, mut last) = (Duration::ZERO, Instant::now());
    loop {
        let _ = observer.view("nobody's").await;
        let now = Instant::now();
        longest = longest.max(now.since(last));
        last = now;
        if over.load(Ordering::Relaxed) {
            return longest;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
