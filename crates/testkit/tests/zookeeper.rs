//! The launcher of ZooKeeper does what it says: members serve, remember, follow another leader, and can be cut off.

mod orphan;

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure_testkit::servers::zookeeper::{ClientCertificate, Curator, Ensemble, Recipe, ZooKeeper, ZooKeeperOptions};
use tenure_testkit::{LIMIT, eventually};

#[tokio::test]
async fn a_server_serves_and_ends_with_its_handle() {
    let zookeeper = ZooKeeper::start(ZooKeeperOptions::new().superuser("secret").sasl_user("alice", "wonder"));
    eventually("it is alone", || zookeeper.mode().as_deref() == Some("standalone")).await;
    assert!(zookeeper.count("zk_znode_count") > 0);
    let (pid, dir, url) = (zookeeper.pid(), zookeeper.dir().to_owned(), zookeeper.url());
    zookeeper.kill();
    assert!(!zookeeper.is_alive() && !zookeeper.is_healthy());
    zookeeper.restart();
    assert!(zookeeper.pid() != pid && zookeeper.url() == url);
    eventually("it serves again", || zookeeper.is_healthy()).await;
    zookeeper.pause();
    assert!(zookeeper.is_alive() && !zookeeper.is_healthy());
    zookeeper.resume();
    let pid = zookeeper.pid();
    drop(zookeeper);
    assert!(!orphan::is_running(pid) && !dir.exists());
}

#[tokio::test]
async fn a_member_ends_with_the_test_that_was_killed() {
    orphan::leaves_nothing("orphaned").await;
}

#[test]
fn orphaned() {
    if orphan::is_one() {
        let ensemble = Ensemble::start();
        orphan::live(ensemble.member(1).pid(), ensemble.member(1).dir());
    }
}

#[test]
fn another_leads_when_the_leader_is_killed() {
    // Who was killed is missed at once all the same, as it leaves no connection.
    let ensemble = Ensemble::start_with(ZooKeeperOptions::new().calm());
    let first = ensemble.leader();
    ensemble.member(first).kill();
    let second = ensemble.leader_after(first);
    ensemble.member(first).restart();
    ensemble.wait_healthy();
    assert_eq!(ensemble.leader(), second);
    ensemble.restart_all();
    ensemble.leader();
}

#[tokio::test]
async fn another_leads_when_the_leader_is_cut_off_and_it_follows_when_it_is_back() {
    let ensemble = Ensemble::start();
    let first = ensemble.leader();
    ensemble.cut(first);
    let second = ensemble.leader_after(first);
    assert!(ensemble.member(first).is_alive() && !ensemble.member(first).is_healthy());
    ensemble.heal(first);
    // Who leads is another matter: a machine that stands still for a second costs an election.
    eventually("one leads, and the others follow", || one_leads(&ensemble)).await;

    ensemble.cut_peers(second);
    ensemble.leader_after(second);
    // It is there, and knows that it is alone.
    eventually("it serves no more", || ensemble.member(second).four_letters("srvr").contains("not currently serving")).await;
    ensemble.heal(second);
    eventually("one leads, and the others follow", || one_leads(&ensemble)).await;

    let leader = ensemble.leader();
    ensemble.cut_clients(leader);
    assert!(!ensemble.member(leader).is_healthy());
    ensemble.heal(leader);
    eventually("it serves again", || ensemble.member(leader).is_healthy()).await;
    ensemble.leader();
}

/// Whether all serve, and one of them leads.
fn one_leads(ensemble: &Ensemble) -> bool {
    let mut modes: Vec<_> = ensemble.members().iter().filter_map(ZooKeeper::mode).collect();
    modes.sort();
    modes == ["follower", "follower", "leader"]
}

#[test]
fn with_tls_it_shows_its_certificate_and_may_demand_one() {
    for clients in [ClientCertificate::Ignored, ClientCertificate::Demanded] {
        let zookeeper = ZooKeeper::start(ZooKeeperOptions::new().tls(clients));
        let pem = zookeeper.certificates();
        let mut openssl = Command::new("openssl");
        openssl.args(["s_client", "-verify_return_error", "-tls1_2", "-connect", &zookeeper.tls_address().to_string()]);
        openssl.arg("-CAfile").arg(&pem.ca).stdin(Stdio::null());
        let without = openssl.output().unwrap();
        assert_eq!(without.status.success(), clients == ClientCertificate::Ignored, "{without:?}\n{}", zookeeper.log());
        let with = openssl.arg("-cert").arg(&pem.client).arg("-key").arg(&pem.client_key).output().unwrap();
        assert!(with.status.success(), "{with:?}\n{}", zookeeper.log());
    }
}

/// ZooKeeper's own command: what it prints when it is told these lines.
fn command_line(server: &ZooKeeper, java: &[&str], lines: &str) -> String {
    let mut command = Command::new("java");
    command.args(java).args(["-cp", "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar"]);
    command.args(["org.apache.zookeeper.ZooKeeperMain", "-server", &server.address().to_string()]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn users_say_who_they_are_by_sasl_and_the_superuser_by_digest() {
    let server = ZooKeeper::start(ZooKeeperOptions::new().superuser("secret").sasl_user("alice", "wonder"));
    let login = server.dir().join("client.conf");
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule required username=\"alice\" password=\"wonder\"";
    std::fs::write(&login, format!("Client {{ {module}; }};")).unwrap();
    let as_alice = format!("-Djava.security.auth.login.config={}", login.display());
    let created = command_line(&server, &[&as_alice], "create /alices treasure sasl:alice:cdrwa\nget /alices\nquit\n");
    assert!(created.contains("treasure"), "{created}");
    let stranger = command_line(&server, &[], "get /alices\nquit\n");
    assert!(!stranger.contains("treasure") && stranger.contains("nsufficient permission"), "{stranger}");
    let superuser = command_line(&server, &[], "addauth digest super:secret\nget /alices\nquit\n");
    assert!(superuser.contains("treasure"), "{superuser}");
}

#[test]
fn two_curators_exclude_each_other() {
    let zookeeper = ZooKeeper::shared();
    let [one, two] = [(); 2].map(|()| Curator::start(&zookeeper.address().to_string(), Duration::from_secs(10)));
    one.lock(Recipe::Mutex, "/mutex");
    assert!(!two.try_lock(Recipe::Mutex, "/mutex", Duration::from_millis(100)));
    two.begin(Recipe::Mutex, "/mutex", LIMIT);
    assert_eq!(two.has_locked(Duration::from_millis(100)), None);
    one.release(Recipe::Mutex, "/mutex");
    assert_eq!(two.has_locked(LIMIT), Some(true));
    two.release(Recipe::Mutex, "/mutex");

    for curator in [&one, &two] {
        curator.lock(Recipe::Read, "/pair");
        curator.lock(Recipe::Permit(2), "/permits");
    }
    two.release(Recipe::Read, "/pair");
    assert!(!two.try_lock(Recipe::Write, "/pair", Duration::from_millis(100)));
    two.begin(Recipe::Write, "/pair", LIMIT);
    one.kill(); // its session expires
    assert_eq!(two.has_locked(LIMIT), Some(true));
}
