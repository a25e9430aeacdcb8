//! A real server that speaks TLS, and certificates that are right and wrong.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use tenure_core::{ErrorKind, StoreUrl};
use tenure_testkit::servers::redis::{Redis, RedisOptions};

use super::*;
use crate::config::{Settings, Topology};
use crate::error::explain_connect;

/// A CA, a server's certificate for `redis.internal` and 127.0.0.1, and a client's.
struct Papers {
    directory: tempfile::TempDir,
}

impl Papers {
    fn new() -> Self {
        let papers = Papers { directory: tempfile::tempdir().unwrap() };
        papers.openssl("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca");
        std::fs::write(papers.path("san"), "subjectAltName=DNS:redis.internal,IP:127.0.0.1\n").unwrap();
        for name in ["server", "client"] {
            papers.openssl(&format!("req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}"));
            papers.openssl(&format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out {name}.pem -days 2 -extfile san"
            ));
        }
        papers
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn openssl(&self, arguments: &str) {
        let mut command = Command::new("openssl");
        command.args(arguments.split_whitespace()).current_dir(&self.directory).stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.status().expect("openssl is installed (Debian's package openssl)");
        assert!(status.success(), "openssl {arguments}");
    }
}

/// A server with a TLS port, and whoever keeps that port for it.
fn start(papers: &Papers, clients: &str) -> (Redis, Redis) {
    let keeper = Redis::start(RedisOptions::new());
    keeper.kill();
    let file = |name| papers.path(name).display().to_string();
    let options = RedisOptions::new()
        .arg("tls-port", &keeper.port().to_string())
        .arg("tls-cert-file", &file("server.pem"))
        .arg("tls-key-file", &file("server.key"))
        .arg("tls-ca-cert-file", &file("ca.pem"))
        .arg("tls-auth-clients", clients);
    (Redis::start(options), keeper)
}

async fn ping(url: &str) -> Result<()> {
    let settings = Settings::from_url(&url.parse::<StoreUrl>()?)?;
    let Topology::Single(at) = &settings.topology else { panic!("one server") };
    let client = settings.client(at)?;
    let mut connection = client
        .get_multiplexed_async_connection_with_config(&settings.connection(at))
        .await
        .map_err(|error| explain_connect(error, at, &settings))?;
    let pong = connection.send_packed_command(&redis::cmd("PING")).await;
    pong.map(drop).map_err(|error| explain_connect(error, at, &settings).into())
}

#[track_caller]
fn says(outcome: Result<()>, kind: ErrorKind, words: &[&str]) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{error} says nothing of {word:?}");
    }
}

#[tokio::test]
async fn a_certificate_is_checked_by_its_signer_and_its_name() {
    let papers = Papers::new();
    let (redis, tls) = start(&papers, "no");
    let (port, ca) = (tls.port(), papers.path("ca.pem"));
    let ca = ca.display();
    ping(&format!("rediss://127.0.0.1:{port}?ca={ca}")).await.unwrap();
    ping(&format!("rediss://localhost:{port}?ca={ca}&server_name=redis.internal")).await.unwrap();
    let outcome = ping(&format!("rediss://127.0.0.1:{port}")).await;
    says(outcome, ErrorKind::Backend, &["TLS", "ca=FILE"]);
    let outcome = ping(&format!("rediss://localhost:{port}?ca={ca}")).await;
    says(outcome, ErrorKind::Backend, &["TLS", "server_name=NAME"]);
    // Each waits for the other to say something it understands.
    let outcome = ping(&format!("rediss://127.0.0.1:{}?ca={ca}&connect_limit=100ms", redis.port())).await;
    says(outcome, ErrorKind::Unavailable, &["no TLS", "redis://"]);
    let outcome = ping(&format!("redis://127.0.0.1:{port}")).await;
    says(outcome, ErrorKind::Unavailable, &["rediss://"]);
}

#[tokio::test]
async fn a_server_may_want_to_know_its_clients() {
    let papers = Papers::new();
    let (_redis, tls) = start(&papers, "yes");
    let (port, file) = (tls.port(), |name| papers.path(name).display().to_string());
    let url = format!("rediss://127.0.0.1:{port}?ca={}", file("ca.pem"));
    ping(&format!("{url}&cert={}&key={}", file("client.pem"), file("client.key"))).await.unwrap();
    says(ping(&url).await, ErrorKind::Backend, &["TLS", "cert=FILE"]);
}

#[test]
fn a_file_that_is_no_good_is_named() {
    let papers = Papers::new();
    let with = |ca: &str, cert: &str, key: &str| {
        let path = |name: &str| (!name.is_empty()).then(|| papers.path(name));
        let mut tls = Tls::default();
        (tls.ca, tls.cert, tls.key) = (path(ca), path(cert), path(key));
        read(&tls).map(drop)
    };
    with("ca.pem", "client.pem", "client.key").unwrap();
    says(with("missing.pem", "", ""), ErrorKind::BadUrl, &["missing.pem", "ca=", "No such file"]);
    says(with("ca.key", "", ""), ErrorKind::BadUrl, &["ca.key", "no certificate"]);
    says(with("", "client.pem", "client.pem"), ErrorKind::BadUrl, &["client.pem", "key=", "private key"]);
    says(with("", "client.key", "client.key"), ErrorKind::BadUrl, &["client.key", "cert="]);
    says(with("", "client.pem", "server.key"), ErrorKind::BadUrl, &["client.pem", "server.key", "belong together"]);
}
