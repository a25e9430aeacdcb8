//! The crate redis-lock: `lock_across` with its default way to wait. Its default ttl of 10 ms would be lost in every window
//! here, so it has everybody's.
//!
//! Its connections stand behind mutexes. One for all tasks, as its example has it, would make them wait for each other's
//! round trips; each task has a clone of its own, which is the same socket and the kinder choice.

use std::future::Future;
use std::sync::Arc;

use redis_lock::{AcquireLockError, LockAcrossError, LockAcrossOptions};
use redis_old::aio::MultiplexedConnection;

use super::{Contender, Failure, Lock, TTL};

pub(crate) struct RedisLock(MultiplexedConnection);

#[derive(Clone)]
pub(crate) struct Handle(Arc<tokio::sync::Mutex<MultiplexedConnection>>, String);

impl Contender for RedisLock {
    type Lock = Handle;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        let client = redis_old::Client::open(url).map_err(Failure::broken)?;
        client.get_multiplexed_async_connection().await.map(RedisLock).map_err(Failure::broken)
    }

    async fn lock(&self, name: &str) -> Result<Handle, Failure> {
        Ok(Handle(Arc::new(tokio::sync::Mutex::new(self.0.clone())), name.to_owned()))
    }
}

impl Lock for Handle {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let options = LockAcrossOptions { ttl: TTL, ..LockAcrossOptions::default() };
        match redis_lock::lock_across(&[Arc::clone(&self.0)], &self.1, inside, options).await {
            Ok(output) => Ok(output),
            Err(LockAcrossError::Acquire(AcquireLockError::Failed(_))) => Err(Failure::GaveUp),
            Err(error) => Err(Failure::broken(error)),
        }
    }
}
