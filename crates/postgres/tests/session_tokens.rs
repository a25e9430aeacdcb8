//! What a session must not believe: a sequence that was forgotten, and a pooler that deals in turn.

use std::process::Command;

use tenure_core::{Client, Environment, ErrorKind};
use tenure_testkit::servers::postgres::{BouncerOptions, PgBouncer, PoolMode, Postgres, PostgresOptions};
use tenure_testkit::{eventually, eventually_async};

async fn client(url: &str) -> Client {
    let backend = tenure_postgres::connect(&url.parse().unwrap()).await.expect("the server is there");
    Client::with_environment(backend, Environment::real()).unwrap()
}

/// Tokens are not flushed. A client that was connected all the while is given none of those that the crash took back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_a_crash() {
    let server = Postgres::start(PostgresOptions::new().fsync());
    let client = client(&format!("{}?liveness=session", server.url())).await;
    for _ in 0..3 {
        let highest = draw_many(&client).await;
        server.kill();
        server.restart();
        goes_on_above(&client, highest).await;
    }
}

/// The same where the server outlives one of its processes: it does not start anew, and has forgotten all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_over_the_crash_of_one_process() {
    let server = Postgres::start(PostgresOptions::new().fsync().set("wal_writer_delay", "10s"));
    let client = client(&format!("{}?liveness=session", server.url())).await;
    let started = server.sql("SELECT pg_postmaster_start_time()");
    for _ in 0..3 {
        goes_on_above(&client, 0).await; // it is seeded
        eventually("that is on the disk, and what follows is not", || server.try_sql("CHECKPOINT").is_ok()).await;
        let highest = draw_many(&client).await;
        let victim = server.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'tenure' LIMIT 1");
        assert!(Command::new("kill").args(["-KILL", &victim[0][0]]).status().unwrap().success());
        goes_on_above(&client, highest).await;
    }
    let mut still = None;
    eventually("it answers", || {
        still = server.try_sql("SELECT pg_postmaster_start_time()").ok();
        still.is_some()
    })
    .await;
    assert_eq!(still, Some(started), "it was the same server all the while");
}

/// The same for somebody's own transaction that comes before any client has noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_transactions_rise_over_a_crash() {
    let server = Postgres::start(PostgresOptions::new().fsync().set("wal_writer_delay", "10s"));
    let url = format!("{}?liveness=session", server.url());
    for _ in 0..3 {
        let client = client(&url).await;
        goes_on_above(&client, 0).await; // it is seeded
        eventually("that is on the disk, and what follows is not", || server.try_sql("CHECKPOINT").is_ok()).await;
        let highest = draw_many(&client).await;
        drop(client); // its sessions are closed at once, and nothing of theirs is flushed
        server.kill();
        server.restart();
        let token: u64 = server.sql("SELECT tenure_in_transaction('x', 0)")[0][0].parse().unwrap();
        assert!(token > highest, "{token} after {highest}");
    }
}

/// The highest token of several hundred.
async fn draw_many(client: &Client) -> u64 {
    let mut highest = 0;
    for _ in 0..300 {
        let held = client.mutex("x").unwrap().lock().await.unwrap();
        highest = held.token().get();
        held.release().await.unwrap();
    }
    highest
}

/// Waits until it can be had again, with a token above this one.
async fn goes_on_above(client: &Client, highest: u64) {
    let mutex = client.mutex("x").unwrap();
    eventually_async("it can be had again", async || match mutex.try_lock().await {
        Ok(Some(held)) => {
            assert!(held.token().get() > highest, "{} after {highest}", held.token());
            true
        }
        _ => false,
    })
    .await;
}

/// A pooler that lends the session that was idle longest gives two who alternate the same ones every time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poolers_that_deal_in_turn() {
    let server = Postgres::start(PostgresOptions::new());
    let options = BouncerOptions::new(PoolMode::Transaction).set("server_round_robin", "1");
    let bouncer = PgBouncer::start(&server, options);
    let refused = tenure_postgres::connect(&format!("{}?liveness=session", bouncer.url()).parse().unwrap()).await;
    assert_eq!(refused.map(drop).unwrap_err().kind(), ErrorKind::Unsupported);
}
