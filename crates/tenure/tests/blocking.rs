//! The blocking API on plain threads: the same words, and no runtime in sight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::blocking::{self, Client};
use tenure::{ErrorKind, Event};

fn client() -> Client {
    blocking::connect("memory://").unwrap()
}

#[test]
fn threads_exclude_each_other() {
    let client = client();
    let (inside, sum) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                // Not kept, so that whoever waited has all of its ttl from the start.
                let mutex = client.mutex("x").unwrap().keep(false);
                for _ in 0..200 {
                    let guard = mutex.lock().unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    sum.fetch_add(1, Ordering::Relaxed);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().unwrap();
                }
            });
        }
    });
    assert_eq!(sum.load(Ordering::Relaxed), 1_600);
    client.close().unwrap();
    assert!(client.view("x").unwrap().is_free());
}

#[test]
fn a_lost_hold_says_so_in_every_way() {
    let client = client();
    let guard = client.mutex("x").unwrap().ttl(Duration::from_secs(2)).unwrap().keep(false).lock().unwrap();
    let mut events = guard.events();
    guard.lost();
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    assert!(matches!(events.next(), Some(Event::Lost(_))));
    assert_eq!(events.next(), None);
    assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn an_ask_reaches_a_holder_that_blocks() {
    let client = client();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    std::thread::scope(|scope| {
        let holder = scope.spawn(|| guard.asked());
        assert_eq!(client.ask("x", "deploying").unwrap(), 1);
        assert_eq!(holder.join().unwrap().reason.as_str(), "deploying");
    });
    guard.release().unwrap();
}

#[test]
fn every_kind_is_here() {
    let client = client();
    let me = client.owner();
    let reentrant = client.reentrant_mutex("reentrant").unwrap();
    let (outer, inner) = (reentrant.lock(&me).unwrap(), reentrant.try_lock(&me).unwrap().unwrap());
    assert_eq!(outer.token(), inner.token());
    let mut writer = client.rw_lock("rw").unwrap().write().unwrap();
    writer.downgrade().unwrap();
    let reader = client.rw_lock("rw").unwrap().try_read().unwrap().unwrap();
    reader.release().unwrap();
    assert_eq!(writer.mode(), tenure::Mode::Shared);
    let permit = client.semaphore("permits", 2).unwrap().acquire(2).unwrap();
    assert!(client.semaphore("permits", 2).unwrap().try_acquire(1).unwrap().is_none());
    let fair = client.fair_mutex("fair").unwrap().try_lock_for(Duration::from_secs(1)).unwrap().unwrap();
    let both = client.multi(["b", "a"]).unwrap().lock().unwrap();
    assert_eq!(both.tokens().count(), 2);
    both.release().unwrap();
    let election = client.election("leader").unwrap().note("me").unwrap();
    let leadership = election.campaign().unwrap();
    assert_eq!(election.observe().unwrap().next().unwrap().unwrap().expect("we lead").term, leadership.token());
    election.resign(leadership).unwrap();
    assert_eq!(election.leader().unwrap(), None);
    let cell = client.cell("cell").unwrap();
    let version = cell.set_if(0, "1").unwrap().unwrap();
    assert_eq!(cell.get().unwrap(), (Some(b"1".to_vec()), version));
    assert!(cell.set_if(0, "2").unwrap().is_none());
    drop((outer, inner, writer, permit, fair));
}
