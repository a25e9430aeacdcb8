//! What a connection is asked to find out whether a pooler lends its session to others.

use super::{Answer, Connection};
use tenure_core::backend::BoxFuture;

use super::advisory::garbled;
use super::wire::Wire;

const DOING: &str = "looking for a pooler";

impl Connection for Wire {
    fn begin(&self) -> BoxFuture<'_, Answer<()>> {
        Box::pin(async { self.client().batch_execute("BEGIN").await.map_err(|error| self.failed(error, DOING)) })
    }

    /// By the simple protocol, which every pooler understands.
    fn session(&self) -> BoxFuture<'_, Answer<u64>> {
        Box::pin(async {
            let said = self.client().simple_query("SELECT pg_backend_pid()").await;
            let said = said.map_err(|error| self.failed(error, DOING))?;
            let text = said.iter().find_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            });
            text.and_then(|text| text.parse().ok()).ok_or_else(|| garbled(DOING))
        })
    }

    fn end(&self) -> BoxFuture<'_, Answer<()>> {
        Box::pin(async { self.client().batch_execute("COMMIT").await.map_err(|error| self.failed(error, DOING)) })
    }
}
