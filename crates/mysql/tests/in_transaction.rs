//! The row lock in the user's own transaction, beside leases of the same name.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, IsolationLevel, Opts, Transaction, TxOpts};
use tenure_core::retry::Retries;
use tenure_core::{Client, Environment, ErrorKind, Sequencer};
use tenure_mysql::{in_transaction, is_conflict};
use tenure_testkit::servers::mariadb::MariaDb;
use tenure_testkit::{eventually_async, in_time};
use tokio::task::JoinSet;

const LEVELS: [IsolationLevel; 4] = [
    IsolationLevel::ReadUncommitted,
    IsolationLevel::ReadCommitted,
    IsolationLevel::RepeatableRead,
    IsolationLevel::Serializable,
];

/// Tables of a test's own, in the server that all share.
#[derive(Clone)]
struct Place {
    prefix: String,
}

impl Place {
    async fn new() -> Self {
        static CASES: AtomicU32 = AtomicU32::new(0);
        let place = Place { prefix: format!("i{}_{}_", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed)) };
        tenure_mysql::migrate(&place.url().parse().unwrap()).await.unwrap();
        place
    }

    fn url(&self) -> String {
        format!("{}?prefix={}", MariaDb::shared().url(), self.prefix)
    }

    async fn client(&self) -> Client {
        let backend = tenure_mysql::connect(&self.url().parse().unwrap()).await.unwrap();
        Client::with_environment(backend, Environment::real()).unwrap()
    }

    async fn try_lock(&self, tx: &mut Transaction<'_>) -> tenure_core::Result<Option<Sequencer>> {
        in_transaction(tx, "x").prefix(&self.prefix).try_lock().await
    }

    /// The user's own table: a number in one row.
    async fn table(&self, db: &mut Conn) {
        db.query_drop(format!("CREATE TABLE {}stock (pieces INT)", self.prefix)).await.unwrap();
        db.query_drop(format!("INSERT INTO {}stock VALUES (0)", self.prefix)).await.unwrap();
    }

    /// Reads the number and writes one more, with nothing but the lock to keep others from doing so in between.
    async fn add(&self, tx: &mut Transaction<'_>) -> mysql_async::Result<()> {
        let pieces: i32 = tx.query_first(format!("SELECT pieces FROM {}stock", self.prefix)).await?.unwrap();
        tx.query_drop(format!("UPDATE {}stock SET pieces = {}", self.prefix, pieces + 1)).await
    }

    async fn pieces(&self, db: &mut Conn) -> i32 {
        db.query_first(format!("SELECT pieces FROM {}stock", self.prefix)).await.unwrap().unwrap()
    }
}

async fn connect() -> Conn {
    Conn::new(Opts::from_url(&MariaDb::shared().url()).unwrap()).await.unwrap()
}

async fn begin(db: &mut Conn, level: IsolationLevel) -> Transaction<'_> {
    let mut options = TxOpts::default();
    options.with_isolation_level(level);
    db.start_transaction(options).await.unwrap()
}

