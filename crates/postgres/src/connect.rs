//! From a URL to a backend, and the tables that it needs.

use std::sync::Arc;

use tenure_core::lease::{Failure, Lease, Listener, Message};
use tenure_core::{Backend, Error, ErrorKind, Instant, Result, Stamp, StoreUrl};
use tokio::runtime::Handle;
use tokio_postgres::error::SqlState;

use crate::config::{Liveness, Settings};
use crate::desk::{PostgresDesk, Shared};
use crate::examine::forbid_bad;
use crate::link::{Link, Live};
use crate::owner::refuse_strangers;
use crate::schema::{self, Layout, VERSION};
use crate::session;

/// Connects to the database that a URL names. Its tables are made if they are not there and the user may make them.
///
/// # Cancel safety
/// Dropped before it completes, nothing is left but tables.
pub async fn connect(url: &StoreUrl) -> Result<Arc<dyn Backend>> {
    let settings = Settings::from_url(url)?;
    match settings.liveness {
        Liveness::Lease => lease(settings).await,
        Liveness::Session => session::connect(settings).await,
    }
}

/// The whole definition of tables and functions, for a database administrator to read and apply.
pub fn schema(settings: &Settings) -> Result<String> {
    Ok(settings.check()?.ddl())
}

/// Makes the tables and functions, as whoever the URL names. Doing it again changes nothing.
///
/// # Cancel safety
/// Dropped before it completes, all of it is done or nothing.
pub async fn migrate(url: &StoreUrl) -> Result<()> {
    let settings = Arc::new(Settings::from_url(url)?);
    let layout = settings.check()?;
    let nobody: Arc<dyn Listener> = Arc::new(Nobody);
    let live = Link::new(&settings, &nobody, false).live().await?;
    refuse_strangers(&live, &settings, &layout).await?;
    if let Some((found, _)) = version(&live, &layout).await?.filter(|(found, _)| *found > VERSION) {
        return Err(newer(found, &settings));
    }
    make(&live, &layout).await?;
    refuse_strangers(&live, &settings, &layout).await // somebody may have been there while we made the rest
}

async fn lease(settings: Settings) -> Result<Arc<dyn Backend>> {
    let lease = Lease::new(PostgresDesk::new(settings)?);
    prepare(lease.desk().shared()).await?;
    Ok(Arc::new(lease))
}

/// Sees to it that the tables are there and are used as we use them.
pub(crate) async fn prepare(shared: &Arc<Shared>) -> Result<()> {
    let (settings, layout) = (&shared.settings, &shared.layout);
    let live = shared.asks.live().await?;
    refuse_strangers(&live, settings, layout).await?;
    match version(&live, layout).await? {
        Some((VERSION, stamp)) => repair(&live, layout, stamp).await?,
        Some((found, _)) if found > VERSION => return Err(newer(found, settings)),
        found => {
            let found = found.map(|(found, _)| found);
            make(&live, layout).await.map_err(|failure| absent(failure, found, settings, layout))?;
            refuse_strangers(&live, settings, layout).await?; // somebody may have been there while we made the rest
        }
    }
    declare(&live, settings, layout).await?;
    if settings.strict {
        forbid_bad(&shared.examine().await?, settings).map_err(|refusal| refusal.0)?;
    }
    Ok(())
}

/// Which version of the tables is there, and what the functions are stamped with.
async fn version(live: &Live, layout: &Layout) -> std::result::Result<Option<(i32, Option<Stamp>)>, Failure> {
    if !live.server.has_tables {
        return Ok(None);
    }
    read_version(live, layout).await
}

/// The same, where they have been made since the connection was.
pub(crate) async fn read_version(
    live: &Live,
    layout: &Layout,
) -> std::result::Result<Option<(i32, Option<Stamp>)>, Failure> {
    let rows = live.read(&layout.version_and_stamp(), "reading which version the tables have").await?;
    let stamp = |row: &tokio_postgres::Row| row.try_get(1).ok().and_then(schema::stamp_in);
    Ok(rows.first().and_then(|row| Some((row.try_get(0).ok()?, stamp(row)))))
}

