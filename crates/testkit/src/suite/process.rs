//! Other processes: killed, stopped, and all at once. Stores of one process assert that they are such.

use std::path::PathBuf;
use std::time::Duration;

use tenure_core::{DEFAULT_TTL, Instant, Kind};

use super::LONG;
use super::line::{entry, holder, keeps_its_order};
use crate::history::History;
use crate::taker::{Order, Reply, Wanted};
use crate::{Scene, Shape, in_bound, in_time};

/// The ttl of holders that are going to be killed.
const TTL: Duration = Duration::from_secs(6);
/// A renewal may have been sent just before the end: then the ttl counts from there. What is over is found by a look within a second.
const RECOVERY: Duration = TTL.saturating_add(Duration::from_secs(1));

/// F7, P7: after SIGKILL of the holder the next one gets in, with a higher token, when the ttl is over.
pub async fn a_killed_holder_is_replaced(scene: &Scene) {
    in_bound("the waiter is let in", RECOVERY, async || {
        let client = scene.client().await;
        let mut taker = scene.taker().await;
        let (token, _) = taker.lock(1, &Wanted::new("x", Shape::Mutex).ttl(TTL)).await;
        let mutex = client.mutex("x").unwrap().keep(false); // so it is let in for all of its ttl, however slow the machine is
        assert!(mutex.try_lock().await.unwrap().is_none());
        let waiting = tokio::spawn(async move { (mutex.lock().await, Instant::now()) });
        scene.line_is(&client, "x", 1).await;
        let killed = Instant::now();
        taker.kill();
        let (held, entered) = in_time("the waiter is let in", waiting).await.unwrap();
        let held = held.unwrap();
        assert!(held.token().get() > token);
        held.release().await.unwrap();
        scene.leaves_nothing_in_the_end([client]).await;
        entered.since(killed)
    })
    .await;
}

/// F20: a waiter that was killed at the head of the line does not hold up those behind it.
pub async fn a_killed_waiter_is_skipped(scene: &Scene) {
    let client = scene.client().await;
    let mutex = client.mutex("x").unwrap().ttl(LONG).unwrap();
    let held = mutex.lock().await.unwrap();
    let mut taker = scene.taker().await;
    // Where a session is what a server misses, it misses it after the ttl.
    taker.tell(Order::Begin(1, Wanted::new("x", Shape::Mutex).ttl(DEFAULT_TTL))).await;
    scene.line_is_settled(&client, "x", 1).await;
    let mutex = mutex.keep(false); // so it is let in for all of its ttl, however slow the machine is
    let waiting = tokio::spawn(async move { mutex.lock().await });
    scene.line_is(&client, "x", 2).await;
    taker.kill();
    held.release().await.unwrap();
    in_time("the live waiter is let in", waiting).await.unwrap().unwrap().release().await.unwrap();
    scene.leaves_nothing_in_the_end([client]).await;
}

/// F20: fifty wait in ten processes, and the first two are killed; the rest are served, in order.
pub async fn ten_of_fifty_waiters_are_killed(scene: &Scene) {
    if !scene.offers(Kind::FairMutex).await {
        return; // there is no order to keep
    }
    let client = scene.client().await;
    keeps_its_order(&client, async || {
        let held = holder(&client).await;
        let mut takers = scene.takers(10).await;
        let mut line = 0;
        for (number, taker) in takers.iter_mut().enumerate() {
            let is_killed = number < 2;
            for slot in 0..5 {
                // Who lives is let in for all of its ttl, however slow the machine is; who is going to be killed is not.
                let ttl = if is_killed { DEFAULT_TTL } else { LONG };
                let wanted = Wanted { keep: is_killed, ..Wanted::new("x", Shape::FairMutex).ttl(ttl) };
                taker.tell(Order::Pass(slot, wanted)).await;
                line += 1;
                scene.line_is(&client, "x", line).await;
            }
            if is_killed {
                scene.line_is_settled(&client, "x", line).await;
            }
        }
        takers.drain(..2).for_each(|mut taker| taker.kill());
        let mut entered = vec![entry(&held)];
        held.release().await.unwrap();
        for taker in &mut takers {
            for slot in 0..5 {
                taker.send(Order::Passed(slot));
                entered.push(taker.granted().await);
            }
        }
        scene.is_free(&client, "x").await;
        entered
    })
    .await;
}

