//! What is found out about a server: at connecting, and for `doctor`.
//!
//! Its variables say nearly all of it, and every user may see those. Nothing is ever changed on the server.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use mysql_async::Conn;
use tenure_core::backend::{Finding, Level};
use tenure_core::lease::{Failure, Fate};
use tenure_core::{Clock, Error, ErrorKind};

use crate::config::Settings;
use crate::dialect::{Dialect, Version};
use crate::link::read_all;
use crate::schema::{NOW, SQL_MODE};
use crate::verbs::{number, text};

/// What a server says about itself.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) dialect: Dialect,
    pub(crate) version: Option<Version>,
    pub(crate) version_text: String,
    /// Another one after every start, and for every server.
    pub(crate) run: String,
    /// Its variables, those of [`VARIABLES`] that it has.
    variables: HashMap<String, String>,
    /// How many microseconds its clock is ahead of ours; less than 0 if behind.
    ahead: i64,
}

/// What is looked at, all in one statement. A server has those of them that it knows.
const VARIABLES: &[&str] = &[
    "binlog_format",
    "hostname",
    "innodb_flush_log_at_trx_commit",
    "innodb_rollback_on_timeout",
    "log_bin",
    "port",
    "read_only",
    "rpl_semi_sync_master_enabled",
    "rpl_semi_sync_source_enabled",
    "server_id",
    "server_uuid",
    "super_read_only",
    "sync_binlog",
    "wsrep_on",
];

/// Asks a server what it is, and what its clock shows.
///
/// # Cancel safety
/// It only reads.
pub(crate) async fn look(conn: &mut Conn, runs: &Runs) -> mysql_async::Result<(Server, u64)> {
    let names: Vec<String> = VARIABLES.iter().map(|name| format!("'{name}'")).collect();
    let statements = format!(
        "SHOW GLOBAL VARIABLES WHERE Variable_name IN ({}); SHOW GLOBAL STATUS LIKE 'Uptime'; SELECT VERSION(), {NOW}",
        names.join(", ")
    );
    let before = Clock::Boot.wall_micros();
    let sets = read_all(conn, &statements).await?;
    let ours = before.midpoint(Clock::Boot.wall_micros());
    let pairs = |set: usize| sets.get(set).into_iter().flatten().map(|row| (text(row, 0), text(row, 1)));
    let variables: HashMap<String, String> = pairs(0).collect();
    let uptime = pairs(1).next().and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    let last = sets.get(2).and_then(|rows| rows.first());
    let version_text = last.map(|row| text(row, 0)).unwrap_or_default();
    let now = last.and_then(|row| number(row, 1)).unwrap_or(0) as u64;
    let (dialect, version) = Dialect::of(&version_text);
    let identity =
        ["hostname", "port", "server_id", "server_uuid"].map(|name| variables.get(name).cloned().unwrap_or_default());
    let run = runs.name(identity.join(" "), (now / 1_000_000).saturating_sub(uptime));
    let ahead = now as i64 - ours as i64;
    Ok((Server { dialect, version, version_text, run, variables, ahead }, now))
}

impl Server {
    /// A variable, if it has it.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    pub(crate) fn is_on(&self, name: &str) -> bool {
        matches!(self.variable(name), Some("ON" | "1" | "YES"))
    }

    /// Whether a lock that was waited for too long undoes the whole transaction, and not only the statement.
    pub(crate) fn forgets_batches(&self) -> bool {
        self.is_on("innodb_rollback_on_timeout")
    }

    /// Whether what waits together can be committed together: not where a part cannot be undone alone, nor where a later
    /// part would read what was there when the first one began.
    pub(crate) fn takes_batches(&self) -> bool {
        !self.forgets_batches() && !self.logs_statements()
    }

    /// Whether it can write a row at once or not at all, without waiting for whoever has it: then a claim that nobody else
    /// wants is one plain statement.
    pub(crate) fn writes_at_once(&self) -> bool {
        self.dialect == Dialect::MariaDb && !self.logs_statements()
    }

    /// Whether its binary log has statements instead of rows.
    fn logs_statements(&self) -> bool {
        self.is_on("log_bin") && self.variable("binlog_format") == Some("STATEMENT")
    }

    /// What a session of ours is told before anything else.
    ///
    /// Every isolation level gives the same answers. `READ COMMITTED` locks no gaps between rows, so that verbs on different
    /// names do not meet; but a binary log of statements cannot take it.
    pub(crate) fn setup(&self) -> String {
        let level = if self.logs_statements() { "REPEATABLE READ" } else { "READ COMMITTED" };
        format!(
            "{SQL_MODE}; \
             SET SESSION autocommit = 1, completion_type = 0, innodb_lock_wait_timeout = 1, time_zone = '+00:00';{} \
             SET SESSION TRANSACTION ISOLATION LEVEL {level}, READ WRITE",
            self.dialect.setup()
        )
    }
}

/// Which run of which server this client knows: a start is known to the second only.
#[derive(Default)]
pub(crate) struct Runs(Mutex<Option<(String, u64)>>);

impl Runs {
    fn name(&self, identity: String, start: u64) -> String {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some((same, about)) if *same == identity && about.abs_diff(start) <= 3 => format!("{same} {about}"),
            _ => {
                let name = format!("{identity} {start}");
                *known = Some((identity, start));
                name
            }
        }
    }
}

