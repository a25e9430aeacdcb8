//! The launchers do what they say: servers answer, forget or remember, stand still, and are gone when the test is.

mod orphan;

use std::process::{Command, Stdio};
use std::time::Duration;

use orphan::is_running;

use tenure_testkit::servers::Step;
use tenure_testkit::servers::redis::{
    ClientCertificate, Connection, Fsync, Redis, RedisCluster, RedisOptions, SentinelOptions, Sentinels, independent,
};
use tenure_testkit::{LIMIT, eventually};

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

/// A child that saves goes on without its server, and would write into a directory that is being removed.
#[tokio::test]
async fn a_servers_children_end_with_it() {
    for with_a_kill in [false, true] {
        let redis = Redis::start(RedisOptions::new().arg("rdb-key-save-delay", "60000000"));
        redis.command(&["SET", "key", "value"]);
        redis.command(&["BGSAVE"]);
        let (pid, dir) = (redis.pid(), redis.dir().to_owned());
        let saver = orphan::children(pid)[0];
        assert!(is_running(saver));
        if with_a_kill {
            redis.kill();
        } else {
            drop(redis);
            assert!(!dir.exists());
        }
        eventually("the child ends", || !is_running(saver)).await;
    }
}

#[tokio::test]
async fn a_server_ends_with_the_test_that_was_killed() {
    orphan::leaves_nothing("orphaned").await;
}

