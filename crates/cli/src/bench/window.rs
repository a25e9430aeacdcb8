//! A crew of tasks that warms up, is counted for a while, and stops.
//!
//! The phases are switched by a thread that does nothing else: a timer on the measured runtime would be late just when the
//! runtime is busy, and a clock read in every round would cost as much as a lock in memory.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use tenure::Result;
use tokio::task::JoinSet;

use super::{Pace, failed};

/// What a task of the crew asks before each round.
#[derive(Debug, Default)]
pub(super) struct Window(AtomicU8);

/// Where the window stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Work, but do not count.
    WarmUp,
    /// Work and count.
    Counting,
    /// Stop.
    Over,
}

impl Window {
    pub(super) fn stage(&self) -> Stage {
        match self.0.load(Ordering::Relaxed) {
            0 => Stage::WarmUp,
            1 => Stage::Counting,
            _ => Stage::Over,
        }
    }
}

/// Runs so many tasks through a window. What each came back with, and how long the counting lasted.
pub(super) async fn crew<T, F>(size: usize, pace: Pace, task: impl Fn(usize, Arc<Window>) -> F) -> Result<(Vec<T>, Duration)>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let window = Arc::new(Window::default());
    let mut tasks = JoinSet::new();
    for number in 0..size {
        tasks.spawn(task(number, Arc::clone(&window)));
    }
    let clock = std::thread::Builder::new()
        .name("tenure-bench-clock".to_owned())
        .spawn(move || {
            std::thread::sleep(pace.warm_up);
            window.0.store(1, Ordering::Relaxed);
            let started = Instant::now();
            std::thread::sleep(pace.tasks);
            let counted = started.elapsed();
            window.0.store(2, Ordering::Relaxed);
            counted
        })
        .map_err(|error| failed("starting a thread", error))?;
    let mut answers = Vec::with_capacity(size);
    while let Some(ended) = tasks.join_next().await {
        answers.push(ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?);
    }
    Ok((answers, clock.join().expect("the clock does not panic")))
}
