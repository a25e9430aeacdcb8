//! Each fault of the proxy is seen to happen to a real Redis, and nothing else does.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use tenure_testkit::proxy::{After, Cut, Fault, Proxy, Toward, Which};
use tenure_testkit::servers::redis::{Connection, Redis, RedisOptions, Reply};
use tenure_testkit::{LIMIT, eventually};

/// How long an answer that must not come is waited for. Too short, and a test passes that should not; never the reverse.
const MOMENT: Duration = Duration::from_millis(60);

#[test]
fn without_faults_it_is_not_there() {
    let (redis, proxy) = scene();
    let mut connection = open(&proxy);
    let long = "x".repeat(1 << 20);
    assert_eq!(connection.call(&["SET", "key", &long]).unwrap().text(), "OK");
    assert_eq!(connection.call(&["GET", "key"]).unwrap().text(), long);
    assert_eq!(redis.command(&["GET", "key"]).text(), long);
    let counters = proxy.counters();
    assert_eq!((counters.connections, counters.open, counters.requests), (1, 1, 2));
    assert!(counters.bytes_to_server > 1 << 20 && counters.bytes_to_client > 1 << 20);
    assert_eq!((counters.lost, counters.duplicated), (0, 0));
}

/// The server closes when the client does, and the other way round.
#[tokio::test]
async fn ends_are_passed_on() {
    let (redis, proxy) = scene();
    let mut connection = open(&proxy);
    connection.call(&["CLIENT", "SETNAME", "it"]).unwrap();
    drop(connection);
    eventually("the server knows", || !redis.command(&["CLIENT", "LIST"]).text().contains("name=it")).await;
    eventually("the proxy too", || proxy.counters().open == 0).await;
    let mut connection = open(&proxy);
    redis.kill();
    assert!(connection.read().is_err());
    assert_eq!(open_or(&proxy).unwrap_err().kind(), ErrorKind::ConnectionReset, "nobody is behind the proxy");
}

#[tokio::test]
async fn a_lost_reply_was_done_and_then_there_is_silence() {
    let (redis, proxy) = scene();
    let (mut connection, mut other) = (open(&proxy), open(&proxy));
    proxy.set(Which::All, Fault::Lose(Toward::Client, 1, After::Silence));
    connection.send(&["INCR", "n"]).unwrap();
    assert_silent(&mut connection);
    connection.send(&["INCR", "n"]).unwrap();
    assert_silent(&mut connection);
    eventually("both replies are lost", || proxy.counters().lost == 2).await;
    assert_eq!(redis.command(&["GET", "n"]).text(), "2", "the server did not do it");
    assert_eq!(other.call(&["INCR", "n"]).unwrap().int(), 3, "it was lost once, not for everyone");
    proxy.heal();
    assert_reset(connection.read());
    assert_eq!(open(&proxy).call(&["INCR", "n"]).unwrap().int(), 4);
}

#[test]
fn a_lost_reply_may_also_be_a_reset() {
    let (redis, proxy) = scene();
    let mut connection = open(&proxy);
    proxy.set(Which::All, Fault::Lose(Toward::Client, 2, After::Reset));
    for _ in 0..2 {
        assert_reset(connection.call(&["INCR", "n"]));
        connection = open(&proxy);
    }
    assert_eq!(connection.call(&["INCR", "n"]).unwrap().int(), 3);
    assert_eq!(redis.command(&["GET", "n"]).text(), "3");
    assert_eq!(proxy.counters().lost, 2);
}

#[test]
fn a_lost_request_was_not_done() {
    let (redis, proxy) = scene();
    proxy.set(Which::All, Fault::Lose(Toward::Server, 1, After::Reset));
    assert_reset(open(&proxy).call(&["INCR", "n"]));
    assert!(redis.command(&["GET", "n"]).is_nil());
    assert_eq!(open(&proxy).call(&["INCR", "n"]).unwrap().int(), 1);
}

