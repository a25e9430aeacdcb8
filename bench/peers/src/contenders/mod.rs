//! The contenders in Rust, one file a library, each used as its README says.

mod distributed_lock;
mod etcd;
mod mariadb;
mod postgres;
mod redis;
mod redis_lock;
mod rslock;
mod tenure;
mod zookeeper;

use std::fmt::{self, Display};
use std::future::Future;
use std::time::Duration;

use crate::store::Store;

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

pub(crate) fn visit(store: Store, key: &str, visitor: impl Visitor) -> Result<(), String> {
    match (store, key) {
        (_, "tenure") => visitor.visit::<tenure::Mutex>(),
        (_, "tenure-fair") => visitor.visit::<tenure::Fair>(),
        (Store::Postgres, "tenure-session") => visitor.visit::<tenure::Session>(),
        (Store::Redis, "raw-evalsha") => visitor.visit::<redis::Evalsha>(),
        (Store::Redis, "raw-publish") => visitor.visit::<redis::Publish>(),
        (Store::Redis, "raw-blpop") => visitor.visit::<redis::Blpop>(),
        (Store::Redis, "rslock") => visitor.visit::<rslock::Rslock>(),
        (Store::Redis, "redis-lock") => visitor.visit::<redis_lock::RedisLock>(),
        (Store::Redis, "distributed-lock") => visitor.visit::<distributed_lock::OnRedis>(),
        (Store::Postgres, "raw-upsert") => visitor.visit::<postgres::Upsert<1>>(),
        (Store::Postgres, "raw-upsert-2") => visitor.visit::<postgres::Upsert<2>>(),
        (Store::Postgres, "raw-advisory") => visitor.visit::<postgres::TryAdvisory>(),
        (Store::Postgres, "raw-notify") => visitor.visit::<postgres::Notify>(),
        (Store::Postgres, "advisory") => visitor.visit::<postgres::WaitAdvisory>(),
        (Store::Postgres, "distributed-lock") => visitor.visit::<distributed_lock::OnPostgres>(),
        (Store::MariaDb, "raw-upsert") => visitor.visit::<mariadb::Upsert<1>>(),
        (Store::MariaDb, "raw-upsert-2") => visitor.visit::<mariadb::Upsert<2>>(),
        (Store::MariaDb, "raw-getlock") => visitor.visit::<mariadb::TryGetLock>(),
        (Store::MariaDb, "getlock") => visitor.visit::<mariadb::WaitGetLock>(),
        (Store::MariaDb, "distributed-lock") => visitor.visit::<distributed_lock::OnMySql>(),
        (Store::Etcd, "raw-put") => visitor.visit::<etcd::PutDelete>(),
        (Store::Etcd, "raw-watch") => visitor.visit::<etcd::Watch>(),
        (Store::Etcd, "etcd-client") => visitor.visit::<etcd::LockRpc>(),
        (Store::Etcd, "etcdctl") => visitor.visit::<etcd::Etcdctl>(),
        (Store::ZooKeeper, "raw-create") => visitor.visit::<zookeeper::CreateDelete>(),
        (Store::ZooKeeper, "raw-watch") => visitor.visit::<zookeeper::Watch>(),
        (Store::ZooKeeper, "zookeeper-client") => visitor.visit::<zookeeper::Recipe>(),
        _ => Err(format!("no contender in Rust on {} is called {key}", store.key())),
    }
}
