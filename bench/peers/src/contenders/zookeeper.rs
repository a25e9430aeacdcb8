//! What ZooKeeper itself can do without a lock, and the lock of the crate zookeeper-client, which is the driver of both.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::Mutex;
use zookeeper_client::{Acls, AddWatchMode, Client, CreateMode, Error, LockOptions, LockPrefix, PersistentWatcher};

use super::{Contender, Failure, Lock, TTL};

/// An ephemeral node made and removed: what a lock by nodes cannot be below.
pub(crate) struct CreateDelete(Client);

#[derive(Clone)]
pub(crate) struct CreateDeletePair(Client, String);

impl Contender for CreateDelete {
    type Lock = CreateDeletePair;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        connect(url).await.map(CreateDelete)
    }

    async fn lock(&self, name: &str) -> Result<CreateDeletePair, Failure> {
        let dir = format!("/{name}");
        make_dir(&self.0, &dir).await?;
        Ok(CreateDeletePair(self.0.clone(), format!("{dir}/node")))
    }
}

impl Lock for CreateDeletePair {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        self.0.create(&self.1, &[], &ephemeral).await.map_err(Failure::broken)?;
        let output = inside.await;
        self.0.delete(&self.1, None).await.map_err(Failure::broken)?;
        Ok(output)
    }
}

/// A write to a node that the other watches: what a hand-over between processes cannot be below.
pub(crate) struct Watch {
    client: Client,
    index: usize,
}

#[derive(Clone)]
pub(crate) struct Inbox {
    client: Client,
    heard: Arc<Mutex<PersistentWatcher>>,
    own: String,
    other: String,
}

impl Contender for Watch {
    type Lock = Inbox;

    async fn connect(url: &str, index: usize) -> Result<Self, Failure> {
        connect(url).await.map(|client| Watch { client, index })
    }

    async fn lock(&self, name: &str) -> Result<Inbox, Failure> {
        let inbox = |index: usize| format!("/{name}/{index}");
        let (own, other) = (inbox(self.index), inbox(1 - self.index));
        for node in [&own, &other] {
            make_dir(&self.client, node).await?;
        }
        let heard = self.client.watch(&own, AddWatchMode::Persistent).await.map_err(Failure::broken)?;
        Ok(Inbox { client: self.client.clone(), heard: Arc::new(Mutex::new(heard)), own, other })
    }

    async fn prime(&self, lock: &Inbox) -> Result<(), Failure> {
        lock.tell(&lock.own).await
    }
}

impl Inbox {
    async fn tell(&self, node: &str) -> Result<(), Failure> {
        self.client.set_data(node, &[], None).await.map(drop).map_err(Failure::broken)
    }
}

impl Lock for Inbox {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.heard.lock().await.changed().await;
        let output = inside.await;
        self.tell(&self.other).await?;
        Ok(output)
    }
}

/// The crate's own lock, in Curator's layout.
pub(crate) struct Recipe(Client);

#[derive(Clone)]
pub(crate) struct RecipeLock(Client, String);

impl Contender for Recipe {
    type Lock = RecipeLock;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        connect(url).await.map(Recipe)
    }

    async fn lock(&self, name: &str) -> Result<RecipeLock, Failure> {
        Ok(RecipeLock(self.0.clone(), format!("/{name}")))
    }
}

impl Lock for RecipeLock {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let prefix = LockPrefix::new_curator(&self.1, "lock-").map_err(Failure::broken)?;
        let parents = CreateMode::Container.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parents).map_err(Failure::broken)?;
        let held = self.0.lock(prefix, &[], options).await.map_err(Failure::broken)?;
        let output = inside.await;
        drop(held); // the one way to let go: in the background
        Ok(output)
    }
}

async fn make_dir(client: &Client, path: &str) -> Result<(), Failure> {
    match client.mkdir(path, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await {
        Ok(()) | Err(Error::NodeExists) => Ok(()),
        Err(error) => Err(Failure::broken(error)),
    }
}

async fn connect(url: &str) -> Result<Client, Failure> {
    let hosts = url.strip_prefix("zk://").unwrap_or(url);
    Client::connector().with_session_timeout(TTL).connect(hosts).await.map_err(Failure::broken)
}