#[tokio::test]
async fn a_blackhole_swallows_ends_too() {
    let (redis, proxy) = scene();
    let (mut hit, mut spared) = (open(&proxy), open(&proxy));
    hit.call(&["CLIENT", "SETNAME", "hit"]).unwrap();
    let hole = proxy.set(Which::sent("setname"), Fault::Blackhole(Toward::Both));
    hit.send(&["INCR", "n"]).unwrap();
    assert_silent(&mut hit);
    assert!(redis.command(&["GET", "n"]).is_nil(), "the request came through");
    assert_eq!(spared.call(&["INCR", "n"]).unwrap().int(), 1);
    drop(hit);
    // Its own request comes after whatever the dropped connection could have caused.
    assert_eq!(spared.call(&["INCR", "n"]).unwrap().int(), 2);
    assert!(redis.command(&["CLIENT", "LIST"]).text().contains("name=hit"), "the end came through");
    proxy.lift(hole);
    eventually("half-open no more", || !redis.command(&["CLIENT", "LIST"]).text().contains("name=hit")).await;
}

#[test]
fn a_server_that_dies_in_a_blackhole_is_not_heard_to() {
    let (redis, proxy) = scene();
    let mut connection = open(&proxy);
    connection.call(&["PING"]).unwrap();
    proxy.set(Which::Newest, Fault::Blackhole(Toward::Client));
    redis.kill();
    assert_silent(&mut connection);
    connection.send(&["PING"]).unwrap();
    assert_silent(&mut connection);
    connection.send(&["PING"]).unwrap();
    assert_silent(&mut connection);
    proxy.heal();
    assert_reset(connection.read());
}

/// A connection that is only waiting is not hurt by a fault that passes.
#[test]
fn a_blackhole_in_which_nothing_was_lost_leaves_no_trace() {
    let (_redis, proxy) = scene();
    let mut connection = open(&proxy);
    connection.call(&["PING"]).unwrap();
    let hole = proxy.set(Which::All, Fault::Blackhole(Toward::Both));
    proxy.lift(hole);
    assert_eq!(connection.call(&["PING"]).unwrap().text(), "PONG");
}

#[test]
fn what_was_held_comes_in_order() {
    let (redis, proxy) = scene();
    let mut connection = open(&proxy);
    for toward in [Toward::Server, Toward::Client] {
        redis.command(&["FLUSHALL"]);
        let held = proxy.set(Which::All, Fault::Hold(toward));
        for word in ["a", "b", "c"] {
            connection.send(&["APPEND", "text", word]).unwrap();
        }
        assert_silent(&mut connection);
        if toward == Toward::Server {
            assert!(redis.command(&["GET", "text"]).is_nil());
        }
        proxy.lift(held);
        let lengths = [(); 3].map(|()| connection.read().unwrap().int());
        assert_eq!(lengths, [1, 2, 3]);
        assert_eq!(redis.command(&["GET", "text"]).text(), "abc");
    }
}

/// The client gives up and closes; what it asked for happens all the same, later.
#[tokio::test]
async fn a_delayed_request_outlives_its_client() {
    let (redis, proxy) = scene();
    let delay = Duration::from_millis(300);
    let late = proxy.set(Which::Sent("APPEND".to_owned()), Fault::Delay(Toward::Server, delay));
    let begun = Instant::now();
    let mut connection = open(&proxy);
    connection.send(&["APPEND", "text", "a"]).unwrap();
    connection.send(&["APPEND", "text", "b"]).unwrap();
    drop(connection);
    eventually("the request arrives", || !redis.command(&["GET", "text"]).is_nil()).await;
    assert!(begun.elapsed() >= delay);
    eventually("and the other after it", || redis.command(&["GET", "text"]).text() == "ab").await;
    proxy.lift(late);
}

#[test]
fn a_delay_is_for_one_direction() {
    let (redis, proxy) = scene();
    let mut connection = open(&proxy);
    let delay = Duration::from_millis(200);
    proxy.set(Which::Newest, Fault::Delay(Toward::Client, delay));
    let begun = Instant::now();
    connection.send(&["SET", "key", "value"]).unwrap();
    while redis.command(&["GET", "key"]).is_nil() {}
    let done = begun.elapsed();
    assert_eq!(connection.read().unwrap().text(), "OK");
    let heard = begun.elapsed();
    assert!(heard >= delay && heard >= done, "done after {done:?}, heard after {heard:?}");
}

#[test]
fn jitter_keeps_the_order() {
    let (_redis, proxy) = scene();
    let mut connection = open(&proxy);
    proxy.set(Which::All, Fault::Jitter(Toward::Both, Duration::from_millis(3)));
    for _ in 0..30 {
        connection.send(&["INCR", "n"]).unwrap();
    }
    for n in 1..=30 {
        assert_eq!(connection.read().unwrap().int(), n);
    }
}

