//! From a URL to a client, or to a fence: the only place that knows every store.

use std::sync::Arc;

#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql", feature = "zookeeper", feature = "etcd"))]
use tenure_core::Environment;
use tenure_core::backend::{Abilities, Backend};
use tenure_core::fence::{Fence, FileFence, MemoryFence};
use tenure_core::memory::Memory;
use tenure_core::{Client, Error, ErrorKind, Result, StoreUrl};

/// The schemes this build can connect to.
pub const SCHEMES: &[&str] = &[
    "memory",
    #[cfg(feature = "sqlite")]
    "sqlite",
    #[cfg(feature = "redis")]
    "redis",
    #[cfg(feature = "redis")]
    "rediss",
    #[cfg(feature = "redis")]
    "redis+sentinel",
    #[cfg(feature = "redis")]
    "rediss+sentinel",
    #[cfg(feature = "redis")]
    "redis+cluster",
    #[cfg(feature = "redis")]
    "rediss+cluster",
    #[cfg(feature = "redis")]
    "redlock",
    #[cfg(feature = "redis")]
    "rediss+redlock",
    #[cfg(feature = "postgres")]
    "postgres",
    #[cfg(feature = "postgres")]
    "postgresql",
    #[cfg(feature = "mysql")]
    "mysql",
    #[cfg(feature = "mysql")]
    "mariadb",
    #[cfg(feature = "zookeeper")]
    "zk",
    #[cfg(feature = "zookeeper")]
    "zks",
    #[cfg(feature = "etcd")]
    "etcd",
    #[cfg(feature = "etcd")]
    "etcds",
];

/// What each store of this build does, by its own word, without connecting to any: what the README's table is made from.
pub fn abilities() -> Vec<Abilities> {
    vec![
        Memory::new().backend().abilities(),
        #[cfg(feature = "sqlite")]
        tenure_sqlite::ABILITIES,
        #[cfg(feature = "redis")]
        tenure_redis::ABILITIES,
        #[cfg(feature = "redis")]
        tenure_redis::REDLOCK_ABILITIES,
        #[cfg(feature = "postgres")]
        tenure_postgres::ABILITIES,
        #[cfg(feature = "postgres")]
        tenure_postgres::SESSION_ABILITIES,
        #[cfg(feature = "mysql")]
        tenure_mysql::ABILITIES,
        #[cfg(feature = "zookeeper")]
        tenure_zookeeper::ABILITIES,
        #[cfg(feature = "etcd")]
        tenure_etcd::ABILITIES,
    ]
}

/// Connects to a store.
///
/// `memory://` is a new store of its own, `memory://NAME` the process's store of that name, `sqlite:///path` a file,
/// `redis://host` a server; `redis+sentinel://`, `redis+cluster://` and `redlock://` are several; `postgres://host/database` and
/// `mysql://host/database` are databases; `zk://h1,h2,h3` and `etcd://h1,h2,h3` are clusters. A scheme or parameter that is
/// not known is an error that lists the known ones.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let (one, other) = (tenure::connect("memory://demo").await?, tenure::connect("memory://demo").await?);
/// let guard = one.mutex("x")?.lock().await?;
/// assert!(other.mutex("x")?.try_lock().await?.is_none());
/// # drop(guard); Ok(()) }
/// ```
///
/// # Cancel safety
/// Dropped before it completes, nothing is left but perhaps an empty file.
pub async fn connect(url: impl AsRef<str>) -> Result<Client> {
    let url: StoreUrl = url.as_ref().parse()?;
    match url.scheme() {
        "memory" => {
            url.refuse_login()?;
            url.allow_parameters(&[])?;
            let name = url.file_path();
            let store = if name.is_empty() { Memory::new() } else { Memory::shared(&name) };
            Client::new(store.backend())
        }
        #[cfg(feature = "sqlite")]
        scheme if tenure_sqlite::SCHEMES.contains(&scheme) => Client::new(tenure_sqlite::connect(&url)?),
        #[cfg(feature = "redis")]
        scheme if tenure_redis::SCHEMES.contains(&scheme) => {
            Client::with_environment(tenure_redis::connect(&url).await?, Environment::real())
        }
        #[cfg(feature = "postgres")]
        scheme if tenure_postgres::SCHEMES.contains(&scheme) => {
            Client::with_environment(tenure_postgres::connect(&url).await?, Environment::real())
        }
        #[cfg(feature = "mysql")]
        scheme if tenure_mysql::SCHEMES.contains(&scheme) => {
            Client::with_environment(tenure_mysql::connect(&url).await?, Environment::real())
        }
        #[cfg(feature = "zookeeper")]
        scheme if tenure_zookeeper::SCHEMES.contains(&scheme) => {
            Client::with_environment(tenure_zookeeper::connect(&url).await?, Environment::real())
        }
        #[cfg(feature = "etcd")]
        scheme if tenure_etcd::SCHEMES.contains(&scheme) => {
            Client::with_environment(tenure_etcd::connect(&url).await?, Environment::real())
        }
        scheme => Err(unknown(scheme)),
    }
}

/// The schemes this build can keep a fence in: those of its stores, but for Redlock, ZooKeeper and etcd, which keep none; and a file.
pub fn fence_schemes() -> impl Iterator<Item = &'static str> {
    let keeps_none = |scheme: &str| scheme.ends_with("redlock") || ["zk", "zks", "etcd", "etcds"].contains(&scheme);
    SCHEMES.iter().copied().filter(move |scheme| !keeps_none(scheme)).chain([FileFence::SCHEME])
}

