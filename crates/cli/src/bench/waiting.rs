//! What 50 waiting processes cost while nothing happens: this process holds, they stand in line.

use std::time::Duration;

use tenure::{Client, Error, ErrorKind, Instant, Result};

use super::helpers::Helpers;
use super::lines::CROWD;
use super::orders::Order;
use super::results::Reading;
use super::{Bench, machine};

pub(super) async fn measure(bench: &Bench, helpers: &mut Helpers) -> Result<Vec<Reading>> {
    let name = bench.name("waiting");
    let crowd = helpers.open(CROWD).await?;
    let guard = bench.client.mutex(&name)?.lock().await?;
    for helper in crowd.iter_mut() {
        helper.order(&Order::Wait { name: name.clone() })?;
    }
    until_in_line(&bench.client, &name, CROWD).await?;

    let pids: Vec<u32> = crowd.iter().map(|helper| helper.pid()).collect();
    let cpu = |pids: &[u32]| pids.iter().map(|pid| machine::cpu_time(*pid)).sum::<Option<Duration>>();
    let (started, before) = (std::time::Instant::now(), cpu(&pids));
    tokio::time::sleep(bench.pace.quiet).await;
    let (lasted, after) = (started.elapsed(), cpu(&pids));

    guard.release().await?;
    for helper in crowd.iter_mut() {
        helper.got().await?;
    }
    helpers.close(CROWD).await?;
    let used = before.zip(after).map(|(before, after)| after.saturating_sub(before));
    let value = used.map(|used| used.as_secs_f64() / lasted.as_secs_f64());
    Ok(vec![Reading { key: "waiting_cpu", value, samples: CROWD as u64 }])
}

/// Completes when so many wait, and a moment later, so that they have gone to sleep.
pub(super) async fn until_in_line(client: &Client, name: &str, count: usize) -> Result<()> {
    let started = Instant::now();
    loop {
        let waiting = client.view(name).await?.line.len();
        if waiting >= count {
            break;
        }
        if Instant::now().since(started) > Duration::from_secs(60) {
            let what = format!("bench: {waiting} of {count} processes were in line after a minute");
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(())
}