#[test]
fn a_duplicate_is_done_twice_and_answered_once() {
    let (redis, proxy) = scene();
    let (mut connection, mut subscriber) = (open(&proxy), open(&proxy));
    proxy.set(Which::All, Fault::Duplicate);
    assert_eq!(subscriber.call(&["SUBSCRIBE", "news"]).unwrap().list()[0], Reply::Text("subscribe".to_owned()));
    // Several in one flight, in small pieces: whole requests are doubled, not reads of a socket.
    for n in 0..5 {
        connection.send(&["INCR", "n"]).unwrap();
        connection.send(&["ECHO", &format!("{n}\r\n*1\r\n")]).unwrap();
    }
    for n in 0..5 {
        assert_eq!(connection.read().unwrap().int(), 2 * n + 1);
        assert_eq!(connection.read().unwrap().text(), format!("{n}\r\n*1\r\n"));
    }
    assert_eq!(connection.call(&["PUBLISH", "news", "hello"]).unwrap().int(), 1);
    for _ in 0..2 {
        assert_eq!(subscriber.read().unwrap().texts(), ["message", "news", "hello"]);
    }
    proxy.heal();
    assert_eq!(connection.call(&["INCR", "n"]).unwrap().int(), 11);
    assert_eq!((redis.command(&["GET", "n"]).int(), proxy.counters().duplicated), (11, 11));
}

#[test]
fn mute_only_what_is_published_is_missing() {
    let (redis, proxy) = scene();
    let mut subscriber = open(&proxy);
    subscriber.call(&["SUBSCRIBE", "news"]).unwrap();
    let mute = proxy.set(Which::sent("subscribe"), Fault::Mute);
    assert_eq!(redis.command(&["PUBLISH", "news", "unheard"]).int(), 1);
    assert_eq!(subscriber.call(&["PING"]).unwrap().texts(), ["pong", ""]);
    proxy.lift(mute);
    redis.command(&["PUBLISH", "news", "heard"]);
    assert_eq!(subscriber.read().unwrap().texts(), ["message", "news", "heard"]);
    assert_eq!(proxy.counters().lost, 1);
}

/// In RESP3, answers and pushes share a connection, and each fault hits only what it is for.
#[test]
fn pushes_and_answers_on_one_connection() {
    let (redis, proxy) = scene();
    let mut connection = open(&proxy);
    connection.call(&["HELLO", "3"]).unwrap();
    assert_eq!(connection.call(&["SUBSCRIBE", "news"]).unwrap().list()[0], Reply::Text("subscribe".to_owned()));
    proxy.set(Which::All, Fault::Duplicate);
    connection.send(&["PUBLISH", "news", "twice"]).unwrap();
    connection.send(&["INCR", "n"]).unwrap();
    // Pushes of both deliveries, but one answer; a push may overtake the answer of the one who published.
    let heard = [(); 4].map(|()| connection.read().unwrap());
    let pushes = heard.iter().filter(|reply| matches!(reply, Reply::List(_))).count();
    let answers: Vec<_> = heard.iter().filter(|reply| !matches!(reply, Reply::List(_))).collect();
    assert_eq!((pushes, answers), (2, vec![&Reply::Int(1), &Reply::Int(1)]), "{heard:?}");
    proxy.heal();

    let mute = proxy.set(Which::All, Fault::Mute);
    redis.command(&["PUBLISH", "news", "unheard"]);
    assert_eq!(connection.call(&["INCR", "n"]).unwrap().int(), 3);
    proxy.lift(mute);
    // What is published is no reply to lose.
    proxy.set(Which::All, Fault::Lose(Toward::Client, 1, After::Reset));
    redis.command(&["PUBLISH", "news", "heard"]);
    assert_eq!(connection.read().unwrap().texts(), ["message", "news", "heard"]);
    assert_reset(connection.call(&["INCR", "n"]));
    assert_eq!(redis.command(&["GET", "n"]).int(), 4);
}

