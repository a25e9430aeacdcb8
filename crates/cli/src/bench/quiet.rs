//! What it costs when nothing happens: 50 processes waiting, and 1,000 locks held and renewed.
//!
//! Both need seconds of silence, since stores look after their waiters and holds once in a while and not all the time; a
//! window between two such moments would show nothing. So both are watched in one window: the one is CPU of the other
//! processes, the other is CPU of this one.

use std::time::{Duration, Instant};

use tenure::{Client, Error, ErrorKind, Guard, Result};

use super::helpers::Helpers;
use super::lines::{CROWD, HELD, Measure};
use super::orders::Order;
use super::results::Reading;
use super::{Bench, machine};

/// Watches whichever of [`Measure::Waiting`] and [`Measure::Holding`] is among `which`.
pub(super) async fn measure(bench: &Bench, helpers: &mut Helpers, which: &[Measure]) -> Result<Vec<Reading>> {
    let mut readings = Vec::new();
    let mut held = Vec::new();
    if which.contains(&Measure::Holding) {
        let acquire;
        (held, acquire) = hold(bench).await?;
        readings.push(Reading { key: "holding_acquire", value: Some(acquire), samples: HELD as u64 });
    }
    let waited_for = match which.contains(&Measure::Waiting) {
        true => Some(gather(bench, helpers).await?),
        false => None,
    };

    let crowd: Vec<u32> = helpers.opened().iter().map(|helper| helper.pid()).collect();
    let meters = [Meter::new("waiting_cpu", crowd), Meter::new("holding_cpu", vec![std::process::id()])];
    let watched = [waited_for.is_some(), !held.is_empty()];
    tokio::time::sleep(bench.pace.quiet).await;
    let used = meters.into_iter().zip(watched).filter(|(_, watched)| *watched);
    readings.extend(used.map(|(meter, _)| meter.read()));

    if let Some(guard) = waited_for {
        disperse(helpers, guard).await?;
    }
    for guard in held {
        guard.release().await?; // an error if it was lost: then it was not held, and the figure would be wrong
    }
    Ok(readings)
}

/// Takes 1,000 locks, one after the other. And the seconds it took for each.
async fn hold(bench: &Bench) -> Result<(Vec<Guard>, f64)> {
    let names = (0..HELD).map(|number| bench.client.mutex(bench.name(&format!("held/{number}")))?.ttl(bench.pace.ttl));
    let mutexes = names.collect::<Result<Vec<_>>>()?;
    let mut held = Vec::with_capacity(HELD);
    let started = Instant::now();
    for mutex in &mutexes {
        held.push(mutex.lock().await?);
    }
    Ok((held, started.elapsed().as_secs_f64() / HELD as f64))
}

/// Has 50 processes wait for the guard this gives.
async fn gather(bench: &Bench, helpers: &mut Helpers) -> Result<Guard> {
    let name = bench.name("waiting");
    let guard = bench.client.mutex(&name)?.lock().await?;
    for helper in helpers.open(CROWD).await? {
        helper.order(&Order::Wait { name: name.clone() })?;
    }
    until_in_line(&bench.client, &name, CROWD).await?;
    Ok(guard)
}

/// Lets them pass, one by one.
async fn disperse(helpers: &mut Helpers, guard: Guard) -> Result<()> {
    guard.check()?; // else they did not wait
    guard.release().await?;
    for helper in helpers.opened() {
        helper.got().await?;
    }
    helpers.close().await
}

/// Completes when so many wait, and a moment later, so that they have gone to sleep.
pub(super) async fn until_in_line(client: &Client, name: &str, count: usize) -> Result<()> {
    let started = Instant::now();
    loop {
        let waiting = client.view(name).await?.line.len();
        if waiting >= count {
            break;
        }
        if started.elapsed() > Duration::from_secs(60) {
            let what = format!("bench: {waiting} of {count} processes were in line after a minute");
            return Err(Error::new(ErrorKind::Unavailable, what));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(())
}

/// The CPU that some processes use from now on.
struct Meter {
    key: &'static str,
    processes: Vec<u32>,
    started: Instant,
    before: Option<Duration>,
}

impl Meter {
    fn new(key: &'static str, processes: Vec<u32>) -> Self {
        let before = used_by(&processes);
        Meter { key, processes, started: Instant::now(), before }
    }

    fn read(self) -> Reading {
        let lasted = self.started.elapsed().as_secs_f64();
        let used = self.before.zip(used_by(&self.processes)).map(|(before, after)| after.saturating_sub(before));
        let value = used.map(|used| used.as_secs_f64() / lasted);
        Reading { key: self.key, value, samples: self.processes.len() as u64 }
    }
}

fn used_by(processes: &[u32]) -> Option<Duration> {
    processes.iter().map(|process| machine::cpu_time(*process)).sum()
}
