//! The launcher of etcd does what it says: members answer, remember, follow another leader, and can be cut off.

mod orphan;

use std::process::Command;

use tenure_testkit::eventually;
use tenure_testkit::servers::etcd::{ClientCertificate, Etcd, EtcdCluster, EtcdOptions};

#[tokio::test]
async fn a_member_answers_remembers_and_ends_with_its_handle() {
    let etcd = Etcd::start(EtcdOptions::new());
    etcd.ctl(&["put", "key", "value"]);
    let (pid, dir, url) = (etcd.pid(), etcd.dir().to_owned(), etcd.url());
    assert!(etcd.count("etcd_debugging_mvcc_put_total") >= 1); // a busy machine may need more than one try
    etcd.kill();
    assert!(!etcd.is_alive() && !etcd.is_healthy());
    etcd.restart();
    assert!(etcd.pid() != pid && etcd.url() == url);
    eventually("it is healthy again", || etcd.is_healthy()).await;
    assert_eq!(etcd.ctl(&["get", "key", "--print-value-only"]), "value\n");
    etcd.pause();
    assert!(etcd.is_alive() && !etcd.is_healthy());
    etcd.resume();
    let pid = etcd.pid();
    drop(etcd);
    assert!(!orphan::is_running(pid) && !dir.exists());
}

#[tokio::test]
async fn a_member_ends_with_the_test_that_was_killed() {
    orphan::leaves_nothing("orphaned").await;
}

#[test]
fn orphaned() {
    if orphan::is_one() {
        let cluster = EtcdCluster::start();
        orphan::live(cluster.member(1).pid(), cluster.member(1).dir());
    }
}

#[test]
fn another_leads_when_the_leader_is_killed() {
    let cluster = EtcdCluster::start();
    cluster.ctl(&["put", "key", "value"]);
    let first = cluster.leader();
    cluster.member(first).kill();
    let second = cluster.leader_after(first);
    assert_eq!(cluster.member(second).ctl(&["get", "key", "--print-value-only"]), "value\n");
    cluster.member(first).restart();
    cluster.wait_healthy();
    cluster.restart_all();
    assert_eq!(cluster.ctl(&["get", "key", "--print-value-only"]), "value\n");
}

#[tokio::test]
async fn another_leads_when_the_leader_is_cut_off_and_it_follows_when_it_is_back() {
    let cluster = EtcdCluster::start();
    let first = cluster.leader();
    cluster.cut(first);
    let second = cluster.leader_after(first);
    assert!(cluster.member(first).is_alive() && !cluster.member(first).is_healthy());
    cluster.member(second).ctl(&["put", "key", "value"]);
    cluster.heal(first);
    cluster.wait_healthy();
    assert_eq!(cluster.member(first).ctl(&["get", "key", "--print-value-only"]), "value\n");

    let leader = cluster.leader();
    cluster.cut_peers(leader);
    cluster.leader_after(leader);
    eventually("it is there, and knows that it is alone", || {
        let metrics = cluster.metrics(leader);
        ["etcd_server_has_leader 0", "etcd_server_is_leader 0"].iter().all(|says| metrics.contains(says))
    })
    .await;
    cluster.heal(leader);
    cluster.wait_healthy();

    let leader = cluster.leader();
    cluster.cut_clients(leader);
    assert!(!cluster.member(leader).is_healthy());
    cluster.heal(leader);
    // Who leads is another matter: a machine that stands still for half a second costs an election.
    eventually("it is healthy again", || cluster.member(leader).is_healthy()).await;
    cluster.leader();
}

#[test]
fn with_tls_and_users_strangers_are_refused() {
    for clients in [ClientCertificate::Ignored, ClientCertificate::Demanded] {
        let cluster = EtcdCluster::start_with(EtcdOptions::new().tls(clients));
        assert!(cluster.url().starts_with("etcds://"));
        cluster.ctl(&["put", "key", "value"]);
        let mut without = Command::new("etcdctl");
        // Who is refused tries until its time is up; a busy machine may need more than that for who is not.
        let limit = if clients == ClientCertificate::Demanded { "2s" } else { "60s" };
        without.env("ETCDCTL_API", "3").args(["get", "key", "--command-timeout", limit, "--endpoints"]);
        without.arg(cluster.member(0).address().to_string()).arg("--cacert").arg(&cluster.certificates().ca);
        let output = without.output().unwrap();
        assert_eq!(output.status.success(), clients == ClientCertificate::Ignored, "{output:?}");
    }
    let etcd = Etcd::start(EtcdOptions::new().password("secret").user("alice", "wonder", "a/"));
    assert_eq!(etcd.url(), format!("etcd://root:secret@{}", etcd.address()));
    etcd.ctl(&["put", "key", "value"]);
    let as_alice = |args: &[&str]| etcd.etcdctl(args).env("ETCDCTL_USER", "alice:wonder").output().unwrap().status;
    assert!(as_alice(&["put", "a/key", "value"]).success());
    assert!(!as_alice(&["put", "key", "value"]).success());
}

#[test]
fn with_a_small_quota_it_is_soon_full() {
    let etcd = Etcd::start(EtcdOptions::new().quota(16 << 20));
    let value = "x".repeat(100_000);
    // Not whatever fails: a busy machine may need too long.
    let refuses = || etcd.etcdctl(&["put", "key", &value]).output().unwrap().stderr;
    let full = (0..400).any(|_| String::from_utf8_lossy(&refuses()).contains("space exceeded"));
    assert!(full && etcd.ctl(&["alarm", "list"]).contains("NOSPACE"));
}
