//! The row lock in the user's own transaction, beside leases and sessions of the same name.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tenure_core::retry::Retries;
use tenure_core::{Backend, Claim, Client, Environment, ErrorKind, Guard, Kind, LockName, Sequencer, Wait};
use tenure_postgres::{in_transaction, is_conflict};
use tenure_testkit::servers::postgres::{PgBouncer, Postgres};
use tenure_testkit::{claim, eventually, eventually_async, in_time};
use tokio::task::JoinSet;
use tokio_postgres::{IsolationLevel, NoTls, Transaction};

const LEVELS: [IsolationLevel; 4] = [
    IsolationLevel::ReadUncommitted,
    IsolationLevel::ReadCommitted,
    IsolationLevel::RepeatableRead,
    IsolationLevel::Serializable,
];
/// Renewed after a third of it, and long enough that a machine may stand still for seconds.
const RENEWED: Duration = Duration::from_secs(6);
/// Those at which a snapshot can be old.
const OLD: [IsolationLevel; 2] = [IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

/// Tables of a test's own, in the server that all share.
#[derive(Clone)]
struct Place {
    prefix: String,
}

impl Place {
    async fn new() -> Self {
        Self::with("").await
    }

    async fn with(parameters: &str) -> Self {
        static CASES: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("i{}_{}_", std::process::id(), CASES.fetch_add(1, Ordering::Relaxed));
        let place = Place { prefix };
        tenure_postgres::migrate(&place.url(parameters).parse().unwrap()).await.unwrap();
        place
    }

    fn url(&self, parameters: &str) -> String {
        // A machine that is busy with the rest of the suite may take longer over an answer than a network would.
        format!("{}?prefix={}&answer_limit=60s{parameters}", Postgres::shared().url(), self.prefix)
    }

    /// A backend whose first look for leftovers is over: at this moment it would be in the way of a transaction that waits for nobody.
    async fn backend_at_rest(&self) -> Arc<dyn Backend> {
        let backend = tenure_postgres::connect(&self.url("").parse().unwrap()).await.unwrap();
        let p = &self.prefix;
        Postgres::shared().sql(&format!("INSERT INTO {p}mark (id, until) VALUES (gen_random_uuid(), 1)"));
        let has_looked = async || {
            let first = Claim { name: LockName::new("first").unwrap(), ..claim(Kind::Mutex, usize::MAX - 1) };
            backend.acquire(&first, Wait::No).await.unwrap().expect("nobody else has it");
            backend.release(&first).await.unwrap();
            Postgres::shared().sql(&format!("SELECT count(*) FROM {p}mark")) == [["0"]]
        };
        eventually_async("it has looked for leftovers", has_looked).await;
        backend
    }

    async fn client(&self) -> Client {
        self.client_with("").await
    }

    async fn client_with(&self, parameters: &str) -> Client {
        let backend = tenure_postgres::connect(&self.url(parameters).parse().unwrap()).await.unwrap();
        Client::with_environment(backend, Environment::real()).unwrap()
    }

    /// A lease for work that nothing else protects: who waited has it for the whole ttl too, since nobody renews it.
    async fn lease(client: &Client) -> Guard {
        let mutex = client.mutex("x").unwrap().ttl(Duration::from_secs(600)).unwrap().keep(false);
        mutex.lock().await.unwrap()
    }

    async fn try_lock(&self, tx: &mut Transaction<'_>) -> tenure_core::Result<Option<Sequencer>> {
        in_transaction(tx, "x").prefix(&self.prefix).try_lock().await
    }

    /// The user's own table: a number in one row.
    async fn table(&self, db: &tokio_postgres::Client) {
        let sql = format!("CREATE TABLE {0}stock (pieces int); INSERT INTO {0}stock VALUES (0)", self.prefix);
        db.batch_execute(&sql).await.unwrap();
    }

    /// Reads the number and writes one more, with nothing but the lock to keep others from doing so in between.
    async fn add(&self, tx: &Transaction<'_>) -> Result<(), tokio_postgres::Error> {
        let row = tx.query_one(&format!("SELECT pieces FROM {}stock", self.prefix), &[]).await?;
        let pieces: i32 = row.get(0);
        tx.execute(&format!("UPDATE {}stock SET pieces = $1", self.prefix), &[&(pieces + 1)]).await.map(drop)
    }

    async fn pieces(&self, db: &tokio_postgres::Client) -> i32 {
        db.query_one(&format!("SELECT pieces FROM {}stock", self.prefix), &[]).await.unwrap().get(0)
    }
}

async fn connect() -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&Postgres::shared().url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn begin(db: &mut tokio_postgres::Client, level: IsolationLevel) -> Transaction<'_> {
    db.build_transaction().isolation_level(level).start().await.unwrap()
}

