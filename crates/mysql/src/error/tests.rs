//! Errors as a real server provokes them, and what becomes of a request that met one.

use mysql_async::Conn;
use tenure_core::{Client, Environment, StoreUrl};
use tenure_testkit::servers::mariadb::{MariaDb, MariaDbOptions};

use super::*;
use crate::link::read_all;

fn settings(url: &str) -> Settings {
    Settings::from_url(&url.parse::<StoreUrl>().unwrap()).unwrap()
}

async fn fails(url: &str) -> Error {
    match crate::connect(&url.parse().unwrap()).await {
        Ok(_) => panic!("{url} was taken"),
        Err(error) => error,
    }
}

async fn client_at(url: &str) -> Client {
    let backend = crate::connect(&url.parse().unwrap()).await.unwrap();
    Client::with_environment(backend, Environment::real()).unwrap()
}

#[track_caller]
fn says(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    words.iter().for_each(|word| assert!(error.to_string().contains(word), "{error} says nothing of {word:?}"));
}

fn server(code: u16) -> DriverFailure {
    DriverFailure::Server(ServerError { code, message: "words".to_owned(), state: "HY000".to_owned() })
}

#[test]
fn what_became_of_it_and_whether_to_try_again() {
    for (codes, expected) in [
        (LOCKED, (Fate::Refused, true)),
        (TOO_MANY, (Fate::Refused, true)),
        (NOT_PRIMARY, (Fate::Refused, true)),
        (MISSING, (Fate::Refused, true)),
        (DENIED, (Fate::Refused, false)),
        (INTERRUPTED, (Fate::Unknown, true)),
        (FULL, (Fate::Unknown, false)),
        (&[1064, 1045, 1049], (Fate::Refused, false)),
    ] {
        for code in codes {
            assert_eq!((fate(&server(*code)), again(&server(*code))), expected, "{code}");
        }
    }
    let broken: DriverFailure = io::Error::from(io::ErrorKind::BrokenPipe).into();
    assert_eq!((fate(&broken), again(&broken), leaves_connection(&broken)), (Fate::Unknown, true, false));
    assert!(leaves_connection(&server(1213)) && !leaves_connection(&server(1317)) && !leaves_connection(&server(1290)));
    let full = explain(server(1114), &Settings::default(), "asking").error;
    says(&full, ErrorKind::Backend, &["cannot store", "asking", "disk"]);
}

#[tokio::test]
async fn a_login_that_is_refused_is_explained() {
    let locked = MariaDb::start(MariaDbOptions::new().password("hunter2"));
    crate::connect(&locked.url().parse().unwrap()).await.unwrap();
    let error = fails(&locked.url_as("root", "hunter3", "tenure")).await;
    says(&error, ErrorKind::Backend, &["refused user and password", "root", "connecting"]);
    assert!(!format!("{error} {error:?}").contains("hunter"), "{error}");
    let error = fails(&MariaDb::shared().url_as("root", "", "nowhere")).await;
    says(&error, ErrorKind::Backend, &["no such database", "CREATE DATABASE `nowhere`"]);
}

#[tokio::test]
async fn nobody_there_is_said() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = fails(&format!("mysql://root@127.0.0.1:{port}/tenure")).await;
    says(&error, ErrorKind::Unavailable, &["nobody listens", "host and port"]);
    let error = fails("mysql://root@no-such-host.invalid/tenure").await;
    says(&error, ErrorKind::Unavailable, &["looked up"]);
}

#[tokio::test]
async fn a_read_only_server_grants_nothing() {
    let replica = MariaDb::start(MariaDbOptions::new());
    let backend = crate::connect(&replica.url().parse().unwrap()).await.unwrap();
    replica.sql("CREATE USER app@127.0.0.1; GRANT ALL ON tenure.* TO app@127.0.0.1; SET GLOBAL read_only = 1");
    let error = fails(&replica.url_as("app", "", "tenure")).await;
    says(&error, ErrorKind::Unavailable, &["read-only", "SET GLOBAL read_only = 0"]);
    drop(backend);
}

#[tokio::test]
async fn a_server_without_a_free_connection_says_so() {
    let small = MariaDb::start(MariaDbOptions::new().max_connections(10));
    let settings = settings(&small.url());
    let mut taken = Vec::new();
    let failure = loop {
        match Conn::new(settings.options().unwrap()).await {
            Ok(conn) => taken.push(conn),
            Err(failure) => break failure,
        }
    };
    let failure = explain_connect(failure, &settings);
    says(&failure.error, ErrorKind::Unavailable, &["no connection left", "max_connections"]);
    assert!(failure.again && failure.fate == Fate::Refused);
}

