//! Cells, the optimistic lock: a node that is only written if nobody wrote since it was read.
//!
//! A cell's version is the number of the transaction that wrote it last (`mzxid`): it rises for ever, and a cell that was removed
//! leaves nothing. ZooKeeper's own version of a node starts over when the node is made anew, so "version 0" alone could mean
//! another node. So every cell has a child with a random name, made and removed with it; a write is one transaction that checks
//! that this child is there *and* that the node has the version that was read with the number.

use std::sync::Arc;

use tenure_core::{LockName, Result, Versioned, random};

use crate::error::refused;
use crate::inner::Inner;
use crate::layout;
use crate::session::Trouble;
use crate::wire::{NodeKind, Op, Refusal, Reply, Request, Stat};

/// A cell as it is.
struct Read {
    value: Vec<u8>,
    stat: Stat,
    /// The path of its child.
    life: String,
}

impl Inner {
    /// The value and its version.
    ///
    /// # Cancel safety
    /// Only reads.
    pub(crate) async fn cell_get(self: &Arc<Self>, name: &LockName) -> Result<Versioned> {
        Ok(match self.read_cell(&layout::cell(&self.settings, name)).await? {
            Some(Read { value, stat, .. }) => (Some(value), stat.mzxid as u64),
            None => (None, 0),
        })
    }

    async fn read_cell(self: &Arc<Self>, path: &str) -> Result<Option<Read>> {
        let path = path.to_owned();
        let look = [
            Request::Sync { path: path.clone() },
            Request::Children { path: path.clone(), watch: false },
            Request::Get { path: path.clone(), watch: false },
        ];
        match <[_; 3]>::try_from(self.read("read the cell", &look).await?) {
            Ok([_, Ok(Reply::Children(children, _)), Ok(Reply::Data(value, stat))]) => {
                let life = format!("{path}/{}", children.first().map_or("none", String::as_str));
                Ok(Some(Read { value, stat, life }))
            }
            Ok([_, Err(Trouble::Refused(refusal)), _] | [_, _, Err(Trouble::Refused(refusal))])
                if refusal != Refusal::NO_NODE =>
            {
                Err(refused(refusal, "read", &path))
            }
            _ => Ok(None),
        }
    }

    /// Writes or removes a cell if its version is still `expected`.
    ///
    /// # Cancel safety
    /// Dropped, it may have been done or not.
    pub(crate) async fn cell_set(
        self: &Arc<Self>,
        name: &LockName,
        expected: u64,
        value: Option<&[u8]>,
    ) -> Result<Option<u64>> {
        let path = layout::cell(&self.settings, name);
        let ops = if expected == 0 {
            let Some(value) = value else {
                return Ok(self.read_cell(&path).await?.is_none().then_some(0)); // there is none, and there shall be none
            };
            let life = format!("{path}/{:016x}", u64::from_be_bytes(random()));
            let create = |path, data: &[u8]| Op::Create { path, data: data.to_vec(), kind: NodeKind::Persistent };
            vec![create(path.clone(), value), create(life, &[])]
        } else {
            let Some(Read { stat, life, .. }) = self.read_cell(&path).await? else { return Ok(None) };
            if stat.mzxid as u64 != expected {
                return Ok(None);
            }
            match value {
                Some(value) => vec![
                    Op::Check { path: life, version: -1 },
                    Op::Set { path: path.clone(), data: value.to_vec(), version: stat.version },
                ],
                None => {
                    vec![Op::Delete { path: life, version: -1 }, Op::Delete { path: path.clone(), version: stat.version }]
                }
            }
        };
        loop {
            return match self.once(Request::Multi(ops.clone())).await? {
                Ok(Reply::Multi(zxid)) => Ok(Some(zxid as u64)),
                Ok(_) | Err(Refusal::BAD_VERSION | Refusal::NODE_EXISTS) => Ok(None),
                Err(Refusal::NO_NODE) if expected == 0 => {
                    let user = self.any_session().await?;
                    let parent = &path[..path.rfind('/').expect("it has a parent")];
                    match self.make_path(&user.0, parent, NodeKind::Container).await? {
                        Ok(()) => continue,
                        Err(trouble) => Err(self.explain(trouble, "make", parent)),
                    }
                }
                Err(Refusal::NO_NODE) => Ok(None),
                Err(refusal) => Err(refused(refusal, "write", &path)),
            };
        }
    }
}
