//! What the faults happen to: an ensemble that is hurt, one that nobody hurts, clients of them, and who can say that no session ended.

use std::net::SocketAddr;
use std::time::Duration;

use tenure_core::{Client, Environment, ErrorKind, Guard, Result};
use tenure_testkit::faults::Record;
use tenure_testkit::history::{expect_sound, expect_sound_but_order};
use tenure_testkit::servers::zookeeper::{Ensemble, ZooKeeperOptions};
use tenure_testkit::{eventually_async, in_time};

/// How long a session lasts that is to end, or may.
pub(crate) const T: Duration = Duration::from_secs(6);
/// How long one lasts that is not: longer than the slowest machine stands still.
pub(crate) const LONGER: Duration = Duration::from_secs(30);

/// Three members, each of which can be cut off. A leader is missed soon, on a busy machine also one that nobody hurts.
pub(crate) fn ensemble() -> Ensemble {
    let longest = LONGER.as_millis().to_string();
    Ensemble::start_with(ZooKeeperOptions::new().tick(Duration::from_millis(100)).arg("maxSessionTimeout", &longest))
}

/// Three members that nobody hurts: what happens, happens to their clients.
pub(crate) fn calm_ensemble() -> Ensemble {
    let longest = LONGER.as_millis().to_string();
    Ensemble::start_with(ZooKeeperOptions::new().tick(Duration::from_millis(100)).calm().arg("maxSessionTimeout", &longest))
}

/// A client of the servers at this URL, with a keeper of its own. It puts up with an election on a busy machine.
pub(crate) async fn client(url: &str) -> Client {
    client_with(&format!("{url}?answer_limit=20s")).await
}

/// The same, where the URL says how long an answer may take.
pub(crate) async fn client_with(url: &str) -> Client {
    let url = url.parse().expect("a good URL");
    let connecting = async {
        loop {
            match tenure_zookeeper::connect(&url).await {
                Ok(backend) => return backend,
                Err(error) => assert!(error.is_transient(), "{error}"), // while they elect somebody, nobody gets a session
            }
        }
    };
    let backend = in_time("the servers are there", connecting).await;
    Client::with_environment(backend, Environment::real()).expect("a client can be made")
}

/// A session of six seconds may end with a machine that stands still, or an election on top: then its hold is lost, as it should be.
pub(crate) fn lets_go(released: Result<()>) {
    if let Err(error) = released {
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
}

/// Several clients of all members.
pub(crate) async fn clients(ensemble: &Ensemble, many: usize) -> Vec<Client> {
    let mut clients = Vec::new();
    for _ in 0..many {
        clients.push(client(&ensemble.url()).await);
    }
    clients
}

/// A hold of each client, on the session that all its claims with a ttl of [`LONGER`] share: while it is held, that has not ended.
pub(crate) struct Witnesses(Vec<Guard>);

impl Witnesses {
    pub(crate) async fn of(clients: &[Client]) -> Self {
        let mut held = Vec::new();
        for (number, client) in clients.iter().enumerate() {
            let mutex = client.mutex(format!("witness {number}")).expect("a name").ttl(LONGER).expect("a ttl");
            held.push(in_time("nobody else wants it", mutex.lock()).await.expect("it is free"));
        }
        Witnesses(held)
    }

    /// All that is promised to a crowd of that ttl was kept. Whoever loses its session loses its place, and nothing is said about order
    /// then.
    #[track_caller]
    pub(crate) fn expect_sound(self, record: &Record) {
        if self.0.iter().all(|witness| witness.check().is_ok()) {
            expect_sound(&record.history());
        } else {
            eprintln!("a session has ended: nothing is said about order");
            expect_sound_but_order(&record.history());
        }
    }
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