/// A subscription whose connection is dead on the way back: the server believes in it, and the client too.
#[tokio::test]
async fn a_subscription_can_be_deaf() {
    let (redis, proxy) = scene();
    let (mut subscriber, mut other) = (open(&proxy), open(&proxy));
    proxy.set(Which::sent("SUBSCRIBE"), Fault::Blackhole(Toward::Client));
    subscriber.send(&["SUBSCRIBE", "news"]).unwrap();
    assert_silent(&mut subscriber);
    eventually("the server believes in it", || redis.command(&["PUBSUB", "NUMSUB", "news"]).list()[1] == Reply::Int(1))
        .await;
    assert_eq!(other.call(&["PUBLISH", "news", "unheard"]).unwrap().int(), 1);
    assert_silent(&mut subscriber);
    drop(redis);
}

#[test]
fn connections_are_cut() {
    let (_redis, proxy) = scene();
    let (mut first, mut second, mut third) = (open(&proxy), open(&proxy), open(&proxy));
    first.call(&["CLIENT", "SETNAME", "first"]).unwrap();
    second.call(&["PING"]).unwrap();
    third.call(&["PING"]).unwrap();
    assert_eq!(proxy.cut(Which::Newest, Cut::Reset), 1);
    assert_reset(third.read());
    assert_eq!(proxy.cut(Which::sent("SETNAME"), Cut::Fin), 1);
    assert_eq!(first.read().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(second.call(&["PING"]).unwrap().text(), "PONG");
    assert_eq!(proxy.cut(Which::All, Cut::Reset), 1);
    assert_eq!(proxy.counters().open, 0);
}

#[test]
fn new_connections_are_refused_and_old_ones_stay() {
    let (_redis, proxy) = scene();
    let mut old = open(&proxy);
    old.call(&["PING"]).unwrap();
    for _ in 0..3 {
        proxy.refuse(true);
        assert_eq!(Connection::open(proxy.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(old.call(&["PING"]).unwrap().text(), "PONG");
        proxy.heal();
        assert_eq!(open(&proxy).call(&["PING"]).unwrap().text(), "PONG");
    }
}

#[test]
fn it_can_point_elsewhere() {
    let (redis, proxy) = scene();
    let mut old = open(&proxy);
    old.call(&["SET", "who", "the first"]).unwrap();
    let another = Redis::start(RedisOptions::new());
    another.command(&["SET", "who", "the second"]);
    proxy.retarget(another.address());
    assert_eq!(open(&proxy).call(&["GET", "who"]).unwrap().text(), "the second");
    assert_eq!(old.call(&["GET", "who"]).unwrap().text(), "the first");
    drop(redis);
}

/// What is not Redis' protocol goes through as it comes, and can be delayed and cut all the same.
#[test]
fn other_protocols_pass() {
    use std::io::{Read as _, Write as _};
    let (_redis, proxy) = scene();
    let mut stream = std::net::TcpStream::connect(proxy.address()).unwrap();
    // An inline command: a line, as people type it.
    stream.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
    assert_eq!(proxy.cut(Which::sent("ping"), Cut::Reset), 1);
}

#[test]
fn it_ends_when_dropped() {
    let (_redis, proxy) = scene();
    let mut connection = open(&proxy);
    connection.call(&["SET", "whose", "ours"]).unwrap();
    let address = proxy.address();
    drop(proxy);
    assert!(connection.call(&["PING"]).is_err());
    // The port may be somebody else's by now: whoever answers there is not our server.
    let answer = Connection::open(address).and_then(|mut other| other.call(&["GET", "whose"]));
    assert!(!answer.is_ok_and(|answer| answer == Reply::Text("ours".into())), "it is still there");
}

fn scene() -> (Redis, Proxy) {
    let redis = Redis::start(RedisOptions::new());
    let proxy = Proxy::start(redis.address());
    (redis, proxy)
}

/// A connection through the proxy that is known to both ends.
fn open(proxy: &Proxy) -> Connection {
    let before = proxy.counters().connections;
    let connection = Connection::open(proxy.address()).unwrap();
    while proxy.counters().connections == before {
        std::thread::yield_now();
    }
    connection
}

fn open_or(proxy: &Proxy) -> io::Result<Reply> {
    Connection::open(proxy.address())?.call(&["PING"])
}

/// Nothing is heard for a moment.
#[track_caller]
fn assert_silent(connection: &mut Connection) {
    connection.patience(MOMENT).unwrap();
    let error = connection.read().expect_err("an answer came through");
    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
    connection.patience(LIMIT).unwrap();
}

#[track_caller]
fn assert_reset(answer: io::Result<Reply>) {
    let error = answer.expect_err("an answer came through");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}
