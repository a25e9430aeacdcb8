//! The row lock and fenced writes in a transaction of sqlx's.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::{Connection as _, PgConnection};
use tenure_core::{Client, Environment, ErrorKind};
use tenure_postgres::{fence, in_transaction, is_conflict};
use tenure_testkit::fences::writer;
use tenure_testkit::in_time;
use tenure_testkit::servers::postgres::Postgres;

/// A client with tables of its own, and their prefix.
async fn place() -> (Client, String) {
    static CASES: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("x{}_{}_", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed));
    let url = format!("{}?prefix={prefix}", Postgres::shared().url());
    let backend = tenure_postgres::connect(&url.parse().unwrap()).await.unwrap();
    (Client::with_environment(backend, Environment::real()).unwrap(), prefix)
}

async fn connection() -> PgConnection {
    PgConnection::connect(&Postgres::shared().url()).await.unwrap()
}

#[tokio::test]
async fn a_lease_and_a_transaction_exclude_each_other() {
    let (client, prefix) = place().await;
    let mut db = connection().await;
    let guard = client.mutex("x").unwrap().lock().await.unwrap();
    let mut tx = db.begin().await.unwrap();
    assert_eq!(in_transaction(&mut tx, "x").prefix(&prefix).try_lock().await.unwrap(), None);
    let none = in_transaction(&mut tx, "x").prefix(&prefix).try_lock_for(Duration::from_millis(50)).await.unwrap();
    assert_eq!(none, None);
    let leased = guard.token();
    guard.release().await.unwrap();
    let held = in_time("the lock", in_transaction(&mut tx, "x").prefix(&prefix).lock()).await.unwrap();
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
}

#[tokio::test]
async fn conflicts_are_known() {
    let (_client, prefix) = place().await;
    let (mut one, mut other) = (connection().await, connection().await);
    let mut tx = one.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
    sqlx::query("SELECT 1").execute(&mut *tx).await.unwrap(); // its snapshot
    let mut theirs = other.begin().await.unwrap();
    in_transaction(&mut theirs, "x").prefix(&prefix).lock().await.unwrap();
    theirs.commit().await.unwrap();
    let stale = in_transaction(&mut tx, "x").prefix(&prefix).lock().await.unwrap_err();
    assert!(stale.is_transient() && is_conflict(&stale), "{stale}");
}
