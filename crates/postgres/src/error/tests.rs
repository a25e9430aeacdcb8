//! Errors as a real server provokes them, in the words of whoever must act.

use tenure_core::{Backend, Result, StoreUrl};
use tenure_testkit::servers::ClientCertificate;
use tenure_testkit::servers::postgres::{Postgres, PostgresOptions};

use super::*;

async fn open(url: &str) -> Result<std::sync::Arc<dyn Backend>> {
    crate::connect(&url.parse::<StoreUrl>()?).await
}

async fn fails(url: &str) -> Error {
    open(url).await.map(drop).expect_err(url)
}

#[track_caller]
fn says(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{error} says nothing of {word:?}");
    }
}

/// Asks for a lock with a client of its own.
async fn locks(url: &str) -> Result<()> {
    let client = tenure_core::Client::with_environment(open(url).await?, tenure_core::Environment::real())?;
    let held = client.mutex("x")?.lock().await?;
    held.release().await
}

#[tokio::test]
async fn who_is_not_there() {
    let postgres = Postgres::start(PostgresOptions::new());
    postgres.stop();
    let error = fails(&postgres.url()).await;
    says(&error, ErrorKind::Unavailable, &["nobody listens", "running"]);
    says(&fails("postgres://no.such.host.invalid/x").await, ErrorKind::Unavailable, &["looked up"]);
}

#[tokio::test]
async fn who_is_not_let_in() {
    let postgres = Postgres::start(PostgresOptions::new().password("correct0"));
    locks(&postgres.url()).await.unwrap();
    let wrong = fails(&postgres.url_as("postgres", "hunter2", "postgres")).await;
    says(&wrong, ErrorKind::Backend, &["user and password", "postgres", "%2F"]);
    assert!(!format!("{wrong} {wrong:?}").contains("hunter2"));
    says(&fails(&postgres.url_as("postgres", "", "postgres")).await, ErrorKind::Backend, &["wants a password"]);
    let none = fails(&postgres.url_as("postgres", "correct0", "missing")).await;
    says(&none, ErrorKind::Backend, &["no such database", "CREATE DATABASE"]);
}

#[tokio::test]
async fn tls_that_does_not_fit() {
    let postgres = Postgres::start(PostgresOptions::new().tls(ClientCertificate::Ignored));
    let ca = postgres.certificates().ca.display().to_string();
    locks(&format!("{}?tls=yes&ca={ca}", postgres.url())).await.unwrap();
    says(&fails(&postgres.url()).await, ErrorKind::Backend, &["TLS", "tls=yes"]);
    says(&fails(&format!("{}?tls=yes", postgres.url())).await, ErrorKind::Backend, &["TLS", "ca=FILE"]);
    let other = format!("{}?tls=yes&ca={ca}&server_name=elsewhere.internal", postgres.url());
    says(&fails(&other).await, ErrorKind::Backend, &["TLS", "server_name"]);
    let plain = format!("{}?tls=yes", Postgres::shared().url());
    says(&fails(&plain).await, ErrorKind::Backend, &["speaks no TLS", "tls=no"]);
}

#[tokio::test]
async fn who_cannot_write() {
    let postgres = Postgres::start(PostgresOptions::new());
    locks(&postgres.url()).await.unwrap();
    let standby = postgres.replica();
    says(&fails(&standby.url()).await, ErrorKind::Unavailable, &["standby", "primary"]);
    // Of several the primary is found, wherever it stands.
    let both = format!("postgres://postgres@{},{}/postgres", standby.address(), postgres.address());
    locks(&both).await.unwrap();
    postgres.sql("CREATE ROLE reader LOGIN; ALTER ROLE reader SET default_transaction_read_only = on");
    let reader = fails(&postgres.url_as("reader", "", "postgres")).await;
    says(&reader, ErrorKind::Backend, &["only read", "default_transaction_read_only"]);
}

/// Whoever may make nothing is told what to run and what to grant, and with exactly that it works.
#[tokio::test]
async fn who_lacks_a_right() {
    let postgres = Postgres::start(PostgresOptions::new());
    postgres.sql("CREATE ROLE app LOGIN");
    let url = postgres.url_as("app", "", "postgres");
    let error = fails(&url).await;
    says(&error, ErrorKind::Backend, &["not there", "tenure migrate", "tenure schema", "GRANT USAGE", "schema=NAME"]);
    crate::migrate(&postgres.url().parse().unwrap()).await.unwrap();
    let error = fails(&url).await;
    says(&error, ErrorKind::Backend, &["lacks a right", "GRANT SELECT, INSERT, UPDATE, DELETE"]);
    for grant in Layout::new("public", "tenure_").unwrap().grants("app") {
        postgres.sql(&grant);
    }
    locks(&url).await.unwrap();
    postgres.sql("REVOKE EXECUTE ON FUNCTION tenure_ask_one FROM public");
    says(&locks(&url).await.unwrap_err(), ErrorKind::Backend, &["lacks a right", "tenure_ask_one"]);
    postgres.sql("GRANT EXECUTE ON FUNCTION tenure_ask_one TO app; REVOKE USAGE ON SCHEMA public FROM public, app");
    says(&fails(&url).await, ErrorKind::Backend, &["right", "GRANT USAGE"]);
    // A schema of its own needs nothing but the right to make it.
    postgres.sql("GRANT CREATE ON DATABASE postgres TO app");
    locks(&format!("{url}?schema=app_locks")).await.unwrap();
}

