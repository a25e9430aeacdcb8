//! Two nodes that both take writes. Row locks end at the node, so both may let somebody in; what decides is the commit, of
//! which the cluster lets one pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use tenure_core::{Client, Environment, Kind};
use tenure_testkit::servers::mariadb::Galera;
use tokio::task::JoinSet;

async fn client(url: &str) -> Client {
    let backend = tenure_mysql::connect(&url.parse().unwrap()).await.unwrap();
    Client::with_environment(backend, Environment::real()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_nodes_ask_and_one_is_let_in() {
    let galera = Galera::start();
    let clients = [client(&galera.nodes()[0].url()).await, client(&galera.nodes()[1].url()).await];
    let (inside, grants, last) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicU32::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let lock = clients[task % 2].mutex("x").unwrap();
        let (inside, grants, last) = (Arc::clone(&inside), Arc::clone(&grants), Arc::clone(&last));
        tasks.spawn(async move {
            for _ in 0..15 {
                // Contention between nodes may outlast the tries of one request: that is an error, and is asked again.
                let guard = loop {
                    match lock.lock().await {
                        Ok(guard) => break guard,
                        Err(error) => assert!(error.is_transient(), "{error}"),
                    }
                };
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                let token = guard.token().get();
                assert!(last.swap(token, Ordering::SeqCst) < token, "tokens rise, whichever node gave them");
                tokio::task::yield_now().await;
                guard.check().expect("nobody keeps it for long");
                inside.fetch_sub(1, Ordering::SeqCst);
                grants.fetch_add(1, Ordering::SeqCst);
                let _ = guard.release().await; // refused now and then; the keeper ends it then
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(grants.load(Ordering::SeqCst), 8 * 15);
    for client in &clients {
        assert!(client.abilities().kinds.contains(&Kind::Mutex));
        let findings = client.examine().await.unwrap();
        assert!(findings.iter().any(|finding| finding.what == "cluster" && finding.says.contains("Galera")), "{findings:?}");
    }
}
