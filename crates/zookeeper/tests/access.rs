//! Logins, rights, encryption, and what is said to the person who must act.

use std::process::Command;
use std::time::Duration;

use tenure_core::{Client, Environment, ErrorKind, Result};
use tenure_testkit::servers::zookeeper::{ClientCertificate, Ensemble, ZooKeeper, ZooKeeperOptions};
use tenure_testkit::{eventually, in_time, unless_stalled};

async fn open(url: &str) -> Result<Client> {
    // A busy machine may take longer over an answer than a network would, unless the URL says how long it may.
    let separator = if url.contains('?') { '&' } else { '?' };
    let url =
        if url.contains("_limit=") { url.to_owned() } else { format!("{url}{separator}connect_limit=20s&answer_limit=20s") };
    Client::with_environment(tenure_zookeeper::connect(&url.parse()?).await?, Environment::real())
}

/// Locks and unlocks, and looks.
async fn works(client: &Client) {
    let held = in_time("it is free", client.mutex("x").unwrap().lock()).await.unwrap();
    assert_eq!(client.view("x").await.unwrap().holders[0].token, held.token());
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_belong_to_the_login_that_made_them() {
    let hosts = Ensemble::shared().hosts();
    let [ours, ours_again] = [0, 1].map(|_| format!("zk://app:hunter2@{hosts}?root=/access-digest"));
    let (one, other) = (open(&ours).await.unwrap(), open(&ours_again).await.unwrap());
    let held = one.mutex("x").unwrap().lock().await.unwrap();
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    let stranger = open(&format!("zk://else:secret7@{hosts}?root=/access-digest")).await.unwrap();
    for refused in [
        stranger.mutex("x").unwrap().lock().await.map(drop).unwrap_err(),
        stranger.break_holds("x", None).await.map(drop).unwrap_err(),
    ] {
        let text = format!("{refused} {refused:?}");
        assert_eq!(refused.kind(), ErrorKind::Backend, "{text}");
        assert!(text.contains("permission") && !text.contains("secret7") && !text.contains("hunter2"), "{text}");
    }
    held.check().unwrap();
    held.release().await.unwrap();
    assert!(!format!("{one:?} {}", one.describe()).contains("hunter2"));
    let findings = one.examine().await.unwrap();
    assert!(findings.iter().any(|finding| finding.what == "access"), "{findings:?}");
}

/// Nobody may make a node beneath the root of the tree: whoever would need one there is told so, and whoever has one is well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_far_above_is_told() {
    let server = ZooKeeper::start(ZooKeeperOptions::new());
    let mut raw = raw::Raw::connect(server.address());
    raw.create("/apps", b"").unwrap();
    raw.close_for_all("/");
    for url in [server.url(), format!("{}/not/there", server.url())] {
        let client = open(&url).await.unwrap();
        for refused in [
            in_time("an answer", client.mutex("x").unwrap().lock()).await.map(drop).unwrap_err(),
            in_time("an answer", client.cell("x").unwrap().set_if(0, "1")).await.map(drop).unwrap_err(),
        ] {
            assert_eq!(refused.kind(), ErrorKind::Backend, "{refused}");
            assert!(refused.to_string().contains("permission"), "{refused}");
        }
    }
    works(&open(&format!("{}/apps", server.url())).await.unwrap()).await;
}

