//! Plain keys, that are nobody's claim: cells, and what is measured against.
//!
//! Cells: a key each, whose version is the revision of its last writing. Revisions never go back, so versions do not either, also
//! when a cell is removed and made anew.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::{Error, ErrorKind, LockName, Result, Versioned};

use crate::inner::Inner;
use crate::proto::*;

/// A raw write that nobody followed with another is removed after so long.
const PROBED: Duration = Duration::from_secs(1);

impl Inner {
    /// A put and a delete in turns.
    pub(crate) async fn probe(self: &Arc<Self>) -> Result<()> {
        let key = self.schema.probe(self.number);
        let count = self.probes.fetch_add(1, Ordering::Relaxed);
        if count.is_multiple_of(2) {
            if !self.probing.swap(true, Ordering::Relaxed) {
                let inner = Arc::clone(self);
                self.spawn(async move { inner.stop_probing().await });
            }
            let request = PutRequest { key, value: b"probe".to_vec(), ..Default::default() };
            let asked = self.asks.call("a raw write", |wire| {
                let request = request.clone();
                async move { wire.put(request).await }
            });
            return Ok(asked.await.map(drop)?);
        }
        self.remove(key).await
    }

    async fn remove(&self, key: Vec<u8>) -> Result<()> {
        let request = DeleteRangeRequest { key, range_end: Vec::new() };
        let asked = self.asks.call("a raw delete", |wire| {
            let request = request.clone();
            async move { wire.delete(request).await }
        });
        Ok(asked.await.map(drop)?)
    }

    /// Removes what is left when nobody probes any more.
    async fn stop_probing(&self) {
        loop {
            let before = self.probes.load(Ordering::Relaxed);
            tokio::time::sleep(PROBED).await;
            if self.probes.load(Ordering::Relaxed) == before {
                break;
            }
        }
        self.probing.store(false, Ordering::Relaxed);
        let _ = self.remove(self.schema.probe(self.number)).await;
    }

    pub(crate) async fn cell_get(&self, name: &LockName) -> Result<Versioned> {
        let request = RangeRequest::one(&self.schema.cell(name));
        let answer = self.asks.range("reading a cell", request).await?.value;
        Ok(match answer.kvs.into_iter().next() {
            Some(kv) => (Some(kv.value), kv.mod_revision as u64),
            None => (None, 0),
        })
    }

    /// Sent twice it is done once, but whether the first copy did it cannot be told from somebody else's writing: that is an error.
    pub(crate) async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Result<Option<u64>> {
        let key = self.schema.cell(name);
        let compare = vec![unchanged(&key, expected as i64)];
        let success = match value {
            Some(value) => vec![put(&key, value.to_vec(), 0)],
            None if expected == 0 => Vec::new(), // nothing is there to be removed
            None => vec![delete(&key)],
        };
        let answer = self.asks.txn("writing a cell", TxnRequest { compare, success, failure: Vec::new() }).await?;
        match (answer.value.succeeded, answer.clean) {
            (true, _) => Ok(Some(answer.value.header.revision as u64)),
            (false, true) => Ok(None),
            (false, false) => Err(Error::new(ErrorKind::Unavailable, "a cell was written, by us or by somebody else")
                .with_name(name)
                .with_hint("Read it again: the first request had no answer, and the second came after it")),
        }
    }
}
