//! The launchers of MariaDB and of a Galera cluster do what they say.

mod orphan;

use std::process::Command;
use std::time::Duration;

use orphan::is_running;
use tenure_testkit::proxy::{Fault, Proxy, Toward, Which};
use tenure_testkit::servers::mariadb::{Galera, MariaDb, MariaDbOptions};
use tenure_testkit::servers::{ClientCertificate, Step};
use tenure_testkit::{LIMIT, eventually};

#[test]
fn it_answers_and_ends_with_its_handle() {
    let mariadb = MariaDb::start(MariaDbOptions::new());
    assert_eq!(mariadb.sql("SELECT 1, NULL, 'ü'; DO 0; SELECT 2"), [vec!["1", "", "ü"], vec!["2"]]);
    assert_eq!(mariadb.sql("SELECT LENGTH(REPEAT('x', 70000)), REPEAT('x', 70000)")[0][1].len(), 70_000);
    assert_eq!(mariadb.sql("SELECT @@innodb_flush_log_at_trx_commit, DATABASE()"), [["2", "tenure"]]);
    let refused = mariadb.try_sql("SELECT * FROM nothing").unwrap_err().to_string();
    assert_eq!(refused, "1146 (42S02): Table 'tenure.nothing' doesn't exist");
    assert_eq!(mariadb.url(), format!("mysql://root@127.0.0.1:{}/tenure", mariadb.port()));
    let (dir, pid) = (mariadb.dir().to_owned(), mariadb.pid());
    assert!(is_running(pid));
    drop(mariadb);
    assert!(!is_running(pid), "the server outlived its handle");
    assert!(!dir.exists(), "its directory outlived it");
}

#[tokio::test]
async fn it_ends_with_the_test_that_was_killed() {
    orphan::leaves_nothing("orphaned").await;
}

#[test]
fn orphaned() {
    if orphan::is_one() {
        let mariadb = std::thread::spawn(|| MariaDb::start(MariaDbOptions::new())).join().unwrap();
        mariadb.pause();
        orphan::live(mariadb.pid(), mariadb.dir());
    }
}

#[test]
fn killed_or_stopped_it_remembers_and_keeps_its_port() {
    for options in [MariaDbOptions::new(), MariaDbOptions::new().fsync()] {
        let mariadb = MariaDb::start(options);
        let (port, pid) = (mariadb.port(), mariadb.pid());
        mariadb.sql("CREATE TABLE t (x int); INSERT INTO t VALUES (1)");
        mariadb.kill();
        assert!(!mariadb.is_alive() && mariadb.try_sql("SELECT 1").is_err());
        mariadb.restart();
        assert!(mariadb.port() == port && mariadb.pid() != pid);
        assert_eq!(mariadb.sql("SELECT x FROM t"), [["1"]]);
        mariadb.stop();
        assert!(!mariadb.is_alive());
        mariadb.restart();
        assert_eq!(mariadb.sql("SELECT x FROM t"), [["1"]]);
    }
}

#[test]
fn paused_it_answers_late() {
    let mariadb = MariaDb::start(MariaDbOptions::new());
    let mut session = mariadb.session().unwrap();
    mariadb.pause();
    session.send("SELECT 1").unwrap();
    session.patience(Duration::from_millis(50)).unwrap();
    assert!(session.read().is_err());
    mariadb.resume();
    session.patience(LIMIT).unwrap();
    assert_eq!(session.read().unwrap(), [["1"]]);
    mariadb.pause();
    mariadb.kill();
    mariadb.restart();
    assert_eq!(mariadb.sql("SELECT 1"), [["1"]]);
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let start = || MariaDb::start(MariaDbOptions::new().set("no_such_setting", "1"));
    let panic = std::panic::catch_unwind(start).err().unwrap();
    let said = panic.downcast_ref::<String>().unwrap();
    assert!(said.contains("mariadbd does not start") && said.contains("no_such_setting"), "{said}");
}

