//! TLS, client certificates, users: with what the documentation asks for everything works, and without it one is told what is
//! missing.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure_core::{Client, Environment, ErrorKind};
use tenure_testkit::servers::ClientCertificate;
use tenure_testkit::servers::etcd::{Etcd, EtcdCluster, EtcdOptions};
use tenure_testkit::{eventually, eventually_async, in_time};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

async fn connect(url: &str) -> tenure_core::Result<Client> {
    let backend = in_time("an answer", tenure_etcd::connect(&url.parse()?)).await?;
    Client::with_environment(backend, Environment::real())
}

/// Locks, waits, lets go.
async fn works(client: &Client) {
    let mutex = client.mutex("x").unwrap().ttl(Duration::from_secs(9)).unwrap();
    let held = mutex.lock().await.unwrap();
    let first = held.valid_until();
    eventually("it is renewed", || held.valid_until() > first).await;
    let waiting = tokio::spawn(async move { mutex.keep(false).lock().await }); // a pause after the hand-over does not lose it
    eventually_async("one waits", async || client.view("x").await.unwrap().line.len() == 1).await;
    held.release().await.unwrap();
    in_time("it is let in", waiting).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encrypted_and_with_a_certificate_of_the_client() {
    let cluster = EtcdCluster::start_with(EtcdOptions::new().loopback().tls(ClientCertificate::Demanded));
    let files = cluster.certificates();
    let base = format!("{}?ca={}", cluster.url(), files.ca.display());
    let whole = format!("{base}&answer_limit=20s&cert={}&key={}", files.client.display(), files.client_key.display());
    works(&connect(&whole).await.unwrap()).await;
    let refused = connect(&format!("{base}&answer_limit=4s")).await.expect_err("it wants a certificate");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    // A machine that stands still when the limit is over hears nothing at last, and that is what it says.
    let is_told = async || {
        let stranger = connect(&format!("{}?answer_limit=4s", cluster.url())).await.expect_err("nobody knows its signer");
        stranger.hint().is_some_and(|hint| hint.contains("ca="))
    };
    eventually_async("it is told what is missing", is_told).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_its_own_prefix() {
    let options = EtcdOptions::new().loopback().password("toor").user("app", "swordfish", "tenure/");
    let cluster = EtcdCluster::start_with(options);
    let app = connect(&format!("{}?answer_limit=20s", cluster.url_as("app", "swordfish"))).await.unwrap();
    works(&app).await;
    // Tokens are in the members' memory: they are strangers to each other now.
    let held = app.mutex("kept").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
    cluster.restart_all();
    works(&app).await;
    held.release().await.unwrap();
    app.close().await.unwrap();

    let with_time = |url: String| format!("{url}?answer_limit=20s"); // what is refused is refused at once
    let wrong = connect(&with_time(cluster.url_as("app", "marlin"))).await.expect_err("it is not the password");
    assert_eq!(wrong.kind(), ErrorKind::Backend, "{wrong}");
    assert!(!wrong.to_string().contains("marlin") && wrong.hint().is_some(), "{wrong}");
    let url = with_time(cluster.url_as("app", "swordfish"));
    let elsewhere = connect(&format!("{url}&prefix=other")).await.expect_err("it may not");
    assert!(
        elsewhere.hint().is_some_and(|hint| hint.contains("grant-permission") && hint.contains("other/")),
        "{elsewhere}"
    );
    let nobody = connect(&url.replace("app:swordfish@", "")).await.expect_err("it wants a user");
    assert_eq!(nobody.kind(), ErrorKind::Backend, "{nobody}");
}

/// The cluster forgets who is logged in, as it does with whoever was silent for minutes. Requests log in again by themselves; the
/// stream that tells a client what happens to keys does too, so a holder hears that it is asked, and a waiter that it is let in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_is_over() {
    let options = EtcdOptions::new().password("toor").user("app", "swordfish", "tenure/");
    let etcd = Etcd::start(options);
    let url = format!("{}?answer_limit=20s", etcd.url_as("app", "swordfish"));
    let (one, other) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    works(&one).await;
    works(&other).await;
    for _ in 0..3 {
        change_password(&etcd, "app", "swordfish"); // to the same one, which ends every login
        let held = one.mutex("x").unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        other.ask("x", "please").await.unwrap();
        assert_eq!(in_time("the holder hears", held.asked()).await.reason.as_str(), "please");
        change_password(&etcd, "app", "swordfish");
        let mutex = other.mutex("x").unwrap().ttl(LONG).unwrap().keep(false); // a pause after the hand-over does not lose it
        let waiting = tokio::spawn(async move { mutex.lock().await });
        eventually_async("one waits", async || one.view("x").await.unwrap().line.len() == 1).await;
        held.release().await.unwrap();
        in_time("it is let in", waiting).await.unwrap().expect("it may watch").release().await.unwrap();
    }
}

/// With JWT tokens every change of a user or a role outdates all logins. A holder logs in again within its renewal, and loses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_changes_costs_nobody_a_lock() {
    let keys = JwtKeys::make();
    let options = EtcdOptions::new().loopback().password("toor").user("app", "swordfish", "tenure/");
    let cluster = EtcdCluster::start_with(options.arg("auth-token", &keys.flag()));
    let app = connect(&format!("{}?answer_limit=20s", cluster.url_as("app", "swordfish"))).await.unwrap();
    let held = app.mutex("held").unwrap().ttl(Duration::from_secs(20)).unwrap().lock().await.unwrap();
    for round in 0..2 {
        for number in 0..5 {
            cluster.ctl(&["role", "add", &format!("unrelated-{round}-{number}")]);
        }
        let before = held.valid_until();
        let is_renewed = || {
            held.check().expect("it is kept");
            held.valid_until() > before
        };
        eventually("it is renewed", is_renewed).await;
        works(&app).await;
    }
    held.release().await.unwrap();
    app.close().await.unwrap();
}

