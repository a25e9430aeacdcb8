//! Making a reader of the writer that holds an rw lock.
//!
//! The claim keeps its key, and so its place in line and its token. The key's value says that it
//! reads, and the readers who watch the key are let in by that.
//!
//! Who can interleave: a read of the key, and then a write if nobody wrote the key since. An
//! operator who asks the holder to release writes the value, and a renewal moves the key to another
//! lease: then it is done once more. A copy of the write that arrives late finds a key that was
//! written since, and does nothing.

use tenure_core::{Claim, Result};

use crate::codec::Value;
use crate::inner::Inner;
use crate::proto::{RangeRequest, TxnRequest, rewrite, unchanged};
use crate::table::Stage;

impl Inner {
    /// Makes a reader of a writer; `false` if it is not held any more.
    ///
    /// # Cancel safety
    /// Dropped, it may have been done or not: another call finds out which.
    pub(crate) async fn downgrade(&self, claim: &Claim) -> Result<bool> {
        let held = {
            let table = self.table();
            let entry = table.claims.get(&claim.id).filter(|entry| matches!(entry.stage, Stage::Held { .. }));
            entry.map(|entry| (entry.key.clone(), entry.revision))
        };
        let Some((key, revision)) = held else { return Ok(false) };
        loop {
            let request = RangeRequest::one(&key);
            let answer = self.asks.range("looking at a hold", request).await?.value;
            let Some(kv) = answer.kvs.into_iter().find(|kv| kv.create_revision == revision) else { return Ok(false) };
            let value = Value::decode(&kv.value);
            if value.closing || value.shared {
                return Ok(value.shared && !value.closing);
            }
            let success = vec![rewrite(&key, Value { shared: true, ..value }.encode())];
            let compare = vec![unchanged(&key, kv.mod_revision)];
            let txn = TxnRequest { compare, success, failure: Vec::new() };
            if self.asks.txn("downgrading an rw lock", txn).await?.value.succeeded {
                return Ok(true);
            }
        }
    }
}
