//! What is found out about a server: at connecting, so that one that cannot grant locks is refused with words, and for `doctor`.

use std::time::Duration;

use tenure_core::backend::{Finding, Level};
use tenure_core::lease::Failure;
use tenure_core::{Address, Clock, Error, ErrorKind, Result};
use tokio_postgres::{Client, Row};

use crate::config::Settings;
use crate::connect;
use crate::desk::Shared;
use crate::owner::{Owners, owners};
use crate::schema::{self, Layout, TABLES};

/// The oldest version that has all that is used here.
const OLDEST: i32 = 120_000;
/// A transaction that is open for longer keeps dead rows of the tables from being reused.
const LONG: Duration = Duration::from_secs(600);
/// So many dead rows make every verb slower.
const BLOATED: i64 = 100_000;

/// What a new connection shows of its server.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    /// Its clock, in microseconds since 1970.
    pub(crate) now: u64,
    /// As `server_version_num` has it.
    pub(crate) number: i32,
    /// In words.
    pub(crate) version: String,
    /// It follows another one.
    pub(crate) is_standby: bool,
    /// Transactions are read-only.
    pub(crate) is_read_only: bool,
    pub(crate) encoding: String,
    /// Which run of which server this is: when its first process was started, to the microsecond. Another server that takes
    /// over was started at another time, and so was this one after a restart.
    pub(crate) run: String,
    /// The table `setup` is there.
    pub(crate) has_tables: bool,
    /// How many microseconds its clock is ahead of ours; less than 0 if behind.
    pub(crate) ahead: i64,
}

/// Asks a server what it is.
///
/// # Cancel safety
/// It only reads.
pub(crate) async fn look(client: &Client, settings: &Settings) -> std::result::Result<Server, tokio_postgres::Error> {
    let setup = format!("{}.{}setup", settings.schema, settings.prefix);
    let sql = format!(
        "SELECT (extract(epoch FROM clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint, \
         current_setting('server_version_num')::integer, \
         current_setting('server_version'), pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', \
         current_setting('server_encoding'), \
         (extract(epoch FROM pg_postmaster_start_time()) OPERATOR(pg_catalog.*) 1000000)::bigint::text, \
         to_regclass('{setup}') IS NOT NULL"
    );
    let before = Clock::Boot.wall_micros();
    let row = client.query_typed_one(&sql, &[]).await?;
    let ours = before.midpoint(Clock::Boot.wall_micros());
    let now: i64 = row.try_get(0)?;
    Ok(Server {
        now: now as u64,
        number: row.try_get(1)?,
        version: row.try_get(2)?,
        is_standby: row.try_get(3)?,
        is_read_only: row.try_get(4)?,
        encoding: row.try_get(5)?,
        run: row.try_get(6)?,
        has_tables: row.try_get(7)?,
        ahead: now - ours as i64,
    })
}

/// Refuses a server that cannot do what is asked of it.
pub(crate) fn require(server: &Server, at: &Address, settings: &Settings) -> Result<()> {
    let refuse =
        |kind, what: String, hint: &str| Err(Error::new(kind, what).with_store(settings.describe()).with_hint(hint));
    if server.number < OLDEST {
        let what = format!("{at} is PostgreSQL {}, which is too old", server.version);
        return refuse(ErrorKind::Backend, what, "PostgreSQL 12 is the oldest that can be used");
    }
    if server.is_standby {
        let hint = "Name the primary; of several servers (host1,host2) the one that is it is taken, after a failover too";
        return refuse(ErrorKind::Unavailable, format!("{at} is a standby and cannot grant locks"), hint);
    }
    if server.is_read_only {
        let hint = "default_transaction_read_only is on, for this user, database or server: locks must be written";
        return refuse(ErrorKind::Backend, format!("{at} lets this user only read"), hint);
    }
    if server.encoding != "UTF8" {
        let what = format!("the database has the encoding {}, in which not every name can be stored", server.encoding);
        let hint = "Use one with UTF8, as it is by default: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0";
        return refuse(ErrorKind::Backend, what, hint);
    }
    Ok(())
}

