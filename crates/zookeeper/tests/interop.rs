//! The real Curator and this store exclude each other, both ways, on the same path.

#[path = "common/raw.rs"]
mod raw;

use std::time::Duration;

use raw::Raw;
use tenure_core::{Client, Environment, ErrorKind};
use tenure_testkit::servers::zookeeper::{Curator, Ensemble, Recipe};
use tenure_testkit::{eventually, eventually_async, in_time};

/// How long it is watched that somebody does *not* get in.
const NOT_YET: Duration = Duration::from_millis(300);
const SESSION: Duration = Duration::from_secs(10);

async fn client() -> Client {
    // A busy machine may take longer over an answer than a network would.
    let url = format!("{}?layout=curator&connect_limit=20s&answer_limit=20s", Ensemble::shared().url());
    let backend = tenure_zookeeper::connect(&url.parse().unwrap()).await.unwrap();
    Client::with_environment(backend, Environment::real()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mutex_is_curators_mutex() {
    let curator = Curator::start(&Ensemble::shared().hosts(), SESSION);
    let client = client().await;
    let mutex = client.mutex("locks/orders").unwrap();
    // Curator holds: we are turned away, wait, and are let in by its release.
    curator.lock(Recipe::Mutex, "/locks/orders");
    assert!(mutex.try_lock().await.unwrap().is_none());
    let waiting = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    eventually_async("it is in line", async || client.view("locks/orders").await.unwrap().line.len() == 1).await;
    curator.release(Recipe::Mutex, "/locks/orders");
    let held = in_time("we are let in", waiting).await.unwrap().unwrap();
    // We hold: Curator waits behind us, and is let in by our release.
    curator.begin(Recipe::Mutex, "/locks/orders", Duration::from_secs(60));
    assert_eq!(curator.has_locked(NOT_YET), None, "Curator must wait");
    held.check().unwrap();
    held.release().await.unwrap();
    assert_eq!(curator.has_locked(Duration::from_secs(60)), Some(true));
    assert!(mutex.try_lock().await.unwrap().is_none());
    // And a Curator that dies costs its session.
    let next = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    curator.kill();
    in_time("we are let in when its session ends", next).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_rw_lock_is_curators_rw_lock() {
    let curator = Curator::start(&Ensemble::shared().hosts(), SESSION);
    let client = client().await;
    let lock = client.rw_lock("locks/stock").unwrap();
    curator.lock(Recipe::Read, "/locks/stock");
    let reads = lock.try_read().await.unwrap().expect("readers share");
    assert!(lock.try_write().await.unwrap().is_none());
    reads.release().await.unwrap();
    curator.release(Recipe::Read, "/locks/stock");
    let writes = in_time("the writer gets in", lock.write()).await.unwrap();
    curator.begin(Recipe::Read, "/locks/stock", Duration::from_secs(60));
    assert_eq!(curator.has_locked(NOT_YET), None, "Curator must wait");
    writes.release().await.unwrap();
    assert_eq!(curator.has_locked(Duration::from_secs(60)), Some(true));
    curator.release(Recipe::Read, "/locks/stock");
    curator.lock(Recipe::Write, "/locks/stock");
    assert!(lock.try_read().await.unwrap().is_none());
    curator.release(Recipe::Write, "/locks/stock");
    assert!(lock.try_read().await.unwrap().is_some());
}

/// A node that somebody made to stay, with something in it, may be locked and stays; a container that a lock has made goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_made_to_stay_stays() {
    let member = Ensemble::shared().member(0).address();
    Raw::connect(member).create("/made-to-stay", b"theirs").unwrap();
    let client = client().await;
    for name in ["made-to-stay", "made-to-go"] {
        client.mutex(name).unwrap().lock().await.unwrap().release().await.unwrap();
    }
    client.close().await.unwrap(); // tidies up, and does not wait until the names are old enough
    let says = |path: &str| {
        let mut raw = Raw::connect(member);
        raw.sync(path);
        raw.data(path)
    };
    assert_eq!(says("/made-to-stay"), Some(b"theirs".to_vec()));
    eventually("the container goes", || says("/made-to-go").is_none()).await;
}

/// What Curator's layout has no room for is refused when it is made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_curator_does_not_have_is_refused() {
    let client = client().await;
    assert_eq!(client.fair_mutex("x").unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(client.semaphore("x", 3).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(client.cell("x").unwrap_err().kind(), ErrorKind::Unsupported);
    let refused = client.mutex("no//path").unwrap().lock().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BadName, "{refused}");
}
