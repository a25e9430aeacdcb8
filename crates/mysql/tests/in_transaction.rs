//! The row lock in the user's own transaction, beside leases of the same name.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, IsolationLevel, Opts, Transaction, TxOpts};
use tenure_core::retry::Retries;
use tenure_core::{Backend, Claim, Client, Environment, ErrorKind, Guard, Kind, LockName, Mode, Renewal, Sequencer, Wait};
use tenure_mysql::{in_transaction, is_conflict};
use tenure_testkit::servers::mariadb::MariaDb;
use tenure_testkit::{claim, eventually, eventually_async, in_time};
use tokio::task::JoinSet;

const LEVELS: [IsolationLevel; 4] = [
    IsolationLevel::ReadUncommitted,
    IsolationLevel::ReadCommitted,
    IsolationLevel::RepeatableRead,
    IsolationLevel::Serializable,
];
/// Renewed after a third of it, and long enough that a machine may stand still for seconds.
const RENEWED: Duration = Duration::from_secs(6);

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
        // A machine that is busy with the rest of the suite may take longer over an answer than a network would.
        format!("{}?prefix={}&answer_limit=60s", MariaDb::shared().url(), self.prefix)
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        tenure_mysql::connect(&self.url().parse().unwrap()).await.unwrap()
    }

    /// The same with nothing of its own under way. With its first ask it also looks in the background for what the dead have left, and
    /// sweeps names whose time is over. Here that is a mark, and when it is gone, all is done.
    async fn backend_at_rest(&self) -> Arc<dyn Backend> {
        let (p, backend) = (&self.prefix, self.backend().await);
        MariaDb::shared().sql(&format!("INSERT INTO {p}mark (id, ends) VALUES (RANDOM_BYTES(16), 1)"));
        let has_looked = async || {
            let first = claim(Kind::Mutex, usize::MAX - 1);
            let first = Claim { name: LockName::new("first").unwrap(), ..first };
            backend.acquire(&first, Wait::No).await.unwrap().expect("nobody else has it");
            backend.release(&first).await.unwrap();
            MariaDb::shared().sql(&format!("SELECT COUNT(*) FROM {p}mark")) == [["0"]]
        };
        eventually_async("it has looked for leftovers", has_looked).await;
        backend
    }

    async fn client(&self) -> Client {
        Client::with_environment(self.backend().await, Environment::real()).unwrap()
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
        let guard = client.mutex("x").unwrap().ttl(RENEWED).unwrap().lock().await.unwrap();
        let mut tx = begin(&mut db, level).await;
        let lock = in_transaction(&mut tx, "x").prefix(&place.prefix).first().try_lock_for(Duration::from_millis(200));
        assert_eq!(lock.await.unwrap(), None);
        let (token, until) = (guard.token(), guard.valid_until());
        let lock = in_transaction(&mut tx, "x").prefix(&place.prefix).first().lock();
        let holding = async {
            eventually("it is renewed while a transaction waits", || guard.valid_until() > until).await;
            guard.release().await
        };
        let (released, held) = tokio::join!(holding, in_time("the lock", lock));
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
    let p = &place.prefix;
    MariaDb::shared().sql(&format!("UPDATE {p}ticket SET ends = 1 WHERE waiting = 0; UPDATE {p}name SET ends = 1"));
    let mut tx = begin(&mut db, IsolationLevel::ReadCommitted).await;
    assert_eq!(in_transaction(&mut tx, "x").prefix(p).first().try_lock().await.unwrap(), None);
    let next = in_time("the waiter is let in", waiting).await.unwrap();
    drop(guard);
    next.release().await.unwrap();
    in_time("the lock", in_transaction(&mut tx, "x").prefix(p).first().lock()).await.unwrap();
}

/// Readers, each with a ticket, since none is alone.
async fn readers(backend: &dyn Backend, names: &[&str]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let name = LockName::new(name).unwrap();
        let reader = Claim { name, mode: Mode::Shared, ..claim(Kind::RwLock, number) };
        backend.acquire(&reader, Wait::No).await.unwrap().expect("there are only readers");
        claims.push(reader);
    }
    claims
}

