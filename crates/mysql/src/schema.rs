//! What is in the database: tables and procedures, whose names begin with a prefix.
//!
//! The procedures are the algorithm: each verb is one call, one transaction and one commit, as core's
//! [`Record`](tenure_core::record::Record) does it. Who can interleave: two verbs on different names, freely; two on the
//! same name never, since every verb that changes a line has the name's row locked from its first look to its commit. Two
//! things come without that lock: a renewal, which locks tickets by their ids and waits for nobody, and a look (`touch`),
//! which reads what was committed and takes the lock only where time has made room.
//!
//! Nothing is decided by what a plain read shows: at `REPEATABLE READ` that may be as old as the transaction. Who is inside
//! and who waits is counted in the name's row, which is locked; whatever else decides is read with a lock.
//!
//! Nor is anything answered that a killed server may take back. InnoDB shows a commit, and gives its locks to the next, before
//! the commit is on the disk; only whoever commits waits for that, if it wrote. A log is written in order, so whoever writes
//! after what it saw is safe: so does whatever lets in or renews, also when it only finds what it wrote the first time. An end
//! that finds nothing writes nothing: taken back, it is a hold that lasts to the end of its ttl. A look writes nothing either;
//! `tenure_core::lease` says why what it finds may be believed for as long as it lasts.
//!
//! The clock is `UTC_TIMESTAMP(6)`: in a procedure it stands still within a statement and moves from one to the next, so it
//! is read after the lock was waited for. It knows no time zone and so no summer time, and is the wall clock also where
//! `sysdate-is-now` changes `SYSDATE`.

use crate::config::Settings;

/// The version of all this; another one in the database is refused.
pub(crate) const VERSION: u32 = 1;

const TABLES: &str = include_str!("sql/tables.sql");

/// In the order of their use: each may call those before it.
const PROCEDURES: [(&str, &str); 16] = [
    ("reach", include_str!("sql/reach.sql")),
    ("unfold", include_str!("sql/unfold.sql")),
    ("sweep", include_str!("sql/sweep.sql")),
    ("settle", include_str!("sql/settle.sql")),
    ("ask", include_str!("sql/ask.sql")),
    ("end", include_str!("sql/end.sql")),
    ("renew", include_str!("sql/renew.sql")),
    ("touch", include_str!("sql/touch.sql")),
    ("convert", include_str!("sql/convert.sql")),
    ("request", include_str!("sql/request.sql")),
    ("break", include_str!("sql/break.sql")),
    ("cell_set", include_str!("sql/cell_set.sql")),
    ("in_transaction", include_str!("sql/in_transaction.sql")),
    ("check_fence", include_str!("sql/check_fence.sql")),
    ("tidy", include_str!("sql/tidy.sql")),
    ("leftovers", include_str!("sql/leftovers.sql")),
];

/// The tables that a runtime user writes to.
const WRITTEN: [&str; 10] = ["name", "ticket", "client", "mail", "mark", "cell", "floor", "tx", "fence", "setup"];

/// The server's clock: microseconds since 1970, UTC.
pub(crate) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))";

/// Procedures remember the mode they were made in; whatever the server's default is, ours do the same everywhere.
pub(crate) const SQL_MODE: &str = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'";

/// The whole schema as a script for the `mariadb` or `mysql` client: every statement may be run again at any time.
pub fn schema(settings: &Settings) -> String {
    let mut script = format!(
        "-- tenure, version {VERSION} of its schema. May be run again at any time; then nothing that is held is lost.\n\
         -- Whoever locks needs these rights and no others:\n--   {};\n\
         -- Whoever only keeps a fence there, or writes behind one, needs these:\n--   {};\n\n\
         {SQL_MODE};\n\n{}\n\n",
        grants(settings).replace("; ", ";\n--   "),
        fence_grants(settings).replace("; ", ";\n--   "),
        fill(TABLES.trim(), &settings.prefix)
    );
    for statement in first_rows(&settings.prefix) {
        script += &format!("{statement};\n\n");
    }
    script += "DELIMITER //\n\n";
    for (drop, create) in procedures(&settings.prefix) {
        script += &format!("{drop} //\n{create} //\n\n");
    }
    script += &format!("DELIMITER ;\n\n{};\n", stamp(&settings.prefix));
    script
}

/// The same, statement by statement, as it is sent.
pub(crate) fn statements(prefix: &str) -> Vec<String> {
    let tables = fill(TABLES, prefix);
    let tables = tables.split(";\n").map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let procedures = procedures(prefix).flat_map(|(drop, create)| [drop, create]);
    let first = [SQL_MODE.to_owned()].into_iter();
    first.chain(tables).chain(first_rows(prefix)).chain(procedures).chain([stamp(prefix)]).collect()
}

/// What somebody who may do so must grant to whoever runs it.
pub(crate) fn grants(settings: &Settings) -> String {
    let Settings { prefix, database, .. } = settings;
    let tables: Vec<String> = WRITTEN
        .iter()
        .map(|table| format!("GRANT SELECT, INSERT, UPDATE, DELETE ON `{database}`.{prefix}{table} TO APP"))
        .collect();
    let procedures: Vec<String> = PROCEDURES
        .iter()
        .map(|(name, _)| format!("GRANT EXECUTE ON PROCEDURE `{database}`.{prefix}{name} TO APP"))
        .collect();
    [tables, procedures].concat().join("; ")
}

/// The table of a fence, which needs no other.
pub(crate) fn fence_table(prefix: &str) -> String {
    let tables = fill(TABLES, prefix);
    let head = format!("CREATE TABLE IF NOT EXISTS {prefix}fence (");
    let table = tables.find(&head).map(|begins| tables[begins..].split(";\n").next().unwrap_or_default());
    table.expect("the fence is one of the tables").to_owned()
}

/// What must be granted to whoever shows tokens to a fence, alone or in transactions of its own, and does not lock.
pub(crate) fn fence_grants(settings: &Settings) -> String {
    let Settings { prefix, database, .. } = settings;
    format!(
        "GRANT SELECT, INSERT, UPDATE ON `{database}`.{prefix}fence TO APP; \
         GRANT EXECUTE ON PROCEDURE `{database}`.{prefix}check_fence TO APP"
    )
}

/// MariaDB replaces a procedure, and the rights on it stay; what is in those comments is for the one server or the other. MySQL
/// cannot, and forgets them.
fn procedures(prefix: &str) -> impl Iterator<Item = (String, String)> {
    let prefix = prefix.to_owned();
    PROCEDURES.into_iter().map(move |(name, text)| {
        (format!("/*!80000 DROP PROCEDURE IF EXISTS {prefix}{name} */"), fill(text.trim(), &prefix))
    })
}

fn first_rows(prefix: &str) -> [String; 1] {
    [format!("INSERT IGNORE INTO {prefix}floor (id, token) VALUES (1, 0)")]
}

/// Comes last: whoever sees the version finds everything else.
fn stamp(prefix: &str) -> String {
    format!("INSERT INTO {prefix}setup (id, version) VALUES (1, {VERSION}) ON DUPLICATE KEY UPDATE version = {VERSION}")
}

fn fill(text: &str, prefix: &str) -> String {
    text.replace("{p}", prefix).replace("{now}", NOW)
}
