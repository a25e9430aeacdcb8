//! What real servers say, and what is made of it.

use redis::AsyncConnectionConfig;
use tenure_core::StoreUrl;
use tenure_testkit::servers::redis::{Fsync, Redis, RedisOptions};

use super::*;

fn settings(url: &str) -> Settings {
    Settings::from_url(&url.parse::<StoreUrl>().unwrap()).unwrap()
}

fn here() -> Address {
    Address::new("10.0.0.1", 6379)
}

async fn looked_at(url: &str) -> Server {
    let settings = settings(url);
    let Topology::Single(at) = &settings.topology else { panic!("one server") };
    let client = settings.client(at).unwrap();
    let mut connection = client.get_multiplexed_async_connection_with_config(&AsyncConnectionConfig::new()).await.unwrap();
    look(&mut connection).await.unwrap()
}

/// A healthy single server.
fn healthy() -> Server {
    Server {
        told: true,
        version: Some((8, 2, 2)),
        run_id: "r".to_owned(),
        uptime: Some(Duration::from_secs(9)),
        master: Some(true),
        cluster: Some(false),
        aof: Some(true),
        saves: Some(true),
        maxmemory: Some(0),
        policy: Some("noeviction".to_owned()),
        replicas: Some(0),
        ahead: Some(5),
        ..Server::default()
    }
}

#[track_caller]
fn level_of(server: &Server, url: &str, what: &str) -> Level {
    let found = findings(server, &settings(url));
    found.iter().find(|finding| finding.what == what).unwrap_or_else(|| panic!("no {what} in {found:?}")).level
}

#[tokio::test]
async fn a_real_server_tells_what_it_is() {
    let redis = Redis::start(
        RedisOptions::new().aof(Fsync::EverySecond).arg("maxmemory", "100mb").arg("maxmemory-policy", "volatile-lru"),
    );
    let server = looked_at(&redis.url()).await;
    assert!(server.told && server.version >= Some((6, 0, 0)), "{server:?}");
    assert_eq!(server.run_id, redis.info("server")["run_id"]);
    assert_eq!((server.master, server.cluster, server.aof, server.saves), (Some(true), Some(false), Some(true), Some(true)));
    assert_eq!((server.maxmemory, server.policy.as_deref()), (Some(100 << 20), Some("volatile-lru")));
    assert_eq!((server.replicas, server.loading), (Some(0), false));
    assert!(server.ahead.is_some_and(|ahead| ahead.abs() < 5_000_000), "{server:?}");
    assert_eq!(level_of(&server, &redis.url(), "eviction"), Level::Bad);

    // Strict settings refuse what doctor calls bad; others let it pass.
    assert!(require(&server, &here(), &settings(&redis.url())).is_ok());
    let refused = require(&server, &here(), &settings(&format!("{}?strict=yes", redis.url()))).unwrap_err();
    assert!(refused.error.to_string().contains("volatile-lru") && refused.next == Next::Fatal, "{}", refused.error);

    let before = server.run_id;
    redis.kill();
    redis.restart();
    assert_ne!(looked_at(&redis.url()).await.run_id, before, "a new run has a new id");
}

#[tokio::test]
async fn a_user_without_the_right_to_info_can_still_lock() {
    let redis = Redis::start(RedisOptions::new().user("app on >pass ~tenure:* &tenure:* -@all +ping"));
    let url = redis.url_as("app", "pass");
    let server = looked_at(&url).await;
    assert_eq!(server, Server::default());
    assert!(require(&server, &here(), &settings(&url)).is_ok());
    assert_eq!(level_of(&server, &url, "server"), Level::Warning);
}

#[tokio::test]
async fn real_servers_of_the_wrong_sort_are_refused() {
    let replica = Redis::start(RedisOptions::new());
    replica.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let server = looked_at(&replica.url()).await;
    let refused = require(&server, &here(), &settings(&replica.url())).unwrap_err();
    assert_eq!((refused.next, refused.error.kind()), (Next::NotMaster, ErrorKind::Unavailable));

    let node = Redis::start(RedisOptions::new().cluster());
    let server = looked_at(&node.url()).await;
    let refused = require(&server, &here(), &settings(&node.url())).unwrap_err();
    assert!(refused.error.to_string().contains("redis+cluster://"), "{}", refused.error);
    assert!(require(&server, &here(), &settings("redis+cluster://a")).is_ok());
    let redlock = settings("redlock://a,b,c").of_node(&here());
    let refused = require(&server, &here(), &redlock).unwrap_err();
    assert!(refused.error.to_string().contains("independent"), "{}", refused.error);
}