#[test]
fn shared_is_one_with_room_for_many() {
    let pids = [(); 4].map(|()| std::thread::spawn(|| MariaDb::shared().pid())).map(|thread| thread.join().unwrap());
    assert!(pids.iter().all(|pid| *pid == MariaDb::shared().pid()));
    assert_eq!(MariaDb::shared().sql("SELECT @@max_connections"), [["400"]]);
    MariaDb::shared().create_database("another");
    let mut session = MariaDb::shared().session_in("another").unwrap();
    assert_eq!(session.sql("SELECT DATABASE(), CONNECTION_ID()").unwrap(), [["another", &session.id().to_string()]]);
}

#[test]
fn passwords_are_asked_for() {
    let mariadb = MariaDb::start(MariaDbOptions::new().password("sesame"));
    mariadb.sql("CREATE USER reader@127.0.0.1 IDENTIFIED BY 'open'");
    assert_eq!(mariadb.url(), format!("mysql://root:sesame@127.0.0.1:{}/tenure", mariadb.port()));
    assert_eq!(client(&mariadb, "root", "sesame", &[]).unwrap(), "root plain");
    assert_eq!(client(&mariadb, "reader", "open", &[]).unwrap(), "reader plain");
    let refused = client(&mariadb, "reader", "shut", &[]).unwrap_err();
    assert!(refused.contains("Access denied"), "{refused}");
}

