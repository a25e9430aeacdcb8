//! Fenced writes: whoever comes too late is refused by the database.

use std::sync::atomic::{AtomicU32, Ordering};

use tenure_core::{ErrorKind, Result};
use tenure_postgres::{fence, is_conflict};
use tenure_testkit::fences::{strangers, writer};
use tenure_testkit::in_time;
use tenure_testkit::servers::postgres::Postgres;
use tokio_postgres::{Client, IsolationLevel, NoTls};

async fn place() -> String {
    static CASES: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("f{}_{}_", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed));
    let url = format!("{}?prefix={prefix}", Postgres::shared().url());
    tenure_postgres::migrate(&url.parse().unwrap()).await.unwrap();
    prefix
}

async fn connect() -> Client {
    let (client, connection) = tokio_postgres::connect(&Postgres::shared().url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn check(db: &mut Client, prefix: &str, resource: &str, token: u64, commit: bool) -> Result<()> {
    let mut tx = db.transaction().await.unwrap();
    let checked = fence(&mut tx, resource, writer(resource, token)).prefix(prefix).check().await;
    if commit {
        tx.commit().await.unwrap();
    } else {
        tx.rollback().await.unwrap();
    }
    checked
}

#[tokio::test]
async fn a_lower_token_is_refused_and_an_equal_one_is_not() {
    let (prefix, mut db) = (place().await, connect().await);
    check(&mut db, &prefix, "a", 10, true).await.unwrap();
    check(&mut db, &prefix, "a", 10, true).await.expect("a holder may write twice");
    check(&mut db, &prefix, "a", 12, true).await.unwrap();
    let late = check(&mut db, &prefix, "a", 11, true).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Lost);
    assert!(late.to_string().contains("superseded by 12"), "{late}");
    check(&mut db, &prefix, "A", 1, true).await.expect("another resource");
    check(&mut db, &prefix, "a", i64::MAX as u64, true).await.unwrap();
    assert_eq!(check(&mut db, &prefix, "a", 12, true).await.unwrap_err().kind(), ErrorKind::Lost);
}

/// Whatever their tokens: another lock's holder, a reader, and one of several with permits. Nothing of theirs is remembered.
#[tokio::test]
async fn whoever_is_not_alone_inside_is_refused() {
    let (prefix, mut db) = (place().await, connect().await);
    let mut tx = db.transaction().await.unwrap();
    for (stranger, kind) in strangers("a", 10) {
        let refused = fence(&mut tx, "a", &stranger).prefix(&prefix).check().await.unwrap_err();
        assert_eq!(refused.kind(), kind, "{stranger}: {refused}");
    }
    fence(&mut tx, "a", writer("a", 9)).prefix(&prefix).check().await.unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn what_was_rolled_back_refuses_nobody() {
    let (prefix, mut db) = (place().await, connect().await);
    check(&mut db, &prefix, "a", 10, false).await.unwrap();
    check(&mut db, &prefix, "a", 5, true).await.unwrap();
}

/// Even who ignores the error writes nothing.
#[tokio::test]
async fn a_refused_transaction_cannot_be_committed() {
    let (prefix, mut db) = (place().await, connect().await);
    db.batch_execute(&format!("CREATE TABLE {prefix}account (balance int); INSERT INTO {prefix}account VALUES (100)"))
        .await
        .unwrap();
    check(&mut db, &prefix, "a", 2, true).await.unwrap();
    let mut tx = db.transaction().await.unwrap();
    tx.batch_execute(&format!("UPDATE {prefix}account SET balance = 0")).await.unwrap();
    fence(&mut tx, "a", writer("a", 1)).prefix(&prefix).check().await.unwrap_err();
    let _ = tx.commit().await; // the server rolls back instead
    let row = db.query_one(&format!("SELECT balance FROM {prefix}account"), &[]).await.unwrap();
    assert_eq!(row.get::<_, i32>(0), 100);
}

/// Of two at once, the later token wins, whoever comes first: the other waits for it and is refused.
#[tokio::test]
async fn two_at_once_do_not_both_pass() {
    for level in [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let prefix = place().await;
        let (mut one, mut other) = (connect().await, connect().await);
        let mut tx = one.transaction().await.unwrap();
        fence(&mut tx, "a", writer("a", 2)).prefix(&prefix).check().await.unwrap();
        let late = tokio::spawn(async move {
            let mut tx = other.build_transaction().isolation_level(level).start().await.unwrap();
            let checked = fence(&mut tx, "a", writer("a", 1)).prefix(&prefix).check().await;
            tx.rollback().await.unwrap();
            checked
        });
        let blocked = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        tenure_testkit::eventually("it waits", || Postgres::shared().sql(blocked) == [["t"]]).await;
        tx.commit().await.unwrap();
        let error = in_time("the late one", late).await.unwrap().unwrap_err();
        assert!(error.kind() == ErrorKind::Lost || is_conflict(&error), "{level:?}: {error}");
    }
}
