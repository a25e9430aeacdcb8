//! Errors as servers write them, and as a real one provokes them.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tenure_core::StoreUrl;
use tenure_testkit::servers::redis::{Redis, RedisOptions};

use super::*;

fn settings(url: &str) -> Settings {
    Settings::from_url(&url.parse::<StoreUrl>().unwrap()).unwrap()
}

fn here() -> Address {
    Address::new("10.0.0.1", 6379)
}

/// An error as it comes over the wire.
fn wire(line: &str) -> RedisError {
    redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap().extract_error().unwrap_err()
}

fn address(redis: &Redis) -> Address {
    Address::new("127.0.0.1", redis.port())
}

async fn connect(settings: &Settings) -> Result<MultiplexedConnection, Failure> {
    let Topology::Single(at) = &settings.topology else { panic!("one server") };
    let client = settings.client(at)?;
    let connection = client.get_multiplexed_async_connection_with_config(&settings.connection(at)).await;
    connection.map_err(|error| explain_connect(error, at, settings))
}

async fn fails(url: &str) -> Error {
    connect(&settings(url)).await.map(drop).expect_err(url).error
}

/// What a request fails with.
async fn refused(url: &str, command: &mut Cmd) -> Failure {
    let settings = settings(url);
    let mut connection = connect(&settings).await.unwrap_or_else(|failure| panic!("{url}: {}", failure.error));
    let answer = connection.send_packed_command(command).await.and_then(Value::extract_error);
    explain(&answer.expect_err("an error"), &here(), &settings, "trying")
}

#[track_caller]
fn says(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{error} says nothing of {word:?}");
    }
}

#[test]
fn what_to_do_next_and_whether_it_happened() {
    let to = |host: &str, port| Address::new(host, port);
    for (line, next, fate) in [
        ("NOSCRIPT No matching script.", Next::NoScript, Fate::Refused),
        ("MOVED 3999 10.0.0.2:6381", Next::Moved { slot: 3999, to: to("10.0.0.2", 6381) }, Fate::Refused),
        ("MOVED 3999 :6381", Next::Moved { slot: 3999, to: to("10.0.0.1", 6381) }, Fate::Refused),
        ("MOVED 3999 2001:db8::1:6381", Next::Moved { slot: 3999, to: to("2001:db8::1", 6381) }, Fate::Refused),
        ("ASK 7 node-3.example:6381", Next::Ask { slot: 7, to: to("node-3.example", 6381) }, Fate::Refused),
        ("MOVED nonsense", Next::Fatal, Fate::Refused),
        ("LOADING Redis is loading the dataset in memory", Next::TryLater, Fate::Refused),
        ("CLUSTERDOWN Hash slot not served", Next::TryLater, Fate::Refused),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Next::TryLater, Fate::Refused),
        ("MASTERDOWN Link with MASTER is down", Next::TryLater, Fate::Refused),
        ("BUSY Redis is busy running a script.", Next::TryLater, Fate::Refused),
        ("NOREPLICAS Not enough good replicas to write.", Next::TryLater, Fate::Refused),
        ("READONLY You can't write against a read only replica.", Next::NotMaster, Fate::Refused),
        ("UNBLOCKED force unblock from blocking operation", Next::NotMaster, Fate::Unknown),
        ("ERR max number of clients reached", Next::TryLater, Fate::Unknown),
        (
            "OOM command not allowed when used memory > 'maxmemory'. script: 6d38, on @user_script:1.",
            Next::Fatal,
            Fate::Unknown,
        ),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Next::Fatal, Fate::Unknown),
        ("MISCONF Redis is configured to save RDB snapshots", Next::Fatal, Fate::Refused),
        ("NOPERM this user has no permissions to run the 'evalsha' command", Next::Fatal, Fate::Refused),
        ("ERR user_script:1: attempt to index a nil value", Next::Fatal, Fate::Unknown),
        ("WHATEVER is this", Next::Fatal, Fate::Unknown),
    ] {
        let error = wire(line);
        assert_eq!((what_next(&error, &here()), super::fate(&error)), (next, fate), "{line}");
    }
    let broken = RedisError::from(io::Error::from(io::ErrorKind::BrokenPipe));
    assert_eq!((what_next(&broken, &here()), super::fate(&broken)), (Next::Broken, Fate::Unknown));
    let late = RedisError::from(io::Error::from(io::ErrorKind::TimedOut));
    assert_eq!((what_next(&late, &here()), super::fate(&late)), (Next::Broken, Fate::Unknown));
}