/// Neighbours are renewed, waited for and made, for as long as the transaction lasts: also where it found a name that time alone
/// has made free, and that nobody has swept yet.
#[tokio::test]
async fn it_is_in_no_other_names_way() {
    for level in LEVELS {
        let place = Place::new().await;
        let (client, second, backend) = (place.client().await, place.client().await, place.backend_at_rest().await);
        let mut claims = readers(&*backend, &["w", "w", "y", "y", "x", "x", "x"]).await;
        let ended = claims.split_off(4);
        let p = &place.prefix;
        if level == IsolationLevel::Serializable {
            // There every look is a lock, so it must not look where nobody is.
            for reader in &ended {
                backend.release(reader).await.unwrap();
            }
        } else {
            // Two are inside, the third is in line, and all are dead.
            MariaDb::shared().sql(&format!(
                "UPDATE {p}ticket t JOIN {p}name n ON n.name = t.name SET t.waiting = t.seq = n.seq, t.client = 0, t.ends = 1, \
                 n.holds = 2, n.waits = 1, n.taken = 2, n.head = n.seq, n.ends = 1 WHERE n.name = 'x'"
            ));
        }
        let mut db = connect().await;
        let mut tx = begin(&mut db, level).await;
        let held = place.try_lock(&mut tx).await.unwrap().expect("nobody alive has it");
        let is_held = |renewed: &tenure_core::Result<Renewal>| matches!(renewed, Ok(Renewal::Held { .. }));
        eventually_async("neighbours are renewed", async || backend.renew(&claims).await.iter().all(is_held)).await;
        if level != IsolationLevel::Serializable {
            let waiting = tokio::spawn(async move { second.rw_lock("w").unwrap().write().await });
            eventually_async("somebody waits next to it", async || client.view("w").await.unwrap().line.len() == 1).await;
            for name in ["wa", "xa"] {
                client.mutex(name).unwrap().lock().await.unwrap().release().await.unwrap();
            }
            waiting.abort();
        }
        let again = place.try_lock(&mut tx).await.unwrap().expect("it is this transaction's");
        assert!(again.token > held.token);
        tx.commit().await.unwrap();
        let guard = in_time("the lease", client.mutex("x").unwrap().lock()).await.unwrap();
        assert!(guard.token() > again.token, "{level:?}");
        guard.release().await.unwrap();
    }
}

/// A renewal reads the clock when it begins. One that began before the end of a hold, and comes to it only after a transaction
/// had the name, does not bring it back.
#[tokio::test]
async fn a_renewal_under_way_brings_no_hold_back() {
    let place = Place::new().await;
    let (client, backend) = (place.client().await, place.backend().await);
    let claims = readers(&*backend, &["w", "w", "x", "x"]).await;
    let p = &place.prefix;
    let mut gate = MariaDb::shared().session().unwrap();
    gate.sql(&format!("DO GET_LOCK('{p}gate', 0)")).unwrap();
    let waits_at_w = format!("IF OLD.name = 'w' THEN DO GET_LOCK('{p}gate', 600); END IF");
    gate.sql(&format!("CREATE TRIGGER {p}gate BEFORE UPDATE ON {p}ticket FOR EACH ROW {waits_at_w}")).unwrap();
    gate.sql(&format!(
        "UPDATE {p}ticket SET ends = since + 1000000 WHERE name = 'x'; UPDATE {p}name SET ends = 1 WHERE name = 'x'"
    ))
    .unwrap();
    let bytes =
        claims.iter().flat_map(|claim| [claim.id.as_bytes().as_slice(), b"\0\x01", claim.name.as_str().as_bytes()].concat());
    let hex: String = bytes.map(|byte| format!("{byte:02x}")).collect();
    let renewing = format!("CALL {p}renew(x'{hex}')");
    let renewal = tokio::task::spawn_blocking(move || MariaDb::shared().sql(&renewing));
    let waits =
        format!("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock' AND INFO LIKE '%{p}gate%'");
    eventually("it waits at w", || MariaDb::shared().sql(&waits) == [["1"]]).await;
    eventually_async("time has ended x", async || client.view("x").await.unwrap().is_free()).await;
    let mut db = connect().await;
    let mut tx = begin(&mut db, IsolationLevel::RepeatableRead).await;
    place.try_lock(&mut tx).await.unwrap().expect("nobody has it");
    tx.commit().await.unwrap();
    gate.sql(&format!("DO RELEASE_LOCK('{p}gate')")).unwrap();
    let rows = in_time("the renewal", renewal).await.unwrap();
    assert_eq!(rows.last().unwrap()[1], "hhll");
}

