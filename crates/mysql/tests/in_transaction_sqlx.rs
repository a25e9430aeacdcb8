//! The row lock and fenced writes in a transaction of sqlx's, which sets CLIENT_FOUND_ROWS.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::{Connection as _, MySqlConnection};
use tenure_core::{Client, Environment, ErrorKind};
use tenure_mysql::{fence, in_transaction, is_conflict};
use tenure_testkit::fences::writer;
use tenure_testkit::in_time;
use tenure_testkit::servers::mariadb::MariaDb;

/// A client with tables of its own, and their prefix.
async fn place() -> (Client, String) {
    static CASES: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("x{}_{}_", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed));
    let url = format!("{}?prefix={prefix}", MariaDb::shared().url());
    let backend = tenure_mysql::connect(&url.parse().unwrap()).await.unwrap();
    (Client::with_environment(backend, Environment::real()).unwrap(), prefix)
}

async fn connection() -> MySqlConnection {
    MySqlConnection::connect(&MariaDb::shared().url()).await.unwrap()
}

#[tokio::test]
async fn a_lease_and_a_transaction_exclude_each_other() {
    let (client, prefix) = place().await;
    let mut db = connection().await;
    let guard = client.mutex("x").unwrap().lock().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    assert_eq!(in_transaction(&mut tx, "x").prefix(&prefix).first().try_lock().await.unwrap(), None);
    let wait = Duration::from_millis(50);
    assert_eq!(in_transaction(&mut tx, "x").prefix(&prefix).first().try_lock_for(wait).await.unwrap(), None);
    let leased = guard.token();
    guard.release().await.unwrap();
    let held = in_time("the lock", in_transaction(&mut tx, "x").prefix(&prefix).first().lock()).await.unwrap();
    assert!(held.token > leased);
    assert!(client.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    tx.commit().await.unwrap();
    let guard = in_time("the lease", client.mutex("x").unwrap().lock()).await.unwrap();
    assert!(guard.token() > held.token);
}

#[tokio::test]
async fn a_late_holder_is_refused() {
    let (_client, prefix) = place().await;
    let mut db = connection().await;
    let mut tx = db.begin().await.unwrap();
    fence(&mut tx, "account", writer("account", 7)).prefix(&prefix).check().await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    let late = fence(&mut tx, "account", writer("account", 6)).prefix(&prefix).check().await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Lost);
    assert!(late.to_string().contains("superseded by 7"), "{late}");
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn conflicts_are_known() {
    let (_client, prefix) = place().await;
    let (mut one, mut other) = (connection().await, connection().await);
    let mut tx = one.begin().await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("SELECT * FROM {prefix}setup"))).execute(&mut *tx).await.unwrap(); // its snapshot
    let mut theirs = other.begin().await.unwrap();
    in_transaction(&mut theirs, "x").prefix(&prefix).lock().await.unwrap();
    theirs.commit().await.unwrap();
    let stale = in_transaction(&mut tx, "x").prefix(&prefix).lock().await.unwrap_err();
    assert!(stale.is_transient() && is_conflict(&stale), "{stale}");
    tx.rollback().await.unwrap();
}
