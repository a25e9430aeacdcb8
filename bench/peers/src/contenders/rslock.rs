//! The crate rslock: one `LockManager`, `acquire` (which retries until it has it) and `release`.

use std::future::Future;

use rslock::LockManager;

use super::{Contender, Failure, Lock, TTL};

pub(crate) struct Rslock(LockManager);

#[derive(Clone)]
pub(crate) struct Handle(LockManager, String);

impl Contender for Rslock {
    type Lock = Handle;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        Ok(Rslock(LockManager::new(vec![url])))
    }

    async fn lock(&self, name: &str) -> Result<Handle, Failure> {
        Ok(Handle(self.0.clone(), name.to_owned()))
    }
}

impl Lock for Handle {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let guard = self.0.acquire(self.1.as_str(), TTL).await.map_err(Failure::broken)?;
        let output = inside.await;
        guard.release().await;
        Ok(output)
    }
}