#[test]
fn a_person_is_told_what_to_do() {
    use ErrorKind::{Backend, Unavailable};
    let single = settings("redis://app:hunter2@h?prefix=mine");
    let cluster = settings("redis+cluster://h");
    for (line, kind, words) in [
        ("READONLY You can't write", Unavailable, &["replica", "redis+sentinel://"][..]),
        ("MOVED 1 h:1", Backend, &["belongs to a cluster", "redis+cluster://"]),
        ("CROSSSLOT Keys in request", Backend, &["redis+cluster://"]),
        ("MISCONF Redis is configured", Backend, &["disk is full", "stop-writes-on-bgsave-error"]),
        ("OOM command not allowed", Backend, &["maxmemory"]),
        ("WRONGTYPE Operation", Backend, &["prefix", "mine"]),
        ("NOAUTH Authentication required.", Backend, &["password"]),
        ("LOADING Redis is loading", Unavailable, &["loading"]),
        ("BUSY Redis is busy", Unavailable, &["SLOWLOG"]),
        ("NOREPLICAS Not enough", Unavailable, &["min-replicas-to-write"]),
        ("DENIED Redis is running in protected mode", Backend, &["protected mode"]),
        ("ERR max number of clients reached", Unavailable, &["maxclients"]),
        ("NOPERM User app has no permissions to run the 'evalsha' command", Backend, &["ACL SETUSER app +evalsha"]),
        ("NOPERM this user has no permissions to run the 'script|load' command", Backend, &["+script|load"]),
        ("NOPERM this user has no permissions to access one of the keys used as arguments", Backend, &["~mine:*"]),
        ("NOPERM No permissions to access a channel", Backend, &["&mine:*"]),
        (
            "ERR ACL failure in script: User app has no permissions to run the 'zadd' command script: 6d, on @user_script:1.",
            Backend,
            &["+zadd"],
        ),
        ("ERR The user executing the script can't run this command or subcommand script: 1", Backend, &["ACL line"]),
        ("ERR unknown command 'EVALSHA', with args", Backend, &["Redis 6.0"]),
        ("ERR DB index is out of range", Backend, &["no such database"]),
    ] {
        let failure = explain(&wire(line), &here(), &single, "trying");
        says(&failure.error, kind, words);
        says(&failure.error, kind, &["while trying", "redis://app@h:6379"]);
        assert!(!format!("{:?}", failure.error).contains("hunter2"));
    }
    let failure = explain(&wire("MOVED 1 h:1"), &here(), &cluster, "trying");
    says(&failure.error, Unavailable, &["redis+cluster://h:6379 at 10.0.0.1:6379"]);
}

#[test]
fn a_login_that_a_server_repeats_is_blotted_out() {
    let settings = settings("redis+sentinel://app:hunter2@h/m?sentinel_password=hunter3");
    let error = wire("ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'app' 'hunter2' 'hunter3'");
    let shown = explain(&error, &here(), &settings, "connecting").error;
    assert!(!format!("{shown} {shown:?} {shown:#?}").contains("hunter"), "{shown}");
    assert!(shown.to_string().contains("'app' '***' '***'"), "{shown}");
}

#[tokio::test]
async fn logins_that_a_real_server_refuses() {
    let redis = Redis::start(RedisOptions::new().password("right").user("app on >pass ~* &* +@all"));
    says(&fails(&format!("redis://{}", redis.address())).await, ErrorKind::Backend, &["wants a password"]);
    says(&fails(&redis.url_as("app", "hunter2")).await, ErrorKind::Backend, &["refused user and password", "\"app\""]);
    says(&fails(&redis.url_as("nobody", "hunter2")).await, ErrorKind::Backend, &["refused user and password"]);
    says(&fails(&format!("{}/99", redis.url())).await, ErrorKind::Backend, &["no such database"]);
    assert!(connect(&settings(&redis.url())).await.is_ok());
    assert!(connect(&settings(&redis.url_as("app", "pass"))).await.is_ok());
}

