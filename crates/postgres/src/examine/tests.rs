//! What real servers say, and what is made of it.

use tenure_core::{Backend, StoreUrl};
use tenure_testkit::eventually;
use tenure_testkit::servers::postgres::{PgBouncer, Postgres, PostgresOptions};

async fn findings(url: &str) -> Vec<super::Finding> {
    let backend = crate::connect(&url.parse::<StoreUrl>().unwrap()).await.unwrap_or_else(|error| panic!("{error}"));
    Backend::examine(&*backend).await.unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn says(findings: &[super::Finding], what: &str, level: super::Level, word: &str) {
    let finding = findings.iter().find(|finding| finding.what == what);
    let finding = finding.unwrap_or_else(|| panic!("no {what} in {findings:?}"));
    assert_eq!(finding.level, level, "{finding:?}");
    assert!(finding.says.contains(word), "{finding:?} says nothing of {word:?}");
}

use super::Level::{Bad, Good, Warning};

#[tokio::test]
async fn a_healthy_server() {
    let postgres = Postgres::start(PostgresOptions::new().fsync());
    let found = findings(&format!("{}?strict=yes", postgres.url())).await;
    says(&found, "version", Good, "PostgreSQL ");
    says(&found, "durability", Good, "on disk");
    says(&found, "standbys", Good, "none");
    says(&found, "clock", Good, "within");
    says(&found, "network", Good, "this host");
    says(&found, "rights", Good, "tenure_");
    says(&found, "owner", Good, "postgres: ");
    says(&found, "dead rows", Good, "");
    says(&found, "waiting", Good, "NOTIFY");
    assert!(found.iter().all(|finding| finding.level == Good), "{found:?}");
}

#[tokio::test]
async fn a_server_that_may_forget() {
    let postgres = Postgres::start(PostgresOptions::new());
    says(&findings(&postgres.url()).await, "durability", Bad, "fsync");
    let strict = format!("{}?strict=yes", postgres.url());
    let error = crate::connect(&strict.parse().unwrap()).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("fsync") && error.to_string().contains("strict"), "{error}");
    let standby = postgres.replica();
    standby.catch_up_with(&postgres);
    // It may have come so far by what the backup brought along.
    eventually("it is connected", || postgres.sql("SELECT count(*) FROM pg_stat_replication") == [["1"]]).await;
    says(&findings(&postgres.url()).await, "standbys", Warning, "failover");
    let lazy = Postgres::start(PostgresOptions::new().fsync().set("synchronous_commit", "off"));
    says(&findings(&lazy.url()).await, "durability", Warning, "synchronous_commit");
    lazy.sql("ALTER TABLE tenure_name SET UNLOGGED");
    says(&findings(&lazy.url()).await, "tables", Bad, "tenure_name");
}

#[tokio::test]
async fn a_pooler_in_between() {
    let found = findings(&format!("{}?prefix=pooled_", PgBouncer::shared().url())).await;
    says(&found, "waiting", Warning, "pooler");
}

#[tokio::test]
async fn rights_that_are_missing() {
    let postgres = Postgres::start(PostgresOptions::new());
    crate::migrate(&postgres.url().parse().unwrap()).await.unwrap();
    postgres.sql("CREATE ROLE app LOGIN; GRANT SELECT ON tenure_setup TO app; GRANT UPDATE ON tenure_setup TO app");
    says(&findings(&postgres.url_as("app", "", "postgres")).await, "rights", Bad, "tenure_ticket");
}
