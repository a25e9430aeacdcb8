//! Session mode (`?liveness=session`): the server's advisory locks, its sessions, its queue. All that a client does around them
//! is in [`tenure_core::session`].
//!
//! - `advisory`: one session, and each verb on it as one statement; `wire`: its connection
//! - `server`: opening sessions, and what is asked of the server about all of them: views, requests, breaking
//! - `pooler`: finding out that something lends our sessions to others
//! - `sql/`: the table that shows who holds, and the functions around the server's own locks

mod advisory;
mod pooler;
mod server;
mod wire;

use std::sync::Arc;

use tenure_core::backend::{Abilities, Fencing, Liveness, Reach, Waiting};
use tenure_core::session::Sessions;
use tenure_core::{Backend, Kind, MIN_TTL, Result};

use crate::config::Settings;

/// What PostgreSQL does by sessions.
pub const SESSION_ABILITIES: Abilities = Abilities {
    store: "postgres session",
    kinds: &[Kind::Mutex, Kind::FairMutex, Kind::RwLock, Kind::Election],
    fencing: Fencing::DataOrClock,
    waiting: Waiting::Notified,
    liveness: Liveness::Session,
    reach: Reach::Network,
    cells: true,
    delays: false,
    downgrade: true,
    shortest_ttl: MIN_TTL,
};

/// Connects, and finds out whether sessions are what they seem.
///
/// # Cancel safety
/// Dropped before it completes, nothing is left but tables.
pub(crate) async fn connect(settings: Settings) -> Result<Arc<dyn Backend>> {
    let server = server::PostgresServer::new(settings)?;
    server.prepare().await?;
    Ok(Arc::new(Sessions::new(server)))
}