/// F1, P3, P12: a holder stopped past its ttl is lost as soon as it runs again, somebody else held it meanwhile, and the
/// fenced resource refuses its write.
pub async fn a_stopped_holder_is_lost_and_fenced(scene: &Scene) {
    let client = scene.client().await;
    let file = Scratch::new("fenced");
    let mut taker = scene.taker().await;
    let (token, _) = taker.lock(1, &Wanted::new("x", Shape::Mutex).ttl(Duration::from_secs(1))).await;
    assert_eq!(taker.tell(Order::Write(1, file.path())).await, Reply::Accepted);
    taker.stop();
    let mutex = client.mutex("x").unwrap().keep(false); // so it is let in for all of its ttl, however slow the machine is
    let held = in_time("the waiter is let in", mutex.lock()).await.unwrap();
    assert!(held.token().get() > token);
    assert!(crate::fenced::FencedFile::at(file.path()).write(held.token().get()).unwrap());
    // The order is in its pipe before it runs again: there is no moment at which it could believe otherwise.
    taker.send(Order::Check(1));
    taker.resume();
    assert_eq!(taker.reply().await, Reply::Lost);
    assert_eq!(taker.tell(Order::Write(1, file.path())).await, Reply::Refused);
    assert_eq!(taker.tell(Order::Release(1)).await, Reply::Lost);
    held.check().unwrap();
    held.release().await.unwrap();
}

/// Processes count in a file under the lock, and no count is lost.
pub async fn many_count_in_a_file(scene: &Scene) {
    const PROCESSES: usize = 6;
    const ROUNDS: u32 = 50;
    let file = Scratch::new("count");
    std::fs::write(file.path(), "0").unwrap();
    let mut takers = scene.takers(PROCESSES).await;
    for taker in &mut takers {
        // Nobody renews it, so whoever waited has it for the whole ttl too: nothing else protects the file.
        let wanted = Wanted { keep: false, ..Wanted::new("x", Shape::Mutex) };
        taker.send(Order::Count(wanted, file.path(), ROUNDS));
    }
    for taker in &mut takers {
        assert_eq!(taker.finished().await, Reply::Done);
    }
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), (PROCESSES as u32 * ROUNDS).to_string());
}

/// Several processes with several tasks each, on record, for every kind.
pub async fn a_stress_is_sound(scene: &Scene) {
    let client = scene.client().await;
    let mut takers = scene.takers(3).await;
    for shape in Shape::ALL.into_iter().filter(|shape| client.abilities().kinds.contains(&shape.kind())) {
        let files: Vec<Scratch> = takers.iter().map(|taker| Scratch::new(&format!("history-{}", taker.pid()))).collect();
        for (taker, file) in takers.iter_mut().zip(&files) {
            let wanted = Wanted::new("x", shape);
            taker.send(Order::Stress { wanted, tasks: 4, rounds: 15, history: file.path() });
        }
        for taker in &mut takers {
            assert_eq!(taker.finished().await, Reply::Done);
        }
        scene.expect_sound(History::read(files.iter().map(Scratch::path)).unwrap());
        scene.is_free(&client, "x").await; // the next kind must not meet this one
    }
}

/// F28: permits of killed holders come back; those of the living stay taken.
pub async fn half_of_the_permits_come_back(scene: &Scene) {
    if !scene.offers(Kind::Semaphore).await {
        return;
    }
    let client = scene.client().await;
    let semaphore = client.semaphore("x", 4).unwrap().keep(false); // so what comes back is had for all of its ttl
    let mut takers = scene.takers(2).await;
    let wanted = Wanted::new("x", Shape::Semaphore);
    for (taker, wanted) in takers.iter_mut().zip([wanted.clone().ttl(TTL), wanted]) {
        taker.send(Order::Permits(1, wanted, 2, 4));
        taker.granted().await;
    }
    assert!(semaphore.try_acquire(1).await.unwrap().is_none());
    takers[0].kill();
    let held = in_time("two permits come back", semaphore.acquire(2)).await.unwrap();
    assert!(semaphore.try_acquire(1).await.unwrap().is_none(), "the living keep theirs");
    assert_eq!(takers[1].tell(Order::Check(1)).await, Reply::Held);
    held.release().await.unwrap();
}

/// F18: a process that ends without letting go costs others no more than its ttl.
pub async fn an_exit_without_release_costs_no_more_than_the_ttl(scene: &Scene) {
    in_bound("the lock is free", RECOVERY, async || {
        let client = scene.client().await;
        let mut taker = scene.taker().await;
        taker.lock(1, &Wanted::new("x", Shape::Mutex).ttl(TTL)).await;
        let left = Instant::now();
        taker.send(Order::Exit);
        let mutex = client.mutex("x").unwrap().keep(false); // so it is let in for all of its ttl, however slow the machine is
        let held = in_time("the lock is free", mutex.lock()).await.unwrap();
        let took = Instant::now().since(left);
        held.release().await.unwrap();
        scene.leaves_nothing_in_the_end([client]).await;
        took
    })
    .await;
}

/// A file that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(what: &str) -> Self {
        let mut random = [0; 8];
        getrandom::fill(&mut random).expect("the kernel has random numbers");
        let name = format!("tenure-{what}-{}-{:016x}", std::process::id(), u64::from_le_bytes(random));
        Scratch(std::env::temp_dir().join(name))
    }

    fn path(&self) -> PathBuf {
        self.0.clone()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
