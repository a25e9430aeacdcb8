//! A store that may have forgotten says so, and every holder finds out at once instead of at its next renewal.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::memory::Memory;
use tenure_core::{Client, ErrorKind, Event};
use tenure_testkit::{Faulty, eventually, in_time};

const LONG: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_forgotten_hold_is_lost_long_before_its_time() {
    let store = Memory::new();
    let client = Client::new(store.backend()).unwrap();
    for keep in [true, false] {
        let held = client.mutex("x").unwrap().ttl(LONG).unwrap().keep(keep).lock().await.unwrap();
        let mut events = held.events();
        store.forget();
        in_time("it is lost", held.lost()).await;
        assert!(matches!(events.next().await, Some(Event::Jeopardy { .. })));
        assert!(matches!(events.next().await, Some(Event::Lost(_))));
        assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
    }
}

/// The store granted it, forgot, and only then the answer arrived.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_on_its_way_is_in_doubt_from_its_start() {
    let store = Memory::new();
    let (backend, faults) = Faulty::new(Arc::new(store.backend()));
    let client = Client::new(backend).unwrap();
    faults.delay_next_grant(Duration::from_millis(100));
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
    let locking = tokio::spawn(async move { mutex.lock().await });
    eventually("the store granted it", || store.residue() == 1).await;
    store.forget();
    let held = in_time("the answer arrives", locking).await.unwrap().unwrap();
    in_time("it is lost", held.lost()).await;
}