/// Where the functions have another text than ours they are made anew, if they are all this user's own. Else they stay as they are, and
/// `doctor` says so.
async fn repair(live: &Live, layout: &Layout, found: Option<Stamp>) -> std::result::Result<(), Failure> {
    if !schema::stamp().replaces(found) {
        return Ok(());
    }
    let rows = live.read(&layout.functions_of_others(), "looking at whose functions they are").await?;
    if rows.first().and_then(|row| row.try_get::<_, i64>(0).ok()) != Some(0) {
        return Ok(());
    }
    match make(live, layout).await {
        Err(failure) if is_denied(&failure) => Ok(()),
        made => made,
    }
}

fn is_denied(failure: &Failure) -> bool {
    let source = std::error::Error::source(&failure.error).and_then(|source| source.downcast_ref::<tokio_postgres::Error>());
    source.and_then(tokio_postgres::Error::code) == Some(&SqlState::INSUFFICIENT_PRIVILEGE)
}

/// Makes what is missing. Two who do so at once come one after the other.
async fn make(live: &Live, layout: &Layout) -> std::result::Result<(), Failure> {
    live.batch(&layout.one_at_a_time(&layout.ddl()), "making tenure's tables").await
}

/// Says that this prefix is used for leases or for sessions, or finds that it is used otherwise.
async fn declare(live: &Live, settings: &Settings, layout: &Layout) -> Result<()> {
    let liveness = settings.liveness.as_str();
    let found = async {
        let rows = live.read(&layout.fill("SELECT coalesce(liveness, '') FROM {setup}"), "reading how it is used").await?;
        Ok::<_, Failure>(rows.first().and_then(|row| row.try_get::<_, String>(0).ok()).unwrap_or_default())
    };
    if found.await? == liveness {
        return Ok(());
    }
    let sql = layout.fill("UPDATE {setup} SET liveness = coalesce(liveness, 'LIVENESS') RETURNING liveness");
    let rows = live.read(&sql.replace("LIVENESS", liveness), "saying how it is used").await?;
    match rows.first().and_then(|row| row.try_get::<_, String>(0).ok()).as_deref() {
        Some(used) if used == liveness => Ok(()),
        used => {
            let used = used.unwrap_or("another way");
            let what = format!("the prefix {:?} is used with liveness={used} already", layout.prefix());
            let hint = "Leases and sessions do not see each other: use the same everywhere, or another prefix=TEXT";
            Err(Error::new(ErrorKind::Mismatch, what).with_store(settings.describe()).with_hint(hint))
        }
    }
}

/// The tables are not there, or old, and could not be made.
fn absent(failure: Failure, found: Option<i32>, settings: &Settings, layout: &Layout) -> Error {
    if failure.error.is_transient() {
        return failure.error;
    }
    let what = match found {
        None => format!("tenure's tables are not there ({}) and could not be made", layout.full("*").replace('"', "")),
        Some(found) => format!("tenure's tables have version {found}, {VERSION} is needed, and could not be changed"),
    };
    let user = settings.user.as_deref().unwrap_or("USER");
    let hint = format!(
        "Run `tenure migrate --store URL` as a user who may make them, or have what `tenure schema --store URL` prints applied. \
         Then grant this user: {} Or name a schema of this user's own: schema=NAME",
        layout.grants(&format!("\"{user}\"")).join(" ")
    );
    Error::new(failure.error.kind(), what).with_store(settings.describe()).with_source(failure.error).with_hint(hint)
}

fn newer(found: i32, settings: &Settings) -> Error {
    let what = format!("tenure's tables have version {found}, and this program knows {VERSION}");
    Error::new(ErrorKind::Backend, what)
        .with_store(settings.describe())
        .with_hint("Use a newer tenure, or another prefix=TEXT")
}

/// Nobody listens while tables are made, nor at a fence.
pub(crate) struct Nobody;

impl Listener for Nobody {
    fn told(&self, _: Message) {}
    fn listening(&self) {}
    fn silenced(&self) {}
    fn connected(&self, _: &str, _: Instant, _: u64) {}
    fn home(&self) -> Option<Handle> {
        None
    }
}
