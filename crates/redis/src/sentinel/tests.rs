//! Real sentinels: who is master, before and after a failover, with logins, lies and without answers.

use std::process::{Child, Command, Stdio};

use tenure_core::StoreUrl;
use tenure_testkit::eventually;
use tenure_testkit::servers::redis::{Connection, Redis, RedisOptions, SentinelOptions, Sentinels};

use super::*;

/// A sentinel of one master, which alone may decide on a failover.
struct Sentinel {
    /// Keeps the port.
    place: Redis,
    process: Child,
    _directory: tempfile::TempDir,
}

impl Sentinel {
    async fn of(master: &Redis) -> Self {
        Self::of_epoch(master, 0).await
    }

    /// One that knows of so many failovers.
    async fn of_epoch(master: &Redis, epoch: u64) -> Self {
        let place = Redis::start(RedisOptions::new());
        place.kill();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("sentinel.conf");
        let (port, master) = (place.port(), master.port());
        let lines = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {master} 1\nsentinel down-after-milliseconds main 60000\n\
             sentinel config-epoch main {epoch}\n\
             sentinel failover-timeout main 3000\n"
        );
        std::fs::write(&file, lines).unwrap();
        let mut command = Command::new("redis-sentinel");
        let command = command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("redis-sentinel is installed (Debian's package redis-sentinel)");
        let sentinel = Sentinel { place, process, _directory: directory };
        eventually("the sentinel answers", || sentinel.call(&["PING"]).is_some()).await;
        sentinel
    }

    fn call(&self, command: &[&str]) -> Option<()> {
        Connection::open(self.place.address()).ok()?.call(command).ok().map(drop)
    }

    fn port(&self) -> u16 {
        self.place.port()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn at(port: u16) -> Address {
    Address::new("127.0.0.1", port)
}

async fn asked(url: &str) -> Result<Address> {
    master(&Settings::from_url(&url.parse::<StoreUrl>().unwrap()).unwrap()).await
}

#[tokio::test]
async fn the_master_is_found_and_after_a_failover_the_new_one() {
    let all = Sentinels::start(SentinelOptions::default());
    all.sentinels()[0].kill(); // the others are a majority
    assert_eq!(asked(&all.url()).await.unwrap(), at(all.servers()[0].port()));
    let (_, next) = all.kill_master();
    assert_eq!(asked(&all.url()).await.unwrap(), at(next.port()));
}

#[tokio::test]
async fn one_sentinel_alone_names_nobody_whatever_its_epoch() {
    let (server, stranger) = (Redis::start(RedisOptions::new()), Redis::start(RedisOptions::new()));
    let (one, liar, other) =
        (Sentinel::of(&server).await, Sentinel::of_epoch(&stranger, 1_000_000).await, Sentinel::of(&server).await);
    let hosts = [&one, &liar, &other].map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).join(",");
    let url = format!("redis+sentinel://app:hunter2@{hosts}/main");
    assert_eq!(asked(&url).await.unwrap(), at(server.port()));
    drop(other);
    let error = asked(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("2 of 3 sentinels must name the same master"), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter"), "{error}");
}

#[tokio::test]
async fn a_name_that_the_sentinels_do_not_know_is_said_with_those_they_do() {
    let redis = Redis::start(RedisOptions::new());
    let sentinel = Sentinel::of(&redis).await;
    let error = asked(&format!("redis+sentinel://127.0.0.1:{}/mymaster", sentinel.port())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("\"mymaster\"") && error.to_string().contains("They know main"), "{error}");
}

#[tokio::test]
async fn sentinels_have_logins_of_their_own() {
    let redis = Redis::start(RedisOptions::new());
    let sentinel = Sentinel::of(&redis).await;
    let rights = "+sentinel|get-master-addr-by-name +sentinel|masters";
    let mut user = vec!["ACL", "SETUSER", "watcher", "on", ">hunter2", "-@all"];
    user.extend(rights.split(' '));
    sentinel.call(&user).unwrap();
    sentinel.call(&["ACL", "SETUSER", "default", ">hunter3", "resetpass", ">hunter3"]).unwrap();
    assert!(include_str!("../docs.md").contains(rights), "what was tried is what is documented");
    let url = |server: &str, more: &str| format!("redis+sentinel://{server}127.0.0.1:{}/main{more}", sentinel.port());
    let found = asked(&url("", "?sentinel_user=watcher&sentinel_password=hunter2")).await.unwrap();
    assert_eq!(found, at(redis.port()));
    assert_eq!(asked(&url("", "?sentinel_password=hunter3")).await.unwrap(), at(redis.port()));
    // The servers' own login is not shown to sentinels.
    for more in ["", "?sentinel_password=hunter4", "?sentinel_user=watcher&sentinel_password=hunter4"] {
        let error = asked(&url("app:hunter3@", more)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(error.to_string().contains("sentinel_password=TEXT"), "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter"), "{error}");
    }
}

#[tokio::test]
async fn nobody_to_ask() {
    let (dead, silent) = (Redis::start(RedisOptions::new()), Redis::start(RedisOptions::new()));
    dead.kill();
    silent.pause();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", dead.port(), silent.port());
    let error = asked(&format!("redis+sentinel://{hosts}/main?connect_limit=100ms")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for word in ["no sentinel", "nobody listens", "did not answer in time"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    silent.resume();
    let error = asked(&format!("redis+sentinel://127.0.0.1:{}/main", silent.port())).await.unwrap_err();
    assert!(error.to_string().contains("is no sentinel"), "{error}");
}

#[test]
fn a_master_needs_so_many_voices() {
    let said = |port: Option<u16>| Said { master: port.map(at), services: Vec::new() };
    assert_eq!(agreed(&[], 1), None);
    assert_eq!(agreed(&[said(None), said(Some(1))], 1), Some(at(1)));
    assert_eq!(agreed(&[said(None), said(Some(1)), said(Some(2))], 2), None);
    assert_eq!(agreed(&[said(Some(2)), said(Some(1)), said(Some(2))], 2), Some(at(2)));
}
