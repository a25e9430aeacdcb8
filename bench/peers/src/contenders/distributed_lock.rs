//! The crate distributed-lock with its Redis store: a provider, `acquire` with a time limit as in its README, `release`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use distributed_lock_core::error::LockError;
use distributed_lock_core::traits::{DistributedLock as _, LockHandle, LockProvider};
use distributed_lock_redis::RedisLockProvider;

use super::{Contender, Failure, Lock, TTL};

pub(crate) struct DistributedLock(RedisLockProvider);

#[derive(Clone)]
pub(crate) struct Handle(Arc<<RedisLockProvider as LockProvider>::Lock>);

impl Contender for DistributedLock {
    type Lock = Handle;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        // Its defaults are 30 s, renewed every third of it, 90 % of it left when granted.
        let builder =
            RedisLockProvider::builder().url(url).expiry(TTL).extension_cadence(TTL / 3).min_validity(TTL * 9 / 10);
        builder.build().await.map(DistributedLock).map_err(Failure::broken)
    }

    async fn lock(&self, name: &str) -> Result<Handle, Failure> {
        Ok(Handle(Arc::new(self.0.create_lock(name))))
    }
}

impl Lock for Handle {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let handle = match self.0.acquire(Some(Duration::from_secs(5))).await {
            Ok(handle) => handle,
            Err(LockError::Timeout(_)) => return Err(Failure::GaveUp),
            Err(error) => return Err(Failure::broken(error)),
        };
        let output = inside.await;
        handle.release().await.map_err(Failure::broken)?;
        Ok(output)
    }
}