impl Shared {
    /// What could hurt.
    ///
    /// # Cancel safety
    /// It only reads.
    pub(crate) async fn examine(self: &std::sync::Arc<Self>) -> Result<Vec<Finding>> {
        let live = self.asks.live().await?;
        let server = live.server.clone();
        let mut findings = vec![
            Finding::good("version", format!("PostgreSQL {}", server.version)),
            Finding::clock(server.ahead),
            network(&self.settings),
        ];
        let row = |rows: Vec<Row>| rows.into_iter().next().ok_or_else(|| self.garbled("looking at the server").error);
        let settings = row(live.read(SETTINGS, "looking at the server's settings").await?)?;
        findings.push(durability(&settings).map_err(|error| self.unreadable(error))?);
        let replication = row(live.read(REPLICATION, "looking at its standbys").await?)?;
        findings.push(replicas(&replication).map_err(|error| self.unreadable(error))?);
        findings.push(whose(&owners(&live, &self.settings, &self.layout).await?));
        let tables = row(live.read(&tables_sql(&self.layout), "looking at the tables").await?)?;
        findings.extend(tables_are(&tables, &self.layout).map_err(|error| self.unreadable(error))?);
        let found = connect::read_version(&live, &self.layout).await?.and_then(|(_, stamp)| stamp);
        findings.push(schema::stamp().finding(found));
        findings.push(waiting(self.is_told().await));
        Ok(findings)
    }

    fn unreadable(&self, error: tokio_postgres::Error) -> Error {
        self.garbled("looking at the server").error.with_source(error)
    }

