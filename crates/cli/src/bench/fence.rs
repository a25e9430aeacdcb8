//! A fence beside a raw write of its store: what refusing late holders costs.
//!
//! All take turns in short batches, as in `solo`: a plain durable write with nothing compared ([`Fence::probe`]), a token that is
//! higher than all before (the dearest: it is written), the same token again (a holder's second write), and one that comes too late.
//! All of them are asked for in the same way and on the same connection or file.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure::fence::{Fence, Rule, Verdict};
use tenure::{Error, ErrorKind, LockName, Result, Token};

use super::results::Reading;
use super::stats;

/// As in `solo`.
const BATCH: Duration = Duration::from_micros(200);

/// The one name that is measured on, always: a fence never forgets, so every run leaves the same one behind.
const NAME: &str = "tenure-bench";

/// A fence under measurement.
pub(super) struct Bench {
    fence: Arc<dyn Fence>,
    name: LockName,
    /// The last token that was shown.
    last: u64,
    /// The last number that was only written.
    written: u64,
}

impl Bench {
    pub(super) async fn new(fence: Arc<dyn Fence>) -> Result<Self> {
        let name = LockName::new(NAME)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_micros() as u64);
        let last = fence.highest(&name).await?.map_or(0, Token::get).max(now);
        let mut bench = Bench { fence, name, last, written: last };
        bench.work(Work::Rise).await?;
        Ok(bench)
    }

    /// One repetition.
    pub(super) async fn measure(&mut self, length: Duration) -> Result<Vec<Reading>> {
        let mut turns = [
            Turn::new("raw_write", Work::Write),
            Turn::new("fence_rise", Work::Rise),
            Turn::new("fence_again", Work::Again),
            Turn::new("fence_late", Work::Late),
        ];
        for turn in &mut turns {
            turn.choose_batch(self).await?;
        }
        let started = Instant::now();
        while started.elapsed() < length || turns.iter().any(|turn| turn.batches.is_empty()) {
            for turn in &mut turns {
                let took = turn.batch(self).await?;
                turn.batches.push(took.as_secs_f64() / f64::from(turn.size));
            }
        }
        Ok(turns.into_iter().map(Turn::reading).collect())
    }

    async fn work(&mut self, work: Work) -> Result<()> {
        let (token, wanted) = match work {
            Work::Write => {
                self.written += 1; // another number each time, as a token is
                return self.fence.probe(self.written).await;
            }
            Work::Rise => (self.last + 1, Verdict::Accepted),
            Work::Again => (self.last, Verdict::Accepted),
            Work::Late => (self.last - 1, Verdict::Stale { highest: Token::new(self.last) }),
        };
        let said = self.fence.advance(&self.name, Token::new(token), Rule::ANY).await?;
        self.last = self.last.max(token);
        if said == wanted {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Backend, format!("bench: the fence said {said:?}, and should have said {wanted:?}"))
            .with_name(&self.name)
            .with_store(self.fence.describe())
            .with_hint(
                "If no other bench is at this fence, it is BROKEN: please report this with the store and its version",
            ))
    }
}

#[derive(Clone, Copy)]
enum Work {
    Write,
    Rise,
    Again,
    Late,
}

/// One of those who take turns.
struct Turn {
    key: &'static str,
    work: Work,
    size: u32,
    batches: Vec<f64>,
}

impl Turn {
    fn new(key: &'static str, work: Work) -> Self {
        Turn { key, work, size: 1, batches: Vec::new() }
    }

    /// Doubles the batch until it is long enough, by the fastest of several.
    async fn choose_batch(&mut self, bench: &mut Bench) -> Result<()> {
        loop {
            let mut fastest = Duration::MAX;
            for _ in 0..5 {
                fastest = fastest.min(self.batch(bench).await?);
            }
            if fastest >= BATCH {
                return Ok(());
            }
            self.size *= 2;
        }
    }

    async fn batch(&self, bench: &mut Bench) -> Result<Duration> {
        let started = Instant::now();
        for _ in 0..self.size {
            bench.work(self.work).await?;
        }
        Ok(started.elapsed())
    }

    fn reading(self) -> Reading {
        let samples = self.batches.len() as u64 * u64::from(self.size);
        Reading { key: self.key, value: stats::median(self.batches), samples }
    }
}
