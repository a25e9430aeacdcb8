//! Plain keys, that are nobody's claim: cells, and what is measured against.
//!
//! Cells: a key each, whose version is the revision of its last writing. Revisions never go back, so versions do not either, also
//! when a cell is removed and made anew.

use std::sync::atomic::Ordering;

use tenure_core::{Error, ErrorKind, LockName, Result, Versioned};

use crate::inner::Inner;
use crate::proto::*;

impl Inner {
    /// A put and a delete in turns.
    pub(crate) async fn probe(&self) -> Result<()> {
        if !self.probes.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            return self.stop_probing().await;
        }
        let request = PutRequest { key: self.schema.probe(self.number), value: b"probe".to_vec(), ..Default::default() };
        let asked = self.asks.call("a raw write", |wire| {
            let request = request.clone();
            async move { wire.put(request).await }
        });
        Ok(asked.await.map(drop)?)
    }

    /// Removes what a probe has put.
    pub(crate) async fn stop_probing(&self) -> Result<()> {
        let request = DeleteRangeRequest { key: self.schema.probe(self.number), range_end: Vec::new() };
        let asked = self.asks.call("a raw delete", |wire| {
            let request = request.clone();
            async move { wire.delete(request).await }
        });
        Ok(asked.await.map(drop)?)
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
