//! Whose code it is.
//!
//! The functions run with the rights of whoever calls them, and so do the triggers that a table's owner may put on it. Whoever may create
//! anything in the schema can make them before we do, and change them later. So nothing is called, and nothing is made beside it, before
//! it is known to belong to somebody who could do as they like with us anyway.

use tenure_core::lease::Failure;
use tenure_core::{Error, ErrorKind, Result};
use tokio_postgres::types::Type;

use crate::config::Settings;
use crate::link::Live;
use crate::schema::Layout;
use crate::verbs::Request;

/// Who owns what is there.
pub(crate) struct Owners {
    pub(crate) all: String,
    /// Those among them whom this user has no reason to trust.
    pub(crate) strangers: String,
}

/// A superuser trusts superusers. Everybody else has the owner of the database and that of the schema to trust, too.
const OWNERS: &str = "
    SELECT coalesce(string_agg(DISTINCT made.owner, ', '), ''),
           coalesce(string_agg(DISTINCT made.owner, ', ') FILTER (WHERE NOT made.is_trusted), '')
      FROM (
        SELECT o.rolname::text AS owner,
               o.rolsuper OR o.rolname = current_user OR coalesce(o.rolname::text = $3, false)
               OR (current_setting('is_superuser') = 'off' AND o.oid IN (n.nspowner, d.datdba)) AS is_trusted
          FROM pg_catalog.pg_namespace n
          JOIN pg_catalog.pg_database d ON d.datname = current_database()
          JOIN (
            SELECT pronamespace AS schema, proname AS name, proowner AS owner FROM pg_catalog.pg_proc
             UNION ALL
            SELECT relnamespace, relname, relowner FROM pg_catalog.pg_class
          ) thing ON thing.schema = n.oid AND thing.name = ANY ($2::text[]::name[])
          JOIN pg_catalog.pg_roles o ON o.oid = thing.owner
         WHERE n.nspname::text = $1
      ) made";

/// Asks who owns the tables and functions, as far as they are there.
///
/// # Cancel safety
/// It only reads.
pub(crate) async fn owners(live: &Live, settings: &Settings, layout: &Layout) -> std::result::Result<Owners, Failure> {
    let doing = "looking whose the tables and functions are";
    let request = Request::new(OWNERS)
        .arg(layout.schema(), Type::TEXT)
        .arg(layout.objects(), Type::TEXT_ARRAY)
        .arg(settings.owner.as_deref(), Type::TEXT);
    let rows = live.send(&request, doing).await?;
    let text = |column| rows.first().and_then(|row| row.try_get::<_, String>(column).ok()).unwrap_or_default();
    Ok(Owners { all: text(0), strangers: text(1) })
}

/// Refuses tables and functions that are somebody else's.
///
/// # Cancel safety
/// It only reads.
pub(crate) async fn refuse_strangers(live: &Live, settings: &Settings, layout: &Layout) -> Result<()> {
    let Owners { strangers, .. } = owners(live, settings, layout).await?;
    if strangers.is_empty() {
        return Ok(());
    }
    let what = format!("{} belongs, all or in part, to {strangers}", layout.full("*").replace('"', ""));
    let hint = format!(
        "Its code runs with the rights of whoever locks, so its owner must be this user, the schema's or the database's owner, or a \
         superuser; for a superuser, a superuser. If {strangers} made it for you: owner={strangers} in the URL. If not: drop it, and \
         REVOKE CREATE ON SCHEMA \"{}\" FROM whoever need not make anything there",
        layout.schema()
    );
    Err(Error::new(ErrorKind::Backend, what).with_store(settings.describe()).with_hint(hint))
}
