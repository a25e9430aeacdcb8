//! From a URL to a backend.

use std::sync::Arc;

use tenure_core::{Backend, Result, StoreUrl};

use crate::Etcd;
use crate::config::Settings;

/// Connects to the cluster that a URL names.
///
/// # Cancel safety
/// Dropped before it completes, nothing is left.
pub async fn connect(url: &StoreUrl) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Etcd::connect(Settings::from_url(url)?).await?))
}
