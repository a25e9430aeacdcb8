//! Fenced writes: whoever comes too late is refused by the database.

use rusqlite::Connection;
use tenure_core::ErrorKind;
use tenure_sqlite::fence;
use tenure_testkit::fences::{strangers, writer};

fn check(db: &mut Connection, resource: &str, token: u64, commit: bool) -> tenure_core::Result<()> {
    let tx = db.transaction().unwrap();
    let checked = fence(&tx, resource, writer(resource, token)).check();
    if commit {
        tx.commit().unwrap();
    }
    checked
}

#[test]
fn a_lower_token_is_refused_and_an_equal_one_is_not() {
    let mut db = Connection::open_in_memory().unwrap();
    check(&mut db, "a", 10, true).unwrap();
    check(&mut db, "a", 10, true).expect("a holder may write twice");
    check(&mut db, "a", 12, true).unwrap();
    let late = check(&mut db, "a", 11, true).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Lost);
    assert!(late.to_string().contains("superseded by 12"), "{late}");
    check(&mut db, "A", 1, true).expect("another resource");
    check(&mut db, "a", i64::MAX as u64, true).unwrap();
    assert_eq!(check(&mut db, "a", 12, true).unwrap_err().kind(), ErrorKind::Lost);
}

/// Whatever their tokens: another lock's holder, a reader, and one of several with permits. Nothing of theirs is remembered.
#[test]
fn whoever_is_not_alone_inside_is_refused() {
    let mut db = Connection::open_in_memory().unwrap();
    let tx = db.transaction().unwrap();
    for (stranger, kind) in strangers("a", 10) {
        let refused = fence(&tx, "a", &stranger).check().unwrap_err();
        assert_eq!(refused.kind(), kind, "{stranger}: {refused}");
    }
    fence(&tx, "a", writer("a", 9)).check().unwrap();
    tx.commit().unwrap();
}

#[test]
fn what_was_rolled_back_refuses_nobody() {
    let mut db = Connection::open_in_memory().unwrap();
    check(&mut db, "a", 10, false).unwrap(); // the table itself is rolled back with it
    check(&mut db, "a", 5, true).unwrap();
    check(&mut db, "a", 10, false).unwrap();
    check(&mut db, "a", 6, true).unwrap();
}

#[test]
fn whoever_was_refused_can_still_use_the_transaction() {
    let mut db = Connection::open_in_memory().unwrap();
    check(&mut db, "a", 10, true).unwrap();
    let tx = db.transaction().unwrap();
    fence(&tx, "a", writer("a", 9)).check().unwrap_err();
    tx.query_row("SELECT 1", [], |_| Ok(())).unwrap();
}

/// A holder reads, is overtaken by the next one, and writes: the database refuses it, whatever it believes.
#[test]
fn a_late_holder_cannot_undo_a_later_ones_write() {
    let directory = tempfile::tempdir().unwrap();
    let open = || Connection::open(directory.path().join("data.db")).unwrap();
    let (mut early, mut late) = (open(), open());
    early.execute_batch("CREATE TABLE account (balance INTEGER); INSERT INTO account VALUES (100)").unwrap();
    let write = |db: &mut Connection, token: u64, balance: i64| -> tenure_core::Result<()> {
        let tx = db.transaction().unwrap();
        fence(&tx, "account", writer("account", token)).check()?;
        tx.execute("UPDATE account SET balance = ?1", [balance]).unwrap();
        tx.commit().unwrap();
        Ok(())
    };
    write(&mut late, 2, 50).unwrap();
    assert_eq!(write(&mut early, 1, 90).unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(early.query_row("SELECT balance FROM account", [], |row| row.get::<_, i64>(0)).unwrap(), 50);
}
