//! What a claim that waits for a session's lock must not be in the way of, and what a server that was started anew forgets.

use std::time::Duration;

use tenure_core::{Client, Environment};
use tenure_testkit::servers::mariadb::{MariaDb, MariaDbOptions};
use tenure_testkit::{eventually, eventually_async, in_time};

async fn client(server: &MariaDb) -> Client {
    let url = format!("{}?liveness=session", server.url()).parse().unwrap();
    let backend = tenure_mysql::connect(&url).await.expect("the server is there");
    Client::with_environment(backend, Environment::real()).unwrap()
}

/// A backup begins so, and while it waits for somebody nobody can write anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_does_not_hold_up_a_flush() {
    let server = MariaDb::start(MariaDbOptions::new());
    let (one, other) = (client(&server).await, client(&server).await);
    let held = one.mutex("x").unwrap().lock().await.unwrap();
    let waiting = tokio::spawn(async move { other.mutex("x").unwrap().lock().await });
    let waits = || server.sql("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'")[0][0] == "1";
    eventually("it waits", waits).await;
    let mut backup = server.session().unwrap();
    backup.sql("SET lock_wait_timeout = 60").unwrap();
    backup.sql("FLUSH TABLES WITH READ LOCK").expect("nobody is in the way");
    backup.sql("UNLOCK TABLES").unwrap();
    let before = held.token();
    held.release().await.unwrap();
    let next = in_time("it is next", waiting).await.unwrap().unwrap();
    assert!(next.token() > before);
}

/// A server that was started anew has tokens that go on, also for a client that was there before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_a_restart() {
    let server = MariaDb::start(MariaDbOptions::new().set("innodb_flush_log_at_trx_commit", "0"));
    let client = client(&server).await;
    let mut highest = 0;
    for _ in 0..1_500 {
        let held = client.mutex("x").unwrap().lock().await.unwrap();
        highest = held.token().get();
        held.release().await.unwrap();
    }
    server.kill();
    server.restart();
    let mutex = client.mutex("x").unwrap();
    eventually_async("it can be had again", async || match mutex.try_lock().await {
        Ok(Some(held)) => {
            assert!(held.token().get() > highest, "{} after {highest}", held.token());
            true
        }
        _ => false,
    })
    .await;
    tokio::time::timeout(Duration::from_secs(30), client.close()).await.unwrap().unwrap();
}

/// A client that is closed takes leave of the server, whose log would else complain of every program that ran.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_is_closed_says_goodbye() {
    let server = MariaDb::start(MariaDbOptions::new());
    let mut looks = server.session().unwrap(); // one: the others of the test leave without a word themselves
    let are_left = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND <> 'Daemon' AND ID <> CONNECTION_ID()";
    eventually("nobody else is there", || looks.sql(are_left).unwrap()[0][0] == "0").await;
    let aborted = "SHOW GLOBAL STATUS LIKE 'Aborted_clients'";
    let before = looks.sql(aborted).unwrap();
    let client = client(&server).await;
    client.mutex("x").unwrap().lock().await.unwrap().release().await.unwrap();
    client.close().await.unwrap();
    eventually("its connections are gone", || looks.sql(are_left).unwrap()[0][0] == "0").await;
    assert_eq!(looks.sql(aborted).unwrap(), before);
}