/// How many locks a transaction has that could hold anybody up.
async fn locks(tx: &Transaction<'_>) -> i64 {
    let sql = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype IN ('advisory', 'tuple')
                  AND mode <> 'SIReadLock'";
    tx.query_one(sql, &[]).await.unwrap().get(0)
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
        assert_eq!(locks(&tx).await, 0, "nothing is left of trying");
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
    for end in ["commit", "rollback", "drop", "disconnect"] {
        let mut db = connect().await;
        let mut tx = begin(&mut db, IsolationLevel::ReadCommitted).await;
        assert!(place.try_lock(&mut tx).await.unwrap().is_some(), "{end}");
        let mut second = begin(&mut other, IsolationLevel::ReadCommitted).await;
        assert_eq!(place.try_lock(&mut second).await.unwrap(), None, "{end}");
        match end {
            "commit" => tx.commit().await.unwrap(),
            "rollback" => tx.rollback().await.unwrap(),
            "drop" => drop(tx),
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
    let mut first = begin(&mut one, IsolationLevel::ReadCommitted).await;
    let held = place.try_lock(&mut first).await.unwrap().unwrap();
    let mut second = begin(&mut other, IsolationLevel::ReadCommitted).await;
    second.batch_execute("SET LOCAL lock_timeout = '77s'").await.unwrap();
    let timeout = async |tx: &Transaction<'_>| -> String { tx.query_one("SHOW lock_timeout", &[]).await.unwrap().get(0) };
    for wait in [Duration::ZERO, Duration::from_micros(10), Duration::from_millis(120)] {
        let started = Instant::now();
        let lock = in_transaction(&mut second, "x").prefix(&place.prefix).try_lock_for(wait);
        assert_eq!(in_time("giving up", lock).await.unwrap(), None);
        assert!(started.elapsed() >= wait);
        assert_eq!(timeout(&second).await, "77s");
        assert_eq!(locks(&second).await, 0);
    }
    let waiting = in_transaction(&mut second, "x").prefix(&place.prefix).lock();
    let (_, next) = tokio::join!(
        async {
            let waits = "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
            let one_waits = async || Postgres::shared().sql(waits) == [["t"]];
            eventually_async("it waits in the server", one_waits).await;
            first.commit().await.unwrap();
        },
        in_time("the lock", waiting)
    );
    assert!(next.unwrap().token > held.token);
    assert_eq!(timeout(&second).await, "77s");
}

#[tokio::test]
async fn waiting_for_a_lease_does_not_hold_up_its_holder() {
    let place = Place::new().await;
    let client = place.client().await;
    let mut db = connect().await;
    let guard = client.mutex("x").unwrap().ttl(RENEWED).unwrap().lock().await.unwrap();
    let mut tx = begin(&mut db, IsolationLevel::ReadCommitted).await;
    let lock = in_transaction(&mut tx, "x").prefix(&place.prefix).try_lock_for(Duration::from_millis(200));
    assert_eq!(lock.await.unwrap(), None);
    let (token, until) = (guard.token(), guard.valid_until());
    let lock = in_transaction(&mut tx, "x").prefix(&place.prefix).lock();
    let holding = async {
        eventually("it is renewed while a transaction waits", || guard.valid_until() > until).await;
        guard.release().await
    };
    let (released, held) = tokio::join!(holding, in_time("the lock", lock));
    released.unwrap();
    assert!(held.unwrap().token > token);
}

#[tokio::test]
async fn a_lease_that_has_ended_by_time_is_in_nobodys_way() {
    for level in LEVELS {
        let place = Place::new().await;
        let client = place.client().await;
        // By hand: a keeper would end what was lost, perhaps at this very moment.
        let backend = place.backend_at_rest().await;
        let ttl = Duration::from_millis(100);
        let short = Claim { ttl, handover_ttl: ttl, ..claim(Kind::Mutex, 0) };
        let granted = backend.acquire(&short, Wait::No).await.unwrap().expect("nobody has it");
        eventually_async("its time is up", async || client.view("x").await.unwrap().is_free()).await;
        let mut db = connect().await;
        let mut tx = begin(&mut db, level).await;
        let held = place.try_lock(&mut tx).await.unwrap().expect("nobody has it");
        assert!(held.token > granted.token);
        tx.commit().await.unwrap();
        assert_eq!(backend.release(&short).await.unwrap_err().kind(), ErrorKind::Lost);
        client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn whoever_is_in_line_comes_first() {
    let place = Place::new().await;
    let (client, second) = (place.client().await, place.client().await);
    let mut db = connect().await;
    let guard = client.mutex("x").unwrap().lock().await.unwrap();
    let waiting = tokio::spawn(async move { Place::lease(&second).await });
    eventually_async("it waits", async || client.view("x").await.unwrap().line.len() == 1).await;
    // The hold has ended by time, and nobody has noticed yet.
    Postgres::shared()
        .sql(&format!("UPDATE {0}ticket SET expires = 1 WHERE NOT waiting; UPDATE {0}name SET opens = 1", place.prefix));
    let mut tx = begin(&mut db, IsolationLevel::ReadCommitted).await;
    assert_eq!(place.try_lock(&mut tx).await.unwrap(), None);
    let next = in_time("the waiter is let in", waiting).await.unwrap();
    drop(guard);
    next.release().await.unwrap();
    in_time("the lock", in_transaction(&mut tx, "x").prefix(&place.prefix).lock()).await.unwrap();
}

/// The snapshot is taken; then somebody holds. However it is asked afterwards, the transaction never has it too.
#[tokio::test]
async fn an_old_snapshot_never_makes_two_holders() {
    for level in OLD {
        for what in ["granted", "renewed", "granted and let go", "granted and forgotten", "another transaction"] {
            let place = Place::new().await;
            let client = place.client().await;
            let (mut db, mut other) = (connect().await, connect().await);
            let renewed = match what {
                "renewed" => Some(client.mutex("x").unwrap().ttl(RENEWED).unwrap().lock().await.unwrap()),
                _ => None,
            };
            let mut tx = begin(&mut db, level).await;
            tx.query_one("SELECT 1", &[]).await.unwrap();
            let snapshot = Instant::now();
            match what {
                "granted" => std::mem::forget(client.mutex("x").unwrap().lock().await.unwrap()),
                "granted and let go" => client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap(),
                "granted and forgotten" => {
                    client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
                    client.close().await.unwrap();
                    let rows = Postgres::shared().sql(&format!("SELECT count(*) FROM {}name", place.prefix));
                    assert_eq!(rows, [["0"]], "only the floor knows of it");
                }
                "another transaction" => {
                    let mut theirs = begin(&mut other, IsolationLevel::ReadCommitted).await;
                    assert!(place.try_lock(&mut theirs).await.unwrap().is_some());
                    theirs.commit().await.unwrap();
                }
                _ => {
                    // The server's clock may be a little slower than ours.
                    let is_over = || snapshot.elapsed() > RENEWED + RENEWED / 100;
                    eventually("what the snapshot shows has ended by time", is_over).await;
                    renewed.as_ref().unwrap().check().expect("it was renewed all the while");
                }
            }
            let error = place.try_lock(&mut tx).await.expect_err(what);
            assert!(error.is_transient() && is_conflict(&error), "{level:?}, {what}: {error}");
            assert!(error.to_string().contains("run the transaction again"), "{error}");
            tx.rollback().await.unwrap();
        }
    }
}

/// A name that was made after the snapshot and is being removed: whoever makes it anew waits for that, and its last token is not forgotten.
#[tokio::test]
async fn an_old_snapshot_does_not_hide_what_is_just_removed() {
    for level in OLD {
        let place = Place::new().await;
        let prefix = &place.prefix;
        let (mut db, mut other) = (connect().await, connect().await);
        let old = begin(&mut db, level).await;
        let pid: i32 = old.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let used = format!("INSERT INTO {prefix}name (name, used, last) VALUES ('x', 1, 9000000000000000)");
        other.batch_execute(&used).await.unwrap();
        let removing = begin(&mut other, IsolationLevel::ReadCommitted).await;
        removing.query_one(&format!("SELECT {prefix}tidy(ARRAY['x'], 0)"), &[]).await.unwrap();
        // With a mark an end makes the name's row.
        let makes =
            format!("SELECT {prefix}end(ARRAY['x'], ARRAY[gen_random_uuid()], ARRAY[0::bigint], ARRAY[60000000::bigint])");
        let (made, ()) = tokio::join!(old.query_one(&makes, &[]), async {
            let waits = format!("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = {pid}");
            eventually("it waits", || Postgres::shared().sql(&waits) == [["t"]]).await;
            removing.commit().await.unwrap();
        });
        let error = made.expect_err("its last token is above what the snapshot shows");
        assert!(is_conflict(&error), "{level:?}: {error}");
        old.rollback().await.unwrap();
    }
}

/// However long it lasts, a transaction is in the way of its own name and of no other: what others let go of is forgotten, what they
/// remove goes, and what they hold stays theirs.
#[tokio::test]
async fn a_transaction_that_lasts_is_in_the_way_of_no_other_name() {
    for level in LEVELS {
        let place = Place::new().await;
        let client = place.client().await;
        let mut db = connect().await;
        let mut tx = begin(&mut db, level).await;
        assert!(place.try_lock(&mut tx).await.unwrap().is_some(), "nobody has it");
        for name in ["gone", "held"] {
            client.mutex(name).unwrap().lock().await.unwrap().release().await.unwrap();
        }
        let held = client.mutex("held").unwrap().lock().await.unwrap();
        let gone = format!("SELECT count(*) = 0 FROM {}name WHERE name = 'gone'", place.prefix);
        eventually("what nobody uses is forgotten", || Postgres::shared().sql(&gone) == [["t"]]).await;
        let cell = client.cell("x").unwrap();
        let version = cell.set_if(0, "1").await.unwrap().expect("nobody else writes");
        assert!(in_time("it is removed", cell.remove_if(version)).await.unwrap());
        held.release().await.unwrap();
        tx.commit().await.unwrap();
    }
}

#[tokio::test]
async fn sixteen_count_to_three_hundred_at_every_level() {
    for level in LEVELS {
        let place = Place::new().await;
        let db = connect().await;
        place.table(&db).await;
        let mut tasks = JoinSet::new();
        for task in 0..16 {
            let place = place.clone();
            tasks.spawn(async move {
                let mut db = connect().await;
                let client = if task % 4 == 0 { Some(place.client().await) } else { None };
                for _ in 0..20 {
                    // A quarter holds a lease and writes in whatever transaction; the others lock in their own.
                    if let Some(client) = &client {
                        let guard = Place::lease(client).await;
                        let tx = db.transaction().await.unwrap();
                        place.add(&tx).await.unwrap();
                        tx.commit().await.unwrap();
                        guard.release().await.unwrap();
                        continue;
                    }
                    let mut retries = Retries::new();
                    loop {
                        match once(&place, &mut db, level).await {
                            Ok(()) => break,
                            Err(error) => {
                                let is_old = matches!(level, IsolationLevel::RepeatableRead | IsolationLevel::Serializable);
                                assert!(is_conflict(&*error) && is_old, "{level:?}: {error}");
                                if retries.pause().await.is_err() {
                                    retries = Retries::new(); // sixteen at once are many, and waiting long is no failure here
                                }
                            }
                        }
                    }
                }
            });
        }
        in_time("all have counted", tasks.join_all()).await;
        assert_eq!(place.pieces(&db).await, 320, "{level:?}");
    }
}

/// Begun anew while it waits, a transaction at any level waits without an error, and reads nothing old afterwards.
#[tokio::test]
async fn whoever_locks_first_thing_meets_no_conflict() {
    for level in LEVELS {
        let place = Place::new().await;
        let db = connect().await;
        place.table(&db).await;
        let mut tasks = JoinSet::new();
        for task in 0..6 {
            let place = place.clone();
            tasks.spawn(async move {
                let mut db = connect().await;
                let client = if task == 0 { Some(place.client().await) } else { None };
                for _ in 0..10 {
                    let guard = match &client {
                        Some(client) => Some(Place::lease(client).await),
                        None => None,
                    };
                    while let Err(error) = once_as(&place, &mut db, level, guard.is_none()).await {
                        // At this level the server may also suspect a conflict where there is none.
                        assert!(is_conflict(&*error) && matches!(level, IsolationLevel::Serializable), "{level:?}: {error}");
                    }
                    if let Some(guard) = guard {
                        guard.release().await.unwrap();
                    }
                }
            });
        }
        in_time("all have counted", tasks.join_all()).await;
        assert_eq!(place.pieces(&db).await, 60, "{level:?}");
    }
}

async fn once_as(
    place: &Place,
    db: &mut tokio_postgres::Client,
    level: IsolationLevel,
    locks: bool,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut tx = begin(db, level).await;
    if locks {
        in_transaction(&mut tx, "x").prefix(&place.prefix).first().lock().await?;
    }
    place.add(&tx).await?;
    Ok(tx.commit().await?)
}

async fn once(
    place: &Place,
    db: &mut tokio_postgres::Client,
    level: IsolationLevel,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut tx = begin(db, level).await;
    in_transaction(&mut tx, "x").prefix(&place.prefix).lock().await?;
    place.add(&tx).await?;
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
            let mut tx = begin(&mut db, IsolationLevel::ReadCommitted).await;
            // The client may be tidying up at the name in that moment, which is waited for.
            let lock = in_transaction(&mut tx, "x").prefix(&place.prefix).lock();
            let held = in_time("the lock", lock).await.unwrap();
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

/// A pooler lends a connection for a transaction, and everything here lives in one.
#[tokio::test]
async fn it_works_behind_a_transaction_pooler() {
    let place = Place::new().await;
    let client = place.client().await;
    let (mut db, connection) = tokio_postgres::connect(&PgBouncer::shared().url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..3 {
        let mut tx = db.transaction().await.unwrap();
        let held = in_transaction(&mut tx, "x").prefix(&place.prefix).lock().await.unwrap();
        assert!(client.mutex("x").unwrap().try_lock().await.unwrap().is_none());
        tx.commit().await.unwrap();
        let guard = client.mutex("x").unwrap().lock().await.unwrap();
        assert!(guard.token() > held.token);
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn sessions_are_excluded_too() {
    let place = Place::with("&liveness=session").await;
    let client = place.client_with("&liveness=session").await;
    let mut db = connect().await;
    let guard = client.mutex("x").unwrap().lock().await.unwrap();
    let mut tx = begin(&mut db, IsolationLevel::ReadCommitted).await;
    assert_eq!(place.try_lock(&mut tx).await.unwrap(), None);
    let token = guard.token();
    guard.release().await.unwrap();
    let held = in_time("the lock", in_transaction(&mut tx, "x").prefix(&place.prefix).lock()).await.unwrap();
    assert!(held.token > token);
    assert!(client.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    tx.commit().await.unwrap();
    let guard = in_time("the session lock", client.mutex("x").unwrap().lock()).await.unwrap();
    assert!(guard.token() > held.token);
}

#[tokio::test]
async fn what_is_wrong_is_said_plainly() {
    let mut db = connect().await;
    let mut tx = db.transaction().await.unwrap();
    let error = in_transaction(&mut tx, "x").prefix("nowhere_").lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    for words in ["tenure migrate", "nowhere_", "roll back", "lock \"x\""] {
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
    let error = in_transaction(&mut tx, "x").prefix("nowhere_").lock().await.unwrap_err();
    assert!(error.to_string().contains("has failed before"), "{error}");
    assert!(!is_conflict(&error));
    assert_eq!(in_transaction(&mut tx, "").try_lock().await.unwrap_err().kind(), ErrorKind::BadName);
    assert!(in_transaction(&mut tx, "x").prefix("a\"b").try_lock().await.is_err());
}

#[tokio::test]
async fn whoever_may_only_what_is_granted_can_lock() {
    let place = Place::new().await;
    let server = Postgres::shared();
    let user = format!("{}app", place.prefix);
    server.sql(&format!("CREATE USER {user}"));
    let (mut db, connection) = tokio_postgres::connect(&server.url_as(&user, "", "postgres"), NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut tx = db.transaction().await.unwrap();
    let error = place.try_lock(&mut tx).await.unwrap_err();
    assert!(error.to_string().contains("GRANT"), "{error}");
    tx.rollback().await.unwrap();
    let ddl =
        tenure_postgres::schema(&tenure_postgres::Settings::from_url(&place.url("").parse().unwrap()).unwrap()).unwrap();
    let grants = ddl.lines().filter_map(|line| line.strip_prefix("--   GRANT"));
    let grants: Vec<String> = grants.map(|grant| format!("GRANT{grant}").replace("\"app\"", &user)).collect();
    server.sql(&grants.join("\n"));
    let mut tx = db.transaction().await.unwrap();
    assert!(place.try_lock(&mut tx).await.unwrap().is_some());
}

/// Transactions tidy nothing. Whoever comes by does, whichever way it locks, and however many names they have left.
#[tokio::test]
async fn nothing_is_left_once_somebody_tidies() {
    for parameters in ["", "&liveness=session"] {
        let place = Place::with(parameters).await;
        let mut db = connect().await;
        place.client_with(parameters).await.close().await.unwrap(); // which says how these tables are used
        let tx = begin(&mut db, IsolationLevel::ReadCommitted).await;
        let lock = format!("SELECT {}in_transaction('name ' || n, 0) FROM generate_series(1, 300) n", place.prefix);
        tx.execute(&lock, &[]).await.unwrap();
        tx.commit().await.unwrap();
        let left = || Postgres::shared().sql(&format!("SELECT count(*) FROM {}name WHERE name LIKE 'name %'", place.prefix));
        assert_eq!(left(), [["300"]]);
        let are_gone = async || {
            let client = place.client_with(parameters).await;
            client.mutex("z").unwrap().lock().await.unwrap().release().await.unwrap();
            client.close().await.unwrap();
            left() == [["0"]]
        };
        eventually_async("the rows go, while others lock", are_gone).await;
    }
}

/// Whoever tidies does not wait for a transaction that has a name, whichever way it locks.
#[tokio::test]
async fn whoever_tidies_waits_for_no_transaction() {
    for parameters in ["", "&liveness=session"] {
        let place = Place::with(parameters).await;
        let mut db = connect().await;
        place.client_with(parameters).await.close().await.unwrap();
        for keeps in [false, true] {
            let mut tx = begin(&mut db, IsolationLevel::ReadCommitted).await;
            place.try_lock(&mut tx).await.unwrap().expect("it is free");
            if keeps {
                // The row is there from the first time, and looks as if nobody used it.
                let tidy = format!("SELECT * FROM {}tidy_after(NULL, 64, 0)", place.prefix);
                in_time("it is over", connect().await.query(&tidy, &[])).await.unwrap();
            }
            tx.commit().await.unwrap();
        }
    }
}
