//! PostgreSQL: a new one with its own defaults, `fsync` on.

use tenure_testkit::servers::postgres as kit;

use super::{CONNECTIONS, Calls, Server, until_alone};

/// What the raw lines write: one row a name.
pub(crate) const UPSERT: &str =
    "INSERT INTO raw AS r (name, value) VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET value = r.value + 1";

pub(super) struct Postgres {
    server: kit::Postgres,
    url: String,
}

impl Postgres {
    pub(super) fn start() -> Result<Self, String> {
        let options = kit::PostgresOptions::new().fsync().max_connections(CONNECTIONS);
        // There, but asleep until requests are counted.
        let options = options.set("shared_preload_libraries", "pg_stat_statements").set("compute_query_id", "off");
        let server = kit::Postgres::start(options.set("pg_stat_statements.track", "none"));
        let mut postgres = Postgres { url: server.url(), server };
        postgres.sql("CREATE SCHEMA counted")?;
        postgres.sql("CREATE EXTENSION pg_stat_statements SCHEMA counted")?;
        postgres.clear()?;
        Ok(postgres)
    }

    fn sql(&self, sql: &str) -> Result<Vec<Vec<String>>, String> {
        self.server.try_sql(sql).map_err(|error| format!("{sql}: {error}"))
    }
}

impl Server for Postgres {
    fn url(&self) -> &str {
        &self.url
    }

    fn what(&self) -> String {
        let version = self.sql("SHOW server_version").map_or_else(|_| "?".to_owned(), |rows| rows[0][0].clone());
        let version = version.split(' ').next().unwrap_or_default(); // without the distribution's words
        format!("one PostgreSQL {version}, loopback, fsync on")
    }

    /// For those who connect from now on.
    fn count(&mut self, counts: bool) -> Result<(), String> {
        for (name, value) in [("compute_query_id", "on"), ("pg_stat_statements.track", "top")] {
            let change = if counts { format!("SET {name} = '{value}'") } else { format!("RESET {name}") };
            self.sql(&format!("ALTER DATABASE postgres {change}"))?;
        }
        Ok(())
    }

    /// Statements as clients sent them, not those inside functions. A comment is none, such as sqlx sends to see whether
    /// its connection lives.
    fn calls(&mut self) -> Result<Calls, String> {
        let rows = self.sql(
            "SELECT regexp_replace(left(query, 80), '\\s+', ' ', 'g'), sum(calls) FROM counted.pg_stat_statements \
             WHERE query NOT LIKE '%pg_stat_statements%' GROUP BY 1",
        )?;
        Ok(rows.into_iter().map(|row| (row[0].clone(), row[1].parse().unwrap_or(0))).collect())
    }

    fn clear(&mut self) -> Result<(), String> {
        let others = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        // One that waits for a lock does not see that its client is gone.
        self.sql(&format!("SELECT pg_terminate_backend(pid) {others}"))?;
        until_alone(|| Ok(self.sql(&format!("SELECT count(*) {others}"))?[0][0].parse().unwrap_or(0)))?;
        self.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public; SELECT counted.pg_stat_statements_reset()")?;
        self.sql("CREATE TABLE raw (name text PRIMARY KEY, value bigint NOT NULL)").map(drop)
    }
}