/// A user who is not root finds the leader, as far as the server tells such a user, and is told nothing bad of a good cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ordinary_user_finds_the_leader() {
    let keys = JwtKeys::make();
    let options = EtcdOptions::new().loopback().election(Duration::from_secs(5)); // a busy machine elects no other
    let options = options.password("toor").user("app", "swordfish", "tenure/").arg("auth-token", &keys.flag());
    let cluster = EtcdCluster::start_with(options);
    let url = format!("{}?answer_limit=20s&strict=yes", cluster.url_as("app", "swordfish"));
    let leader = cluster.leader();
    let at_followers = || {
        let of = |number: usize| cluster.member(number).count("grpc_server_started_total{grpc_method=\"Txn\"");
        (0..3).filter(|number| *number != leader).map(of).sum::<u64>()
    };
    let before = at_followers();
    // Each begins at a member of its own choice.
    for number in 0..8 {
        let app = connect(&url).await.expect("nothing is bad");
        let held = app.mutex(format!("x{number}")).unwrap().ttl(LONG).unwrap().lock().await.unwrap();
        held.release().await.unwrap();
        app.close().await.unwrap();
    }
    let mut status = cluster.etcdctl(&["endpoint", "status"]);
    let is_told = status.env("ETCDCTL_USER", "app:swordfish").output().expect("etcdctl is there").status.success();
    if is_told && cluster.leader() == leader {
        assert_eq!(at_followers(), before, "writes go to the leader");
    }
}

/// What signs and checks a cluster's JWT tokens.
struct JwtKeys(tempfile::TempDir);

impl JwtKeys {
    fn make() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for args in ["genrsa -out private.pem 2048", "rsa -in private.pem -pubout -out public.pem"] {
            let made =
                Command::new("openssl").args(args.split(' ')).current_dir(&dir).output().expect("openssl is installed");
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        JwtKeys(dir)
    }

    /// The value of `--auth-token`.
    fn flag(&self) -> String {
        let file = |name| self.0.path().join(name).display().to_string();
        format!("jwt,pub-key={},priv-key={},sign-method=RS256,ttl=10m", file("public.pem"), file("private.pem"))
    }
}

fn change_password(etcd: &Etcd, user: &str, password: &str) {
    let mut passwd = etcd.etcdctl(&["user", "passwd", user, "--interactive=false"]);
    let mut passwd = passwd.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("etcdctl is there");
    passwd.stdin.take().expect("it was asked for").write_all(format!("{password}\n").as_bytes()).unwrap();
    assert!(passwd.wait().unwrap().success());
}

/// Nothing listens there: an error in time, that says where it was tried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_there() {
    let refused = connect("etcd://127.0.0.1:1,127.0.0.1:2?answer_limit=1s").await.expect_err("nobody is there");
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.to_string().contains("127.0.0.1:"), "{refused}");
}
