//! Several processes: what a killed holder costs the others.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Backend, Client, Environment, Instant, Result};
use tenure_testkit::servers::zookeeper::Ensemble;
use tenure_testkit::taker::{Taker, Wanted};
use tenure_testkit::{Harness, Shape, eventually_async, in_bound, in_time};

/// The store as a second process sees it: a URL.
struct Second;

impl Harness for Second {
    async fn start() -> Self {
        Second
    }

    async fn backend(&self) -> Arc<dyn Backend> {
        unreachable!("it is only opened by its URL")
    }

    async fn residue(&self) -> usize {
        0
    }

    async fn open(url: &str) -> Result<Arc<dyn Backend>> {
        tenure_zookeeper::connect(&url.parse()?).await
    }
}

/// Not a test: what the others start in a second process. Does nothing by itself.
#[test]
fn taker() {
    tenure_testkit::serve::<Second>();
}

/// Locks beneath this root. A busy machine may take longer over an answer than a network would.
fn url(root: &str) -> String {
    format!("{}?root={root}&connect_limit=20s&answer_limit=20s", Ensemble::shared().url())
}

async fn client(url: &str) -> Client {
    Client::with_environment(Second::open(url).await.unwrap(), Environment::real()).unwrap()
}

/// After `kill -9` of a holder the next one is in within the timeout, a tick, and a second for the servers to notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_holder_costs_its_sessions_timeout() {
    const TIMEOUT: Duration = Duration::from_secs(6);
    const TICK: Duration = Duration::from_millis(200);
    const NOTICED: Duration = Duration::from_secs(1);
    let url = url("/killed-holder");
    let client = client(&url).await;
    let next_after_a_kill = async || {
        let mut taker = Taker::start("processes::taker", &url).await;
        let (token, _) = taker.lock(1, &Wanted::new("x", Shape::Mutex).ttl(TIMEOUT)).await;
        let mutex = client.mutex("x").unwrap();
        let waiting = tokio::spawn(async move { (mutex.lock().await.unwrap(), Instant::now()) });
        // Or its session has ended already, with a machine that stood still.
        let waits = async || client.view("x").await.unwrap().line.len() == 1 || waiting.is_finished();
        eventually_async("the next one waits", waits).await;
        taker.kill();
        let killed = Instant::now();
        let (held, granted) = in_time("the next one gets in", waiting).await.unwrap();
        let took = granted.since(killed);
        eprintln!("after kill -9 of a holder with a timeout of {TIMEOUT:?} the next one got in after {took:?}");
        assert!(held.token().get() > token);
        held.release().await.unwrap();
        took
    };
    in_bound("the next one gets in", TIMEOUT + TICK + NOTICED, next_after_a_kill).await;
}