#[test]
fn tls_is_verified_by_both_sides() {
    let open = MariaDb::start(MariaDbOptions::new().tls(ClientCertificate::Ignored));
    let strict = MariaDb::start(MariaDbOptions::new().tls(ClientCertificate::Demanded));
    let over_tls = |server: &MariaDb, certificates_of: &MariaDb, with_client: bool| {
        let pem = certificates_of.certificates();
        let mut args = vec!["--ssl-verify-server-cert".to_owned(), format!("--ssl-ca={}", pem.ca.display())];
        if with_client {
            args.push(format!("--ssl-cert={}", pem.client.display()));
            args.push(format!("--ssl-key={}", pem.client_key.display()));
        }
        client(server, "root", "", &args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert_eq!(over_tls(&open, &open, false).unwrap(), "root TLS");
    assert!(over_tls(&open, &strict, false).is_err(), "another CA's word was taken");
    assert!(over_tls(&strict, &strict, false).is_err(), "no certificate was asked for");
    assert_eq!(over_tls(&strict, &strict, true).unwrap(), "root TLS");
    // It does not say why.
    let refused = client(&open, "root", "", &["--skip-ssl"]).unwrap_err();
    assert!(refused.contains("Access denied"), "{refused}");
}

#[test]
fn a_skewed_clock_moves_time() {
    let mariadb = MariaDb::start(MariaDbOptions::new().skewed());
    let mut session = mariadb.session().unwrap();
    let mut time = || session.sql("SELECT UNIX_TIMESTAMP(SYSDATE())").unwrap()[0][0].parse::<i64>().unwrap();
    let before = time();
    mariadb.step_clock(Step::Forward(Duration::from_secs(3600)));
    assert!((3600..7200).contains(&(time() - before)));
    mariadb.step_clock(Step::Back(Duration::from_secs(3 * 3600)));
    assert!(time() < before);
    mariadb.restart();
    let after = mariadb.sql("SELECT UNIX_TIMESTAMP()")[0][0].parse::<i64>().unwrap();
    assert!(after < before, "it is the machine's clock, and stays wrong over a restart");
}

#[test]
fn a_full_disk_refuses_and_can_be_freed() {
    let mariadb = MariaDb::start(MariaDbOptions::new().disk(128 << 20).set("innodb_log_file_size", "8M"));
    mariadb.sql("CREATE TABLE t (x text)");
    mariadb.fill_disk();
    let refused = mariadb.try_sql("INSERT INTO t SELECT REPEAT(MD5(seq), 100) FROM seq_1_to_10000").unwrap_err().to_string();
    assert!(refused.contains("is full"), "{refused}");
    mariadb.free_disk();
    mariadb.sql("INSERT INTO t VALUES ('little')");
    mariadb.kill();
    mariadb.restart();
    assert_eq!(mariadb.sql("SELECT x FROM t"), [["little"]], "what is on the disk outlives the server");
}

#[test]
fn a_replica_follows_and_is_promoted() {
    let options = MariaDbOptions::new().binlog().password("sesame").tls(ClientCertificate::Demanded);
    let mariadb = MariaDb::start(options);
    mariadb.sql("CREATE TABLE t (x int); INSERT INTO t VALUES (1)");
    let replica = mariadb.replica();
    mariadb.sql("INSERT INTO t VALUES (2)");
    replica.catch_up_with(&mariadb);
    assert_eq!(replica.sql("SELECT x FROM t ORDER BY x"), [["1"], ["2"]]);
    assert_eq!(replica.sql("SELECT @@read_only"), [["1"]]);
    replica.restart();
    mariadb.sql("INSERT INTO t VALUES (3)");
    replica.catch_up_with(&mariadb);
    mariadb.kill();
    replica.promote();
    assert_eq!(replica.sql("SELECT @@read_only"), [["0"]]);
    replica.sql("INSERT INTO t VALUES (4)");
    assert_eq!(replica.sql("SELECT COUNT(*) FROM t"), [["4"]]);
}

/// What a lagging replica does not know is lost when it is promoted.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_replica_is_promoted_without_the_last_writes() {
    let mariadb = MariaDb::start(MariaDbOptions::new().binlog());
    let proxy = Proxy::start(mariadb.address());
    mariadb.sql("CREATE TABLE t (x text); INSERT INTO t VALUES ('early')");
    let replica = mariadb.replica_through(proxy.address());
    proxy.set(Which::All, Fault::Blackhole(Toward::Client));
    mariadb.sql("INSERT INTO t VALUES ('late')");
    mariadb.kill();
    replica.promote();
    assert_eq!(replica.sql("SELECT x FROM t"), [["early"]]);
}

#[tokio::test]
async fn galera_replicates_both_ways_and_needs_a_majority() {
    let galera = Galera::start();
    let [one, other] = galera.nodes() else { panic!("there are two") };
    let count =
        |node: &MariaDb| node.try_sql("SET wsrep_sync_wait = 1; SELECT COUNT(*) FROM t").map_err(|error| error.to_string());
    one.sql("CREATE TABLE t (x int PRIMARY KEY); INSERT INTO t VALUES (1)");
    assert_eq!(count(other).unwrap(), [["1"]]);
    other.sql("INSERT INTO t VALUES (2)");
    assert_eq!(count(one).unwrap(), [["2"]]);

    // Who says goodbye leaves a cluster of one, and comes back to it.
    one.stop();
    other.sql("INSERT INTO t VALUES (3)");
    one.restart();
    assert_eq!(count(one).unwrap(), [["3"]]);

    // Who is killed leaves one of two, and that is no majority.
    other.kill();
    eventually("the one that is left refuses", || count(one).is_err_and(|error| error.starts_with("1047"))).await;
    other.restart();
    assert_eq!(count(other).unwrap(), [["3"]]);
    one.sql("INSERT INTO t VALUES (4)");
    assert_eq!(count(other).unwrap(), [["4"]]);
}

/// Who one is there and whether by TLS, as a client by TCP that is not ours; the error is in its words.
fn client(mariadb: &MariaDb, user: &str, password: &str, args: &[&str]) -> Result<String, String> {
    let sql = "SELECT SUBSTRING_INDEX(CURRENT_USER(), '@', 1), IF(variable_value = '', 'plain', 'TLS') \
         FROM information_schema.session_status WHERE variable_name = 'ssl_version'";
    let port = mariadb.port().to_string();
    let output = Command::new("mariadb")
        .args(["--no-defaults", "-BN", "-h", "127.0.0.1", "-P", &port, "-u", user, "-e", sql])
        .args(args)
        .env("MYSQL_PWD", password)
        .output()
        .unwrap();
    let said = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim().replace('\t', " ");
    if output.status.success() { Ok(said(output.stdout)) } else { Err(said(output.stderr)) }
}
