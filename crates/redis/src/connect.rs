//! From a URL to a backend.

use std::sync::Arc;

use tenure_core::{Backend, Result, StoreUrl};

use crate::config::Settings;
use crate::{Redis, Topology, redlock};

/// Connects to what a URL names: one server, the master that sentinels watch over, a cluster, or several servers that vote.
///
/// # Cancel safety
/// Dropped before it completes, nothing is left.
pub async fn connect(url: &StoreUrl) -> Result<Arc<dyn Backend>> {
    let settings = Settings::from_url(url)?;
    match settings.topology {
        Topology::Redlock(_) => Ok(Arc::new(redlock::connect(&settings).await?)),
        _ => Ok(Arc::new(Redis::connect(settings).await?)),
    }
}