    /// Whether messages arrive: an ear is made if there is none yet.
    async fn is_told(self: &std::sync::Arc<Self>) -> bool {
        let settled = async {
            while self.ear().is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let _ = tokio::time::timeout(self.settings.answer_limit, settled).await;
        self.ear.listens()
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        crate::error::refused(refusal.0)
    }
}

/// What the settings do not let pass.
pub(crate) struct Refusal(pub(crate) Error);

/// Where the settings are strict: an error for what `doctor` calls bad.
pub(crate) fn forbid_bad(findings: &[Finding], settings: &Settings) -> std::result::Result<(), Refusal> {
    match findings.iter().find(|finding| finding.level == Level::Bad) {
        None => Ok(()),
        Some(Finding { what, says, .. }) => Err(Refusal(
            Error::new(ErrorKind::Backend, format!("{what}: {says}"))
                .with_store(settings.describe())
                .with_hint("It is refused because of strict=yes"),
        )),
    }
}

const SETTINGS: &str = "SELECT current_setting('fsync'), current_setting('synchronous_commit'), \
                        current_setting('full_page_writes')";

fn durability(row: &Row) -> std::result::Result<Finding, tokio_postgres::Error> {
    let (fsync, commit, pages): (&str, &str, &str) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let what = "durability";
    Ok(match (fsync, commit) {
        ("off", _) => Finding::bad(
            what,
            "fsync is off: a crash of its machine may lose or corrupt the database, and forget who holds what. Turn it on",
        ),
        (_, "off") => Finding::warning(
            what,
            "synchronous_commit is off: a crash may forget grants of the last moments, and others get in while old holders \
             still trust their ttl. Turn it on for this user: ALTER ROLE … SET synchronous_commit = on",
        ),
        _ if pages == "off" => Finding::warning(
            what,
            "full_page_writes is off: a power cut may tear a page, unless the file system prevents that",
        ),
        (_, commit) => {
            Finding::good(what, format!("a grant is on disk before it is answered (synchronous_commit = {commit})"))
        }
    })
}

const REPLICATION: &str = "SELECT (SELECT count(*) FROM pg_stat_replication), current_setting('synchronous_standby_names')";

fn replicas(row: &Row) -> std::result::Result<Finding, tokio_postgres::Error> {
    let (standbys, synchronous): (i64, &str) = (row.try_get(0)?, row.try_get(1)?);
    let what = "standbys";
    Ok(match (standbys, synchronous) {
        (0, "") => Finding::good(what, "none, and none are waited for"),
        (many, "") => Finding::warning(
            what,
            format!(
                "{many}; a grant does not wait for them, so a failover may forget one that was just made. Set \
                 synchronous_standby_names, or check tokens where it matters"
            ),
        ),
        (many, names) => Finding::good(what, format!("{many}; a grant counts when these have it: {names}")),
    })
}

fn tables_sql(layout: &Layout) -> String {
    let names = TABLES.map(|table| format!("'{}{table}'", layout.prefix())).join(", ");
    format!(
        "SELECT coalesce(sum(s.n_dead_tup), 0)::bigint, \
         coalesce(string_agg(c.relname::text, ', ') FILTER (WHERE NOT ( \
           has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT') \
           AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))), ''), \
         coalesce(string_agg(c.relname::text, ', ') FILTER (WHERE c.relpersistence <> 'p'), ''), \
         coalesce((SELECT max(extract(epoch FROM clock_timestamp() - xact_start))::bigint FROM pg_stat_activity \
                    WHERE backend_type = 'client backend'), 0) \
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
         LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid \
         WHERE n.nspname = '{}' AND c.relname IN ({names}) AND c.relkind IN ('r', 'p')",
        layout.schema()
    )
}

fn tables_are(row: &Row, layout: &Layout) -> std::result::Result<Vec<Finding>, tokio_postgres::Error> {
    let (dead, forbidden, unlogged, oldest): (i64, &str, &str, i64) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
    let place = layout.full("*").replace('"', "");
    let mut findings = vec![if forbidden.is_empty() {
        Finding::good("rights", format!("all that is needed, on {place}"))
    } else {
        let grants = layout.grants("USER").join(" ");
        Finding::bad("rights", format!("some are missing on {forbidden}. Grant them: {grants}"))
    }];
    if !unlogged.is_empty() {
        let says = format!("{unlogged}: unlogged, so a crash empties it and everybody gets in. ALTER TABLE … SET LOGGED");
        findings.push(Finding::bad("tables", says));
    }
    let open = Duration::from_secs(oldest.max(0) as u64);
    findings.push(match dead {
        BLOATED.. => Finding::warning(
            "dead rows",
            format!("{dead}: every lock is slower for it. Is autovacuum on, and no transaction open for hours?"),
        ),
        _ if open > LONG => Finding::warning(
            "dead rows",
            format!("{dead}, and a transaction that has been open for {open:?} keeps them from being reused: end it"),
        ),
        _ => Finding::good("dead rows", dead.to_string()),
    });
    Ok(findings)
}

fn whose(owners: &Owners) -> Finding {
    let Owners { all, strangers } = owners;
    if strangers.is_empty() {
        return Finding::good(
            "owner",
            format!("{all}: has made the tables and functions, whose code runs with this user's rights"),
        );
    }
    let says =
        format!("{strangers} owns tables or functions, and can have anything run with this user's rights. Make them anew");
    Finding::bad("owner", says)
}

fn waiting(is_told: bool) -> Finding {
    if is_told {
        Finding::good("waiting", "LISTEN and NOTIFY: whoever is let in is told")
    } else {
        let says = "messages do not arrive: a pooler in transaction mode seems to be in between. Waiters look by themselves, \
                    which costs statements; a direct connection, or session mode, is cheaper where many wait";
        Finding::warning("waiting", says)
    }
}

fn network(settings: &Settings) -> Finding {
    let what = "network";
    match &settings.tls {
        Some(_) => Finding::good(what, "encrypted"),
        None if settings.servers.iter().all(Address::is_this_host) => Finding::good(what, "this host only"),
        None => Finding::warning(
            what,
            "not encrypted: whoever listens learns the ids of claims, with which they can be ended. Use tls=yes, or a network you trust",
        ),
    }
}

#[cfg(test)]
mod tests;
