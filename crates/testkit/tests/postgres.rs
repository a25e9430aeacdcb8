//! The launchers of PostgreSQL and PgBouncer do what they say.

mod orphan;

use std::process::Command;
use std::time::Duration;

use orphan::{children, is_running};
use tenure_testkit::proxy::{Fault, Proxy, Toward, Which};
use tenure_testkit::servers::postgres::{BouncerOptions, PgBouncer, PoolMode, Postgres, PostgresOptions};
use tenure_testkit::servers::{ClientCertificate, Step};
use tenure_testkit::{LIMIT, eventually};

#[test]
fn it_answers_and_ends_with_its_handle() {
    let postgres = Postgres::start(PostgresOptions::new());
    assert_eq!(postgres.sql("SELECT 1, NULL, 'ü'; SELECT 2"), [vec!["1", "", "ü"], vec!["2"]]);
    assert_eq!(postgres.sql("SHOW fsync; SHOW synchronous_commit"), [["off"], ["on"]]);
    let refused = postgres.try_sql("SELECT 1/0").unwrap_err().to_string();
    assert_eq!(refused, "22012: division by zero");
    assert_eq!(postgres.url(), format!("postgres://postgres@127.0.0.1:{}/postgres", postgres.port()));
    let (dir, all) = (postgres.dir().to_owned(), processes_of(&postgres));
    assert!(all.len() > 1 && is_running(postgres.pid())); // the others come and go
    drop(postgres);
    assert!(!all.iter().any(|pid| is_running(*pid)), "a process outlived the handle");
    assert!(!dir.exists(), "its directory outlived it");
}

#[tokio::test]
async fn it_ends_with_the_test_that_was_killed() {
    orphan::leaves_nothing("orphaned").await;
}

/// Its processes have left its group, and stopped ones do not notice that the first is gone.
#[test]
fn orphaned() {
    if orphan::is_one() {
        let postgres = std::thread::spawn(|| Postgres::start(PostgresOptions::new())).join().unwrap();
        postgres.pause();
        orphan::live(postgres.pid(), postgres.dir());
    }
}

#[test]
fn killed_or_stopped_it_remembers_and_keeps_its_port() {
    for options in [PostgresOptions::new(), PostgresOptions::new().fsync()] {
        let postgres = Postgres::start(options);
        let (port, pid, all) = (postgres.port(), postgres.pid(), processes_of(&postgres));
        postgres.sql("CREATE TABLE t (x int); INSERT INTO t VALUES (1)");
        postgres.kill();
        assert!(!postgres.is_alive() && postgres.try_sql("SELECT 1").is_err());
        assert!(!all.iter().any(|pid| is_running(*pid)));
        postgres.restart();
        assert!(postgres.port() == port && postgres.pid() != pid);
        assert_eq!(postgres.sql("SELECT x FROM t"), [["1"]]);
        postgres.stop();
        assert!(!postgres.is_alive());
        postgres.restart();
        assert_eq!(postgres.sql("SELECT x FROM t"), [["1"]]);
    }
}

/// Also in sessions that are served already: all processes stand still.
#[test]
fn paused_it_answers_late() {
    let postgres = Postgres::start(PostgresOptions::new());
    let mut session = postgres.session().unwrap();
    postgres.pause();
    session.send("SELECT 1").unwrap();
    session.patience(Duration::from_millis(50)).unwrap();
    assert!(session.read().is_err());
    postgres.resume();
    session.patience(LIMIT).unwrap();
    assert_eq!(session.read().unwrap(), [["1"]]);
    postgres.pause();
    postgres.kill(); // stopped ones too
    postgres.restart();
    assert_eq!(postgres.sql("SELECT 1"), [["1"]]);
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let start = || Postgres::start(PostgresOptions::new().set("max_connections", "many"));
    let panic = std::panic::catch_unwind(start).err().unwrap();
    let said = panic.downcast_ref::<String>().unwrap();
    assert!(said.contains("postgres does not start") && said.contains("max_connections"), "{said}");
}

#[test]
fn shared_is_one_with_room_for_many() {
    let pids = [(); 4].map(|()| std::thread::spawn(|| Postgres::shared().pid())).map(|thread| thread.join().unwrap());
    assert!(pids.iter().all(|pid| *pid == Postgres::shared().pid()));
    assert_eq!(Postgres::shared().sql("SHOW max_connections"), [["400"]]);
    Postgres::shared().create_database("another");
    let mut session = Postgres::shared().session_in("another").unwrap();
    assert_eq!(session.sql("SELECT current_database()").unwrap(), [["another"]]);
    assert_eq!(session.sql("SELECT pg_backend_pid()").unwrap(), [[session.pid().to_string()]]);
}

