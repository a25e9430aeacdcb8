//! The keeper: holds are renewed on time, cheaply, and by nobody's leave; and not a moment longer than they are held.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_core::{Error, ErrorKind, Instant, Mutex};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::{LONG, SHORT, STANDS_STILL};
use crate::{Scene, eventually, eventually_async, in_bound, in_time, unless_stalled};

/// F5: tasks that never yield cannot starve the renewal.
pub async fn a_busy_executor_does_not_starve_it(scene: &Scene) {
    let client = scene.client().await;
    let ttl = Duration::from_secs(3);
    let mutex = client.mutex("x").unwrap().ttl(ttl).unwrap();
    use_it(&mutex).await;
    unless_stalled("its renewal is not starved", STANDS_STILL, async || {
        let held = in_time("it is free", mutex.lock()).await.unwrap();
        let end = held.valid_until() + ttl;
        let busy = Busy::start();
        while Instant::now() < end && held.check().is_ok() {
            std::thread::sleep(Duration::from_millis(20)); // not even this task lets timers run
        }
        let kept = held.check().is_ok();
        drop(busy);
        match held.release().await {
            Ok(()) if kept => Some(()),
            Ok(()) => panic!("a hold that was lost was let go of"),
            Err(error) => is_loss(error),
        }
    })
    .await;
}

/// Tasks that never yield, until this is dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn start() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        for _ in 0..8 {
            let over = Arc::clone(&over);
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop(); // no await: this worker runs nothing else
                }
            });
        }
        Busy(over)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The runtime that a lock was taken in may end; the hold does not.
pub async fn the_runtime_may_end(scene: &Scene) {
    let (client, other) = scene.two_clients().await;
    let ttl = Duration::from_secs(9);
    let mutex = client.mutex("x").unwrap().ttl(ttl).unwrap();
    let held = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            use_it(&mutex).await;
            mutex.lock().await.unwrap()
        })
    })
    .join()
    .unwrap();
    let first = held.valid_until();
    eventually("it is renewed", || held.valid_until() > first + ttl / 2).await;
    assert!(other.mutex("x").unwrap().try_lock().await.unwrap().is_none());
    held.release().await.unwrap();
}

/// A runtime that nobody drives any more, and that has not ended, keeps no other from locking and waiting.
pub async fn another_runtime_may_rest(scene: &Scene) {
    let (client, other) = scene.two_clients().await;
    scene.may_lose_messages(); // of a connection that lives in the runtime, and rests with it
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
    let used = mutex.clone();
    let (has_used, is_used) = oneshot::channel();
    let (go_on, goes_on) = oneshot::channel();
    let (rests, resting) = oneshot::channel();
    let (_until_the_end, end) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            use_it(&used).await;
            has_used.send(()).unwrap();
            goes_on.await.unwrap();
            used.lock().await.unwrap().release().await.unwrap();
        });
        rests.send(()).unwrap();
        let _ = end.recv();
    });
    is_used.await.unwrap();
    let held = other.mutex("x").unwrap().lock().await.unwrap();
    go_on.send(()).unwrap();
    let waits = async || !other.view("x").await.unwrap().line.is_empty();
    eventually_async("it waits there", waits).await;
    held.release().await.unwrap();
    in_time("it rests", resting).await.unwrap();

    in_time("it is locked", mutex.lock()).await.unwrap().release().await.unwrap();
    let held = other.mutex("x").unwrap().lock().await.unwrap();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    eventually_async("it waits", waits).await;
    held.release().await.unwrap();
    in_time("it is let in", waiting).await.unwrap().unwrap().release().await.unwrap();
    scene.leaves_nothing([client, other]).await;
}

/// So often that whatever is done where it is used is done here.
async fn use_it(mutex: &Mutex) {
    for _ in 0..10 {
        mutex.lock().await.unwrap().release().await.unwrap();
    }
}

/// A thousand holds share their renewals.
pub async fn a_thousand_holds_renew_together(scene: &Scene) {
    const MANY: usize = 1_000;
    let (client, faults) = scene.faulty_client().await;
    let mut locking = JoinSet::new();
    for n in 0..MANY {
        let mutex = client.mutex(format!("x{n}")).unwrap().ttl(Duration::from_secs(20)).unwrap();
        locking.spawn(async move { mutex.lock().await.unwrap() });
    }
    let held = in_time("all are taken", locking.join_all()).await;
    let before = (faults.renew_calls(), faults.renewed_claims());
    eventually("all are renewed, more than once", || faults.renewed_claims() - before.1 >= 2 * MANY).await;
    let calls = faults.renew_calls() - before.0;
    assert!(calls * 20 <= 2 * MANY, "{calls} renewals for {MANY} holds");
    held.iter().for_each(|guard| guard.check().expect("all are kept"));
    drop(held);
    scene.leaves_nothing([client]).await;
}

