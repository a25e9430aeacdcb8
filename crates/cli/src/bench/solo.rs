//! One task on one name: the raw round trip, two of them, and acquire + release.
//!
//! The three take turns in short batches, so that all of them meet the same weather. A batch is long enough that reading the
//! clock around it costs nothing, and the repetition's figure is the median batch, so that a batch during which the kernel
//! ran somebody else does not count.

use std::time::{Duration, Instant};

use tenure::{Client, Mutex, Result};

use super::results::Reading;
use super::{Bench, stats};

/// Reading a clock costs up to 50 ns; in this it is a quarter per mille. A slow store simply has batches of one.
const BATCH: Duration = Duration::from_micros(200);

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let (client, mutex) = (bench.client.clone(), bench.client.mutex(bench.name("pair"))?);
    let length = bench.pace.tasks;
    // On a worker of the runtime, where users' tasks are, and not on the thread that blocks on it.
    let task = tokio::spawn(async move { take_turns(&client, &mutex, length).await });
    task.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

async fn take_turns(client: &Client, mutex: &Mutex, length: Duration) -> Result<Vec<Reading>> {
    let mut turns = [Turn::new("raw_trip", Work::Trip), Turn::new("raw_pair", Work::Pair), Turn::new("pair", Work::Lock)];
    for turn in &mut turns {
        turn.choose_batch(client, mutex).await?;
    }
    let started = Instant::now();
    while started.elapsed() < length || turns.iter().any(|turn| turn.batches.is_empty()) {
        for turn in &mut turns {
            let took = turn.batch(client, mutex).await?;
            turn.batches.push(took.as_secs_f64() / f64::from(turn.size));
        }
    }
    Ok(turns.into_iter().map(Turn::reading).collect())
}

/// One of those who take turns.
struct Turn {
    key: &'static str,
    work: Work,
    size: u32,
    batches: Vec<f64>,
}

#[derive(Clone, Copy)]
enum Work {
    Trip,
    Pair,
    Lock,
}

impl Turn {
    fn new(key: &'static str, work: Work) -> Self {
        Turn { key, work, size: 1, batches: Vec::new() }
    }

    /// Doubles the batch until it is long enough; which also warms everything up.
    ///
    /// The fastest of several decides: one that was interrupted looks long at any size, and batches of one would then be
    /// mostly the clock.
    async fn choose_batch(&mut self, client: &Client, mutex: &Mutex) -> Result<()> {
        loop {
            let mut fastest = Duration::MAX;
            for _ in 0..5 {
                fastest = fastest.min(self.batch(client, mutex).await?);
            }
            if fastest >= BATCH {
                return Ok(());
            }
            self.size *= 2;
        }
    }

    async fn batch(&self, client: &Client, mutex: &Mutex) -> Result<Duration> {
        let started = Instant::now();
        match self.work {
            Work::Trip => {
                for _ in 0..self.size {
                    client.probe().await?;
                }
            }
            Work::Pair => {
                for _ in 0..self.size {
                    client.probe().await?;
                    client.probe().await?;
                }
            }
            Work::Lock => {
                for _ in 0..self.size {
                    mutex.lock().await?.release().await?;
                }
            }
        }
        Ok(started.elapsed())
    }

    fn reading(self) -> Reading {
        let samples = self.batches.len() as u64 * u64::from(self.size);
        Reading { key: self.key, value: stats::median(self.batches), samples }
    }
}
