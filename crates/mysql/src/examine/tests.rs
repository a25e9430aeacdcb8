//! What is said about servers as they are, and as they could be.

use tenure_testkit::servers::mariadb::{MariaDb, MariaDbOptions};

use super::*;

fn settings(url: &str) -> Settings {
    Settings::from_url(&url.parse().unwrap()).unwrap()
}

async fn look_at(settings: &Settings) -> Server {
    let mut conn = Conn::new(settings.options().unwrap()).await.unwrap();
    look(&mut conn, &Runs::default()).await.unwrap().0
}

fn with(variables: &[(&str, &str)]) -> Server {
    let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    let (dialect, version) = Dialect::of("10.11.19-MariaDB");
    Server { dialect, version, version_text: "10.11.19-MariaDB".into(), run: String::new(), variables, ahead: 0 }
}

#[track_caller]
fn says(server: &Server, what: &str, level: Level, words: &[&str]) {
    let all = findings(server, &settings("mysql://db.example/tenure"));
    let found = all.iter().find(|finding| finding.what == what).unwrap_or_else(|| panic!("nothing of {what} in {all:?}"));
    assert_eq!(found.level, level, "{found:?}");
    words.iter().for_each(|word| assert!(found.says.contains(word), "{found:?} says nothing of {word:?}"));
}

#[test]
fn every_finding_has_its_words() {
    let plain = with(&[("innodb_flush_log_at_trx_commit", "1"), ("log_bin", "OFF"), ("wsrep_on", "OFF")]);
    says(&plain, "version", Level::Good, &["MariaDB 10.11.19"]);
    says(&plain, "durability", Level::Good, &["flushed"]);
    says(&plain, "replication", Level::Good, &["no binary log"]);
    says(&plain, "network", Level::Warning, &["tls=yes"]);
    assert!(findings(&plain, &Settings::default()).iter().all(|finding| finding.level == Level::Good));
    says(&with(&[("innodb_flush_log_at_trx_commit", "2")]), "durability", Level::Warning, &["power cut", "1"]);
    says(&with(&[("innodb_flush_log_at_trx_commit", "0")]), "durability", Level::Bad, &["killed"]);
    says(&with(&[("log_bin", "ON"), ("sync_binlog", "0")]), "durability", Level::Warning, &["sync_binlog = 1"]);
    says(&with(&[("log_bin", "ON")]), "replication", Level::Warning, &["promoted", "token"]);
    says(&with(&[("log_bin", "ON"), ("rpl_semi_sync_master_enabled", "ON")]), "replication", Level::Good, &["semi"]);
    says(&with(&[("log_bin", "ON"), ("binlog_format", "STATEMENT")]), "binary log", Level::Warning, &["MIXED"]);
    says(&with(&[("innodb_rollback_on_timeout", "ON")]), "timeouts", Level::Warning, &["slower"]);
    says(&with(&[("wsrep_on", "ON")]), "cluster", Level::Warning, &["one node"]);
    says(&Server { ahead: -20_000_000, ..plain.clone() }, "clock", Level::Warning, &["20 s behind"]);
    let mysql = Server { dialect: Dialect::MySql, version_text: "8.0.36".into(), ..plain };
    says(&mysql, "version", Level::Warning, &["MySQL 8.0.36", "tested"]);
    assert_eq!(tables_finding(1, 2, 0).level, Level::Good);
    assert_eq!(tables_finding(1, 2, 1 << 30).level, Level::Warning);
}

#[test]
fn an_old_server_is_refused() {
    let old = Server { version: Some((10, 5, 9)), version_text: "10.5.9-MariaDB".into(), ..with(&[]) };
    let error = require(&old, &Settings::default()).unwrap_err().error.to_string();
    assert!(error.contains("10.5.9-MariaDB") && error.contains("10.6.0"), "{error}");
}

#[test]
fn a_run_is_known_by_its_start_give_or_take_a_second() {
    let runs = Runs::default();
    let first = runs.name("host 3306".into(), 1_000);
    assert_eq!(runs.name("host 3306".into(), 1_001), first);
    assert_ne!(runs.name("host 3306".into(), 1_010), first);
    assert_ne!(runs.name("other 3306".into(), 1_010), runs.name("host 3306".into(), 1_010));
}

#[tokio::test]
async fn a_real_server_tells_all_of_it() {
    let settings = settings(&MariaDb::shared().url());
    let server = look_at(&settings).await;
    assert_eq!(server.dialect, Dialect::MariaDb);
    assert!(server.version >= Some((10, 6, 0)) && !server.run.trim().is_empty() && server.ahead.abs() < 5_000_000);
    for name in ["binlog_format", "innodb_flush_log_at_trx_commit", "innodb_rollback_on_timeout", "log_bin", "read_only"] {
        assert!(server.variable(name).is_some(), "{name}");
    }
    require(&server, &settings).unwrap();
}

#[tokio::test]
async fn strict_refuses_what_doctor_calls_bad() {
    let forgetful = MariaDb::start(MariaDbOptions::new().set("innodb-flush-log-at-trx-commit", "0"));
    let strict = settings(&format!("{}?strict=yes", forgetful.url()));
    let error = require(&look_at(&strict).await, &strict).unwrap_err().error.to_string();
    assert!(error.contains("strict=yes") && error.contains("durability") && error.contains("killed"), "{error}");
}
