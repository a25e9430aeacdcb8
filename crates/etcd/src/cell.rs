//! Cells: a key each, whose version is the revision of its last writing. Revisions never go back, so versions do not either, also
//! when a cell is removed and made anew.

use tenure_core::{Error, ErrorKind, LockName, Result, Versioned};

use crate::inner::{Inner, wire_range};
use crate::proto::*;

impl Inner {
    pub(crate) async fn cell_get(&self, name: &LockName) -> Result<Versioned> {
        let request = RangeRequest::one(&self.schema.cell(name));
        let answer = self.asks.call("reading a cell", |wire| wire_range(wire, request.clone())).await?.value;
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
        let answer = self.txn("writing a cell", TxnRequest { compare, success, failure: Vec::new() }).await?;
        match (answer.value.succeeded, answer.clean) {
            (true, _) => Ok(Some(answer.value.revision() as u64)),
            (false, true) => Ok(None),
            (false, false) => Err(Error::new(ErrorKind::Unavailable, "a cell was written, by us or by somebody else")
                .with_name(name)
                .with_hint("Read it again: the first request had no answer, and the second came after it")),
        }
    }
}
