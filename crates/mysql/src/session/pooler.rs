//! What a connection is asked to find out whether a proxy lends its session to others.

use tenure_core::backend::BoxFuture;
use tenure_core::session::{Answer, Connection};

use super::locks::{last, nonsense};
use super::wire::Wire;

const DOING: &str = "looking for a proxy";

impl Connection for Wire {
    fn begin(&self) -> BoxFuture<'_, Answer<()>> {
        Box::pin(async { self.send(DOING, "START TRANSACTION".to_owned()).await.map(drop) })
    }

    /// As a sum: to the bare question some proxies answer themselves.
    fn session(&self) -> BoxFuture<'_, Answer<u64>> {
        Box::pin(async {
            let said = last(&self.send(DOING, "SELECT CONNECTION_ID() + 0".to_owned()).await?);
            said.and_then(|number| u64::try_from(number).ok()).ok_or_else(|| nonsense(DOING))
        })
    }

    fn end(&self) -> BoxFuture<'_, Answer<()>> {
        Box::pin(async { self.send(DOING, "COMMIT".to_owned()).await.map(drop) })
    }
}