#[tokio::test]
async fn what_to_do_about_missing_rights_is_said_and_those_of_the_schema_are_enough() {
    let server = MariaDb::start(MariaDbOptions::new());
    server.sql("CREATE USER app@127.0.0.1; GRANT SELECT ON tenure.* TO app@127.0.0.1");
    let url = server.url_as("app", "", "tenure");
    let error = fails(&url).await;
    says(&error, ErrorKind::Backend, &["tenure migrate", "tenure schema", "\"app\""]);

    // May make tables, but no procedures.
    server.sql("GRANT CREATE, INSERT, UPDATE ON tenure.* TO app@127.0.0.1");
    let error = fails(&url).await;
    says(&error, ErrorKind::Backend, &["tenure migrate", "tenure schema"]);

    crate::migrate(&server.url().parse().unwrap()).await.unwrap();
    server.sql("REVOKE ALL, GRANT OPTION FROM app@127.0.0.1");
    let error = fails(&url).await;
    says(&error, ErrorKind::Backend, &["may not use the database"]);
    for grant in schema::grants(&settings(&url)).split("; ") {
        server.sql(&grant.replace("TO APP", "TO app@127.0.0.1"));
    }
    let client = client_at(&url).await;
    let held = client.rw_lock("x").unwrap().write().await.unwrap();
    assert_eq!(client.ask("x", "please").await.unwrap(), 1);
    assert!(client.mutex("y").unwrap().try_lock().await.unwrap().is_some());
    held.release().await.unwrap();
    client.cell("x").unwrap().set_if(0, b"1").await.unwrap();
    assert!(!client.examine().await.unwrap().is_empty());
    client.close().await.unwrap();

    // EXECUTE is a right of its own.
    server.sql("REVOKE EXECUTE ON PROCEDURE tenure.tenure_ask FROM app@127.0.0.1");
    let error = client_at(&url).await.mutex("x").unwrap().lock().await.expect_err("it may not");
    says(&error, ErrorKind::Backend, &["lacks a right", "tenure_ask"]);
}

#[tokio::test]
async fn tables_of_another_version_are_refused() {
    let server = MariaDb::shared();
    let url = format!("{}?prefix=other_", server.url());
    crate::migrate(&url.parse().unwrap()).await.unwrap();
    server.sql("UPDATE other_setup SET version = 99 WHERE id = 1");
    says(&fails(&url).await, ErrorKind::Backend, &["version 99", "knows 1", "Update the program"]);
    server.sql("UPDATE other_setup SET version = 0 WHERE id = 1");
    crate::connect(&url.parse().unwrap()).await.unwrap();
    assert_eq!(server.sql("SELECT version FROM other_setup WHERE id = 1")[0][0], "1", "an older one is put right");
}

#[tokio::test]
async fn many_who_come_first_all_succeed() {
    let url: StoreUrl = format!("{}?prefix=together_", MariaDb::shared().url()).parse().unwrap();
    let mut set = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let url = url.clone();
        set.spawn(async move { crate::connect(&url).await.map(drop) });
    }
    set.join_all().await.into_iter().for_each(|made| made.unwrap());
}

#[tokio::test]
async fn a_failed_batch_leaves_nothing_of_it() {
    let url = format!("{}?prefix=batch_", MariaDb::shared().url());
    crate::connect(&url.parse().unwrap()).await.unwrap();
    let settings = settings(&url);
    let mut conn = Conn::new(settings.options().unwrap()).await.unwrap();
    let call = |name: &str, ttl: i64| {
        let id = crate::verbs::hex(&[name.as_bytes()[0]; 16]);
        format!("CALL batch_ask(0, '{name}', {id}, 0, 0, 0, 0, 1, {ttl}, 1, 0, '', '', 1, NULL, NULL)")
    };
    // The second would end beyond all numbers.
    let text = format!("START TRANSACTION; {}; {}; COMMIT", call("a", 1_000_000), call("b", i64::MAX));
    let failure = read_all(&mut conn, &text).await.expect_err("there is no such time");
    assert_eq!((code(&failure), leaves_connection(&failure)), (Some(1690), true), "{failure}");
    read_all(&mut conn, "COMMIT").await.unwrap();
    let left = MariaDb::shared().sql("SELECT (SELECT COUNT(*) FROM batch_name) + (SELECT COUNT(*) FROM batch_ticket)");
    assert_eq!(left[0][0], "0", "the first was undone with it, by the procedure itself");
}
