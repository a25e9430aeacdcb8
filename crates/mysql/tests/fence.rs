//! Fenced writes: whoever comes too late is refused by the database.

use std::sync::atomic::{AtomicU32, Ordering};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, IsolationLevel, Opts, TxOpts};
use tenure_core::{ErrorKind, Result};
use tenure_mysql::fence;
use tenure_testkit::fences::{strangers, writer};
use tenure_testkit::in_time;
use tenure_testkit::servers::mariadb::MariaDb;

async fn place() -> String {
    static CASES: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("f{}_{}_", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed));
    tenure_mysql::migrate(&format!("{}?prefix={prefix}", MariaDb::shared().url()).parse().unwrap()).await.unwrap();
    prefix
}

async fn connect() -> Conn {
    Conn::new(Opts::from_url(&MariaDb::shared().url()).unwrap()).await.unwrap()
}

async fn check(db: &mut Conn, prefix: &str, resource: &str, token: u64, commit: bool) -> Result<()> {
    let mut tx = db.start_transaction(TxOpts::default()).await.unwrap();
    let checked = fence(&mut tx, resource, writer(resource, token)).prefix(prefix).check().await;
    tx.query_drop("SELECT 1").await.expect("it can go on");
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
    let mut tx = db.start_transaction(TxOpts::default()).await.unwrap();
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

/// Of two at once, the later token wins: the other waits for it and is refused, however old its snapshot is.
#[tokio::test]
async fn two_at_once_do_not_both_pass() {
    for level in [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let prefix = place().await;
        let (mut one, mut other) = (connect().await, connect().await);
        check(&mut one, &prefix, "a", 1, true).await.unwrap();
        let mut options = TxOpts::default();
        options.with_isolation_level(level);
        let mut late = other.start_transaction(options).await.unwrap();
        late.query_drop(format!("SELECT * FROM {prefix}setup")).await.unwrap(); // its snapshot
        let mut tx = one.start_transaction(TxOpts::default()).await.unwrap();
        fence(&mut tx, "a", writer("a", 2)).prefix(&prefix).check().await.unwrap();
        let info = format!("INSERT INTO {prefix}fence%");
        let waits = format!(
            "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '{info}' AND info NOT LIKE '%process%'"
        );
        let (_, checked) = tokio::join!(
            async {
                tenure_testkit::eventually("it waits", || MariaDb::shared().sql(&waits) == [["1"]]).await;
                tx.commit().await.unwrap();
            },
            in_time("the late one", fence(&mut late, "a", writer("a", 1)).prefix(&prefix).check())
        );
        let error = checked.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{level:?}: {error}");
        late.rollback().await.unwrap();
    }
}
