//! A user with the documented rights can do everything, and one that lacks some is told which.

use std::collections::HashMap;
use std::time::Duration;

use tenure_core::{Client, ErrorKind, Instant, Phase, Standing};
use tenure_testkit::servers::redis::{Redis, RedisCluster, RedisOptions};
use tenure_testkit::{eventually, in_time};

use crate::stage::{LONG, client, leaves_nothing, line_is};

/// The ACL line in the documentation, word by word.
fn acl_line() -> Vec<&'static str> {
    let docs = include_str!("../../src/docs.md");
    let line = docs.split("```text").find(|part| part.contains("ACL SETUSER")).unwrap().split("```").next().unwrap();
    line.split_whitespace().collect()
}

/// What was refused to anybody.
fn refusals(server: &Redis) -> Vec<Vec<String>> {
    let entries = server.command(&["ACL", "LOG"]).list().into_iter();
    entries.map(|entry| entry.list().into_iter().map(|field| format!("{field:?}")).collect()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_may_not_listen_is_told_at_connecting() {
    let server = Redis::start(RedisOptions::new());
    server.command(&acl_line());
    server.command(&["ACL", "SETUSER", "app", "-subscribe"]);
    let url = server.url_as("app", "SECRET");
    let refused = in_time("an answer", tenure_redis::connect(&url.parse().unwrap())).await.err().expect("it is refused");
    assert_eq!(refused.kind(), ErrorKind::Backend, "{refused}");
    let hint = refused.hint().unwrap_or_default();
    assert!(hint.contains("+subscribe"), "{refused}; {hint}");
    server.command(&["ACL", "SETUSER", "app", "+subscribe", "resetchannels"]);
    let refused = in_time("an answer", tenure_redis::connect(&url.parse().unwrap())).await.err().expect("it is refused");
    let hint = refused.hint().unwrap_or_default();
    assert!(hint.contains("&tenure:*"), "{refused}; {hint}");
    server.command(&["ACL", "SETUSER", "app", "&tenure:*"]);
    client(&url).await;
}

/// A resource that only checks sequencers needs none of the commands that write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_may_only_read_can_check_sequencers() {
    let server = Redis::start(RedisOptions::new());
    server.command(&acl_line());
    let docs = include_str!("../../src/docs.md");
    let line =
        docs.split("```text").find(|part| part.contains("ACL SETUSER resource")).unwrap().split("```").next().unwrap();
    server.command(&line.split_whitespace().collect::<Vec<_>>());
    let app = client(&server.url_as("app", "SECRET")).await;
    let resource = client(&server.url_as("resource", "OTHER")).await;
    let held = app.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let sequencer = held.sequencer();
    assert_eq!(resource.check(&sequencer).await.unwrap(), Standing::Current);
    assert_eq!(resource.mutex("y").unwrap().try_lock().await.unwrap_err().kind(), ErrorKind::Backend);
    held.release().await.unwrap();
    let next = app.mutex("x").unwrap().lock().await.unwrap();
    assert_eq!(resource.check(&sequencer).await.unwrap(), Standing::Superseded { by: next.token() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_the_documented_rights_can_do_everything() {
    let server = Redis::start(RedisOptions::new());
    server.command(&acl_line());
    let url = server.url_as("app", "SECRET");
    let clients = [client(&url).await, client(&url).await];
    everything(&clients).await;
    leaves_nothing(&server, clients).await;
    assert_eq!(refusals(&server), Vec::<Vec<String>>::new());

    // Also with the rights that are for some only: another database, replicas.
    let replica = Redis::start(RedisOptions::new());
    replica.command(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    eventually("the replica follows", || replica.follows() && server.info("replication")["connected_slaves"] == "1").await;
    let strict = client(&format!("{url}/1?min_replicas=1&replica_wait=10s")).await;
    let held = strict.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    held.release().await.unwrap();
    strict.close().await.unwrap();
    assert_eq!(refusals(&server), Vec::<Vec<String>>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_the_documented_rights_can_do_everything_in_a_cluster() {
    let cluster = RedisCluster::start(2, 0);
    for node in cluster.nodes() {
        node.command(&acl_line());
    }
    let url = cluster.url().replace("redis+cluster://", "redis+cluster://app:SECRET@");
    let clients = [client(&url).await, client(&url).await];
    everything(&clients).await;
    for client in clients {
        client.close().await.unwrap();
    }
    for node in cluster.nodes() {
        assert_eq!(refusals(node), Vec::<Vec<String>>::new());
    }
}

/// A user that may look and publish knows a waiter's claim, and the channel on which its client listens. What it says there is not
/// what the server would say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_may_only_look_and_publish_forges_no_message() {
    let server = Redis::start(RedisOptions::new());
    server.command(&acl_line());
    let viewer = "ACL SETUSER viewer on >LOOK resetkeys %R~tenure:* resetchannels &tenure:* -@all +hgetall +mget +publish";
    server.command(&viewer.split(' ').collect::<Vec<_>>());
    let clients = [client(&server.url_as("app", "SECRET")).await, client(&server.url_as("app", "SECRET")).await];
    let [one, other] = &clients;
    let held = one.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let beside = other.mutex("y").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = other.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
        async move { mutex.lock().await.unwrap() }
    });
    line_is(one, "x", 1).await;

    let mut viewer = redis::Client::open(server.url_as("viewer", "LOOK")).unwrap().get_connection().unwrap();
    let record: HashMap<Vec<u8>, Vec<u8>> = redis::cmd("HGETALL").arg("tenure:{0}:lock:x").query(&mut viewer).unwrap();
    let forged: f64 = 9_007_199_254_740_991.0;
    for (id, ticket) in record.iter().filter(|(field, _)| field.len() == 16) {
        let waits = ticket[0] == 0;
        let long = usize::from(u16::from_le_bytes(ticket[67..69].try_into().unwrap()));
        let inbox = &ticket[69..69 + long];
        let now = tenure_core::Clock::Boot.wall_micros() as f64;
        let numbers = [forged, now, 3_600e6].map(f64::to_le_bytes).concat();
        let granted = |secret: &[u8], numbers: &[u8]| [b"g", &id[..], secret, numbers].concat();
        let grants = [
            granted(&[], &numbers),
            granted(&[], &numbers[..16]),
            granted(&[0; 16], &numbers[..16]),
            granted(id, &numbers[..16]),
        ];
        for payload in grants.into_iter().filter(|_| waits).chain([[b"l", &id[..]].concat()]) {
            let heard: u32 = redis::cmd("PUBLISH").arg(inbox).arg(payload).query(&mut viewer).unwrap();
            assert_eq!(heard, 1, "its client listens there");
        }
    }
    // What is said to them now comes after all that.
    assert_eq!((one.ask("x", "please").await.unwrap(), one.ask("y", "please").await.unwrap()), (1, 1));
    in_time("the request", async { tokio::join!(held.asked(), beside.asked()) }).await;
    assert!(!waiting.is_finished(), "two would hold");
    held.check().unwrap();
    eventually("the store says that it holds", || held.phase() == Phase::Held).await;
    held.release().await.unwrap();
    let next = in_time("the hand-over", waiting).await.unwrap();
    assert!(next.token().get() < forged as u64, "{} was forged", next.token());
    next.release().await.unwrap();
    beside.release().await.unwrap();
    leaves_nothing(&server, clients).await;
}

/// Every verb there is, by every script.
async fn everything(clients: &[Client; 2]) {
    let [one, other] = clients;
    one.probe().await.unwrap();
    one.examine().await.unwrap();
    exclusive(one, other).await;
    shared(one, other).await;
    removed(one, other).await;

    // Renewal, on a connection of its own.
    let held = one.mutex("renewed").unwrap().ttl(Duration::from_secs(6)).unwrap().lock().await.unwrap();
    let until = held.valid_until();
    eventually("it is renewed", || held.valid_until() > until).await;
    held.release().await.unwrap();

    let cell = one.cell("cell").unwrap();
    let version = cell.set_if(0, "value").await.unwrap().expect("it is new");
    assert_eq!(other.cell("cell").unwrap().get().await.unwrap(), (Some(b"value".to_vec()), version));
    assert!(cell.remove_if(version).await.unwrap());
}

/// Waiting, hand-over, being asked, giving up.
async fn exclusive(one: &Client, other: &Client) {
    let held = one.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    // Not kept, so that a hand-over stands however slow the machine is.
    let mutex = other.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
    assert!(mutex.try_lock().await.unwrap().is_none());
    assert!(mutex.try_lock_for(Duration::from_millis(20)).await.unwrap().is_none());
    let waiting = tokio::spawn(async move { mutex.lock().await.unwrap() });
    line_is(one, "x", 1).await;
    let listed = one.list("", None, 10).await.unwrap();
    assert_eq!(listed.iter().map(|view| view.name.as_str()).collect::<Vec<_>>(), ["x"]);
    assert_eq!(other.ask("x", "please").await.unwrap(), 1);
    in_time("the request", held.asked()).await;
    let began = Instant::now();
    while Instant::now().since(began) < Duration::from_millis(1200) {
        one.view("x").await.unwrap(); // long enough for the waiter to be touched
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    held.release().await.unwrap();
    in_time("the hand-over", waiting).await.unwrap().release().await.unwrap();

    let fair = one.fair_mutex("fair").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    drop(fair);
    in_time("the drop", one.close()).await.unwrap();
}

/// Readers, downgrades, permits.
async fn shared(one: &Client, other: &Client) {
    let lock = one.rw_lock("read").unwrap().ttl(LONG).unwrap();
    let mut reader = lock.write().await.unwrap();
    let writer = other.rw_lock("read").unwrap().ttl(LONG).unwrap().keep(false);
    let waiting = tokio::spawn(async move { writer.write().await.unwrap() });
    line_is(one, "read", 1).await;
    reader.downgrade().await.unwrap();
    reader.release().await.unwrap();
    in_time("the writer's turn", waiting).await.unwrap().release().await.unwrap();

    let permits = one.semaphore("permits", 3).unwrap().ttl(LONG).unwrap();
    let two = permits.acquire(2).await.unwrap();
    assert!(permits.try_acquire(2).await.unwrap().is_none());
    permits.acquire(1).await.unwrap().release().await.unwrap();
    two.release().await.unwrap();
}

/// Holds that are broken, by anybody who may.
async fn removed(one: &Client, other: &Client) {
    let held = one.mutex("broken").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    assert_eq!(other.break_holds("broken", Some(held.token())).await.unwrap(), 1);
    in_time("the loss", held.lost()).await;
    drop(held);
    let leadership = one.election("leader").unwrap().ttl(LONG).unwrap().campaign().await.unwrap();
    assert!(other.election("leader").unwrap().leader().await.unwrap().is_some());
    leadership.release().await.unwrap();
}
