//! Servers that are set up in ways under which everything goes another way: a binary log of statements, which takes no
//! `READ COMMITTED`; and lock timeouts that undo the whole transaction.

use tenure_core::{Client, Environment};
use tenure_testkit::servers::mariadb::{MariaDb, MariaDbOptions};
use tenure_testkit::tasks_in_turn;

async fn client(server: &MariaDb) -> Client {
    let url = format!("{}?answer_limit=20s", server.url());
    let backend = tenure_mysql::connect(&url.parse().unwrap()).await.expect("the server is there");
    Client::with_environment(backend, Environment::real()).unwrap()
}

async fn excludes(options: MariaDbOptions) {
    let server = MariaDb::start(options);
    tasks_in_turn(client(&server).await, client(&server).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binary_log_of_statements() {
    excludes(MariaDbOptions::new().binlog().set("binlog_format", "STATEMENT")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timeouts_that_undo_all() {
    excludes(MariaDbOptions::new().set("innodb_rollback_on_timeout", "ON")).await;
}
