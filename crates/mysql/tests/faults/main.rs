//! A real MariaDB, hurt in every way that is known: what the store promises holds, and where it promises nothing (a clock
//! that jumps, a replica that lagged) exclusion is *seen* to break and the fence to hold.
//!
//! The cases that every database has in common are in `tenure_testkit::faults`.

mod failover;
mod network;
mod settings;

use std::sync::Arc;

use tenure_core::{Backend, Result};
use tenure_testkit::faults::Store;
use tenure_testkit::servers::mariadb::MariaDb;

struct Lease;

impl Store for Lease {
    type Server = MariaDb;

    async fn open(url: &str) -> Result<Arc<dyn Backend>> {
        tenure_mysql::connect(&url.parse()?).await
    }
}

tenure_testkit::faults!(Lease);
