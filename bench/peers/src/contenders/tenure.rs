//! tenure itself, both kinds that exclude: renewal, loss signal and fencing token included, none of which can be left out.

use std::future::Future;

use tenure::{Client, Error, ErrorKind};

use super::{Contender, Failure, Lock, TTL};

pub(crate) struct Mutex(Client);

impl Contender for Mutex {
    type Lock = tenure::Mutex;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        tenure::connect(url).await.map(Mutex).map_err(Failure::broken)
    }

    async fn lock(&self, name: &str) -> Result<Self::Lock, Failure> {
        self.0.mutex(name).and_then(|mutex| mutex.ttl(TTL)).map_err(Failure::broken)
    }
}

impl Lock for tenure::Mutex {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let guard = self.lock().await.map_err(Failure::broken)?;
        let output = inside.await;
        guard.release().await.map_err(released)?;
        Ok(output)
    }
}

pub(crate) struct Fair(Client);

impl Contender for Fair {
    type Lock = tenure::FairMutex;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        tenure::connect(url).await.map(Fair).map_err(Failure::broken)
    }

    async fn lock(&self, name: &str) -> Result<Self::Lock, Failure> {
        self.0.fair_mutex(name).and_then(|mutex| mutex.ttl(TTL)).map_err(Failure::broken)
    }
}

impl Lock for tenure::FairMutex {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let guard = self.lock().await.map_err(Failure::broken)?;
        let output = inside.await;
        guard.release().await.map_err(released)?;
        Ok(output)
    }
}

fn released(error: Error) -> Failure {
    if error.kind() == ErrorKind::Lost { Failure::Lost } else { Failure::broken(error) }
}
