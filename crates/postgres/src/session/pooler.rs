//! Finding out that something between us and the server lends our sessions to others.
//!
//! A pooler in transaction mode gives a connection another session after every transaction: a lock taken on one statement's
//! session is not on the next one's, and may be found by somebody else who believes to be alone with it. Two connections that
//! take turns in holding a transaction open see that: a session that changes under a connection, or is the same under two.

use tenure_core::{Error, ErrorKind, Result};

use super::wire::Wire;
use crate::config::Settings;

/// How often they take turns: a pooler has many sessions to lend, and somebody else may use it meanwhile.
const TURNS: usize = 3;

/// Refuses if these two connections are not sessions of their own.
///
/// # Cancel safety
/// It only reads.
pub(super) async fn refuse_pooler(one: &Wire, other: &Wire, settings: &Settings) -> Result<()> {
    let mut seen: Option<(i32, i32)> = None;
    for turn in 0..TURNS * 2 {
        // Twice each: a pooler that lends the one that was idle longest would give those who alternate the same ones every time.
        let is_one = turn / 2 % 2 == 0;
        let (busy, idle) = if is_one { (one, other) } else { (other, one) };
        begin(busy).await?;
        let (busy_pid, idle_pid) = (pid(busy).await?, pid(idle).await?);
        end(busy).await?;
        let pids = if is_one { (busy_pid, idle_pid) } else { (idle_pid, busy_pid) };
        if pids.0 == pids.1 || *seen.get_or_insert(pids) != pids {
            return Err(Error::new(ErrorKind::Unsupported, "a pooler lends this connection's session to others in between")
                .with_store(settings.describe())
                .with_hint(
                    "Session locks need sessions of their own: connect to the server directly or to a pool in session mode, or \
                     use liveness=lease, which works through every pooler. If this is wrong: assume_direct=yes",
                ));
        }
    }
    Ok(())
}

async fn begin(wire: &Wire) -> Result<()> {
    Ok(wire.client().batch_execute("BEGIN").await.map_err(|error| wire.failed(error, "looking for a pooler"))?)
}

async fn end(wire: &Wire) -> Result<()> {
    Ok(wire.client().batch_execute("COMMIT").await.map_err(|error| wire.failed(error, "looking for a pooler"))?)
}

/// By the simple protocol, which every pooler understands.
async fn pid(wire: &Wire) -> Result<i32> {
    let said = wire.client().simple_query("SELECT pg_backend_pid()").await;
    let said = said.map_err(|error| wire.failed(error, "looking for a pooler"))?;
    let text = said.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    text.and_then(|text| text.parse().ok()).ok_or_else(|| super::advisory::garbled("looking for a pooler").error)
}