/// The snapshot is taken; then somebody holds. However it is asked afterwards, the transaction never has it too.
#[tokio::test]
async fn an_old_snapshot_never_makes_two_holders() {
    for what in ["granted", "renewed", "granted and let go", "another transaction"] {
        let place = Place::new().await;
        let client = place.client().await;
        let (mut db, mut other) = (connect().await, connect().await);
        let renewed = match what {
            "renewed" => Some(client.mutex("x").unwrap().ttl(RENEWED).unwrap().lock().await.unwrap()),
            _ => None,
        };
        let mut tx = begin(&mut db, IsolationLevel::RepeatableRead).await;
        tx.query_drop(format!("SELECT * FROM {}setup", place.prefix)).await.unwrap();
        let snapshot = Instant::now();
        match what {
            "granted" => std::mem::forget(client.mutex("x").unwrap().lock().await.unwrap()),
            "granted and let go" => client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap(),
            "another transaction" => {
                let mut theirs = begin(&mut other, IsolationLevel::RepeatableRead).await;
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
        assert!(error.is_transient() && is_conflict(&error), "{what}: {error}");
        assert!(error.to_string().contains("run the transaction again"), "{error}");
        tx.rollback().await.unwrap();
    }
}

/// What is over by what the snapshot shows was renewed since; it may have been without a ticket then, and have one now.
#[tokio::test]
async fn a_hold_that_a_snapshot_does_not_show_is_found() {
    for asked in [false, true] {
        let place = Place::new().await;
        let (client, backend) = (place.client().await, place.backend().await);
        let alone = claim(Kind::Mutex, 0);
        backend.acquire(&alone, Wait::No).await.unwrap().expect("nobody has it");
        let mut db = connect().await;
        // Its clock is ahead, so that nobody else thinks that the hold has ended.
        db.query_drop(format!("SET timestamp = UNIX_TIMESTAMP() + {}", alone.ttl.as_secs() + 60)).await.unwrap();
        let mut tx = begin(&mut db, IsolationLevel::RepeatableRead).await;
        tx.query_drop(format!("SELECT * FROM {}setup", place.prefix)).await.unwrap();
        let renewed = format!("UPDATE {}name SET ends = ends + {}", place.prefix, alone.ttl.as_micros());
        MariaDb::shared().sql(&renewed);
        if asked {
            assert_eq!(client.ask("x", "please").await.unwrap(), 1, "and it has a ticket now");
        }
        let error = place.try_lock(&mut tx).await.expect_err("somebody has it");
        assert!(is_conflict(&error), "{error}");
        tx.rollback().await.unwrap();
    }
}

/// A transaction that was told of a hold has locked nothing of it: its holder changes its mode, others ask it and end it.
#[tokio::test]
async fn a_transaction_that_only_looks_hides_no_hold() {
    for level in &LEVELS[..3] {
        let place = Place::new().await;
        let client = place.client().await;
        let mut db = connect().await;
        let mut guard = client.rw_lock("x").unwrap().write().await.unwrap();
        let mut tx = begin(&mut db, *level).await;
        assert_eq!(place.try_lock(&mut tx).await.unwrap(), None, "a lease has it");
        guard.downgrade().await.unwrap();
        assert_eq!(client.ask("x", "please").await.unwrap(), 1);
        assert_eq!(client.break_holds("x", None).await.unwrap(), 1);
        tx.rollback().await.unwrap();

        let mut tx = begin(&mut db, *level).await;
        assert!(place.try_lock(&mut tx).await.unwrap().is_some());
        assert_eq!(client.ask("x", "please").await.unwrap(), 0, "nobody holds it by a lease");
        assert_eq!(client.break_holds("x", None).await.unwrap(), 0);
        tx.commit().await.unwrap();
    }
}

/// Another verb has the name's row in the very moment in which a transaction looks: nobody can say then who has the name, so
/// whoever comes to the hold comes again.
#[tokio::test]
async fn a_look_in_a_verbs_way_is_waited_for() {
    let place = Place::new().await;
    let client = place.client().await;
    let mut db = connect().await;
    let long = Duration::from_secs(600);
    let mut guard = client.rw_lock("x").unwrap().ttl(long).unwrap().write().await.unwrap();
    let mut tx = begin(&mut db, IsolationLevel::RepeatableRead).await;
    assert_eq!(place.try_lock(&mut tx).await.unwrap(), None, "a lease has it");
    let mut verb = MariaDb::shared().session().unwrap();
    let refusals = || MariaDb::shared().sql("SHOW GLOBAL STATUS LIKE 'Com_signal'")[0][1].parse::<u64>().unwrap();
    for what in ["downgrade", "ask", "break"] {
        verb.sql(&format!("START TRANSACTION; SELECT * FROM {}name FOR UPDATE", place.prefix)).unwrap();
        let before = refusals();
        let doing = async {
            match what {
                "downgrade" => guard.downgrade().await.map(|()| 1),
                "ask" => client.ask("x", "please").await,
                _ => client.break_holds("x", None).await,
            }
        };
        let ending = async {
            eventually("it was refused", || refusals() > before).await;
            verb.sql("COMMIT").unwrap();
        };
        let (done, ()) = tokio::join!(in_time(what, doing), ending);
        assert_eq!(done.unwrap(), 1, "{what}");
    }
    tx.rollback().await.unwrap();
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
                        let guard = Place::lease(client).await;
                        let mut tx = begin(&mut db, IsolationLevel::ReadCommitted).await;
                        place.add(&mut tx).await.unwrap();
                        tx.commit().await.unwrap();
                        guard.release().await.unwrap();
                        continue;
                    }
                    let mut retries = Retries::new();
                    while let Err(error) = once(&place, &mut db, level).await {
                        assert!(is_conflict(&*error), "{level:?}: {error}");
                        if retries.pause().await.is_err() {
                            retries = Retries::new(); // sixteen at once are many, and waiting long is no failure here
                        }
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

/// What cannot be removed is an error, and leaves no transaction open, in which all that the connection does next would be lost.
#[tokio::test]
async fn tidying_that_fails_leaves_nothing_open() {
    let place = Place::new().await;
    let p = &place.prefix;
    MariaDb::shared().sql(&format!(
        "INSERT INTO {p}tx VALUES ('x'); CREATE TRIGGER {p}stays BEFORE DELETE ON {p}tx FOR EACH ROW SIGNAL SQLSTATE '45000'"
    ));
    let mut db = connect().await;
    db.query_drop(format!("CALL {p}leftovers(10, 0)")).await.unwrap_err();
    assert_eq!(db.query_first::<u32, _>("SELECT @@in_transaction").await.unwrap(), Some(0));
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
