//! What holding 1,000 locks costs: the time to take each, and the CPU this process uses while all of them are kept alive.

use std::time::Instant;

use tenure::Result;

use super::lines::HELD;
use super::results::Reading;
use super::{Bench, machine};

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let names = (0..HELD).map(|number| bench.client.mutex(bench.name(&format!("held/{number}")))?.ttl(bench.pace.ttl));
    let mutexes = names.collect::<Result<Vec<_>>>()?;
    let mut guards = Vec::with_capacity(HELD);
    let started = Instant::now();
    for mutex in &mutexes {
        guards.push(mutex.lock().await?);
    }
    let acquire = started.elapsed().as_secs_f64() / HELD as f64;

    // Renewal comes every third of the ttl, so this sees two rounds of it.
    let own = std::process::id();
    let (started, before) = (Instant::now(), machine::cpu_time(own));
    tokio::time::sleep(bench.pace.quiet).await;
    let (lasted, after) = (started.elapsed(), machine::cpu_time(own));
    for guard in guards {
        guard.release().await?; // an error if it was lost: then it was not held, and the figure would be wrong
    }
    let used = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    let cpu = used.map(|used| used.as_secs_f64() / lasted.as_secs_f64());
    Ok(vec![
        Reading { key: "holding_acquire", value: Some(acquire), samples: HELD as u64 },
        Reading { key: "holding_cpu", value: cpu, samples: HELD as u64 },
    ])
}
