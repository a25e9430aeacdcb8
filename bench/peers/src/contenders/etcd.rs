//! What etcd itself can do without a lock, and its Lock RPC, by the crate etcd-client; and its command `etcdctl lock`.

use std::future::Future;
use std::process::Stdio;
use std::sync::Arc;

use etcd_client::{Client, EventType, LockOptions, WatchStream};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::sync::Mutex;

use super::{Contender, Failure, Lock, TTL};

/// A put and a delete: what a lock by keys cannot be below.
pub(crate) struct PutDelete(Client);

#[derive(Clone)]
pub(crate) struct PutDeletePair(Client, String);

impl Contender for PutDelete {
    type Lock = PutDeletePair;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        connect(url).await.map(PutDelete)
    }

    async fn lock(&self, name: &str) -> Result<PutDeletePair, Failure> {
        Ok(PutDeletePair(self.0.clone(), name.to_owned()))
    }
}

impl Lock for PutDeletePair {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let mut client = self.0.clone();
        client.put(self.1.as_str(), "", None).await.map_err(Failure::broken)?;
        let output = inside.await;
        client.delete(self.1.as_str(), None).await.map_err(Failure::broken)?;
        Ok(output)
    }
}

/// A put to a key that the other watches: what a hand-over between processes cannot be below.
pub(crate) struct Watch {
    client: Client,
    index: usize,
}

#[derive(Clone)]
pub(crate) struct Inbox {
    client: Client,
    heard: Arc<Mutex<WatchStream>>,
    own: String,
    other: String,
}

impl Contender for Watch {
    type Lock = Inbox;

    async fn connect(url: &str, index: usize) -> Result<Self, Failure> {
        connect(url).await.map(|client| Watch { client, index })
    }

    async fn lock(&self, name: &str) -> Result<Inbox, Failure> {
        let (own, other) = (format!("{name}/{}", self.index), format!("{name}/{}", 1 - self.index));
        // From now on: whoever watches from the past waits for the server's next round.
        let heard = self.client.clone().watch(own.as_str(), None).await.map_err(Failure::broken)?;
        Ok(Inbox { client: self.client.clone(), heard: Arc::new(Mutex::new(heard)), own, other })
    }

    async fn prime(&self, lock: &Inbox) -> Result<(), Failure> {
        lock.tell(&lock.own).await
    }
}

impl Inbox {
    async fn tell(&self, key: &str) -> Result<(), Failure> {
        self.client.clone().put(key, "", None).await.map(drop).map_err(Failure::broken)
    }
}

impl Lock for Inbox {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let ended = || Failure::broken("the watch has ended");
        loop {
            let message = self.heard.lock().await.message().await.map_err(Failure::broken)?.ok_or_else(ended)?;
            if message.events().iter().any(|event| event.event_type() == EventType::Put) {
                break;
            }
        }
        let output = inside.await;
        self.tell(&self.other).await?;
        Ok(output)
    }
}

/// The server's Lock and Unlock, with a lease for each handle: those who share one share the lock.
pub(crate) struct LockRpc(Client);

#[derive(Clone)]
pub(crate) struct LockRpcLock {
    client: Client,
    name: String,
    lease: i64,
}

impl Contender for LockRpc {
    type Lock = LockRpcLock;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        connect(url).await.map(LockRpc)
    }

    async fn lock(&self, name: &str) -> Result<LockRpcLock, Failure> {
        let mut client = self.0.clone();
        let lease = client.lease_grant(TTL.as_secs() as i64, None).await.map_err(Failure::broken)?.id();
        Ok(LockRpcLock { client, name: name.to_owned(), lease })
    }
}

impl Lock for LockRpcLock {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let mut client = self.client.clone();
        let options = LockOptions::new().with_lease(self.lease);
        let held = client.lock(self.name.as_str(), Some(options)).await.map_err(Failure::broken)?;
        let output = inside.await;
        client.unlock(held.key()).await.map_err(Failure::broken)?;
        Ok(output)
    }
}

/// The command that comes with the server, a process for each hold: it prints its key when it holds, and lets go when it is
/// interrupted.
pub(crate) struct Etcdctl(String);

#[derive(Clone)]
pub(crate) struct EtcdctlLock {
    endpoints: String,
    name: String,
}

impl Contender for Etcdctl {
    type Lock = EtcdctlLock;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        Ok(Etcdctl(format!("--endpoints={}", hosts(url))))
    }

    async fn lock(&self, name: &str) -> Result<EtcdctlLock, Failure> {
        Ok(EtcdctlLock { endpoints: self.0.clone(), name: name.to_owned() })
    }
}

impl Lock for EtcdctlLock {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        // This process is killed when its visit is over, and those who wait must not go on.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "etcdctl", &self.endpoints, "lock"]).env("ETCDCTL_API", "3");
        command.arg(format!("--ttl={}", TTL.as_secs())).arg(&self.name).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(Failure::broken)?;
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let key = lines.next_line().await.map_err(Failure::broken)?;
        key.ok_or_else(|| Failure::broken("etcdctl ended without the lock"))?;
        let output = inside.await;
        let pid = child.id().ok_or_else(|| Failure::Lost)?;
        let interrupted = Command::new("kill").args(["-INT", &pid.to_string()]).status().await;
        interrupted.map_err(Failure::broken)?;
        child.wait().await.map_err(Failure::broken)?;
        Ok(output)
    }
}

async fn connect(url: &str) -> Result<Client, Failure> {
    Client::connect(hosts(url).split(',').collect::<Vec<_>>(), None).await.map_err(Failure::broken)
}

fn hosts(url: &str) -> &str {
    url.strip_prefix("etcd://").unwrap_or(url)
}
