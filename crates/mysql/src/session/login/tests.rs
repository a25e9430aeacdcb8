//! Logging in to real servers; and, as no Debian package has a MySQL 8, to the other side of its exchange as its documentation
//! has it, with OpenSSL for the key.

use std::process::Command;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tenure_core::{ErrorKind, StoreUrl};
use tenure_testkit::servers::ClientCertificate;
use tenure_testkit::servers::mariadb::{MariaDb, MariaDbOptions};
use tokio::net::TcpListener;

use super::*;
use crate::session::wire::Wire;
use crate::verbs::text;

fn settings(url: &str) -> Arc<Settings> {
    Arc::new(Settings::from_url(&url.parse::<StoreUrl>().unwrap()).unwrap())
}

/// What the session finds out about itself by this statement.
async fn open(url: &str, statement: &str) -> tenure_core::Result<String> {
    let wire = Wire::connect(&settings(url)).await.map_err(|failure| failure.error)?;
    let sets = wire.send("testing", statement.to_owned()).await.map_err(|failure| failure.error)?;
    Ok(text(&sets[0][0], 0))
}

#[track_caller]
fn says(outcome: tenure_core::Result<String>, kind: ErrorKind, words: &[&str]) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    words.iter().for_each(|word| assert!(error.to_string().contains(word), "{error} says nothing of {word:?}"));
}

const USER: &str = "SELECT CURRENT_USER()";
const CIPHER: &str = "SELECT VARIABLE_VALUE FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME = 'Ssl_cipher'";

#[tokio::test]
async fn by_tls() {
    let server = MariaDb::start(MariaDbOptions::new().tls(ClientCertificate::Demanded));
    let papers = server.certificates();
    let url = format!("{}?tls=yes&ca={}", server.url(), papers.ca.display());
    let with_papers = format!("{url}&cert={}&key={}", papers.client.display(), papers.client_key.display());
    assert_ne!(open(&with_papers, CIPHER).await.unwrap(), "", "it is encrypted");
    says(open(&url, CIPHER).await, ErrorKind::Backend, &["refused user and password"]);
    says(
        open(&format!("{with_papers}&server_name=db.internal"), CIPHER).await,
        ErrorKind::Backend,
        &["TLS", "server_name="],
    );
    let plain = MariaDb::shared();
    let url = format!("{}?tls=yes&ca={}", plain.url(), papers.ca.display());
    says(open(&url, CIPHER).await, ErrorKind::Backend, &["no TLS", "tls=no"]);
    assert_eq!(open(&plain.url(), CIPHER).await.unwrap(), "");
}

/// Both ways to a server that an account can name: by the driver, and by a session's own.
#[tokio::test]
async fn by_password() {
    let server = MariaDb::start(MariaDbOptions::new());
    server.sql("INSTALL SONAME 'auth_ed25519'");
    for (user, how) in [("old", "BY 'hunter2'"), ("new", "VIA ed25519 USING PASSWORD('hunter2')")] {
        server.sql(&format!("CREATE USER {user}@127.0.0.1 IDENTIFIED {how}; GRANT ALL ON tenure.* TO {user}@127.0.0.1"));
        let url = server.url_as(user, "hunter2", "tenure");
        assert_eq!(open(&url, USER).await.unwrap(), format!("{user}@127.0.0.1"));
        crate::connect(&url.parse().unwrap()).await.unwrap();
        let wrong = server.url_as(user, "hunter3", "tenure");
        says(open(&wrong, USER).await, ErrorKind::Backend, &["refused user and password", user]);
    }
    server.sql(
        "INSTALL SONAME 'auth_pam'; CREATE USER odd@127.0.0.1 IDENTIFIED VIA pam; GRANT ALL ON tenure.* TO odd@127.0.0.1",
    );
    says(open(&server.url_as("odd", "hunter2", "tenure"), USER).await, ErrorKind::Backend, &["does not know", "odd"]);
    says(open(&server.url_as("old", "hunter2", "nowhere"), USER).await, ErrorKind::Backend, &["may not use the database"]);
}

/// What a MySQL 8 asks of whoever comes, until it is content. `knows` us: then what the password was hashed to is enough.
async fn mysql_8(listener: TcpListener, password: &str, knows: bool) {
    let nonce: Vec<u8> = (1..=20).collect();
    let spoken = SPOKEN.bits().to_le_bytes();
    let mut packets = Packets::new(listener.accept().await.unwrap().0);
    let greeting = [&b"\x0a8.0.36\0\x07\0\0\0"[..], &nonce[..8], &[0], &spoken[..2], &[45, 2, 0], &spoken[2..], &[21]];
    let greeting = [&greeting.concat(), &[0; 10][..], &nonce[8..], b"\0caching_sha2_password\0"].concat();
    packets.send(&greeting).await.unwrap();

    let hash = |text: &[u8]| -> [u8; 32] { Sha256::digest(text).into() };
    let once = hash(password.as_bytes());
    let mut proof = hash(&[&hash(&once)[..], &nonce].concat());
    proof.iter_mut().zip(once).for_each(|(byte, with)| *byte ^= with);
    let who = packets.next().await.unwrap();
    for part in [&b"app\0"[..], &proof, b"tenure\0", b"caching_sha2_password\0", b"program_name"] {
        assert!(who.windows(part.len()).any(|found| found == part), "{part:?} is not in {who:?}");
    }
    if knows {
        packets.send(&[1, 3]).await.unwrap();
    } else {
        packets.send(&[1, 4]).await.unwrap();
        assert_eq!(packets.next().await.unwrap(), [2], "it wants the key");
        let dir = tempfile::tempdir().unwrap();
        let openssl = |args: &[&str]| {
            let output = Command::new("openssl").current_dir(&dir).args(args).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            output.stdout
        };
        openssl(&["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", "key"]);
        let key = openssl(&["pkey", "-in", "key", "-pubout"]);
        packets.send(&[&[1], &key[..]].concat()).await.unwrap();
        std::fs::write(dir.path().join("secret"), packets.next().await.unwrap()).unwrap();
        let mut said =
            openssl(&["pkeyutl", "-decrypt", "-inkey", "key", "-in", "secret", "-pkeyopt", "rsa_padding_mode:oaep"]);
        said.iter_mut().zip(nonce.iter().cycle()).for_each(|(byte, with)| *byte ^= with);
        assert_eq!(said, [password.as_bytes(), b"\0"].concat());
    }
    packets.send(&[0, 0, 0, 2, 0, 0, 0]).await.unwrap();
}

#[tokio::test]
async fn by_the_password_of_a_mysql_8() {
    for knows in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("mysql://app:a%20rather%20long%20secret@{}/tenure", listener.local_addr().unwrap());
        let settings = settings(&url);
        let (opened, ()) = tokio::join!(Wire::connect(&settings), mysql_8(listener, "a rather long secret", knows));
        assert!(opened.is_ok(), "{:?}", opened.err().map(|failure| failure.error));
    }
}
