//! The contenders in Rust, one file a library, each used as its README says.

mod distributed_lock;
mod raw;
mod redis_lock;
mod rslock;
mod tenure;

use std::fmt::{self, Display};
use std::future::Future;
use std::time::Duration;

/// How long a lock lasts when nobody renews it: the same for all, and longer than any window.
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// A library.
pub(crate) trait Contender: Sized + 'static {
    type Lock: Lock;

    /// `index` is 0 in the first of several processes.
    async fn connect(url: &str, index: usize) -> Result<Self, Failure>;

    /// A handle on a lock, for one task.
    async fn lock(&self, name: &str) -> Result<Self::Lock, Failure>;

    /// Called once a name before anybody waits: where a baton is passed, somebody must lay it down.
    async fn prime(&self, _lock: &Self::Lock) -> Result<(), Failure> {
        Ok(())
    }
}

/// One task's handle on a lock.
pub(crate) trait Lock: Clone + Send + Sync + 'static {
    /// Acquires, runs this, releases: the shape that every library has, also those without a guard.
    fn with<F>(&self, inside: F) -> impl Future<Output = Result<F::Output, Failure>> + Send
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static;
}

/// What can go wrong, as far as it matters here.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The library stopped waiting by its own settings. Whoever wants the lock asks again.
    GaveUp,
    /// The library says at release that the lock was no longer held.
    Lost,
    /// No figure can come of this.
    Broken(String),
}

impl Failure {
    pub(crate) fn broken(why: impl Display) -> Self {
        Failure::Broken(why.to_string())
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::GaveUp => f.write_str("gave up waiting"),
            Failure::Lost => f.write_str("the lock was lost"),
            Failure::Broken(why) => f.write_str(why),
        }
    }
}

/// What is to be done with a contender once its type is known.
pub(crate) trait Visitor {
    fn visit<C: Contender>(self) -> Result<(), String>;
}

pub(crate) fn visit(key: &str, visitor: impl Visitor) -> Result<(), String> {
    match key {
        "raw-evalsha" => visitor.visit::<raw::Evalsha>(),
        "raw-publish" => visitor.visit::<raw::Publish>(),
        "raw-blpop" => visitor.visit::<raw::Blpop>(),
        "tenure" => visitor.visit::<tenure::Mutex>(),
        "tenure-fair" => visitor.visit::<tenure::Fair>(),
        "rslock" => visitor.visit::<rslock::Rslock>(),
        "redis-lock" => visitor.visit::<redis_lock::RedisLock>(),
        "distributed-lock" => visitor.visit::<distributed_lock::DistributedLock>(),
        _ => Err(format!("no contender in Rust is called {key}")),
    }
}