#[test]
fn what_is_too_old_or_elsewhere_is_refused() {
    let with = |change: fn(&mut Server), url: &str| {
        let mut server = healthy();
        change(&mut server);
        require(&server, &here(), &settings(url)).map_err(|failure| failure.error.to_string())
    };
    assert_eq!(with(|_| {}, "redis://a?strict=yes"), Ok(()));
    assert!(with(|server| server.version = Some((5, 0, 14)), "redis://a").unwrap_err().contains("5.0.14, and 6.0"));
    assert!(with(|server| server.loading = true, "redis://a").unwrap_err().contains("loading"));
    assert!(with(|_| {}, "redis+cluster://a").unwrap_err().contains("not a node of a cluster"));
    let old_node = |server: &mut Server| (server.version, server.cluster) = (Some((6, 2, 20)), Some(true));
    assert!(with(old_node, "redis+cluster://a").unwrap_err().contains("7.0"));
}

#[test]
fn every_finding_has_its_level() {
    let good = healthy();
    for finding in findings(&good, &settings("redis://127.0.0.1")) {
        assert_eq!(finding.level, Level::Good, "{finding:?}");
    }
    let with = |change: &dyn Fn(&mut Server)| {
        let mut server = healthy();
        change(&mut server);
        server
    };
    for (version, valkey, level) in [
        ((7, 0, 15), None, Level::Warning),
        ((7, 2, 10), None, Level::Warning),
        ((7, 2, 11), None, Level::Good),
        ((6, 0, 20), None, Level::Warning),
        ((6, 2, 20), None, Level::Good),
        ((8, 4, 0), None, Level::Good),
        ((7, 2, 4), Some((8, 1, 3)), Level::Warning),
        ((7, 2, 4), Some((8, 1, 4)), Level::Good),
        ((7, 2, 4), Some((9, 0, 0)), Level::Good),
    ] {
        let server = with(&|server| (server.version, server.valkey) = (Some(version), valkey));
        assert_eq!(level_of(&server, "redis://a", "version"), level, "{version:?} {valkey:?}");
    }
    for (maxmemory, policy, level) in [
        (0, "noeviction", Level::Good),
        (0, "allkeys-lru", Level::Warning),
        (1, "noeviction", Level::Good),
        (1, "allkeys-lru", Level::Bad),
        (1, "volatile-ttl", Level::Bad),
    ] {
        let server = with(&|server| (server.maxmemory, server.policy) = (Some(maxmemory), Some(policy.to_owned())));
        assert_eq!(level_of(&server, "redis://a", "eviction"), level, "{maxmemory} {policy}");
    }
    let forgetful = with(&|server| server.aof = Some(false));
    assert_eq!(level_of(&forgetful, "redis://a", "persistence"), Level::Warning);
    let redlock = settings("redlock://a,b,c?durable=yes").of_node(&here());
    assert!(findings(&forgetful, &redlock).iter().any(|finding| finding.level == Level::Bad));
    let redlock = settings("redlock://a,b,c").of_node(&here());
    assert!(
        findings(&forgetful, &redlock).iter().all(|finding| finding.what != "persistence" || finding.level == Level::Good)
    );
    assert_eq!(level_of(&with(&|server| server.saves = Some(false)), "redis://a", "persistence"), Level::Bad);
    for (found, url, level) in [
        (0, "redis://a", Level::Good),
        (1, "redis://a", Level::Warning),
        (1, "redis+sentinel://a/m", Level::Warning),
        (0, "redis://a?min_replicas=1", Level::Bad),
        (2, "redis://a?min_replicas=1", Level::Good),
    ] {
        assert_eq!(level_of(&with(&|server| server.replicas = Some(found)), url, "replicas"), level, "{found} {url}");
    }
    for (seconds, level) in [(0, Level::Good), (-9, Level::Good), (60, Level::Warning), (-3600, Level::Warning)] {
        assert_eq!(level_of(&with(&|server| server.ahead = Some(seconds * 1_000_000)), "redis://a", "clock"), level);
    }
    for (url, level) in [
        ("redis://cache", Level::Warning),
        ("redis://:x@cache", Level::Warning),
        ("rediss://:x@cache", Level::Good),
        ("redis://:x@localhost", Level::Good),
        ("redlock://127.0.0.1,[::1],cache", Level::Warning),
    ] {
        assert_eq!(level_of(&good, url, "network"), level, "{url}");
    }
}

#[test]
fn info_of_any_shape_is_read() {
    let server =
        Server::parse("# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.0.1\r\nserver_time_usec:1000005\r\n", 1_000_000);
    assert_eq!((server.version, server.valkey, server.ahead), (Some((7, 2, 4)), Some((8, 0, 1)), Some(5)));
    assert_eq!(Server::parse("", 0), Server { told: true, ..Server::default() });
    assert_eq!(version("7.4.0-rc1"), Some((7, 4, 0)));
    assert_eq!(version("255.255.255"), Some((255, 255, 255)));
    assert_eq!(version("unstable"), None);
}