#[tokio::test]
async fn no_connection_is_left() {
    let postgres = Postgres::start(PostgresOptions::new());
    postgres.sql("CREATE ROLE app LOGIN CONNECTION LIMIT 0");
    says(&fails(&postgres.url_as("app", "", "postgres")).await, ErrorKind::Unavailable, &["no connection left", "pooler"]);
}

/// A server that cannot write says so; what it could not do is not half done.
#[tokio::test]
async fn a_full_disk() {
    let postgres = Postgres::start(PostgresOptions::new());
    let client =
        tenure_core::Client::with_environment(open(&postgres.url()).await.unwrap(), tenure_core::Environment::real())
            .unwrap();
    client.mutex("before").unwrap().lock().await.unwrap().release().await.unwrap();
    postgres.sql(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$; \
         CREATE TRIGGER full_disk BEFORE INSERT ON tenure_name FOR EACH ROW EXECUTE FUNCTION full_disk()",
    );
    let error = client.mutex("x").unwrap().lock().await.map(drop).unwrap_err();
    says(&error, ErrorKind::Backend, &["disk is full", "x", "No space left"]);
    postgres.sql("DROP TRIGGER full_disk ON tenure_name");
    client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
}

/// Tables that are of another version, or used otherwise, are refused with an explanation.
#[tokio::test]
async fn tables_that_are_not_ours() {
    let postgres = Postgres::start(PostgresOptions::new());
    locks(&postgres.url()).await.unwrap();
    postgres.sql("UPDATE tenure_setup SET liveness = 'session'");
    says(&fails(&postgres.url()).await, ErrorKind::Mismatch, &["liveness=session", "prefix="]);
    postgres.sql("UPDATE tenure_setup SET liveness = NULL, version = 999");
    says(&fails(&postgres.url()).await, ErrorKind::Backend, &["999", "newer"]);
    let error = crate::migrate(&postgres.url().parse().unwrap()).await.unwrap_err();
    says(&error, ErrorKind::Backend, &["999", "newer"]);
    postgres.sql("UPDATE tenure_setup SET version = 0");
    locks(&postgres.url()).await.unwrap();
    let client =
        tenure_core::Client::with_environment(open(&postgres.url()).await.unwrap(), tenure_core::Environment::real())
            .unwrap();
    postgres.sql("DROP TABLE tenure_ticket CASCADE");
    let error = client.mutex("x").unwrap().lock().await.map(drop).unwrap_err();
    says(&error, ErrorKind::Backend, &["not as they should be", "tenure migrate"]);
    postgres.sql("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0");
    says(&fails(&postgres.url_as("postgres", "", "latin")).await, ErrorKind::Backend, &["LATIN1", "UTF8"]);
}

/// What the server undid is tried again; what it may have done is not taken for undone.
#[tokio::test]
async fn whether_it_happened() {
    let postgres = Postgres::shared();
    let settings = crate::Settings::from_url(&postgres.url().parse().unwrap()).unwrap();
    for (code, fate, again) in [
        ("40001", Fate::Refused, true),
        ("40P01", Fate::Refused, true),
        ("55P03", Fate::Refused, true),
        ("57014", Fate::Refused, true),
        ("25006", Fate::Refused, true),
        ("53100", Fate::Refused, false),
        ("42501", Fate::Refused, false),
        ("57P01", Fate::Unknown, true),
        ("08006", Fate::Unknown, true),
    ] {
        let (client, connection) = settings.driver(&settings.servers[0]).connect(tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let raise = format!("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{code}'; END $$");
        let error = client.batch_execute(&raise).await.unwrap_err();
        let (failure, _) = explain(error, None, &settings, "trying");
        assert_eq!((failure.fate, failure.again), (fate, again), "{code}");
    }
    // A session that is ended while its request is under way.
    let (client, connection) = settings.driver(&settings.servers[0]).connect(tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let error = client.batch_execute("SELECT pg_terminate_backend(pg_backend_pid())").await.unwrap_err();
    let (failure, after) = explain(error, None, &settings, "trying");
    assert_eq!((failure.fate, failure.again, after), (Fate::Unknown, true, After::Over));
}
