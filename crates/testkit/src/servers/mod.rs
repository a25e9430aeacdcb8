//! Real servers, started from their Debian packages in a temporary directory on free ports of 127.0.0.1, or in networks of
//! their own.
//!
//! ```no_run
//! use tenure_testkit::servers::redis::{Redis, RedisOptions};
//!
//! let redis = Redis::start(RedisOptions::new().arg("maxmemory", "2mb"));
//! assert_eq!(redis.command(&["SET", "greeting", "hello"]).text(), "OK");
//! redis.kill();
//! redis.restart(); // the same port, and nothing remembered
//! assert!(redis.command(&["GET", "greeting"]).is_nil());
//! ```
//!
//! - They end with their handle, and with the test's process, however that ends; see `process.rs` for how.
//! - Their ports are theirs until the handle is dropped, also while they are dead; see `port.rs`.
//! - A program that is not installed is a panic that names its Debian package, never a test that did not run.
//! - `shared()` is one per test binary, for suites whose cases keep to names of their own. Nobody hurts a shared server.
//!
//! Everything here blocks: a handle can be used from any thread and any runtime, and outlives them.
//!
//! Another kind of server is one file: what `redis` does with `Program` and `Server`.

mod account;
mod backup;
mod disk;
pub mod etcd;
pub mod mariadb;
mod network;
mod port;
pub mod postgres;
mod probe;
mod process;
pub mod redis;
mod site;
mod skew;
mod template;
mod tls;
pub mod zookeeper;

pub use backup::Backup;
pub(crate) use port::Port;
pub use skew::Step;
pub use tls::{Certificates, ClientCertificate};

use std::time::{Duration, Instant};

use crate::LIMIT;

/// Waits until the condition holds, blocking; false if that is not within [`LIMIT`].
pub(crate) fn wait_until(holds: impl FnMut() -> bool) -> bool {
    wait_until_within(LIMIT, holds)
}

/// The same with a limit of its own.
pub(crate) fn wait_until_within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    for round in 0.. {
        if holds() {
            return true;
        }
        if Instant::now() > end {
            break;
        }
        std::thread::sleep(Duration::from_millis(if round < 50 { 1 } else { 10 }));
    }
    false
}