/// F6: nothing is renewed after the release, and nothing that is not to be kept. A store that was slow to answer may doubt what it
/// holds, and then all of it is renewed once, as it should be: this client does not hear of doubts.
pub async fn nothing_is_renewed_after_the_end(scene: &Scene) {
    let (client, faults) = scene.deaf_client().await;
    let ttl = Duration::from_secs(6);
    let mutex = client.mutex("x").unwrap().ttl(ttl).unwrap();
    mutex.lock().await.unwrap().release().await.unwrap();
    drop(mutex.lock().await.unwrap());
    let before = faults.renew_calls(); // none, unless the machine stood still meanwhile
    let not_kept = in_time("it is free", mutex.ttl(SHORT).unwrap().keep(false).lock()).await.unwrap();
    tokio::time::sleep(ttl / 2).await;
    assert_eq!(faults.renew_calls(), before);
    not_kept.lost().await;
}

/// F6: after any number of short holds, dropped and released, no renewal is left over.
pub async fn short_holds_leave_no_renewals(scene: &Scene) {
    let (client, faults) = scene.faulty_client().await;
    let ttl = Duration::from_millis(1_500);
    unless_stalled("nobody loses a hold", STANDS_STILL, async || {
        let mut tasks = JoinSet::new();
        for n in 0..50 {
            let mutex = client.mutex(format!("x{n}")).unwrap().ttl(ttl).unwrap();
            tasks.spawn(async move {
                let mut kept = Some(());
                for round in 0..4 {
                    let held = mutex.lock().await.unwrap();
                    tokio::time::sleep(ttl / 8 * round).await; // some are renewed, some are not
                    if round % 2 == 0 {
                        drop(held);
                    } else {
                        kept = kept.and(held.release().await.map_or_else(is_loss, Some));
                    }
                }
                kept
            });
        }
        in_time("all are done", tasks.join_all()).await.into_iter().collect::<Option<Vec<()>>>()
    })
    .await;
    // What was under way at the end may come yet; what is left over would come again and again.
    eventually_async("there are no more renewals", || async {
        let calls = faults.renew_calls();
        tokio::time::sleep(ttl / 2).await;
        faults.renew_calls() == calls
    })
    .await;
    scene.leaves_nothing([client]).await;
}

/// A machine that stands still loses a short hold, and that is all that may be wrong.
fn is_loss(error: Error) -> Option<()> {
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    None
}

/// F51: a renewal that gets no answer is given up within a sixth of the ttl, and the hold lives on the next one.
pub async fn a_stuck_renewal_is_replaced(scene: &Scene) {
    let ttl = Duration::from_secs(18);
    in_bound("it is given up", ttl / 6 + A_MOMENT, async || {
        let (client, faults) = scene.faulty_client().await;
        faults.hang_renewals(1);
        let held = client.mutex("x").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
        let first = held.valid_until();
        let renewed = eventually("it is renewed", || held.valid_until() > first + ttl / 2);
        held.run(renewed).await.expect("one stuck renewal costs nothing");
        let stuck = faults.hung()[0];
        held.release().await.unwrap();
        stuck.dropped.expect("it was given up").since(stuck.sent)
    })
    .await;
}

/// What a timer and a thread that it wakes may take.
const A_MOMENT: Duration = Duration::from_millis(50);

/// The same for the first renewal after a hand-over, which stands on a short ttl of its own.
pub async fn a_stuck_renewal_after_a_hand_over_is_replaced(scene: &Scene) {
    let (client, faults) = scene.faulty_client().await;
    let other = scene.client().await;
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
    unless_stalled("one stuck renewal does not cost the hold", STANDS_STILL, async || {
        let before = other.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
        let held = in_time("it is free", before.lock()).await.unwrap();
        let waiting = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.lock().await }
        });
        scene.line_is(&other, "x", 1).await;
        faults.hang_renewals(1);
        held.release().await.unwrap();
        let held = in_time("the waiter is let in", waiting).await.unwrap().unwrap();
        let first = held.valid_until();
        if first > Instant::now() + LONG / 2 {
            held.release().await.unwrap(); // this store gives a waiter its whole ttl, and there is nothing to be renewed soon
            return Some(());
        }
        let renewed = eventually("it is renewed", || held.valid_until() > first);
        held.run(renewed).await.map_or_else(is_loss, Some)
    })
    .await;
}

/// A hand-over stands on a short ttl, and is as good as any other once it was renewed.
pub async fn a_hand_over_is_renewed(scene: &Scene) {
    let (one, other) = scene.two_clients().await;
    unless_stalled("it is renewed in time", STANDS_STILL, async || {
        let before = one.mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
        let held = in_time("it is free", before.lock()).await.unwrap();
        let mutex = other.mutex("x").unwrap().ttl(LONG).unwrap();
        let waiting = tokio::spawn(async move { mutex.lock().await });
        scene.line_is(&one, "x", 1).await;
        held.release().await.unwrap();
        let held = in_time("the waiter is let in", waiting).await.unwrap().unwrap();
        let renewed = eventually("it has its whole ttl", || held.valid_until() > Instant::now() + LONG / 2);
        held.run(renewed).await.map_or_else(is_loss, Some)
    })
    .await;
}

/// Guards outlive the client that made them.
pub async fn a_guard_outlives_its_client(scene: &Scene) {
    let (client, other) = scene.two_clients().await;
    let ttl = Duration::from_secs(9);
    let held = client.mutex("x").unwrap().ttl(ttl).unwrap().lock().await.unwrap();
    drop(client);
    let first = held.valid_until();
    eventually("it is renewed", || held.valid_until() > first + ttl / 2).await;
    drop(held);
    scene.is_free(&other, "x").await;
}