#[test]
fn passwords_are_asked_for() {
    let postgres = Postgres::start(PostgresOptions::new().password("sesame"));
    postgres.sql("CREATE USER reader PASSWORD 'open'");
    assert_eq!(postgres.url(), format!("postgres://postgres:sesame@127.0.0.1:{}/postgres", postgres.port()));
    assert_eq!(psql(&postgres.url()).unwrap(), "postgres plain");
    assert_eq!(psql(&postgres.url_as("reader", "open", "postgres")).unwrap(), "reader plain");
    let refused = psql(&postgres.url_as("reader", "shut", "postgres")).unwrap_err();
    assert!(refused.contains("password authentication failed"), "{refused}");
}

#[test]
fn tls_is_verified_by_both_sides() {
    let open = Postgres::start(PostgresOptions::new().tls(ClientCertificate::Ignored));
    let strict = Postgres::start(PostgresOptions::new().tls(ClientCertificate::Demanded));
    let url = |server: &Postgres, certificates_of: &Postgres, with_client: bool| {
        let pem = certificates_of.certificates();
        let ca = pem.ca.display();
        let client = format!("&sslcert={}&sslkey={}", pem.client.display(), pem.client_key.display());
        let client = if with_client { client } else { "&sslcert=/nowhere".to_owned() };
        format!("{}?sslmode=verify-full&sslrootcert={ca}{client}", server.url())
    };
    assert_eq!(psql(&url(&open, &open, false)).unwrap(), "postgres TLS");
    assert!(psql(&url(&open, &strict, false)).is_err(), "another CA's word was taken");
    assert!(psql(&url(&strict, &strict, false)).is_err(), "no certificate was asked for");
    assert_eq!(psql(&url(&strict, &strict, true)).unwrap(), "postgres TLS");
    let refused = psql(&format!("{}?sslmode=disable", open.url())).unwrap_err();
    assert!(refused.contains("no encryption"), "{refused}");
}

#[test]
fn a_skewed_clock_moves_time() {
    let postgres = Postgres::start(PostgresOptions::new().skewed());
    let mut session = postgres.session().unwrap();
    let mut time =
        || session.sql("SELECT extract(epoch FROM clock_timestamp())::bigint").unwrap()[0][0].parse::<i64>().unwrap();
    let before = time();
    postgres.step_clock(Step::Forward(Duration::from_secs(3600)));
    assert!((3600..7200).contains(&(time() - before)));
    postgres.step_clock(Step::Back(Duration::from_secs(3 * 3600)));
    assert!(time() < before);
    postgres.restart();
    let after = postgres.sql("SELECT extract(epoch FROM now())::bigint")[0][0].parse::<i64>().unwrap();
    assert!(after < before, "it is the machine's clock, and stays wrong over a restart");
}

#[test]
fn a_full_disk_refuses_and_can_be_freed() {
    let postgres = Postgres::start(PostgresOptions::new().disk(96 << 20));
    postgres.sql("CREATE TABLE t (x text)");
    postgres.fill_disk();
    let much = "INSERT INTO t SELECT repeat(md5(n::text), 100) FROM generate_series(1, 10000) n";
    let refused = postgres.try_sql(much).unwrap_err().to_string();
    assert!(refused.contains("No space left on device"), "{refused}");
    postgres.free_disk();
    postgres.sql("INSERT INTO t VALUES ('little')");
    postgres.kill();
    postgres.restart();
    assert_eq!(postgres.sql("SELECT x FROM t"), [["little"]], "what is on the disk outlives the server");
}

#[test]
fn a_replica_follows_and_is_promoted() {
    let postgres = Postgres::start(PostgresOptions::new().password("sesame"));
    postgres.sql("CREATE TABLE t (x int); INSERT INTO t VALUES (1)");
    let replica = postgres.replica();
    assert!(replica.is_standby() && !postgres.is_standby());
    postgres.sql("INSERT INTO t VALUES (2)");
    replica.catch_up_with(&postgres);
    assert_eq!(replica.sql("SELECT x FROM t ORDER BY x"), [["1"], ["2"]]);
    assert!(replica.try_sql("INSERT INTO t VALUES (3)").unwrap_err().to_string().starts_with("25006"));
    postgres.kill();
    replica.restart();
    assert!(replica.is_standby(), "it waits for who was killed");
    replica.promote();
    replica.sql("INSERT INTO t VALUES (3)");
    replica.restart();
    assert_eq!(replica.sql("SELECT count(*) FROM t"), [["3"]], "promoted it stays");
}

