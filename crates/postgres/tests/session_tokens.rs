//! What a session must not believe: a sequence that was forgotten, and a pooler that deals in turn.

use tenure_core::{Client, Environment, ErrorKind};
use tenure_testkit::eventually_async;
use tenure_testkit::servers::postgres::{BouncerOptions, PgBouncer, PoolMode, Postgres, PostgresOptions};

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
        let mut highest = 0;
        for _ in 0..300 {
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
    }
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