#[tokio::test]
async fn a_lease_and_a_transaction_exclude_each_other() {
    for level in LEVELS {
        let place = Place::new().await;
        let client = place.client().await;
        let mut db = connect().await;
        let guard = client.mutex("x").unwrap().lock().await.unwrap();
        let mut tx = begin(&mut db, level).await;
        assert_eq!(place.try_lock(&mut tx).await.unwrap(), None, "a lease has it");
        let other = in_transaction(&mut tx, "y").prefix(&place.prefix).try_lock().await.unwrap();
        assert_eq!(other.expect("nobody has it").name.as_str(), "y");
        tx.rollback().await.unwrap();
        let leased = guard.token();
        guard.release().await.unwrap();

        let mut tx = begin(&mut db, level).await;
        let held = place.try_lock(&mut tx).await.unwrap().expect("it is free");
        assert!(held.token > leased);
        assert!(client.mutex("x").unwrap().try_lock().await.unwrap().is_none(), "a transaction has it");
        let started = Instant::now();
        assert!(client.mutex("x").unwrap().try_lock_for(Duration::from_millis(100)).await.unwrap().is_none());
        assert!(started.elapsed() < Duration::from_secs(30), "a verb waits for no transaction");
        let waiting = tokio::spawn({
            let mutex = client.mutex("x").unwrap();
            async move { mutex.lock().await.unwrap() }
        });
        tx.commit().await.unwrap();
        let guard = in_time("the lease", waiting).await.unwrap();
        assert!(guard.token() > held.token);
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn it_ends_with_the_transaction_however_that_ends() {
    let place = Place::new().await;
    let mut other = connect().await;
    for end in ["commit", "rollback", "disconnect"] {
        let mut db = connect().await;
        let mut tx = begin(&mut db, IsolationLevel::RepeatableRead).await;
        assert!(place.try_lock(&mut tx).await.unwrap().is_some(), "{end}");
        let mut second = begin(&mut other, IsolationLevel::RepeatableRead).await;
        assert_eq!(place.try_lock(&mut second).await.unwrap(), None, "{end}");
        match end {
            "commit" => tx.commit().await.unwrap(),
            "rollback" => tx.rollback().await.unwrap(),
            _ => {
                drop(tx);
                drop(db);
            }
        }
        let lock = in_transaction(&mut second, "x").prefix(&place.prefix).lock();
        in_time("the lock", lock).await.unwrap();
        second.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn waiting_ends_in_time_and_changes_no_setting() {
    let place = Place::new().await;
    let (mut one, mut other) = (connect().await, connect().await);
    other.query_drop("SET SESSION innodb_lock_wait_timeout = 77").await.unwrap();
    let mut first = begin(&mut one, IsolationLevel::RepeatableRead).await;
    let held = place.try_lock(&mut first).await.unwrap().unwrap();
    let mut second = begin(&mut other, IsolationLevel::RepeatableRead).await;
    let timeout = "SELECT @@SESSION.innodb_lock_wait_timeout";
    for wait in [Duration::ZERO, Duration::from_millis(120), Duration::from_millis(1_100)] {
        let started = Instant::now();
        let lock = in_transaction(&mut second, "x").prefix(&place.prefix).try_lock_for(wait);
        assert_eq!(in_time("giving up", lock).await.unwrap(), None);
        assert!(started.elapsed() >= wait && started.elapsed() < Duration::from_secs(30));
        assert_eq!(second.query_first::<u32, _>(timeout).await.unwrap(), Some(77));
    }
    let info = format!("INSERT INTO {}tx%", place.prefix);
    let waits = format!(
        "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '{info}' AND info NOT LIKE '%process%'"
    );
    let waiting = in_transaction(&mut second, "x").prefix(&place.prefix).lock();
    let (_, next) = tokio::join!(
        async {
            eventually_async("it waits in the server", async || MariaDb::shared().sql(&waits) == [["1"]]).await;
            first.commit().await.unwrap();
        },
        in_time("the lock", waiting)
    );
    assert!(next.unwrap().token > held.token);
    assert_eq!(second.query_first::<u32, _>(timeout).await.unwrap(), Some(77));
}

#[tokio::test]
async fn waiting_for_a_lease_does_not_hold_up_its_holder() {
    for level in LEVELS {
        let place = Place::new().await;
        let client = place.client().await;
        let mut db = connect().await;
        let guard = client.mutex("x").unwrap().ttl(Duration::from_millis(500)).unwrap().lock().await.unwrap();
        let mut tx = begin(&mut db, level).await;
        let lock = in_transaction(&mut tx, "x").prefix(&place.prefix).first().try_lock_for(Duration::from_millis(1_200));
        assert_eq!(lock.await.unwrap(), None);
        guard.check().expect("it was renewed all the while");
        let token = guard.token();
        let lock = in_transaction(&mut tx, "x").prefix(&place.prefix).first().lock();
        let (released, held) = tokio::join!(guard.release(), in_time("the lock", lock));
        released.unwrap();
        assert!(held.unwrap().token > token, "{level:?}");
        let status: u32 = tx.query_first("SELECT @@in_transaction").await.unwrap().unwrap();
        assert_eq!(status, 1, "begun anew");
    }
}

/// Something was done in it, so it is not begun anew: whoever would wait for a lease is told to run it again.
#[tokio::test]
async fn a_transaction_is_begun_anew_only_by_permission() {
    let place = Place::new().await;
    let client = place.client().await;
    let mut db = connect().await;
    place.table(&mut db).await;
    let guard = client.mutex("x").unwrap().lock().await.unwrap();
    let mut tx = begin(&mut db, IsolationLevel::RepeatableRead).await;
    place.add(&mut tx).await.unwrap();
    let error = in_transaction(&mut tx, "x").prefix(&place.prefix).lock().await.unwrap_err();
    assert!(error.is_transient() && is_conflict(&error), "{error}");
    assert!(error.to_string().contains("first()"), "{error}");
    assert_eq!(place.try_lock(&mut tx).await.unwrap(), None);
    tx.commit().await.unwrap();
    assert_eq!(place.pieces(&mut db).await, 1, "nothing of it was lost");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lease_that_has_ended_by_time_is_in_nobodys_way() {
    for level in LEVELS {
        let place = Place::new().await;
        let client = place.client().await;
        let mutex = client.mutex("x").unwrap().keep(false).ttl(Duration::from_millis(100)).unwrap();
        let guard = mutex.lock().await.unwrap();
        guard.lost().await;
        eventually_async("its time is up", async || client.view("x").await.unwrap().is_free()).await;
        let mut db = connect().await;
        let mut tx = begin(&mut db, level).await;
        let held = place.try_lock(&mut tx).await.unwrap().expect("nobody has it");
        assert!(held.token > guard.token());
        tx.commit().await.unwrap();
        guard.release().await.ok();
        client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn whoever_is_in_line_comes_first() {
    let place = Place::new().await;
    let (client, second) = (place.client().await, place.client().await);
    let mut db = connect().await;
    let guard = client.mutex("x").unwrap().lock().await.unwrap();
    let waiting = tokio::spawn(async move { second.mutex("x").unwrap().lock().await.unwrap() });
    eventually_async("it waits", async || client.view("x").await.unwrap().line.len() == 1).await;
    // The hold has ended by time, and nobody has noticed yet.
    let p = &place.prefix;
    MariaDb::shared().sql(&format!("UPDATE {p}ticket SET ends = 1 WHERE waiting = 0; UPDATE {p}name SET ends = 1"));
    let mut tx = begin(&mut db, IsolationLevel::ReadCommitted).await;
    assert_eq!(in_transaction(&mut tx, "x").prefix(p).first().try_lock().await.unwrap(), None);
    let next = in_time("the waiter is let in", waiting).await.unwrap();
    drop(guard);
    next.release().await.unwrap();
    in_time("the lock", in_transaction(&mut tx, "x").prefix(p).first().lock()).await.unwrap();
}

/// The snapshot is taken; then somebody holds. However it is asked afterwards, the transaction never has it too.
#[tokio::test]
async fn an_old_snapshot_never_makes_two_holders() {
    for what in ["granted", "renewed", "granted and let go", "another transaction"] {
        let place = Place::new().await;
        let client = place.client().await;
        let (mut db, mut other) = (connect().await, connect().await);
        if what == "renewed" {
            let mutex = client.mutex("x").unwrap().ttl(Duration::from_millis(600)).unwrap();
            std::mem::forget(mutex.lock().await.unwrap());
        }
        let mut tx = begin(&mut db, IsolationLevel::RepeatableRead).await;
        tx.query_drop(format!("SELECT * FROM {}setup", place.prefix)).await.unwrap();
        match what {
            "granted" => std::mem::forget(client.mutex("x").unwrap().lock().await.unwrap()),
            "granted and let go" => client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap(),
            "another transaction" => {
                let mut theirs = begin(&mut other, IsolationLevel::RepeatableRead).await;
                assert!(place.try_lock(&mut theirs).await.unwrap().is_some());
                theirs.commit().await.unwrap();
            }
            _ => tokio::time::sleep(Duration::from_millis(1_000)).await, // what the snapshot shows has ended by time
        }
        let error = place.try_lock(&mut tx).await.expect_err(what);
        assert!(error.is_transient() && is_conflict(&error), "{what}: {error}");
        assert!(error.to_string().contains("run the transaction again"), "{error}");
        tx.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn sixteen_count_to_three_hundred_at_every_level() {
    for level in LEVELS {
        let place = Place::new().await;
        let mut db = connect().await;
        place.table(&mut db).await;
        let mut tasks = JoinSet::new();
        for task in 0..16 {
            let place = place.clone();
            tasks.spawn(async move {
                let mut db = connect().await;
                let client = if task % 4 == 0 { Some(place.client().await) } else { None };
                for _ in 0..20 {
                    // A quarter holds a lease and writes in whatever transaction; the others lock in their own.
                    if let Some(client) = &client {
                        let guard = client.mutex("x").unwrap().lock().await.unwrap();
                        let mut tx = begin(&mut db, IsolationLevel::ReadCommitted).await;
                        place.add(&mut tx).await.unwrap();
                        tx.commit().await.unwrap();
                        guard.release().await.unwrap();
                        continue;
                    }
                    let mut retries = Retries::new();
                    while let Err(error) = once(&place, &mut db, level).await {
                        assert!(is_conflict(&*error), "{level:?}: {error}");
                        retries.pause().await.unwrap();
                    }
                }
            });
        }
        in_time("all have counted", tasks.join_all()).await;
        assert_eq!(place.pieces(&mut db).await, 320, "{level:?}");
    }
}

async fn once(place: &Place, db: &mut Conn, level: IsolationLevel) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut tx = begin(db, level).await;
    let locked = in_transaction(&mut tx, "x").prefix(&place.prefix).first().lock().await;
    let done = match locked {
        Ok(_) => place.add(&mut tx).await.map_err(Into::into),
        Err(error) => Err(error.into()),
    };
    if let Err(error) = done {
        tx.rollback().await?;
        return Err(error);
    }
    Ok(tx.commit().await?)
}

#[tokio::test]
async fn tokens_rise_whoever_holds() {
    let place = Place::new().await;
    let client = place.client().await;
    let mut db = connect().await;
    let mut last = 0;
    for round in 0..20 {
        let token = if round % 3 == 0 {
            let guard = client.mutex("x").unwrap().lock().await.unwrap();
            let token = guard.token();
            guard.release().await.unwrap();
            token
        } else {
            let mut tx = begin(&mut db, IsolationLevel::RepeatableRead).await;
            let held = place.try_lock(&mut tx).await.unwrap().expect("nobody has it");
            let again = place.try_lock(&mut tx).await.unwrap().expect("it is this transaction's");
            assert!(again.token > held.token, "asked for twice, it has it twice");
            tx.commit().await.unwrap();
            again.token
        };
        assert!(token.get() > last, "round {round}");
        last = token.get();
        if round == 10 {
            client.close().await.unwrap(); // the row goes; the next one starts from the floor
        }
    }
}

#[tokio::test]
async fn nothing_is_left_once_somebody_tidies() {
    let place = Place::new().await;
    let mut db = connect().await;
    for name in ["x", "y"] {
        let mut tx = begin(&mut db, IsolationLevel::RepeatableRead).await;
        in_transaction(&mut tx, name).prefix(&place.prefix).lock().await.unwrap();
        tx.commit().await.unwrap();
    }
    let client = place.client().await;
    let rows = format!("SELECT name FROM {0}name UNION ALL SELECT name FROM {0}tx", place.prefix);
    let are_gone = async || {
        client.mutex("z").unwrap().lock().await.unwrap().release().await.unwrap();
        MariaDb::shared().sql(&rows).into_iter().flatten().all(|name| name == "z")
    };
    eventually_async("the rows go, while others lock", are_gone).await;
}

#[tokio::test]
async fn tables_that_sessions_use_are_refused() {
    let place = Place::new().await;
    MariaDb::shared().sql(&format!("UPDATE {}setup SET liveness = 'session'", place.prefix));
    let mut db = connect().await;
    let mut tx = begin(&mut db, IsolationLevel::RepeatableRead).await;
    let error = place.try_lock(&mut tx).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("another prefix"), "{error}");
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn what_is_wrong_is_said_plainly() {
    let mut db = connect().await;
    let mut tx = begin(&mut db, IsolationLevel::RepeatableRead).await;
    let error = in_transaction(&mut tx, "x").prefix("nowhere_").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    for words in ["tenure migrate", "nowhere_", "lock \"x\""] {
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
    assert!(!is_conflict(&error));
    assert_eq!(in_transaction(&mut tx, "").try_lock().await.unwrap_err().kind(), ErrorKind::BadName);
    assert!(in_transaction(&mut tx, "x").prefix("a`b").try_lock().await.is_err());
    tx.query_drop("SELECT 1").await.expect("it can go on");
    tx.rollback().await.unwrap();
}
