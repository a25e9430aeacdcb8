//! F42: a server that is full. One that throws locks away is called bad, one that refuses says so and keeps what is held.

use std::time::Duration;

use tenure_core::backend::Level;
use tenure_core::{Client, ErrorKind, Instant};
use tenure_testkit::servers::redis::{Connection, Redis, RedisOptions};
use tenure_testkit::{Options as _, Shape, eventually, in_time};

use crate::stage::{LONG, Record, calls, client, is_free, leaves_nothing, line_is, residue};

const THROW_AWAY: [&str; 7] =
    ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_throws_locks_away_is_called_bad() {
    let server = Redis::start(RedisOptions::new().arg("maxmemory", "8mb"));
    let strictly = || async { tenure_redis::connect(&format!("{}?strict=yes", server.url()).parse().unwrap()).await };
    for policy in THROW_AWAY {
        server.command(&["CONFIG", "SET", "maxmemory-policy", policy]);
        let findings = client(&server.url()).await.examine().await.unwrap();
        let bad: Vec<_> = findings.iter().filter(|finding| finding.level == Level::Bad).collect();
        assert!(bad.iter().any(|finding| finding.says.contains(policy)), "{policy}: {findings:?}");
        let refused = strictly().await.err().expect("strict=yes refuses it");
        assert!(refused.to_string().contains(policy), "{refused}");
    }
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    assert!(client(&server.url()).await.examine().await.unwrap().iter().all(|finding| finding.level < Level::Bad));
    strictly().await.expect("it is fit");
}

/// A lock is thrown away: the next one gets in with a higher token, and the holder learns of it at its renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusion_is_seen_to_break_where_locks_are_thrown_away() {
    for policy in ["allkeys-random", "volatile-ttl"] {
        let options = RedisOptions::new().arg("maxmemory", "4mb").arg("maxmemory-policy", policy);
        let (server, record) = (Redis::start(options), Record::new());
        let (one, other) = (client(&server.url()).await, client(&server.url()).await);
        let ttl = Duration::from_secs(30); // at its first renewal it is told, and until then all of this must have happened
        let old = record.lock(&Shape::Mutex.make(&one, "x").unwrap().ttl(ttl).unwrap(), "x").await;
        assert!(old.writes());
        let mut junk = Junk::new(&server);
        eventually("the lock is thrown away", || {
            let _ = junk.add(20); // refused once nothing is left that may go
            server.command(&["EXISTS", "tenure:{0}:lock:x"]).int() == 0
        })
        .await;
        junk.remove();
        let new = record.lock(&Shape::Mutex.make(&other, "x").unwrap().ttl(LONG).unwrap(), "x").await;
        assert!(old.checks() && new.checks(), "both trust their windows");
        assert!(new.writes());
        assert!(!old.writes(), "the resource knows better");
        record.expect_only_exclusion_broken();
        old.is_lost().await;
        assert!(Instant::now() < old.held.valid_until(), "by the store, not by its own clock");
        new.releases().await.unwrap();
        drop(old);
        for client in [one, other] {
            client.close().await.unwrap();
        }
    }
}

/// Any one key of a name may be thrown away and the others stay: everybody still gets in, and permits come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_with_a_part_missing_mends_itself() {
    for missing in ["lock", "line", "held", "names", "token"] {
        for shape in [Shape::FairMutex, Shape::Semaphore, Shape::RwLock] {
            let server = Redis::start(RedisOptions::new());
            let client = client(&server.url()).await;
            let lock = shape.make(&client, "x").unwrap().ttl(Duration::from_secs(6)).unwrap();
            let held = lock.lock().await.unwrap();
            let waiting: Vec<_> = (0..3).map(|_| waiter(&lock)).collect();
            line_is(&client, "x", 3).await;
            let key = if matches!(missing, "names" | "token") { missing.to_owned() } else { format!("{missing}:x") };
            server.command(&["DEL", &format!("tenure:{{0}}:{key}")]);
            let _ = held.release().await; // its record may be gone
            for waiter in waiting {
                in_time(&format!("everybody gets in without {missing} of a {shape:?}"), waiter).await.unwrap();
            }
            is_free(&client, "x").await;
            client.close().await.unwrap();
            // A line without a record may stay for a while, but not for ever.
            for key in residue(&server) {
                assert_ne!(server.command(&["PTTL", &key]).int(), -1, "{key}");
            }
        }
    }
}

fn waiter(lock: &tenure_testkit::Lock) -> tokio::task::JoinHandle<()> {
    let lock = lock.clone();
    tokio::spawn(async move {
        let held = lock.lock().await.unwrap();
        let _ = held.release().await;
    })
}

/// A full server that throws nothing away: what is held is renewed and released, what is new is refused whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_refuses_and_keeps() {
    let server = Redis::start(RedisOptions::new().arg("maxmemory-policy", "noeviction"));
    let client: Client = client(&server.url()).await;
    let held = client.mutex("held").unwrap().ttl(Duration::from_secs(9)).unwrap().lock().await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "100kb"]); // less than it needs to start
    let asked = calls(&server, "evalsha");
    let refused = in_time("an answer", client.mutex("x").unwrap().lock()).await.unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Backend | ErrorKind::Unavailable), "{refused}");
    let says = refused.to_string();
    assert!(says.contains("memory") || says.contains("OOM"), "{says}");
    assert!(calls(&server, "evalsha") > asked);
    assert!(client.view("x").await.unwrap().is_free(), "nothing is half taken");
    let until = held.valid_until();
    eventually("what is held is renewed", || held.valid_until() > until).await;
    held.release().await.unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    in_time("the lock", client.mutex("x").unwrap().lock()).await.unwrap().release().await.unwrap();
    leaves_nothing(&server, [client]).await;
}

/// Something that fills a server, in keys that expire like locks do but later.
struct Junk<'a> {
    server: &'a Redis,
    connection: Connection,
    keys: usize,
}

impl<'a> Junk<'a> {
    fn new(server: &'a Redis) -> Self {
        Junk { server, connection: server.connect().unwrap(), keys: 0 }
    }

    fn add(&mut self, many: usize) -> std::io::Result<()> {
        let value = "x".repeat(64 << 10); // few are enough, so that it is soon anybody's turn to go
        for _ in 0..many {
            self.keys += 1;
            self.connection.call(&["SET", &format!("junk:{}", self.keys), &value, "EX", "86400"])?;
        }
        Ok(())
    }

    fn remove(&mut self) {
        let keys = self.server.command(&["KEYS", "junk:*"]).texts();
        for some in keys.chunks(500) {
            let command: Vec<&str> = std::iter::once("DEL").chain(some.iter().map(String::as_str)).collect();
            self.server.command(&command);
        }
    }
}
