//! Distributed locks on the store you already run: one API, seven kinds, and on every store a fencing token that never
//! starts over, automatic renewal, and a loss signal that fires before anybody else can be let in.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let url = format!("sqlite://{}/locks.db", dir.path().display());
//! let client = tenure::connect(url).await?; // or tenure::connect_default(): the user's own file
//! let guard = client.mutex("invoices")?.lock().await?;
//! println!("only one of us is here, fenced by {}", guard.token());
//! guard.release().await?;
//! # client.close().await
//! # }
//! ```
//!
//! A lock here is a *lease*: it can end while you work. Every [`Guard`] says so by its own clock before the store lets
//! anybody else in, and has a [`Token`] for resources that must refuse a holder that comes too late: [`mod@fence`] does so, in
//! the resource's own store, and [`fence()`] opens one. What each store can and cannot promise is in [`guarantees`].
//!
//! Which kind? [`Mutex`] unless you need more: [`FairMutex`] for strict order, [`RwLock`] for readers and writers,
//! [`Semaphore`] for "at most n", [`Multi`] for several names at once, [`ReentrantMutex`] to enter again, [`Election`] for
//! a leader, and [`Cell`] where a retry is cheaper than a lock. Programs without async use [`blocking`].
//!
//! # Stores
//!
//! | URL | feature | who can meet there |
//! |---|---|---|
//! | `sqlite:///path/to/file`, or none: the user's default file | `sqlite` (default) | the processes of one host |
//! | `redis://host`, `redis+sentinel://`, `redis+cluster://`, `redlock://` | `redis` | everybody who can reach the servers |
//! | `postgres://host/database` | `postgres` | everybody who can reach the database |
//! | `mysql://host/database`, `mariadb://host/database` | `mysql` | everybody who can reach the database |
//! | `zk://h1,h2,h3/chroot` | `zookeeper` | everybody who can reach the ensemble |
//! | `etcd://h1,h2,h3` | `etcd` | everybody who can reach the cluster |
//! | `memory://`, `memory://NAME` | always there | the tasks and threads of one process |

pub mod blocking;
mod connect;

pub use connect::{SCHEMES, abilities, connect, connect_default, fence, fence_schemes, migrate, schema};
pub use tenure_core::*;

/// What only PostgreSQL has: the row lock in your own transaction, and fenced writes.
#[cfg(feature = "postgres")]
pub use tenure_postgres as postgres;

/// What only MySQL and MariaDB have: the row lock in your own transaction, and fenced writes.
#[cfg(feature = "mysql")]
pub use tenure_mysql as mysql;

/// What only SQLite has: the lock in your own transaction, and fenced writes.
#[cfg(feature = "sqlite")]
pub use tenure_sqlite as sqlite;

/// Fencing over HTTP: a layer for servers, a header for clients.
#[cfg(feature = "http")]
pub use tenure_http as http;

#[doc = include_str!("../../../GUARANTEES.md")]
pub mod guarantees {}