#[test]
fn orphaned() {
    if orphan::is_one() {
        // Stopped, it can do nothing for itself, and the thread that started it is gone.
        let redis = std::thread::spawn(|| Redis::start(RedisOptions::new())).join().unwrap();
        redis.pause();
        orphan::live(redis.pid(), redis.dir());
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
    connection.patience(Duration::from_millis(50)).unwrap();
    assert!(connection.read().is_err());
    redis.resume();
    connection.patience(LIMIT).unwrap();
    assert_eq!(connection.read().unwrap().text(), "PONG");
}

#[test]
fn users_and_passwords_are_asked_for() {
    let redis = Redis::start(RedisOptions::new().password("sesame").user("reader on >open ~books:* +get"));
    assert_eq!(redis.command(&["SET", "books:1", "Emma"]).text(), "OK");
    assert_eq!(redis.url(), format!("redis://:sesame@127.0.0.1:{}", redis.port()));
    let mut stranger = Connection::open(redis.address()).unwrap();
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

#[test]
fn independent_ones_know_nothing_of_each_other() {
    let servers = independent(5);
    servers[0].command(&["SET", "key", "value"]);
    assert!(servers[1..].iter().all(|redis| redis.command(&["GET", "key"]).is_nil()));
    servers[3].kill();
    assert_eq!(servers.iter().filter(|redis| redis.try_command(&["PING"]).is_ok()).count(), 4);
}

#[test]
fn tls_is_verified_by_both_sides() {
    let open = Redis::start(RedisOptions::new().tls(ClientCertificate::Ignored));
    let strict = Redis::start(RedisOptions::new().tls(ClientCertificate::Demanded));
    assert!(ping_over_tls(&open, &open, false));
    assert!(!ping_over_tls(&open, &strict, false), "another CA's word was taken");
    assert!(!ping_over_tls(&strict, &strict, false), "no certificate was asked for");
    assert!(ping_over_tls(&strict, &strict, true));
    assert!(!ping_over_tls(&strict, &open, true));
    assert_eq!(open.tls_url(), format!("rediss://127.0.0.1:{}", open.tls_port()));
}

/// Whether a server answers, with the certificates that were made for (perhaps another) one.
fn ping_over_tls(server: &Redis, certificates_of: &Redis, with_client: bool) -> bool {
    use std::io::Write as _;
    let pem = certificates_of.certificates();
    let mut openssl = Command::new("openssl");
    openssl.args(["s_client", "-quiet", "-verify_return_error", "-verify_ip", "127.0.0.1", "-connect"]);
    openssl.arg(format!("127.0.0.1:{}", server.tls_port())).arg("-CAfile").arg(&pem.ca);
    if with_client {
        openssl.arg("-cert").arg(&pem.client).arg("-key").arg(&pem.client_key);
    }
    let mut openssl = openssl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // It may have ended already, having found what it does not like.
    let _ = openssl.stdin.as_mut().unwrap().write_all(b"PING\r\nQUIT\r\n");
    let output = openssl.wait_with_output().unwrap();
    output.stdout.starts_with(b"+PONG")
}

/// Time as the server tells it, and the ends of its keys, follow the step; nothing else notices.
#[tokio::test]
async fn a_skewed_clock_moves_time_and_expiry() {
    let redis = Redis::start(RedisOptions::new().skewed());
    let time = || Duration::from_secs(redis.command(&["TIME"]).texts()[0].parse().unwrap());
    let hour = Duration::from_secs(3600);
    let before = time();
    redis.command(&["SET", "a minute", "x", "EX", "60"]);
    redis.command(&["SET", "a day", "x", "EX", "86400"]);
    redis.step_clock(Step::Forward(hour));
    assert!(time() >= before + hour && time() < before + 2 * hour);
    eventually("what should last a minute is gone", || redis.command(&["GET", "a minute"]).is_nil()).await;
    let left = redis.command(&["TTL", "a day"]).int();
    assert!((86_400 - 7_200..=86_400 - 3_600).contains(&left), "{left} s");

    redis.command(&["SET", "a minute", "x", "EX", "60"]);
    redis.step_clock(Step::Back(3 * hour));
    assert!(time() < before, "the clock was not set back");
    let left = redis.command(&["TTL", "a minute"]).int();
    assert!(left > 2 * 3_600, "a key outlives a clock that was set back; {left} s");
    // Scripts see the same clock.
    let in_script = redis.command(&["EVAL", "return redis.call('TIME')", "0"]).texts()[0].parse().unwrap();
    assert!(Duration::from_secs(in_script) < before);
    redis.restart();
    assert!(time() < before, "it is the machine's clock, and stays wrong over a restart");
}

#[test]
fn a_cluster_shares_the_slots_and_moves_them() {
    let cluster = RedisCluster::shared(); // hurt all the same: nobody else in this binary uses it
    let slot = cluster.slot_of("{cup}");
    let (home, tag) = (cluster.node_of(slot), "{cup}");
    let other = (home + 1) % 3;
    let at = |node: usize, command: &[&str]| cluster.nodes()[node].try_command(command).map_err(|error| error.to_string());
    for key in 0..3 {
        at(home, &["SET", &format!("{tag}{key}"), "tea"]).unwrap();
    }
    let moved_to = |node: usize| format!("MOVED {slot} 127.0.0.1:{}", cluster.nodes()[node].port());
    assert_eq!(at(other, &["GET", "{cup}0"]).unwrap_err(), moved_to(home));

    let moving = cluster.begin_move(slot, other);
    assert_eq!(at(home, &["GET", "{cup}0"]).unwrap().text(), "tea", "what is still there is answered there");
    let ask = format!("ASK {slot} 127.0.0.1:{}", cluster.nodes()[other].port());
    assert_eq!(at(home, &["GET", "{cup}unknown"]).unwrap_err(), ask);
    assert_eq!(moving.carry_keys(1), 1);
    let gone = (0..3).filter(|key| at(home, &["GET", &format!("{tag}{key}")]) == Err(ask.clone())).count();
    assert_eq!(gone, 1);
    assert!(at(home, &["MGET", "{cup}0", "{cup}1", "{cup}2"]).unwrap_err().starts_with("TRYAGAIN"));
    assert_eq!(moving.carry_keys(usize::MAX), 2);
    moving.finish();
    assert_eq!(at(home, &["GET", "{cup}0"]).unwrap_err(), moved_to(other));
    assert_eq!(at(other, &["MGET", "{cup}0", "{cup}1", "{cup}2"]).unwrap().texts(), ["tea"; 3]);
    assert!(cluster.is_well());
}

#[tokio::test]
async fn a_clusters_replica_takes_over() {
    let cluster = RedisCluster::start(3, 1);
    let slot = cluster.slot_of("key");
    // Which of the two it is, is another matter: a machine that stands still for a second makes them change places by themselves.
    let is_one_of_two = |node: usize| node % 3 == cluster.node_of(slot) % 3;
    let (before, after) = cluster.fail_over(slot);
    assert!(before != after && is_one_of_two(before) && is_one_of_two(after), "{after} for {before}");
    eventually("the old master follows", || cluster.is_well()).await;
    let (killed, next) = cluster.kill_master(slot);
    assert!(killed != next && is_one_of_two(killed) && is_one_of_two(next), "{next} for {killed}");
    cluster.nodes()[killed].restart();
    eventually("who was killed is back", || cluster.is_well()).await;
    assert!(is_one_of_two(killed));
}

/// A machine that stands still for less than this looks to no Sentinel like a master that is gone.
const STILL: Duration = Duration::from_secs(5);

#[test]
fn sentinels_replace_a_master_that_was_killed() {
    let options = SentinelOptions::default().down_after(STILL).replicas(2).servers(RedisOptions::new().password("sesame"));
    let all = Sentinels::start(options.sentinel_password("open"));
    let first = all.master().unwrap();
    assert_eq!(first.port(), all.servers()[0].port());
    first.command(&["SET", "key", "value"]);
    assert_eq!(first.connect().unwrap().call(&["WAIT", "2", "0"]).unwrap().int(), 2);
    let (_, second) = all.kill_master();
    assert_eq!(second.command(&["GET", "key"]).text(), "value");
    all.servers()[0].restart();
    all.wait_until_well();
    assert!(all.servers()[0].follows(), "who was master comes back as a replica");
    let (before, after) = all.fail_over();
    assert_ne!(before.port(), after.port());
}

/// What a lagging replica does not know is lost when it becomes master.
#[test]
fn a_stalled_replica_takes_over_without_the_last_writes() {
    let all = Sentinels::start(SentinelOptions::default().down_after(STILL).proxied());
    let master = all.master().unwrap();
    let mut connection = Connection::open(all.proxy().unwrap().address()).unwrap();
    connection.call(&["SET", "early", "x"]).unwrap();
    assert_eq!(connection.call(&["WAIT", "1", "0"]).unwrap().int(), 1);
    let stall = all.stall_replication();
    connection.call(&["SET", "late", "x"]).unwrap();
    assert_eq!(connection.call(&["WAIT", "1", "100"]).unwrap().int(), 0, "the replica heard of it");
    assert!(all.servers()[1].follows(), "the replica has noticed");
    let (_, promoted) = all.kill_master();
    assert_eq!(promoted.port(), all.servers()[1].port());
    assert_eq!(promoted.command(&["EXISTS", "early"]).int(), 1);
    assert_eq!(promoted.command(&["EXISTS", "late"]).int(), 0);
    all.proxy().unwrap().lift(stall);
    master.restart();
    all.wait_until_well();
    assert_eq!(master.command(&["EXISTS", "late"]).int(), 0, "it has forgotten too");
}
