//! Ends of holds that somebody else has ended, before their holder was told; and of holds that a twin has, too.

use tenure_core::{Client, Environment, ErrorKind};
use tenure_testkit::servers::etcd::Etcd;

use super::*;
use crate::scene::{LONG, client, holds, key, mutex, read};
use crate::table::Entry;

async fn client_with(layout: &str) -> Client {
    let url = format!("{}?prefix=ends-{}&layout={layout}", Etcd::shared().url(), std::process::id());
    Client::with_environment(crate::connect(&url.parse().unwrap()).await.unwrap(), Environment::real()).unwrap()
}

/// A broken hold is released with `Lost`, whether or not its holder was told before. Its lock delay goes on, and its minimum hold
/// does not replace that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_hold_opens_nothing() {
    for layout in ["concurrency", "tenure"] {
        for (min_hold, lock_delay) in [(0, 0), (0, 600), (1, 600)] {
            let case = format!("{layout}-{min_hold}-{lock_delay}");
            let (one, other) = (client_with(layout).await, client_with(layout).await);
            let seconds = Duration::from_secs;
            let lock = one.mutex(format!("broken-{case}")).unwrap().ttl(LONG).unwrap();
            let lock = lock.min_hold(seconds(min_hold)).unwrap().lock_delay(seconds(lock_delay)).unwrap();
            let held = lock.lock().await.unwrap();
            assert_eq!(other.break_holds(&format!("broken-{case}"), None).await.unwrap(), 1, "{case}");
            let released = held.release().await.map_err(|error| error.kind());
            let next = other.mutex(format!("broken-{case}")).unwrap().try_lock().await.unwrap();
            assert_eq!(next.is_none(), lock_delay > 0, "{case}: whether the name is closed");
            assert_eq!(released, Err(ErrorKind::Lost), "{case}");
            drop(next);
            other.break_holds(&format!("broken-{case}"), None).await.unwrap();
            for client in [one, other] {
                client.close().await.unwrap();
            }
        }
    }
}

/// The release of a broken hold does not let in the waiter behind it, if that is of the same client, while the name is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_hold_hands_nothing_over() {
    let (one, other) = (client(), client());
    let (held, waiting) = (Claim { lock_delay: LONG, ..mutex("broken") }, mutex("broken"));
    holds(&one, &held).await;
    let asking = tokio::spawn({
        let (one, waiting) = (Arc::clone(&one), waiting.clone());
        async move { one.acquire(&waiting, tenure_core::Wait::Forever).await }
    });
    crate::scene::waits(&one, &waiting).await;
    // As if nothing had been told yet.
    one.table().claims.get_mut(&held.id).expect("it is held").ending = true;
    assert_eq!(other.break_holds(&held.name, None).await.unwrap(), 1);
    assert!(!one.end(&held, Duration::ZERO).await.unwrap(), "it was broken");
    let view = other.view(&held.name).await.unwrap();
    assert!(view.holders.iter().all(|holder| holder.closing) && view.line.len() == 1, "{view:?}");
    assert!(!asking.is_finished(), "the name is closed");
    assert_eq!(other.break_holds(&held.name, None).await.unwrap(), 1);
    asking.await.unwrap().unwrap().expect("the name is open");
    one.end(&waiting, Duration::ZERO).await.unwrap();
}

/// A machine that was restored from a snapshot ends a hold of that time. Its twin has released that one and holds again, under the same
/// key: that is another hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_of_a_snapshot_ends_no_later_one() {
    let (one, twin) = (client(), client());
    let (old, new) = (mutex("snapshot"), mutex("snapshot"));
    holds(&one, &old).await;
    twin.table().be_twin_of(&one.table());
    let then = key(&one, &old).await;
    let remembered = {
        let table = one.table();
        let entry = &table.claims[&old.id];
        Entry {
            key: then.key.clone(),
            revision: then.create_revision,
            stage: entry.stage,
            on: entry.on.clone(),
            ..Entry::new(&old)
        }
    };
    twin.table().claims.insert(old.id, remembered);
    one.end(&old, Duration::ZERO).await.unwrap();
    holds(&one, &new).await;
    let now = key(&one, &new).await;
    assert_eq!(now.key, then.key);
    assert!(!twin.end(&old, Duration::ZERO).await.unwrap(), "it has ended");
    assert_eq!(read(&one, &now.key).await, Some(now));
    one.end(&new, Duration::ZERO).await.unwrap();
}

/// A renewal without an answer may have moved the hold to the lease of its ttl: its end finds it there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_that_was_moved_unheard_is_ended() {
    let one = client();
    for min_hold in [Duration::ZERO, LONG] {
        let claim = mutex("moved unheard");
        holds(&one, &claim).await;
        let before = key(&one, &claim).await;
        let to = one.grant(60, &one.asks).await.unwrap();
        let moving = TxnRequest { success: vec![moved(&before.key, to.id)], ..Default::default() };
        one.asks.txn("a renewal", moving).await.unwrap();
        assert!(one.end(&claim, min_hold).await.unwrap());
        match read(&one, &before.key).await {
            None => assert!(min_hold.is_zero()),
            Some(kv) => assert!(Value::decode(&kv.value).closing),
        }
        one.break_holds(&claim.name, None).await.unwrap();
        one.revoke(to.id).await.unwrap();
    }
}
