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
        let observer = observer.clone();
        Silence::of(move || {
            let observer = observer.clone();
            async move { drop(observer.view("nobody's").await) }
        })
    }

    /// Somebody takes this name, which nobody else wants, and gives it back: that waits for whatever writes wait for.
    pub fn asked_by(observer: &Client, name: String) -> Self {
        let mutex = observer.mutex(name).expect("every store has one");
        Silence::of(move || {
            let mutex = mutex.clone();
            async move {
                if let Ok(Some(held)) = mutex.try_lock().await {
                    let _ = held.release().await;
                }
            }
        })
    }

    fn of<L: Future<Output = ()> + Send + 'static>(look: impl Fn() -> L + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let watching = tokio::spawn(watch(look, Arc::clone(&over)));
        Silence { over, watching }
    }

    /// The longest time between two answers until now.
    pub async fn longest(self) -> Duration {
        self.over.store(true, Ordering::Relaxed);
        self.watching.await.expect("it only looks")
    }
}

async fn watch<L: Future<Output = ()>>(look: impl Fn() -> L, over: Arc<AtomicBool>) -> Duration {
    let (mut longest, mut last) = (Duration::ZERO, Instant::now());
    loop {
        look().await;
        let now = Instant::now();
        longest = longest.max(now.since(last));
        last = now;
        if over.load(Ordering::Relaxed) {
            return longest;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
