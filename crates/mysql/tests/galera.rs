//! Two nodes that both take writes. Row locks end at the node, so both may let somebody in; what decides is the commit, of
//! which the cluster lets one pass.

use std::sync::{Arc, Mutex};

use tenure_core::{Client, Environment, Guard, Instant, Kind};
use tenure_testkit::servers::mariadb::Galera;
use tokio::task::JoinSet;

async fn client(url: &str) -> Client {
    let backend = tenure_mysql::connect(&url.parse().unwrap()).await.unwrap();
    Client::with_environment(backend, Environment::real()).unwrap()
}

/// What the lock protects.
#[derive(Default)]
struct Room {
    /// Who is inside: its token, and until when it may be.
    inside: Option<(u64, Instant)>,
    last: u64,
}

impl Room {
    /// Goes in, where nobody else may be; its token is the highest yet. False if that came too late: a machine that stood still for longer
    /// than the first window of whoever waited has lost it.
    fn enter(&mut self, guard: &Guard) -> bool {
        let (token, until) = (guard.token().get(), guard.valid_until());
        if guard.check().is_err() {
            assert!(until <= Instant::now(), "it was lost before its time");
            return false;
        }
        assert!(self.inside.is_none_or(|(_, until)| until <= Instant::now()), "two are inside");
        assert!(self.last < token, "tokens rise, whichever node gave them");
        (self.inside, self.last) = (Some((token, until)), token);
        true
    }

    fn leave(&mut self, guard: &Guard) {
        if self.inside.is_some_and(|(token, _)| token == guard.token().get()) {
            assert!(guard.check().is_ok() || guard.valid_until() <= Instant::now(), "it was lost before its time");
            self.inside = None;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_nodes_ask_and_one_is_let_in() {
    let galera = Galera::start();
    let clients = [client(&galera.nodes()[0].url()).await, client(&galera.nodes()[1].url()).await];
    let room = Arc::<Mutex<Room>>::default();
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let lock = clients[task % 2].mutex("x").unwrap();
        let room = Arc::clone(&room);
        tasks.spawn(async move {
            let mut grants = 0;
            while grants < 15 {
                // Contention between nodes may outlast the tries of one request: that is an error, and is asked again.
                let guard = loop {
                    match lock.lock().await {
                        Ok(guard) => break guard,
                        Err(error) => assert!(error.is_transient(), "{error}"),
                    }
                };
                let entered = room.lock().unwrap().enter(&guard);
                if entered {
                    tokio::task::yield_now().await;
                    room.lock().unwrap().leave(&guard);
                    grants += 1;
                }
                let _ = guard.release().await; // refused now and then; the keeper ends it then
            }
        });
    }
    tasks.join_all().await;
    for client in &clients {
        assert!(client.abilities().kinds.contains(&Kind::Mutex));
        let findings = client.examine().await.unwrap();
        assert!(findings.iter().any(|finding| finding.what == "cluster" && finding.says.contains("Galera")), "{findings:?}");
    }
}
