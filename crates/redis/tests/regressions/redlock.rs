//! Redlock: a node that may have forgotten has no vote, and one that cannot count as another node is refused.

use std::time::Duration;

use tenure_core::{Client, ErrorKind, Guard, Instant};
use tenure_testkit::servers::redis::{Redis, independent, url_of};
use tenure_testkit::{eventually, eventually_async, in_time};

use crate::stage::client;

/// How long a node is dark.
const DARK: Duration = Duration::from_secs(3);
/// A busy machine may take longer over an answer than a network would; and who is dead takes as long each time.
const PATIENT: &str = "node_limit=500ms";

/// A client of these nodes, with parameters.
async fn redlock(nodes: &[Redis], parameters: &str) -> Client {
    client(&format!("{}?{PATIENT}&{parameters}", url_of("redlock", nodes))).await
}

/// Tries until a majority votes for it; whatever is said before that must be that too few do.
async fn granted(client: &Client) -> (Guard, Instant) {
    let mutex = client.mutex("x").unwrap().ttl(DARK).unwrap();
    let trying = async {
        loop {
            match mutex.try_lock().await {
                Ok(Some(guard)) => return (guard, Instant::now()),
                Ok(None) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    in_time("a majority votes", trying).await
}

/// Lets go. A machine that stands still may take longer over it than a node is waited for, or than so short a ttl lasts.
async fn let_go(guard: Guard) {
    if let Err(error) = in_time("an answer", guard.release()).await {
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Lost), "{error}");
    }
}

/// Kills it and starts it again.
fn reborn(node: &Redis) {
    node.kill();
    node.restart();
}

/// Waits until a second is nearly over, by the clock of a node: a server that starts now soon calls a moment a second.
async fn second_is_nearly_over(node: &Redis) {
    let ends = async || {
        let micros: u32 = node.command(&["TIME"]).texts()[1].parse().unwrap();
        (700_000..900_000).contains(&micros)
    };
    eventually_async("the end of a second", ends).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_that_restarted_has_no_vote_for_the_largest_ttl() {
    let nodes = independent(3);
    let client = redlock(&nodes, "largest_ttl=3s").await;
    let_go(granted(&client).await.0).await; // they have just started themselves
    // One of them is missed by nobody.
    reborn(&nodes[0]);
    let_go(granted(&client).await.0).await;

    let restarted = Instant::now();
    reborn(&nodes[1]);
    reborn(&nodes[2]);
    let mutex = client.mutex("x").unwrap().ttl(DARK).unwrap();
    match in_time("an answer", mutex.try_lock()).await {
        Err(refused) => assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}"),
        // They may be slow to start, and only what was answered before they vote again proves anything.
        Ok(_) => assert!(Instant::now().since(restarted) >= DARK, "they voted at once"),
    }
    let (guard, at) = granted(&client).await;
    assert!(at.since(restarted) >= DARK, "they voted after {:?}", at.since(restarted));
    let_go(guard).await;
    client.close().await.unwrap();
}

/// Redis counts seconds as they begin: a server that started at the end of one has been up for a second a moment later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_that_has_begun_is_not_over() {
    let nodes = independent(3);
    nodes[2].kill(); // so that both others must vote
    second_is_nearly_over(&nodes[0]).await;
    let restarted = Instant::now();
    reborn(&nodes[1]);
    eventually("it calls itself a second old", || uptime(&nodes[1]) >= 1).await;
    let client = redlock(&nodes, "largest_ttl=3s").await;
    let (guard, at) = granted(&client).await;
    assert!(at.since(restarted) >= DARK, "it voted after {:?}", at.since(restarted));
    let_go(guard).await;
    client.close().await.unwrap();
}

fn uptime(node: &Redis) -> u32 {
    node.info("server")["uptime_in_seconds"].parse().unwrap()
}

/// Longer than the test, so that whoever votes does so because it forgets nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_forget_nothing_vote_at_once() {
    let nodes = independent(3);
    let client = redlock(&nodes, "largest_ttl=10m&durable=yes").await;
    let_go(granted(&client).await.0).await;
    reborn(&nodes[0]);
    reborn(&nodes[1]);
    let_go(granted(&client).await.0).await;
    client.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_down_at_connecting_joins_later() {
    let nodes = independent(3);
    nodes[2].kill();
    let client = redlock(&nodes, "durable=yes").await;
    let_go(granted(&client).await.0).await;
    nodes[2].restart();
    nodes[0].kill();
    let (guard, _) = granted(&client).await; // which takes its vote
    assert!(nodes[2].command(&["EXISTS", "tenure:{0}:lock:x"]).int() == 1);
    let_go(guard).await;
    client.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_make_no_majority_are_refused() {
    let nodes = independent(4);
    let connect = async |url: String| tenure_redis::connect(&url.parse()?).await.map(drop);
    for few in [1, 2, 4] {
        let refused = connect(url_of("redlock", &nodes[..few])).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadUrl, "{refused}");
        assert!(refused.to_string().contains("odd number"), "{refused}");
    }
    // One server by two names, in whatever place.
    let [one, other] = [&nodes[0], &nodes[1]].map(Redis::port);
    for hosts in [
        format!("127.0.0.1:{one},localhost:{one},127.0.0.1:{other}"),
        format!("localhost:{one},127.0.0.1:{other},127.0.0.1:{one}"),
    ] {
        let refused = connect(format!("redlock://{hosts}?{PATIENT}")).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadOption, "{refused}");
        assert!(refused.to_string().contains("one server"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_that_outlasts_the_darkness_is_refused() {
    let nodes = independent(3);
    let client = redlock(&nodes, "largest_ttl=3s").await;
    let_go(granted(&client).await.0).await;
    let long = client.mutex("x").unwrap().ttl(DARK + Duration::from_millis(1)).unwrap();
    for refused in [long.try_lock().await.map(drop), long.lock().await.map(drop)] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::BadOption, "{refused}");
        assert!(refused.to_string().contains("largest_ttl"), "{refused}");
    }
    let delayed = client.mutex("x").unwrap().ttl(DARK).unwrap().lock_delay(Duration::from_millis(1)).unwrap();
    assert_eq!(delayed.lock().await.unwrap_err().kind(), ErrorKind::BadOption);
    client.close().await.unwrap();
}
