//! The lock in the user's own transaction, beside leases of the same name.

mod common;

use std::time::{Duration, Instant};

use common::{Place, Second, listen, order, say};
use rusqlite::{Connection, TransactionBehavior::Immediate};
use tenure_core::{Client, ErrorKind};
use tenure_sqlite::{Settings, Sqlite, attach, begin, in_transaction, is_conflict};
use tenure_testkit::{eventually_async, in_time};

/// A database of the user's own, which knows the file of locks.
fn shop(place: &Place) -> Connection {
    let db = Connection::open(place.directory().join("shop.db")).unwrap();
    db.pragma_update(None, "journal_mode", "wal").unwrap();
    db.busy_timeout(Duration::from_secs(60)).unwrap();
    attach(&db, place.path()).unwrap();
    db.execute_batch("CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, pieces INTEGER)").unwrap();
    db
}

#[tokio::test]
async fn a_lease_and_a_transaction_exclude_each_other() {
    let place = Place::new();
    let client = place.client();
    let mut db = shop(&place);
    let guard = client.mutex("x").unwrap().lock().await.unwrap();
    let tx = db.transaction_with_behavior(Immediate).unwrap();
    assert_eq!(in_transaction(&tx, "x").try_lock().unwrap(), None, "a lease has it");
    let other = in_transaction(&tx, "y").try_lock().unwrap().expect("nobody has it");
    assert_eq!(other.name.as_str(), "y");
    tx.rollback().unwrap();
    let leased = guard.token();
    guard.release().await.unwrap();

    let tx = db.transaction_with_behavior(Immediate).unwrap();
    let held = in_transaction(&tx, "x").try_lock().unwrap().expect("it is free");
    assert!(held.token > leased);
    let waiting = tokio::spawn({
        let mutex = client.mutex("x").unwrap();
        async move { (mutex.lock().await.unwrap(), Instant::now()) }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished(), "a transaction has it");
    let committed = Instant::now();
    tx.commit().unwrap();
    let (guard, granted) = in_time("the lease", waiting).await.unwrap();
    assert!(granted >= committed && guard.token() > held.token);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn tokens_rise_whoever_holds() {
    let place = Place::new();
    let client = place.client();
    let mut db = shop(&place);
    let mut last = 0;
    for round in 0..30 {
        let token = if round % 3 == 0 {
            let guard = client.mutex("x").unwrap().lock().await.unwrap();
            let token = guard.token();
            guard.release().await.unwrap();
            token
        } else {
            let (tx, held) = begin(&mut db, "x").lock().unwrap();
            let again = in_transaction(&tx, "x").try_lock().unwrap().expect("it is this transaction's");
            assert!(again.token > held.token, "asked for twice, it has it twice");
            tx.commit().unwrap();
            again.token
        };
        assert!(token.get() > last, "round {round}");
        last = token.get();
        if round == 15 {
            client.close().await.unwrap(); // the row goes; the next one starts from the floor
        }
    }
}

#[tokio::test]
async fn nothing_is_left_behind() {
    let place = Place::new();
    let onlooker = place.sqlite();
    let mut db = shop(&place);
    for name in ["x", "y", "{\"'; DROP TABLE lock; --"] {
        let (tx, _) = begin(&mut db, name).lock().unwrap();
        tx.commit().unwrap();
        let (tx, _) = begin(&mut db, name).lock().unwrap();
        tx.rollback().unwrap();
    }
    assert_eq!(onlooker.residue().unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn begin_waits_for_a_lease_without_holding_up_its_holder() {
    let place = Place::new();
    let client = place.client();
    let mut db = shop(&place);
    let ttl = Duration::from_secs(9);
    let guard = client.mutex("x").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
    let none = tokio::task::block_in_place(|| begin(&mut db, "x").try_lock_for(ttl + ttl / 3).unwrap().is_none());
    assert!(none, "it is held");
    guard.check().expect("it was renewed all the while");
    assert!(begin(&mut db, "x").try_lock().unwrap().is_none());
    let waiting = std::thread::spawn(move || {
        let (tx, held) = begin(&mut db, "x").lock().unwrap();
        tx.commit().unwrap();
        (held.token, Instant::now())
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiting.is_finished());
    let (token, released) = (guard.token(), Instant::now());
    guard.release().await.unwrap();
    let (later, locked) = in_time("the transaction", tokio::task::spawn_blocking(|| waiting.join().unwrap())).await.unwrap();
    assert!(later > token && locked >= released);
}

#[test]
fn begin_waits_for_another_transaction() {
    let place = Place::new();
    let (mut one, mut other) = (shop(&place), shop(&place));
    other.busy_timeout(Duration::from_millis(1)).unwrap(); // its own patience, which is not ours
    let (tx, held) = begin(&mut one, "x").lock().unwrap();
    assert!(begin(&mut other, "x").try_lock().unwrap().is_none());
    assert!(begin(&mut other, "x").try_lock_for(Duration::from_millis(20)).unwrap().is_none());
    let waiting = std::thread::spawn(move || begin(&mut other, "x").lock().unwrap().1.token);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!waiting.is_finished());
    tx.commit().unwrap();
    assert!(waiting.join().unwrap() > held.token);
}

/// A machine that stands still may cost the waiter its place, since nobody hears it while the file is locked. Then there is another.
#[tokio::test]
async fn whoever_is_in_line_comes_first() {
    for _ in 0..5 {
        if the_waiter_comes_first().await {
            return;
        }
    }
    panic!("five times the waiter had lost its place");
}

/// `false` if the transaction came first after so long that the place in line may have been over.
async fn the_waiter_comes_first() -> bool {
    /// For how long a waiter keeps its place that nobody hears, and a little less.
    const KEEPS_ITS_PLACE: Duration = Duration::from_secs(9);
    let place = Place::new();
    let client = place.client();
    let mut db = shop(&place);
    let second = place.client();
    let mutex = client.mutex("x").unwrap().keep(false).ttl(Duration::from_secs(6)).unwrap();
    let lapsing = mutex.lock().await.unwrap();
    let asked = Instant::now();
    let waiting = tokio::spawn(async move { second.mutex("x").unwrap().keep(false).lock().await.unwrap() });
    eventually_async("it waits", async || client.view("x").await.unwrap().line.len() == 1).await;
    // Its hold has ended by time while the file was locked: the waiter is next, and not the transaction.
    let tx = db.transaction_with_behavior(Immediate).unwrap();
    lapsing.lost().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let first = in_transaction(&tx, "x").try_lock().unwrap();
    if first.is_some() && asked.elapsed() > KEEPS_ITS_PLACE {
        return false;
    }
    assert_eq!(first, None);
    tx.rollback().unwrap();
    in_time("the waiter is let in", waiting).await.unwrap().release().await.unwrap();
    assert!(begin(&mut db, "x").try_lock_for(Duration::from_secs(60)).unwrap().is_some());
    true
}

#[test]
fn tables_of_ones_own_may_live_in_the_file_of_locks() {
    let place = Place::new();
    drop(place.sqlite());
    let mut db = place.raw();
    db.execute_batch("CREATE TABLE stock (item TEXT, pieces INTEGER); INSERT INTO stock VALUES ('lamp', 1)").unwrap();
    let (tx, _) = begin(&mut db, "lamp").lock().unwrap();
    tx.execute("UPDATE stock SET pieces = 0", []).unwrap();
    tx.commit().unwrap();
    attach(&db, place.path()).unwrap(); // it is there already
    drop(Sqlite::open(place.path(), Settings::default()).unwrap());
}

#[test]
fn a_deferred_transaction_writes_or_is_refused() {
    let place = Place::new();
    let (mut one, mut other) = (shop(&place), shop(&place));
    let tx = one.transaction().unwrap();
    assert!(in_transaction(&tx, "x").try_lock().unwrap().is_some(), "nothing was read yet");
    assert!(begin(&mut other, "y").try_lock_for(Duration::ZERO).unwrap().is_none(), "it writes from now on");
    tx.commit().unwrap();

    let tx = one.transaction().unwrap();
    tx.query_row("SELECT count(*) FROM tenure.lock", [], |row| row.get::<_, i64>(0)).unwrap();
    let (theirs, _) = begin(&mut other, "x").lock().unwrap();
    theirs.commit().unwrap();
    let error = in_transaction(&tx, "x").try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("Immediate"), "{error}");
    tx.query_row("SELECT count(*) FROM tenure.lock", [], |row| row.get::<_, i64>(0)).expect("it can still be used");
    drop(tx);
    assert!(begin(&mut one, "x").try_lock().unwrap().is_some());
}

#[test]
fn a_connection_without_locks_is_told_what_to_do() {
    let mut db = Connection::open_in_memory().unwrap();
    let error = begin(&mut db, "x").lock().unwrap_err();
    assert!(error.to_string().contains("attach"), "{error}");
    let tx = db.transaction().unwrap();
    assert!(in_transaction(&tx, "x").try_lock().unwrap_err().to_string().contains("attach"));
    assert_eq!(in_transaction(&tx, "two\nlines").try_lock().unwrap_err().kind(), ErrorKind::BadName);
}

#[test]
fn after_a_restart_of_the_machine_nothing_is_believed() {
    let place = Place::new();
    let mut db = shop(&place);
    db.execute("UPDATE tenure.meta SET value = 'another start' WHERE what = 'boot'", []).unwrap();
    let error = begin(&mut db, "x").try_lock().unwrap_err();
    assert!(error.to_string().contains("restarted"), "{error}");
    let mut db = shop(&place); // which attaches, and so opens it
    assert!(begin(&mut db, "x").try_lock().unwrap().is_some());
}

#[test]
fn a_killed_holder_is_in_nobodys_way() {
    let place = Place::new();
    let mut holder = Second::start("hold", &place.path());
    assert_eq!(holder.hear(), "held");
    let mut db = shop(&place);
    assert!(begin(&mut db, "x").try_lock().unwrap().is_none());
    holder.kill();
    assert!(begin(&mut db, "x").try_lock_for(Duration::from_secs(60)).unwrap().is_some(), "its ttl is ten minutes");
}

#[test]
fn eight_threads_count_to_a_thousand() {
    let place = Place::new();
    let db = shop(&place);
    db.execute("INSERT INTO stock VALUES ('lamp', 0)", []).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut db = shop(&place);
                for _ in 0..125 {
                    let (tx, _) = begin(&mut db, "lamp").lock().unwrap();
                    let pieces: i64 = tx.query_row("SELECT pieces FROM stock", [], |row| row.get(0)).unwrap();
                    tx.execute("UPDATE stock SET pieces = ?1", [pieces + 1]).unwrap();
                    tx.commit().unwrap();
                }
            });
        }
    });
    assert_eq!(db.query_row("SELECT pieces FROM stock", [], |row| row.get::<_, i64>(0)).unwrap(), 1_000);
}

#[test]
fn conflicts_are_told_apart_from_errors() {
    let place = Place::new();
    let (mut one, other) = (shop(&place), shop(&place));
    other.busy_timeout(Duration::ZERO).unwrap();
    let (tx, _) = begin(&mut one, "x").lock().unwrap();
    assert!(is_conflict(&other.execute("INSERT INTO stock VALUES ('a', 1)", []).unwrap_err()));
    assert!(!is_conflict(&other.execute("INSERT INTO nowhere VALUES (1)", []).unwrap_err()));
    drop(tx);
}

/// What the second process does.
#[tokio::test]
async fn child() {
    let Some((_, path)) = order() else { return };
    let client = Client::new(Sqlite::open(path, Settings::default()).unwrap()).unwrap();
    let _guard = client.mutex("x").unwrap().ttl(Duration::from_secs(600)).unwrap().lock().await.unwrap();
    say("held");
    listen();
}
