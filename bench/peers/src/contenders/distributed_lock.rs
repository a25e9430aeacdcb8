//! The crate distributed-lock with its stores: a provider, `acquire` with a time limit as in its README, `release`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use distributed_lock_core::error::{LockError, LockResult};
use distributed_lock_core::traits::{DistributedLock as _, LockHandle, LockProvider};
use distributed_lock_mysql::MySqlLockProvider;
use distributed_lock_postgres::PostgresLockProvider;
use distributed_lock_redis::RedisLockProvider;

use super::{Contender, Failure, Lock, TTL};

macro_rules! contender {
    ($contender:ident, $handle:ident, $provider:ty, $connect:expr) => {
        pub(crate) struct $contender($provider);

        #[derive(Clone)]
        pub(crate) struct $handle(Arc<<$provider as LockProvider>::Lock>);

        impl Contender for $contender {
            type Lock = $handle;

            async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
                $connect(url.to_owned()).await.map($contender).map_err(Failure::broken)
            }

            async fn lock(&self, name: &str) -> Result<$handle, Failure> {
                Ok($handle(Arc::new(self.0.create_lock(name))))
            }
        }

        impl Lock for $handle {
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
    };
}

contender!(OnRedis, RedisHandle, RedisLockProvider, redis);
contender!(OnPostgres, PostgresHandle, PostgresLockProvider, postgres);
contender!(OnMySql, MySqlHandle, MySqlLockProvider, mysql);

/// Its defaults are 30 s, renewed every third of it, 90 % of it left when granted.
async fn redis(url: String) -> LockResult<RedisLockProvider> {
    let builder = RedisLockProvider::builder().url(url).expiry(TTL).extension_cadence(TTL / 3).min_validity(TTL * 9 / 10);
    builder.build().await
}

async fn postgres(url: String) -> LockResult<PostgresLockProvider> {
    PostgresLockProvider::builder().connection_string(url).build().await
}

async fn mysql(url: String) -> LockResult<MySqlLockProvider> {
    MySqlLockProvider::builder().connection_string(url).build().await
}
