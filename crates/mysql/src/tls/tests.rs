//! A real server that speaks TLS, and certificates that are right and wrong.

use mysql_async::Conn;
use tenure_core::{ErrorKind, StoreUrl};
use tenure_testkit::servers::ClientCertificate;
use tenure_testkit::servers::mariadb::{MariaDb, MariaDbOptions};

use super::*;
use crate::config::Settings;
use crate::error::explain_connect;

async fn open(url: &str) -> Result<()> {
    let settings = Settings::from_url(&url.parse::<StoreUrl>()?)?;
    let conn = Conn::new(settings.options()?).await.map_err(|failure| explain_connect(failure, &settings).error)?;
    let _ = conn.disconnect().await;
    Ok(())
}

#[track_caller]
fn says(outcome: Result<()>, kind: ErrorKind, words: &[&str]) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    words.iter().for_each(|word| assert!(error.to_string().contains(word), "{error} says nothing of {word:?}"));
}

#[tokio::test]
async fn a_certificate_is_checked_by_its_signer_and_its_name() {
    let server = MariaDb::start(MariaDbOptions::new().tls(ClientCertificate::Ignored));
    let (url, ca) = (server.url(), server.certificates().ca.display().to_string());
    open(&format!("{url}?tls=yes&ca={ca}")).await.unwrap();
    open(&format!("{url}?tls=yes&ca={ca}&server_name=localhost")).await.unwrap();
    says(open(&format!("{url}?tls=yes")).await, ErrorKind::Backend, &["TLS", "ca=FILE"]);
    let outcome = open(&format!("{url}?tls=yes&ca={ca}&server_name=db.internal")).await;
    says(outcome, ErrorKind::Backend, &["TLS", "server_name=NAME"]);
    says(open(&url).await, ErrorKind::Backend, &["refused", "tls=yes"]);
    says(open(&format!("{}?tls=yes&ca={ca}", MariaDb::shared().url())).await, ErrorKind::Backend, &["no TLS", "tls=no"]);
}

#[tokio::test]
async fn a_server_may_want_to_know_its_clients() {
    let server = MariaDb::start(MariaDbOptions::new().tls(ClientCertificate::Demanded));
    let papers = server.certificates();
    let url = format!("{}?tls=yes&ca={}", server.url(), papers.ca.display());
    open(&format!("{url}&cert={}&key={}", papers.client.display(), papers.client_key.display())).await.unwrap();
    says(open(&url).await, ErrorKind::Backend, &["refused user and password"]);
}

#[test]
fn a_file_that_is_no_good_is_named() {
    let mut tls = Tls::default();
    tls.ca = Some("/nowhere/ca.pem".into());
    says(read(&tls).map(drop), ErrorKind::BadUrl, &["/nowhere/ca.pem", "ca=", "No such file"]);
}
