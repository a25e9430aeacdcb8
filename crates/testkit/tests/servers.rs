//! The launchers do what they say: servers answer, forget or remember, stand still, and are gone when the test is.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use tenure_testkit::eventually;
use tenure_testkit::servers::redis::{Fsync, Redis, RedisOptions};

/// Makes the `orphan` test the process that is to be killed.
const ORPHAN: &str = "TENURE_TEST_ORPHAN";

#[tokio::test]
async fn a_server_answers_and_ends_with_its_handle() {
    let redis = Redis::start(RedisOptions::new());
    assert_eq!(redis.command(&["SET", "key", "value"]).text(), "OK");
    assert_eq!(redis.command(&["GET", "key"]).text(), "value");
    assert_eq!(redis.calls().get("set"), Some(&1));
    let (pid, dir) = (redis.pid(), redis.dir().to_owned());
    assert!(is_running(pid) && dir.exists());
    drop(redis);
    assert!(!is_running(pid), "the server outlived its handle");
    assert!(!dir.exists(), "its directory outlived it");
}

/// Nothing runs at the end of a process that is killed, so something outside must notice.
#[tokio::test]
async fn a_server_ends_with_the_test_that_was_killed() {
    let mut orphan = Command::new(std::env::current_exe().unwrap())
        .args(["orphan", "--exact", "--nocapture", "--test-threads=1"])
        .env(ORPHAN, "yes")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(orphan.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = said.filter_map(|line| Some(line.split_once("@server ")?.1.to_owned())).next().unwrap();
    let (pid, dir) = line.split_once(' ').unwrap();
    let pid = pid.parse().unwrap();
    assert!(is_running(pid));
    orphan.kill().unwrap();
    orphan.wait().unwrap();
    eventually("the server ends too", || !is_running(pid)).await;
    eventually("and nothing is left of it", || !Path::new(dir).exists()).await;
}

#[test]
fn orphan() {
    if std::env::var_os(ORPHAN).is_none() {
        return;
    }
    // Stopped, it can do nothing for itself, and the thread that started it is gone.
    let redis = std::thread::spawn(|| Redis::start(RedisOptions::new())).join().unwrap();
    redis.pause();
    std::io::Write::write_all(
        &mut std::io::stdout(),
        format!("@server {} {}\n", redis.pid(), redis.dir().display()).as_bytes(),
    )
    .unwrap();
    loop {
        std::thread::park();
    }
}

#[test]
fn killed_it_forgets_or_remembers_and_keeps_its_port() {
    for (options, remembers) in [
        (RedisOptions::new(), false),
        (RedisOptions::new().aof(Fsync::EverySecond), true),
        (RedisOptions::new().aof(Fsync::Always), true),
    ] {
        let redis = Redis::start(options);
        let (pid, port, run_id) = (redis.pid(), redis.port(), redis.info("server")["run_id"].clone());
        redis.command(&["SET", "key", "value"]);
        redis.kill();
        assert!(!redis.is_alive() && redis.try_command(&["PING"]).is_err());
        redis.restart();
        assert_ne!(redis.info("server")["run_id"], run_id);
        assert!(redis.port() == port && redis.pid() != pid);
        assert_eq!(redis.command(&["EXISTS", "key"]).int(), i64::from(remembers));
    }
}

#[tokio::test]
async fn paused_it_answers_late() {
    let redis = Redis::start(RedisOptions::new());
    redis.pause();
    let mut connection = redis.connect().unwrap();
    connection.send(&["PING"]).unwrap();
    connection.patience(std::time::Duration::from_millis(50)).unwrap();
    assert!(connection.read().is_err());
    redis.resume();
    connection.patience(tenure_testkit::LIMIT).unwrap();
    assert_eq!(connection.read().unwrap().text(), "PONG");
}

#[test]
fn users_and_passwords_are_asked_for() {
    let redis = Redis::start(RedisOptions::new().password("sesame").user("reader on >open ~books:* +get"));
    assert_eq!(redis.command(&["SET", "books:1", "Emma"]).text(), "OK");
    assert_eq!(redis.url(), format!("redis://:sesame@127.0.0.1:{}", redis.port()));
    let mut stranger = tenure_testkit::servers::redis::Connection::open(redis.address()).unwrap();
    assert!(stranger.call(&["GET", "books:1"]).unwrap_err().to_string().starts_with("NOAUTH"));
    stranger.call(&["AUTH", "reader", "open"]).unwrap();
    assert_eq!(stranger.call(&["GET", "books:1"]).unwrap().text(), "Emma");
    assert!(stranger.call(&["DEL", "books:1"]).unwrap_err().to_string().starts_with("NOPERM"));
}

#[test]
fn options_reach_the_server() {
    let redis = Redis::start(RedisOptions::new().arg("maxmemory", "2mb").arg("maxmemory-policy", "allkeys-lru"));
    assert_eq!(redis.info("memory")["maxmemory"], "2097152");
    assert_eq!(redis.info("memory")["maxmemory_policy"], "allkeys-lru");
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let panic = std::panic::catch_unwind(|| Redis::start(RedisOptions::new().arg("maxmemory", "lots"))).err().unwrap();
    let said = panic.downcast_ref::<String>().unwrap();
    assert!(said.contains("redis-server does not start") && said.contains("maxmemory"), "{said}");
}

#[test]
fn shared_is_one() {
    let pids = [(); 4].map(|()| std::thread::spawn(|| Redis::shared().pid())).map(|thread| thread.join().unwrap());
    assert!(pids.iter().all(|pid| *pid == Redis::shared().pid()));
}

/// A zombie runs no more.
fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