/// Nobody may delete a node beneath the root of the tree, and so the write that proves the session is refused for that: it proves it
/// all the same. (A machine that stands still for long ends a session, as it should.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_is_renewed_without_the_right_to_delete() {
    let server = ZooKeeper::start(ZooKeeperOptions::new());
    let mut raw = raw::Raw::connect(server.address());
    raw.create("/locks", b"").unwrap();
    raw.close_for_all("/");
    let client = open(&format!("{}?layout=curator&connect_limit=20s&answer_limit=20s", server.url())).await.unwrap();
    let ttl = Duration::from_secs(6);
    let is_renewed = async || {
        let held = client.mutex("locks/x").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
        let first = held.valid_until();
        let outlives = || held.valid_until() > first + ttl;
        eventually("it outlives its timeout, or is lost", || outlives() || held.check().is_err()).await;
        let is_kept = outlives();
        assert!(held.release().await.is_ok() || !is_kept);
        is_kept.then_some(())
    };
    unless_stalled("a hold outlives its timeout", ttl / 2, is_renewed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sasl_lets_in_who_knows_the_password() {
    let server = ZooKeeper::start(ZooKeeperOptions::new().sasl_user("app", "hunter2"));
    let at = server.address();
    works(&open(&format!("zk://app:hunter2@{at}?auth=sasl&connect_limit=60s")).await.unwrap()).await;
    let refused = open(&format!("zk://app:wrong@{at}?auth=sasl&connect_limit=2s")).await.map(drop).unwrap_err();
    assert!(!refused.to_string().contains("wrong@") && !refused.to_string().contains("hunter2"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_checked_and_used() {
    let server = ZooKeeper::start(ZooKeeperOptions::new().tls(ClientCertificate::Demanded));
    let pem = server.certificates();
    let file = |path: &std::path::Path| path.display().to_string();
    let own = format!("cert={}&key={}", file(&pem.client), file(&pem.client_key));
    // The first handshake of a server takes long where the machine is busy.
    works(&open(&format!("{}?ca={}&{own}&connect_limit=60s", server.tls_url(), file(&pem.ca))).await.unwrap()).await;
    let nobody = open(&format!("{}?ca={}&connect_limit=2s", server.tls_url(), file(&pem.ca))).await.map(drop).unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::Unavailable, "{nobody}");
    // Time enough for a handshake also if the machine stands still in it: without one there is nothing to say about it.
    let unknown = open(&format!("{}?{own}&connect_limit=8s", server.tls_url())).await.map(drop).unwrap_err();
    assert!(unknown.to_string().contains("ca=FILE"), "{unknown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there_is_an_error_that_says_where() {
    let refused = open("zk://127.0.0.1:1,127.0.0.1:2?connect_limit=200ms").await.map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.to_string().contains("127.0.0.1:1") && refused.hint().is_some(), "{refused}");
}

/// A server that stands still answers nobody: an ask is an error in time, and leaves nothing once the server goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ask_that_nobody_answers_is_an_error_and_leaves_nothing() {
    let server = ZooKeeper::start(ZooKeeperOptions::new());
    let client = open(&format!("{}?answer_limit=500ms", server.url())).await.unwrap();
    let observer = open(&format!("{}?answer_limit=20s", server.url())).await.unwrap();
    works(&observer).await;
    server.pause();
    let refused = in_time("an answer", client.mutex("x").unwrap().lock()).await.map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    server.resume();
    in_time("it is free", observer.mutex("x").unwrap().lock()).await.unwrap().release().await.unwrap();
}

/// What ZooKeeper's own command line says, one line after the other.
fn zk_cli(server: &ZooKeeper, args: &[&str]) -> Vec<String> {
    let jars = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar";
    let output = Command::new("java")
        .args(["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", jars])
        .args(["org.apache.zookeeper.ZooKeeperMain", "-timeout", "60000", "-server", &server.address().to_string()])
        .args(args)
        .output()
        .expect("whoever runs the servers has this");
    let said = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{args:?}: {}{}", said(&output.stdout), said(&output.stderr));
    said(&output.stdout).lines().map(str::to_owned).collect()
}

/// An election can be watched with ZooKeeper's own tools: the first child leads, and the first line is its value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_election_is_seen_by_zookeepers_own_tools() {
    let server = Ensemble::shared().member(0);
    let client = open(&format!("{}?root=/access-election", Ensemble::shared().url())).await.unwrap();
    let election = client.election("scheduler").unwrap().note("10.0.0.7:8080").unwrap();
    let leads = election.campaign().await.unwrap();
    raw::Raw::connect(server.address()).sync("/access-election"); // this member may not have heard of it yet
    let listed = zk_cli(server, &["ls", "/access-election/scheduler"]);
    let child = listed.iter().find_map(|line| line.strip_prefix('[')?.strip_suffix(']')).expect("a list");
    assert!(child.starts_with("election-") && !child.contains(','), "{listed:?}");
    let path = format!("/access-election/scheduler/{child}");
    let said = zk_cli(server, &["get", &path]);
    let value = said.iter().position(|line| line == "10.0.0.7:8080").expect("its value is a line");
    assert!(said[value + 1].starts_with("host="), "and the first: {said:?}");
    // Deleting the node is how a leader is deposed, and the leader is told.
    zk_cli(server, &["delete", &path]);
    in_time("it is told", leads.lost()).await;
}

#[path = "common/raw.rs"]
mod raw;
