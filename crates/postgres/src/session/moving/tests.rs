//! Where a connection is driven, and that nobody else keeps at it.

use std::sync::atomic::AtomicBool;

use tenure_core::Instant;
use tokio::runtime::{Builder, Runtime};

use super::*;

/// Never over, and says so when it is gone.
struct Endless(Arc<AtomicBool>);

impl Drive for Endless {
    fn poll_drive(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Driven at home, on the first of two runtimes; and whether it is gone.
fn start() -> ([Runtime; 2], Arc<Mover>, Arc<AtomicBool>) {
    let runtimes = [(); 2].map(|()| Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap());
    let gone = Arc::new(AtomicBool::new(false));
    let mover = runtimes[0].block_on(async { Mover::start(Box::new(Endless(Arc::clone(&gone))), Place::default()) });
    (runtimes, mover, gone)
}

/// Until so many tasks are left on each.
#[track_caller]
fn left(runtimes: &[Runtime], many: &[usize]) {
    let begun = Instant::now();
    let tasks = || -> Vec<usize> { runtimes.iter().map(|runtime| runtime.metrics().num_alive_tasks()).collect() };
    while tasks() != many {
        assert!(Instant::now().since(begun) < Duration::from_secs(60), "{:?} are left, not {many:?}", tasks());
        std::thread::yield_now();
    }
}

#[test]
fn whoever_drives_it_no_more_ends() {
    let (runtimes, mover, gone) = start();
    let [home, other] = &runtimes;
    for _ in 0..20 {
        other.block_on(async { mover.is_waited_for() });
        home.block_on(async { mover.is_waited_for() });
    }
    left(&runtimes, &[1, 0]);
    for _ in 0..REQUESTS {
        other.block_on(async { mover.is_used() });
    }
    left(&runtimes, &[0, 1]);
    assert!(!mover.is_over() && !gone.load(Ordering::Relaxed));
    mover.close();
    left(&runtimes, &[0, 0]);
    assert!(mover.is_over() && gone.load(Ordering::Relaxed));
    home.block_on(mover.ended());
}

#[test]
fn what_has_no_answer_soon_goes_home() {
    let (runtimes, mover, _) = start();
    runtimes[1].block_on(async { mover.is_waited_for() });
    left(&runtimes, &[0, 1]);
    let (answer, asked) = tokio::sync::oneshot::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| runtimes[1].block_on(mover.answered(asked)).unwrap());
        left(&runtimes, &[1, 0]);
        answer.send(()).unwrap();
    });
}

/// The end of a runtime that drove it is none of it, unless that was home.
#[test]
fn a_runtime_ends() {
    let ([home, other], mover, gone) = start();
    other.block_on(async { mover.is_waited_for() });
    drop(other);
    left(std::slice::from_ref(&home), &[1]);
    assert!(!mover.is_over());
    drop(home);
    assert!(mover.is_over() && gone.load(Ordering::Relaxed));
}