/// Refuses a server that cannot do what is asked of it.
pub(crate) fn require(server: &Server, settings: &Settings) -> Result<(), Failure> {
    let refuse = |again: bool, kind: ErrorKind, what: String, hint: &str| {
        let error = Error::new(kind, what).with_store(settings.describe()).with_hint(hint);
        Err(Failure { again, fate: Fate::Refused, error })
    };
    let least = server.dialect.least();
    if server.version.is_some_and(|version| version < least) {
        let (dialect, (major, minor, patch)) = (server.dialect, least);
        let what = format!("the server is {dialect} {}, and {major}.{minor}.{patch} is needed", server.version_text);
        return refuse(false, ErrorKind::Backend, what, "Update it: older ones cannot skip rows that are locked");
    }
    if server.is_on("read_only") || server.is_on("super_read_only") {
        let what = "the server is read-only and cannot grant locks".to_owned();
        let hint = "Name the primary; if this is it, SET GLOBAL read_only = 0";
        return refuse(true, ErrorKind::Unavailable, what, hint);
    }
    if settings.strict
        && let Some(bad) = findings(server, settings).into_iter().find(|finding| finding.level == Level::Bad)
    {
        let what = format!("the server is refused, as strict=yes asks: {}: {}", bad.what, bad.says);
        return refuse(false, ErrorKind::Backend, what, "`tenure doctor` shows everything that was found");
    }
    Ok(())
}

/// What `doctor` says about a server.
pub(crate) fn findings(server: &Server, settings: &Settings) -> Vec<Finding> {
    let found = [
        Some(version_finding(server)),
        Some(durability(server)),
        replication(server),
        galera(server),
        Some(Finding::clock(server.ahead)),
        log_of_statements(server),
        batches(server),
        Some(network(settings)),
    ];
    found.into_iter().flatten().collect()
}

/// What it says about the tables: how much is in them, and how much of their files is empty.
pub(crate) fn tables_finding(names: i64, tickets: i64, free_bytes: i64) -> Finding {
    let megabytes = free_bytes / (1 << 20);
    if megabytes < BLOATED {
        return Finding::good("tables", format!("{names} names and {tickets} claims"));
    }
    let says = format!(
        "{names} names and {tickets} claims, and {megabytes} MB of empty space. A transaction that stayed open for long keeps \
         the server from cleaning up: SHOW ENGINE INNODB STATUS; then OPTIMIZE TABLE"
    );
    Finding::warning("tables", says)
}

fn version_finding(server: &Server) -> Finding {
    let Server { dialect, version_text, .. } = server;
    match dialect {
        Dialect::MariaDb => Finding::good("version", format!("{dialect} {version_text}")),
        Dialect::MySql => {
            let says = format!("{dialect} {version_text}: should work, but only MariaDB is tested");
            Finding::warning("version", says)
        }
    }
}

fn durability(server: &Server) -> Finding {
    let what = "durability";
    match server.variable("innodb_flush_log_at_trx_commit") {
        Some("0") => Finding::bad(
            what,
            "innodb_flush_log_at_trx_commit is 0: a server that is killed forgets the last second, and who held what then. \
             Set it to 1",
        ),
        Some("2") => Finding::warning(
            what,
            "innodb_flush_log_at_trx_commit is 2: a killed server forgets nothing, but a power cut takes the last second with \
             it. Set it to 1 where that matters",
        ),
        _ if server.is_on("log_bin") && server.variable("sync_binlog") == Some("0") => Finding::warning(
            what,
            "every commit is flushed, but the binary log is not (sync_binlog = 0): after a power cut the last commits may be \
             undone. Set sync_binlog = 1 where that matters",
        ),
        _ => Finding::good(what, "every commit is flushed to disk"),
    }
}

fn replication(server: &Server) -> Option<Finding> {
    let what = "replication";
    if !server.is_on("log_bin") {
        return Some(Finding::good(what, "no binary log, so nobody follows"));
    }
    if server.is_on("rpl_semi_sync_master_enabled") || server.is_on("rpl_semi_sync_source_enabled") {
        return Some(Finding::good(what, "semi-synchronous: a commit is on a replica before it is answered"));
    }
    let says = "asynchronous, if anybody follows: a replica that is promoted may lack the last commits, and grant again what is \
                held. Semi-synchronous replication makes that rare; a token checked where it matters makes it harmless";
    Some(Finding::warning(what, says))
}

fn galera(server: &Server) -> Option<Finding> {
    let says = "a Galera cluster. Row locks end at the node: two nodes may let two claims in, and then one commit fails and is \
                asked for again, so exclusion holds, but contended names are slow. Let all clients use one node at a time";
    server.is_on("wsrep_on").then(|| Finding::warning("cluster", says))
}

fn log_of_statements(server: &Server) -> Option<Finding> {
    let says = "binlog_format is STATEMENT, with which names that are neighbours wait for each other now and then. Set MIXED or ROW";
    server.logs_statements().then(|| Finding::warning("binary log", says))
}

fn batches(server: &Server) -> Option<Finding> {
    let says = "innodb_rollback_on_timeout is on, so that what waits together cannot be committed together: many locks at once \
                are slower";
    server.forgets_batches().then(|| Finding::warning("timeouts", says))
}

fn network(settings: &Settings) -> Finding {
    let what = "network";
    if settings.tls.is_some() {
        Finding::good(what, "encrypted")
    } else if settings.address.is_this_host() {
        Finding::good(what, "this host only")
    } else {
        let says = "not encrypted: whoever reads along learns the secrets of claims, and can end them; whoever answers in the server's \
                    place learns the password. Write tls=yes, or use a network you trust";
        Finding::warning(what, says)
    }
}

/// Megabytes of empty space.
const BLOATED: i64 = 256;

#[cfg(test)]
mod tests;
