//! Maps of slots as servers tell them, and real nodes that tell them.

use tenure_core::StoreUrl;
use tenure_testkit::eventually;
use tenure_testkit::servers::redis::{Redis, RedisOptions};

use super::*;

fn at(port: u16) -> Address {
    Address::new("127.0.0.1", port)
}

fn bulk(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

fn entry(first: i64, last: i64, host: Value, port: i64) -> Value {
    let master = Value::Array(vec![host, Value::Int(port), bulk("id"), Value::Array(vec![bulk("ip"), bulk("10.0.0.9")])]);
    Value::Array(vec![Value::Int(first), Value::Int(last), master])
}

#[test]
fn slots_are_those_of_every_client() {
    // The first is the specification's own; the others were asked of a Redis 7.0.15 with CLUSTER KEYSLOT.
    for (tag, slot) in [("123456789", 0x31c3), ("", 0), ("foo", 12182), ("bar", 5061), ("0", 13907), ("255", 14163)] {
        assert_eq!(slot_of_tag(tag.as_bytes()), slot, "{tag}");
    }
}

#[test]
fn a_map_is_read_as_it_comes() {
    let answer = Value::Array(vec![
        entry(5461, 10922, bulk("b"), 2),
        entry(0, 5460, bulk(""), 1),
        entry(10923, 12000, Value::Nil, 3),
        entry(12001, 16383, bulk("?"), 4),
    ]);
    let map = SlotMap::parse(&answer, &Address::new("asked", 9));
    for (slot, host, port) in
        [(0, "asked", 1), (5460, "asked", 1), (5461, "b", 2), (12000, "asked", 3), (16383, "10.0.0.9", 4)]
    {
        assert_eq!(map.node_of(slot), Some(&Address::new(host, port)), "{slot}");
    }
    assert_eq!(map.covered(), 16384);
    assert_eq!(map.nodes().len(), 4);
}

#[test]
fn rubbish_is_left_out() {
    let answer = Value::Array(vec![
        entry(10, 5, bulk("a"), 1),
        entry(0, 20_000, bulk("a"), 1),
        entry(-1, 5, bulk("a"), 1),
        entry(0, 5, bulk("a"), 70_000),
        Value::Nil,
        Value::Array(vec![Value::Int(1)]),
        entry(3, 4, bulk("a"), 1),
        entry(4, 5, bulk("a"), 2),
    ]);
    let map = SlotMap::parse(&answer, &at(1));
    assert_eq!((map.covered(), map.node_of(4)), (2, Some(&Address::new("a", 1))));
    assert_eq!(SlotMap::parse(&Value::Nil, &at(1)), SlotMap::default());
}

#[test]
fn a_view_that_is_in_touch_goes_before_one_that_is_newer() {
    let seen = |ok, last, epoch| Seen { from: at(1), map: SlotMap { ranges: vec![(0, last, at(1))] }, ok, epoch };
    let mut views = [seen(false, 16383, 9), seen(true, 16383, 2), seen(true, 16383, 3), seen(true, 100, 9)];
    views.sort_by_key(Seen::rank);
    let ranked: Vec<_> = views.iter().map(|view| (view.ok, view.epoch, view.is_whole())).collect();
    assert_eq!(ranked, [(false, 9, false), (true, 9, false), (true, 2, true), (true, 3, true)]);
}

fn settings(url: &str) -> Settings {
    Settings::from_url(&url.parse::<StoreUrl>().unwrap()).unwrap()
}

fn of(redis: &Redis) -> Address {
    at(redis.port())
}

/// A cluster of one, with all slots.
async fn cluster_of_one() -> Redis {
    let redis = Redis::start(RedisOptions::new().cluster());
    redis.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let state = || redis.command(&["CLUSTER", "INFO"]).text();
    eventually("the cluster is ok", || state().contains("cluster_state:ok")).await;
    redis
}

#[tokio::test]
async fn slots_are_where_a_real_node_has_them() {
    let redis = cluster_of_one().await;
    let map = discover(&settings("redis+cluster://a"), &[of(&redis)]).await.unwrap();
    assert_eq!((map.covered(), map.nodes()), (16384, vec![&of(&redis)]));
    for tag in ["", "0", "255", "foo", "a longer tag / with : things"] {
        let slot = redis.command(&["CLUSTER", "KEYSLOT", tag]).int();
        assert_eq!(i64::from(slot_of_tag(tag.as_bytes())), slot, "{tag}");
    }
}

#[tokio::test]
async fn dead_silent_and_lonely_seeds_are_passed_over() {
    let redis = cluster_of_one().await;
    let (dead, silent) = (Redis::start(RedisOptions::new()), Redis::start(RedisOptions::new().cluster()));
    let lonely = Redis::start(RedisOptions::new().cluster());
    dead.kill();
    silent.pause();
    let all = [of(&dead), of(&silent), of(&lonely), of(&redis)];
    let map = discover(&settings("redis+cluster://a"), &all).await.unwrap();
    assert_eq!(map.nodes(), [&of(&redis)]);
    silent.resume();
}

#[tokio::test]
async fn nobody_to_ask_and_nothing_to_tell() {
    let (dead, lonely) = (Redis::start(RedisOptions::new()), Redis::start(RedisOptions::new().cluster()));
    dead.kill();
    let settings = settings("redis+cluster://a");
    let error = discover(&settings, &[of(&dead), of(&dead)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("no node of the cluster") && error.to_string().contains("nobody listens"), "{error}");
    let error = discover(&settings, &[of(&lonely)]).await.unwrap_err();
    assert!(error.to_string().contains("no slots") && error.to_string().contains("--cluster check"), "{error}");
    let single = Redis::start(RedisOptions::new());
    let error = discover(&settings, &[of(&single)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("redis://"), "{error}");
}

#[tokio::test]
async fn a_user_may_lack_the_right_to_the_epoch() {
    let redis = cluster_of_one().await;
    redis.command(&["ACL", "SETUSER", "app", "on", ">pass", "~tenure:*", "-@all", "+cluster|slots"]);
    let map = discover(&settings("redis+cluster://app:pass@a"), &[of(&redis)]).await.unwrap();
    assert_eq!(map.covered(), 16384);
}
