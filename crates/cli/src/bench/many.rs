//! 64 tasks on 64 names: how much of what the store can do for 64 tasks is left when they lock.

use std::sync::Arc;

use tenure::{Client, Mutex, Result};
use tokio::task::coop::consume_budget;

use super::Bench;
use super::lines::MANY;
use super::results::Reading;
use super::window::{Stage, Window, crew};

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Reading>> {
    let raw = crew(MANY, bench.pace, |_, window| pairs(bench.client.clone(), window)).await?;
    let mutexes = (0..MANY).map(|number| bench.client.mutex(bench.name(&format!("many/{number}"))));
    let mutexes = mutexes.collect::<Result<Vec<Mutex>>>()?;
    let locks = crew(MANY, bench.pace, |number, window| locks(mutexes[number].clone(), window)).await?;
    let rate = |key, (counts, counted): (Vec<u64>, std::time::Duration)| {
        let samples = counts.iter().sum::<u64>();
        Reading { key, value: Some(samples as f64 / counted.as_secs_f64()), samples }
    };
    Ok(vec![rate("many_raw", raw), rate("many", locks)])
}

async fn pairs(client: Client, window: Arc<Window>) -> Result<u64> {
    let mut count = 0;
    loop {
        let stage = window.stage();
        if stage == Stage::Over {
            return Ok(count);
        }
        client.probe().await?;
        client.probe().await?;
        count += u64::from(stage == Stage::Counting);
        // A store that never makes anybody wait would otherwise serve as many tasks as there are cores, and no other.
        consume_budget().await;
    }
}

async fn locks(mutex: Mutex, window: Arc<Window>) -> Result<u64> {
    let mut count = 0;
    loop {
        let stage = window.stage();
        if stage == Stage::Over {
            return Ok(count);
        }
        mutex.lock().await?.release().await?;
        count += u64::from(stage == Stage::Counting);
        consume_budget().await;
    }
}