#[tokio::test]
async fn a_user_without_a_password_is_named() {
    let redis = Redis::start(RedisOptions::new().password("right").user("open on nopass ~* &* +@all"));
    let settings = settings(&format!("redis://open@{}", redis.address()));
    let mut connection = connect(&settings).await.unwrap();
    let who = connection.send_packed_command(redis::cmd("ACL").arg("WHOAMI")).await.unwrap();
    assert_eq!(redis::from_redis_value::<String>(who).unwrap(), "open");
}

#[tokio::test]
async fn a_real_server_that_knows_no_hello_does_not_make_us_tell_the_password() {
    let redis = Redis::start(RedisOptions::new().password("hunter2").arg("rename-command", "HELLO \"\""));
    let error = fails(&redis.url()).await;
    says(&error, ErrorKind::Backend, &["does not know a command", "proxy"]);
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
}

#[tokio::test]
async fn rights_that_a_real_user_lacks() {
    let options = RedisOptions::new()
        .user("app on >pass ~tenure:* &tenure:* -@all +eval +get +publish +subscribe")
        .user("quiet on >pass ~tenure:* resetchannels -@all +eval +publish +subscribe");
    let redis = Redis::start(options);
    let (app, quiet) = (redis.url_as("app", "pass"), redis.url_as("quiet", "pass"));
    for (url, command, words) in [
        (&app, redis::cmd("INFO"), "ACL SETUSER app +info"),
        (&app, redis::cmd("GET").arg("other").to_owned(), "ACL SETUSER app ~tenure:*"),
        (&app, redis::cmd("PUBLISH").arg("other").arg("x").to_owned(), "ACL SETUSER app &tenure:*"),
        (&quiet, redis::cmd("PUBLISH").arg("tenure:x").arg("x").to_owned(), "ACL SETUSER quiet &tenure:*"),
        // Redis 7.0 does not say which command it was; newer ones do.
        (&app, redis::cmd("EVAL").arg("return redis.call('set', KEYS[1], 1)").arg(1).arg("tenure:a").to_owned(), "ACL"),
        (&app, redis::cmd("EVAL").arg("return redis.call('get', 'other')").arg(0).to_owned(), "ACL"),
        (&quiet, redis::cmd("EVAL").arg("return redis.call('publish', 'tenure:a', 1)").arg(0).to_owned(), "ACL"),
    ] {
        let mut command = command;
        let failure = refused(url, &mut command).await;
        says(&failure.error, ErrorKind::Backend, &["lacks a right", words]);
        assert_eq!(failure.next, Next::Fatal);
    }
}

#[tokio::test]
async fn a_full_server_a_replica_and_a_cluster() {
    let redis = Redis::start(RedisOptions::new().arg("maxmemory", "100kb"));
    let failure = refused(&redis.url(), redis::cmd("SET").arg("a").arg(1)).await;
    says(&failure.error, ErrorKind::Backend, &["out of memory"]);

    let redis = Redis::start(RedisOptions::new());
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let failure = refused(&redis.url(), redis::cmd("SET").arg("a").arg(1)).await;
    says(&failure.error, ErrorKind::Unavailable, &["replica", "redis+sentinel://"]);
    assert_eq!((failure.next, failure.fate), (Next::NotMaster, Fate::Refused));
    // In a script too nothing has happened then.
    let script = "redis.call('set', KEYS[1], 1) return 1";
    let failure = refused(&redis.url(), redis::cmd("EVAL").arg(script).arg(1).arg("a")).await;
    assert_eq!((failure.next, failure.fate), (Next::NotMaster, Fate::Refused), "{}", failure.error);

    let redis = Redis::start(RedisOptions::new().cluster());
    let failure = refused(&redis.url(), redis::cmd("SET").arg("a").arg(1)).await;
    assert_eq!(failure.next, Next::TryLater, "{}", failure.error);
}

#[tokio::test]
async fn nobody_there() {
    let redis = Redis::start(RedisOptions::new());
    redis.kill();
    says(&fails(&redis.url()).await, ErrorKind::Unavailable, &["nobody listens", &address(&redis).to_string()]);
    redis.restart();
    redis.pause();
    let silent = format!("{}?connect_limit=50ms", redis.url());
    says(&fails(&silent).await, ErrorKind::Unavailable, &["did not answer in time"]);
    redis.resume();
    says(&fails("redis://no-such-host.invalid").await, ErrorKind::Unavailable, &["looked up"]);
}