/// What a lagging standby does not know is lost when it is promoted.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_replica_is_promoted_without_the_last_writes() {
    let postgres = Postgres::start(PostgresOptions::new());
    let proxy = Proxy::start(postgres.address());
    postgres.sql("CREATE TABLE t (x text); INSERT INTO t VALUES ('early')");
    let replica = postgres.replica_through(proxy.address());
    eventually("the stream goes through the proxy", || {
        postgres.sql("SELECT client_addr FROM pg_stat_replication") == [["127.0.0.1"]]
    })
    .await;
    replica.catch_up_with(&postgres);
    proxy.set(Which::All, Fault::Blackhole(Toward::Client));
    postgres.sql("INSERT INTO t VALUES ('late')");
    postgres.kill();
    replica.promote();
    assert_eq!(replica.sql("SELECT x FROM t"), [["early"]]);
}

#[test]
fn a_pooler_lends_connections_for_a_transaction() {
    let postgres = Postgres::start(PostgresOptions::new());
    let bouncer = PgBouncer::start(&postgres, BouncerOptions::new(PoolMode::Transaction).pool_size(2));
    let (mut one, mut other) = (bouncer.session().unwrap(), bouncer.session().unwrap());
    let lent = "SELECT pg_backend_pid()";
    let first = one.sql(lent).unwrap();
    assert_eq!(other.sql(lent).unwrap(), first, "both use the connection that is free");
    one.sql("BEGIN").unwrap();
    let mine = one.sql(lent).unwrap();
    assert_ne!(other.sql(lent).unwrap(), mine, "it is not free during a transaction");
    one.sql("COMMIT").unwrap();
    let sessions = (0..50).map(|_| bouncer.session().unwrap());
    let served: Vec<_> = sessions.map(|mut session| session.sql(lent).unwrap()).collect();
    assert_eq!(served.len(), 50);
    let connections =
        "SELECT count(*) <= 2 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    assert_eq!(postgres.sql(connections), [["t"]]);

    let session_wise = PgBouncer::start(&postgres, BouncerOptions::new(PoolMode::Session));
    let (mut one, mut other) = (session_wise.session().unwrap(), session_wise.session().unwrap());
    assert_ne!(one.sql(lent).unwrap(), other.sql(lent).unwrap());
    let mode = |bouncer: &PgBouncer| {
        let pools = bouncer.console("SHOW POOLS");
        pools.into_iter().find(|pool| pool[0] == "postgres").unwrap().pop().unwrap()
    };
    assert_eq!((mode(&bouncer).as_str(), mode(&session_wise).as_str()), ("transaction", "session"));
    // As Debian has it: what PgBouncer does not know, it does not pass over in silence.
    let config = bouncer.console("SHOW CONFIG");
    assert!(config.iter().any(|setting| setting[0] == "ignore_startup_parameters" && setting[1].is_empty()));
}

#[test]
fn a_pooler_can_be_hurt_like_a_server() {
    let bouncer = PgBouncer::start(Postgres::shared(), BouncerOptions::new(PoolMode::Transaction));
    assert_eq!(psql(&bouncer.url()).unwrap(), "postgres plain");
    let mut session = bouncer.session().unwrap();
    bouncer.pause();
    session.send("SELECT 1").unwrap();
    session.patience(Duration::from_millis(50)).unwrap();
    assert!(session.read().is_err());
    bouncer.resume();
    session.patience(LIMIT).unwrap();
    assert_eq!(session.read().unwrap(), [["1"]]);
    let (port, pid) = (bouncer.port(), bouncer.pid());
    bouncer.kill();
    assert!(!bouncer.is_alive() && session.sql("SELECT 1").is_err());
    bouncer.restart();
    assert!(bouncer.port() == port && bouncer.pid() != pid);
    assert_eq!(psql(&bouncer.url()).unwrap(), "postgres plain");
    let pid = bouncer.pid();
    drop(bouncer);
    assert!(!is_running(pid));
    assert_eq!(psql(&PgBouncer::shared().url()).unwrap(), "postgres plain");
}

/// The first, and those it has started.
fn processes_of(postgres: &Postgres) -> Vec<u32> {
    std::iter::once(postgres.pid()).chain(children(postgres.pid())).collect()
}

/// Who one is there and whether by TLS, as a client by TCP that is not ours; the error is in its words.
fn psql(url: &str) -> Result<String, String> {
    let sql = "SELECT current_user, CASE WHEN ssl THEN 'TLS' ELSE 'plain' END FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let output = Command::new("psql").args(["-XAtF", " ", "-c", sql, url]).output().unwrap();
    let said = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim().to_owned();
    if output.status.success() { Ok(said(output.stdout)) } else { Err(said(output.stderr)) }
}
