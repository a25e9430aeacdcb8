//! A network with a long way: what is lost on it is made again in the time that it takes.

use std::time::Duration;

use tenure_core::{Client, Environment};
use tenure_testkit::proxy::{Cut, Fault, Proxy, Toward, Which};
use tenure_testkit::servers::mariadb::MariaDb;
use tenure_testkit::{eventually_async, in_time};

async fn client(url: &str) -> Client {
    let backend = tenure_mysql::connect(&url.parse().unwrap()).await.expect("the server is there");
    Client::with_environment(backend, Environment::real()).unwrap()
}

/// The connection that looks after waiters is lost, and making another takes longer than a look may: it is made all the same, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_connection_starves_no_waiter_on_a_slow_network() {
    let server = MariaDb::shared();
    let proxy = Proxy::start(server.address());
    let prefix = format!("slow{}_", std::process::id());
    let url = |port: u16| format!("{}?prefix={prefix}", server.url().replace(&server.port().to_string(), &port.to_string()));
    let (near, far) = (client(&url(server.port())).await, client(&url(proxy.port())).await);
    let held = near.mutex("x").unwrap().ttl(Duration::from_secs(600)).unwrap().lock().await.unwrap();
    let mutex = far.mutex("x").unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    let is_looked_after = Which::sent_before(&format!("{prefix}touch"));
    eventually_async("it waits", async || near.view("x").await.unwrap().line.len() == 1).await;
    proxy.set(Which::All, Fault::Delay(Toward::Both, Duration::from_millis(150)));
    let made = proxy.counters().connections;
    eventually_async("a look is cut off", async || proxy.cut(is_looked_after.clone(), Cut::Reset) > 0).await;
    held.release().await.unwrap();
    let got = in_time("the waiter has an answer", waiting).await.unwrap().expect("it is let in, however long the way is");
    // That connection, and one for its renewals.
    assert!(proxy.counters().connections - made <= 2, "{made} and then {:?}", proxy.counters());
    got.release().await.unwrap();
}
