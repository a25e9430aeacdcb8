//! kill -9 of a holder process: how long until a waiter in another process holds.
//!
//! A store that sees processes die needs milliseconds, any other a ttl; so the ttl is short, and shown.

use tenure::{Error, ErrorKind, Result};

use super::helpers::Helpers;
use super::orders::{Answer, Order};
use super::quiet::until_in_line;
use super::results::Reading;
use super::{Bench, stats};

pub(super) async fn measure(bench: &Bench, helpers: &mut Helpers) -> Result<Vec<Reading>> {
    let name = bench.name("recovery");
    let started = std::time::Instant::now();
    let mut times = Vec::new();
    helpers.open(1).await?;
    // Once where it takes a ttl, several times where it takes a moment.
    while times.is_empty() || started.elapsed() < bench.pace.processes {
        times.push(once(bench, helpers, &name).await?);
    }
    helpers.close().await?;
    let samples = times.len() as u64;
    Ok(vec![Reading { key: "recovery", value: stats::median(times), samples }])
}

async fn once(bench: &Bench, helpers: &mut Helpers, name: &str) -> Result<f64> {
    let mut victim = helpers.victim().await?;
    let hold = Order::Hold { name: name.to_owned(), ttl_ms: bench.pace.ttl.as_millis() as u64 };
    match victim.ask(&hold).await? {
        Answer::Got { .. } => {}
        other => return Err(Error::new(ErrorKind::Backend, format!("bench: a second process answered {other:?}"))),
    }
    let waiter = &mut helpers.opened()[0];
    waiter.order(&Order::Wait { name: name.to_owned() })?;
    until_in_line(&bench.client, name, 1).await?;
    let killed = victim.kill()?;
    Ok(waiter.got().await?.since(killed).as_secs_f64())
}
