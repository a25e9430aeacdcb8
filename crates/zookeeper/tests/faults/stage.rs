//! What the faults happen to: an ensemble whose sessions last six seconds, clients of it, and proxies.

use std::net::SocketAddr;
use std::time::Duration;

use tenure_core::{Client, Environment};
use tenure_testkit::eventually_async;
use tenure_testkit::servers::zookeeper::{Ensemble, ZooKeeperOptions};

/// The longest session that the servers grant, whatever is asked for.
pub(crate) const T: Duration = Duration::from_secs(6);

/// Three members, each of which can be cut off.
pub(crate) fn ensemble() -> Ensemble {
    let longest = T.as_millis().to_string();
    Ensemble::start_with(ZooKeeperOptions::new().tick(Duration::from_millis(100)).arg("maxSessionTimeout", &longest))
}

/// A client of the servers at this URL, with a keeper of its own.
pub(crate) async fn client(url: &str) -> Client {
    let backend = tenure_zookeeper::connect(&url.parse().expect("a good URL")).await.expect("the servers are there");
    Client::with_environment(backend, Environment::real()).expect("a client can be made")
}

/// Several clients of all members.
pub(crate) async fn clients(ensemble: &Ensemble, many: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..many {
        clients.push(client(&ensemble.url()).await);
    }
    clients
}

/// The URL of one server.
pub(crate) fn only(address: SocketAddr) -> String {
    format!("zk://{address}")
}

/// Waits until so many wait for the name.
pub(crate) async fn line_is(client: &Client, name: &str, long: usize) {
    let what = format!("{long} wait for {name:?}");
    eventually_async(&what, async || client.view(name).await.is_ok_and(|view| view.line.len() == long)).await;
}

/// Closes the clients and waits until nobody holds the name and nobody waits for it.
pub(crate) async fn leaves_nothing(observer: &Client, name: &str, clients: Vec<Client>) {
    for client in clients {
        client.close().await.expect("it leaves");
    }
    let free = async || observer.view(name).await.is_ok_and(|view| view.is_free());
    eventually_async("nothing is left", free).await;
}
