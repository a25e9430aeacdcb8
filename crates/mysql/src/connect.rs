//! From a URL to a backend, and to a database that has what is needed.

use std::sync::Arc;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use tenure_core::lease::Lease;
use tenure_core::{Backend, Error, ErrorKind, Result, Stamp, StoreUrl, random};

use crate::config::Settings;
use crate::desk::Tables;
use crate::dialect::Dialect;
use crate::link::read_all;
use crate::schema::{self, VERSION};
use crate::verbs::number;
use crate::{error, examine};

/// Connects to what a URL names. Tables and procedures that are not there are made, if the user may.
///
/// # Cancel safety
/// Dropped before it completes, tables may have been made; nothing else is left.
pub async fn connect(url: &StoreUrl) -> Result<Arc<dyn Backend>> {
    let settings = Settings::from_url(url)?;
    prepare(&settings).await?;
    let lease = Lease::new(Tables::new(settings, u64::from_le_bytes(random())));
    lease.desk().asks.server().await?;
    Ok(Arc::new(lease))
}

/// Makes the tables and procedures that a URL's prefix stands for, or puts them right. May be done again at any time.
///
/// # Cancel safety
/// Dropped before it completes, some may have been made; the next time makes the others.
pub async fn migrate(url: &StoreUrl) -> Result<()> {
    let settings = Settings::from_url(url)?;
    let mut conn = open(&settings).await?;
    create(&mut conn, &settings).await?;
    let _ = conn.disconnect().await;
    Ok(())
}

/// A connection for what is done once.
pub(crate) async fn open(settings: &Settings) -> Result<Conn> {
    let opened = tokio::time::timeout(settings.connect_limit, dial(settings.options()?)).await;
    let timed_out = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
    opened.unwrap_or_else(timed_out).map_err(|failure| error::explain_connect(failure, settings).error)
}

/// A connection of the driver's. Of what an ed25519 account is to sign it cuts a zero off, where that is the last byte: one proof in
/// 256 is no good. So whoever is refused tries once more.
///
/// # Cancel safety
/// Dropped, a half-made connection is closed.
pub(crate) async fn dial(options: Opts) -> mysql_async::Result<Conn> {
    match Conn::new(options.clone()).await {
        Err(failure) if error::code(&failure) == Some(error::NOT_YOU) => Conn::new(options).await,
        connected => connected,
    }
}

/// Sees that everything is there.
async fn prepare(settings: &Settings) -> Result<()> {
    let mut conn = open(settings).await?;
    let refused = |failure| error::explain(failure, settings, "looking at the tables").error;
    let (server, _) = examine::look(&mut conn, &examine::Runs::default()).await.map_err(refused)?;
    examine::require(&server, settings)?;
    match version(&mut conn, settings).await? {
        Some((found, _)) if found > VERSION => {
            let what = format!("the tables are of version {found}, and this program knows {VERSION}");
            return Err(Error::new(ErrorKind::Backend, what)
                .with_store(settings.describe())
                .with_hint("Update the program, or use another prefix"));
        }
        Some((VERSION, stamp)) => {
            if server.dialect == Dialect::MariaDb && schema::stamp_of_text().replaces(stamp) {
                repair(&mut conn, settings).await?;
            }
        }
        _ => create(&mut conn, settings).await?,
    }
    let _ = conn.disconnect().await;
    Ok(())
}

/// The version of what is there, and its stamp; none where nothing is.
async fn version(conn: &mut Conn, settings: &Settings) -> Result<Option<(u32, Option<Stamp>)>> {
    match read_all(conn, &schema::look(&settings.prefix)).await {
        Ok(sets) => Ok(schema::found(&sets)),
        Err(failure) if error::code(&failure) == Some(error::NO_TABLE) => Ok(None),
        Err(failure) => Err(error::explain(failure, settings, "looking at the tables").error),
    }
}

/// The procedures have another text than ours: they are made anew, if they are all this user's own. Where the user may not, or somebody
/// is at them all the time, they stay, and `doctor` says so. (On MySQL they always do: making one anew takes everybody's rights on it.)
async fn repair(conn: &mut Conn, settings: &Settings) -> Result<()> {
    let refused = |failure| error::explain(failure, settings, "looking at the procedures").error;
    let strangers = format!(
        "SELECT COUNT(*) FROM information_schema.ROUTINES \
         WHERE ROUTINE_SCHEMA = DATABASE() AND ROUTINE_NAME IN ({}) AND DEFINER <> CURRENT_USER()",
        schema::names(&settings.prefix)
    );
    let sets = read_all(conn, &strangers).await.map_err(refused)?;
    if sets.first().and_then(|rows| rows.first()).and_then(|row| number(row, 0)) != Some(0) {
        return Ok(());
    }
    conn.query_drop("SET SESSION lock_wait_timeout = 1").await.map_err(refused)?;
    match make(conn, settings).await {
        Err(failure) if error::is_denied(&failure) || error::code(&failure) == Some(error::ROW_IS_LOCKED) => Ok(()),
        made => made.map_err(|failure| error::explain_create(failure, settings)),
    }
}

async fn create(conn: &mut Conn, settings: &Settings) -> Result<()> {
    make(conn, settings).await.map_err(|failure| error::explain_create(failure, settings))
}

/// Makes everything, one client at a time where the server has a lock for that, and again where two met all the same.
async fn make(conn: &mut Conn, settings: &Settings) -> mysql_async::Result<()> {
    let lock = format!("CONCAT('tenure:', LEFT(SHA2(CONCAT(DATABASE(), '/{}'), 256), 40))", settings.prefix);
    let _ = conn.query_drop(format!("DO GET_LOCK({lock}, 10)")).await; // a cluster may have none
    let mut tries = 0;
    let made = loop {
        match apply(conn, settings).await {
            Err(failure) if tries < 5 && error::code(&failure).is_some_and(|code| MET.contains(&code)) => tries += 1,
            made => break made,
        }
    };
    let _ = conn.query_drop(format!("DO RELEASE_LOCK({lock})")).await;
    made
}

async fn apply(conn: &mut Conn, settings: &Settings) -> mysql_async::Result<()> {
    for statement in schema::statements(&settings.prefix) {
        conn.query_drop(statement).await?;
    }
    Ok(())
}

/// Somebody else makes the same at the same time.
const MET: &[u16] = &[1050, 1061, 1205, 1213, 1304, 1305];

#[cfg(test)]
mod tests;
