//! MariaDB: a new one with its own defaults, which are `innodb_flush_log_at_trx_commit=1` and no binary log.

use tenure_testkit::servers::mariadb as kit;

use super::{CONNECTIONS, Calls, Server, until_alone};

/// What the raw lines write: one row a name.
pub(crate) const UPSERT: &str = "INSERT INTO raw (name, value) VALUES (?, 1) ON DUPLICATE KEY UPDATE value = value + 1";

pub(super) struct MariaDb {
    server: kit::MariaDb,
    url: String,
    /// For counting: a session would be counted each time.
    session: kit::Session,
    /// How often we have asked ourselves.
    asked: u64,
}

impl MariaDb {
    pub(super) fn start() -> Result<Self, String> {
        let server = kit::MariaDb::start(kit::MariaDbOptions::new().fsync().max_connections(CONNECTIONS));
        let session = server.session().map_err(|error| format!("a session: {error}"))?;
        let mut mariadb = MariaDb { url: server.url(), server, session, asked: 0 };
        mariadb.clear()?;
        Ok(mariadb)
    }

    fn sql(&mut self, sql: &str) -> Result<Vec<Vec<String>>, String> {
        self.asked += 1;
        self.session.sql(sql).map_err(|error| format!("{sql}: {error}"))
    }
}

impl Server for MariaDb {
    fn url(&self) -> &str {
        &self.url
    }

    fn what(&self) -> String {
        let version = self.server.try_sql("SELECT version()").map_or_else(|_| "?".to_owned(), |rows| rows[0][0].clone());
        let version = version.split('-').next().unwrap_or_default(); // without the distribution's words
        format!("one MariaDB {version}, loopback, innodb_flush_log_at_trx_commit=1")
    }

    /// Statements as clients sent them, not those inside procedures, nor pings.
    fn calls(&mut self) -> Result<Calls, String> {
        let rows = self.sql("SHOW GLOBAL STATUS LIKE 'Questions'")?;
        let all = rows.first().and_then(|row| row.get(1)?.parse::<u64>().ok()).ok_or("Questions is no number")?;
        Ok(Calls::from([("questions".to_owned(), all.saturating_sub(self.asked))]))
    }

    fn clear(&mut self) -> Result<(), String> {
        let others = "FROM information_schema.processlist WHERE user = 'root' AND id <> connection_id()";
        for row in self.sql(&format!("SELECT id {others}"))? {
            let _ = self.sql(&format!("KILL {}", row[0])); // it may have gone by itself
        }
        until_alone(|| Ok(self.sql(&format!("SELECT count(*) {others}"))?[0][0].parse().unwrap_or(0)))?;
        for sql in [
            "DROP DATABASE tenure",
            "CREATE DATABASE tenure",
            "USE tenure",
            "CREATE TABLE raw (name VARBINARY(512) PRIMARY KEY, value BIGINT NOT NULL)",
        ] {
            self.sql(sql)?;
        }
        Ok(())
    }
}
