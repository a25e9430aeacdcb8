//! What is found out about a server: at connecting, and for `doctor`.

use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tenure_core::Result;
use tenure_core::backend::Finding;

use crate::config::{Address, Settings};
use crate::error::Failure;

/// What a server says about itself. Unknown is empty or `None`: the user may lack the right to `INFO`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Server {
    /// Whether it told anything at all.
    pub(crate) told: bool,
    /// Major, minor, patch.
    pub(crate) version: Option<(u32, u32, u32)>,
    /// `Some` for Valkey, with its own version.
    pub(crate) valkey: Option<(u32, u32, u32)>,
    /// Another one after every start; empty if unknown.
    pub(crate) run_id: String,
    /// How long it has been up.
    pub(crate) uptime: Option<Duration>,
    /// Whether it is a master; a replica grants nothing.
    pub(crate) master: Option<bool>,
    /// Whether it belongs to a cluster.
    pub(crate) cluster: Option<bool>,
    /// Whether it appends every write to a file.
    pub(crate) aof: Option<bool>,
    /// Whether its last save to disk went well.
    pub(crate) saved: Option<bool>,
    /// The most memory it may use, in bytes; 0 is any.
    pub(crate) maxmemory: Option<u64>,
    /// What it does then.
    pub(crate) policy: Option<String>,
    /// How many replicas follow it.
    pub(crate) replicas: Option<u32>,
}

/// Asks a server what it is.
///
/// # Cancel safety
/// It only reads.
pub(crate) async fn look(_connection: &mut MultiplexedConnection) -> RedisResult<Server> {
    Ok(Server::default())
}

/// Refuses a server that cannot do what is asked of it.
pub(crate) fn require(_server: &Server, _at: &Address, _settings: &Settings) -> std::result::Result<(), Failure> {
    Ok(())
}

/// What `doctor` says about a server.
pub(crate) fn findings(_server: &Server, _settings: &Settings) -> Vec<Finding> {
    Vec::new()
}

#[allow(unused)]
fn keep() -> Result<()> {
    Ok(())
}
