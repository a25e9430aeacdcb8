//! Two processes pass one lock to and fro: how long from the call of release until the other one, which waited, holds it.
//!
//! Whoever let go asks again only when the other has it, so that what is measured is how a waiter learns of its turn, and
//! not who is quicker to take a lock that its last holder wants back.

use std::time::Duration;

use tenure::Instant;

use crate::catalogue::Entry;
use crate::orders::{Answer, Order};
use crate::process::Process;
use crate::stats;
use crate::store::Store;

/// Whoever asked this long before the release was in line by then.
const SETTLED_NS: u64 = 500_000;
/// How long the other waits at least before it is let in.
const SETTLE: Duration = Duration::from_millis(3);
/// The moment of release is spread over this much more, or over a poller's whole pause.
const SPREAD_MS: u64 = 5;

pub(crate) struct Handovers {
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) count: usize,
    pub(crate) violations: u64,
}

pub(crate) fn measure(store: Store, entry: &Entry, url: &str, name: &str, length: Duration) -> Result<Handovers, String> {
    let mut holder = Process::start(store, entry, url, 0)?;
    let mut waiter = Process::start(store, entry, url, 1)?;
    for process in [&mut waiter, &mut holder] {
        process.order(&Order::Prepare { name: name.to_owned() })?;
        expect(process.answer(Duration::ZERO)?, |answer| matches!(answer, Answer::Prepared))?;
    }
    holder.order(&Order::Lock)?;
    held(holder.answer(Duration::ZERO)?)?;

    let spread = Duration::from_millis(entry.polls_ms.unwrap_or(SPREAD_MS));
    let (mut gaps, mut violations, mut turns) = (Vec::new(), 0, 0_u32);
    let started = Instant::now();
    while Instant::now().since(started) < length || gaps.len() < 3 {
        waiter.order(&Order::Lock)?;
        std::thread::sleep(SETTLE + spread.mul_f64(spread_evenly(turns)));
        holder.order(&Order::Unlock)?;
        let released = released(holder.answer(Duration::ZERO)?)?;
        let (asked, got) = held(waiter.answer(Duration::ZERO)?)?;
        turns += 1;
        violations += u64::from(got < released);
        if asked + SETTLED_NS <= released && turns > 2 {
            gaps.push(got.saturating_sub(released));
        }
        if turns > 20 && gaps.is_empty() {
            return Err("the second process never waited when the first let go".to_owned());
        }
        std::mem::swap(&mut holder, &mut waiter);
    }
    let count = gaps.len();
    let nothing = || "nothing was handed over".to_owned();
    let p50_ns = stats::percentile(&mut gaps, 0.5).ok_or_else(nothing)?;
    let p99_ns = stats::percentile(&mut gaps, 0.99).ok_or_else(nothing)?;
    Ok(Handovers { p50_ns, p99_ns, count, violations })
}

/// Fractions that fill 0–1 evenly, however many are taken: the golden ratio's.
fn spread_evenly(turn: u32) -> f64 {
    (f64::from(turn) * 0.618_033_988_749_895).fract()
}

fn held(answer: Answer) -> Result<(u64, u64), String> {
    match answer {
        Answer::Held { asked_ns, at_ns } => Ok((asked_ns, at_ns)),
        other => Err(format!("it said {other:?} instead of held")),
    }
}

fn released(answer: Answer) -> Result<u64, String> {
    match answer {
        Answer::Released { at_ns } => Ok(at_ns),
        other => Err(format!("it said {other:?} instead of released")),
    }
}

fn expect(answer: Answer, right: impl Fn(&Answer) -> bool) -> Result<(), String> {
    if right(&answer) { Ok(()) } else { Err(format!("it said {answer:?}, which was not asked")) }
}
