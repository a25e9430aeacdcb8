//! Session mode (`?liveness=session`): the server's `GET_LOCK`, its sessions, its queue. All that a client does around them is in
//! [`tenure_core::session`].
//!
//! - `locks`: one session, and each verb on it; `texts`: the statements; `in_vain`: which waits are long
//! - `wire`: its connection, in parts: `queue`, `connection`, `packets`, `reply`, `login`
//! - `pooler`: whether it is one at all
//! - `server`: opening sessions, and what is asked of the server about all of them: views, requests, breaking

mod connection;
mod in_vain;
mod locks;
mod login;
mod packets;
mod pooler;
mod queue;
mod reply;
mod server;
mod texts;
mod wire;

pub(crate) use texts::statements;

use std::sync::Arc;

use tenure_core::backend::{Abilities, Fencing, Liveness, Reach, Waiting};
use tenure_core::session::Sessions;
use tenure_core::{Backend, Kind, MIN_TTL, Result};

use crate::config::Settings;

/// What MySQL and MariaDB do by sessions.
pub const SESSION_ABILITIES: Abilities = Abilities {
    store: "mysql session",
    kinds: &[Kind::Mutex, Kind::FairMutex, Kind::Election],
    fencing: Fencing::DataOrClock,
    waiting: Waiting::Notified,
    liveness: Liveness::Session,
    reach: Reach::Network,
    cells: true,
    delays: false,
    downgrade: false,
    shortest_ttl: MIN_TTL,
};

/// The tables that a runtime user writes to, besides those of both ways. To GRANT, a sequence is a table.
pub(crate) const WRITTEN: &[&str] = &["session", "token"];

/// Connects, once the tables are there.
///
/// # Cancel safety
/// Dropped before it completes, nothing is left but tables.
pub(crate) async fn connect(settings: Settings, client: u64) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(Sessions::new(server::MySqlServer::connect(settings, client).await?)))
}
