//! What is found out about a server: at connecting, and for `doctor`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use mysql_async::Conn;
use tenure_core::lease::{Failure, Fate};
use tenure_core::{Error, ErrorKind};

use crate::config::Settings;
use crate::dialect::{Dialect, Version};
use crate::link::read_all;
use crate::schema::NOW;
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
}

/// What is looked at, all in one statement. A server has those of them that it knows.
const VARIABLES: &[&str] = &[
    "binlog_format",
    "hostname",
    "innodb_doublewrite",
    "innodb_flush_log_at_trx_commit",
    "innodb_rollback_on_timeout",
    "log_bin",
    "port",
    "read_only",
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
    let sets = read_all(conn, &statements).await?;
    let pairs = |set: usize| sets.get(set).into_iter().flatten().map(|row| (text(row, 0), text(row, 1)));
    let variables: HashMap<String, String> = pairs(0).collect();
    let uptime = pairs(1).next().and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    let last = sets.get(2).and_then(|rows| rows.first());
    let version_text = last.map(|row| text(row, 0)).unwrap_or_default();
    let now = last.and_then(|row| number(row, 1)).unwrap_or(0) as u64;
    let (dialect, version) = Dialect::of(&version_text);
    let identity = ["hostname", "port", "server_id", "server_uuid"].map(|name| variables.get(name).cloned().unwrap_or_default());
    let run = runs.name(identity.join(" "), (now / 1_000_000).saturating_sub(uptime));
    Ok((Server { dialect, version, version_text, run, variables }, now))
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

    /// What a session of ours is told before anything else.
    ///
    /// Every isolation level gives the same answers. `READ COMMITTED` locks no gaps between rows, so that verbs on different
    /// names do not meet; but a binary log of statements cannot take it.
    pub(crate) fn setup(&self) -> String {
        let by_statements = self.is_on("log_bin") && self.variable("binlog_format") == Some("STATEMENT");
        let level = if by_statements { "REPEATABLE READ" } else { "READ COMMITTED" };
        format!(
            "SET SESSION autocommit = 1, completion_type = 0, innodb_lock_wait_timeout = 1, time_zone = '+00:00';{} \
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
    Ok(())
}