/// Opens a fence: what refuses holders that come too late, at the resource, with no lock store in reach. See [`mod@crate::fence`].
///
/// `memory://` is a new one, `memory://NAME` the process's of that name, `file:///path` a file for all processes of a host, and
/// `sqlite:///path`, `postgres://host/database`, `mysql://host/database`, `redis://host` (or `redis+sentinel`, `redis+cluster`) one in
/// that store. It needs nothing of the store's locks, and they may be elsewhere.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let url = format!("file://{}/fence", dir.path().display());
/// use tenure::fence::Gate;
/// let client = tenure::connect("memory://locks").await?;
/// let gate = Gate::new(tenure::fence(url).await?); // at the resource
/// let guard = client.mutex("invoices")?.lock().await?; // at the holder, which sends its sequencer along
/// let sequencer = guard.sequencer();
/// gate.write("invoices", &sequencer, async { /* the write */ }).await?; // `Lost` for whoever comes too late
/// # guard.release().await
/// # }
/// ```
///
/// # Cancel safety
/// Dropped before it completes, nothing is left but perhaps an empty file or table.
pub async fn fence(url: impl AsRef<str>) -> Result<Arc<dyn Fence>> {
    let url: StoreUrl = url.as_ref().parse()?;
    match url.scheme() {
        "memory" => {
            url.refuse_login()?;
            url.allow_parameters(&[])?;
            let name = url.file_path();
            Ok(Arc::new(if name.is_empty() { MemoryFence::new() } else { MemoryFence::shared(&name) }))
        }
        FileFence::SCHEME => Ok(Arc::new(FileFence::connect(&url)?)),
        #[cfg(feature = "sqlite")]
        scheme if tenure_sqlite::SCHEMES.contains(&scheme) => tenure_sqlite::open_fence(&url),
        #[cfg(feature = "redis")]
        scheme if tenure_redis::SCHEMES.contains(&scheme) => tenure_redis::open_fence(&url).await,
        #[cfg(feature = "postgres")]
        scheme if tenure_postgres::SCHEMES.contains(&scheme) => tenure_postgres::open_fence(&url).await,
        #[cfg(feature = "mysql")]
        scheme if tenure_mysql::SCHEMES.contains(&scheme) => tenure_mysql::open_fence(&url).await,
        scheme => Err(Error::new(ErrorKind::BadUrl, format!("no fence has the scheme {scheme:?}"))
            .with_hint(format!("This build knows: {}", fence_schemes().collect::<Vec<_>>().join(", ")))),
    }
}

/// What a database needs for its locks: tables and functions, as text for `psql` or `mariadb`. Nothing is connected to.
///
/// A store that makes by itself what it needs has none, and says so.
pub fn schema(url: impl AsRef<str>) -> Result<String> {
    let url: StoreUrl = url.as_ref().parse()?;
    match url.scheme() {
        #[cfg(feature = "postgres")]
        scheme if tenure_postgres::SCHEMES.contains(&scheme) => {
            tenure_postgres::schema(&tenure_postgres::Settings::from_url(&url)?)
        }
        #[cfg(feature = "mysql")]
        scheme if tenure_mysql::SCHEMES.contains(&scheme) => {
            Ok(tenure_mysql::schema(&tenure_mysql::Settings::from_url(&url)?))
        }
        scheme => Err(no_schema(scheme)),
    }
}

/// Applies [`schema`] to a database, as a user who may. Afterwards nobody needs the right to create anything.
///
/// # Cancel safety
/// Dropped before it completes, part of it may have been applied; do it again.
pub async fn migrate(url: impl AsRef<str>) -> Result<()> {
    let url: StoreUrl = url.as_ref().parse()?;
    match url.scheme() {
        #[cfg(feature = "postgres")]
        scheme if tenure_postgres::SCHEMES.contains(&scheme) => tenure_postgres::migrate(&url).await,
        #[cfg(feature = "mysql")]
        scheme if tenure_mysql::SCHEMES.contains(&scheme) => tenure_mysql::migrate(&url).await,
        scheme => Err(no_schema(scheme)),
    }
}

fn unknown(scheme: &str) -> Error {
    Error::new(ErrorKind::BadUrl, format!("no store has the scheme {scheme:?}"))
        .with_hint(format!("This build knows: {}", SCHEMES.join(", ")))
}

fn no_schema(scheme: &str) -> Error {
    if !SCHEMES.contains(&scheme) {
        return unknown(scheme);
    }
    Error::new(ErrorKind::Unsupported, format!("{scheme}: stores have no schema"))
        .with_hint("They make by themselves what they need, when it is first used; only databases have one")
}

/// Connects to the embedded default: a file of the user's own, shared by all of that user's processes on this host.
///
/// # Cancel safety
/// Dropped before it completes, nothing is left but perhaps an empty file.
#[cfg(feature = "sqlite")]
pub async fn connect_default() -> Result<Client> {
    Client::new(tenure_sqlite::open_default(tenure_sqlite::Settings::default())?)
}

/// Without the `sqlite` feature there is no embedded default.
///
/// # Cancel safety
/// It does nothing.
#[cfg(not(feature = "sqlite"))]
pub async fn connect_default() -> Result<Client> {
    Err(Error::new(ErrorKind::Unsupported, "this build has no embedded store")
        .with_hint("Give a URL, or build with the feature sqlite"))
}
