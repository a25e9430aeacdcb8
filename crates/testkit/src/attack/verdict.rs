//! Whether a history keeps what was promised: the history checker's properties, and those that need to know of the fault.

use std::collections::HashMap;
use std::time::Duration;

use super::fault::{Cell, Fault};
use super::site::Store;
use crate::history::{Event, History, Hold, LOSS_NOTICE, Mode, Op, Phase, Violation, check_within};

/// What a history was recorded under.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// The store.
    pub store: Store,
    /// The fault.
    pub fault: Fault,
    /// The longest time for which this machine stood still meanwhile.
    pub stall: Duration,
    /// The longest ttl in it.
    pub ttl: Duration,
}

/// What came of a history.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Promises that it breaks.
    pub broken: Vec<Violation>,
    /// What would break promises that the store does not make under this fault.
    pub unpromised: Vec<Violation>,
    /// Whether bounds in time were judged too: not where the machine stood still.
    pub timed: bool,
    /// How many asks were granted.
    pub grants: usize,
    /// How many writes came too late and were refused.
    pub refused: usize,
    /// How many operations ended with neither yes nor no, or were dropped.
    pub unknown: usize,
    /// The longest time for which somebody waited and nobody was known to hold.
    pub longest_gap: Duration,
}

/// On a machine that stands still for longer, no bound in time is judged: renewals of the shortest ttl have twice as much. Safety is judged
/// always.
pub(super) const QUIET: Duration = Duration::from_millis(120);

/// A waiter that died is passed over when it was not heard of for so long, and then whoever was let in for so long does not come.
const DEAD_WAITER: Duration = tenure_core::lease::ALIVE.saturating_add(tenure_core::HANDOVER_TTL);

/// Judges a history.
pub fn judge(history: History, conditions: &Conditions) -> Verdict {
    let (store, fault) = (conditions.store, conditions.fault);
    let history = if store.readers_may_share() { history.where_readers_may_share() } else { history };
    let mut verdict = Verdict { grants: history.grants(), ..Verdict::default() };
    let runs = conditions.stall <= QUIET;
    verdict.timed = runs;
    let notice = if fault.stops_observers() || !runs { Duration::MAX } else { LOSS_NOTICE + conditions.stall };
    let excludes = fault.cell(store) == Cell::Exclusion;
    for violation in check_within(&history, notice).err().unwrap_or_default() {
        match violation.property {
            "P5" if !fault.keeps_order() || !runs => {}
            // Where windows overlap, either holder may be the first to learn of its token.
            "P1" | "P2" | "P9" | "P10" if !excludes => verdict.unpromised.push(violation),
            _ => verdict.broken.push(violation),
        }
    }
    for lock in history.locks() {
        let mut saying = |property, says| {
            verdict.broken.push(Violation { property, lock: lock.to_owned(), says });
        };
        for says in history.stale_tokens(lock) {
            saying("fence", says);
        }
        let events: Vec<&Event> = history.events().iter().filter(|event| event.lock == lock).collect();
        let holds = history.holds(lock);
        if excludes {
            for says in refused_though_held(&events, &holds) {
                saying("fence", says);
            }
        }
        for (error, says) in errors_without_a_fault(&events) {
            if runs || error != "Unavailable" {
                saying("errors", says);
            }
        }
        if !runs {
            continue;
        }
        if fault == Fault::None {
            for says in lost_without_a_fault(&events) {
                saying("loss", says);
            }
        }
        let gap = longest_gap(&events, &holds);
        let allowed = allowed_gap(conditions);
        if gap > allowed {
            saying("in time", format!("for {gap:?} somebody waited and nobody held; {allowed:?} are allowed"));
        }
        verdict.longest_gap = verdict.longest_gap.max(gap);
    }
    let refused = history.events().iter().filter(|event| (event.op, event.phase) == (Op::Write, Phase::Fail));
    verdict.refused = refused.count();
    verdict.unknown = history.events().iter().filter(|event| event.phase == Phase::Unknown).count();
    verdict
}

/// Nobody is left waiting for longer than this for a name that nobody holds, once the fault is over.
fn allowed_gap(conditions: &Conditions) -> Duration {
    let freed = conditions.store.freed_within(conditions.ttl);
    let freed = match conditions.fault {
        Fault::ClientKilled | Fault::ClientStopped => freed.max(DEAD_WAITER),
        Fault::ClockBack => freed + Duration::from_secs(1), // by so much later a hold ends
        _ => freed,
    };
    freed + Duration::from_secs(1) + conditions.stall
}

/// A write that was refused to somebody who held: somebody after it must have had a lower token.
fn refused_though_held(events: &[&Event], holds: &[Hold]) -> Vec<String> {
    let refused = events.iter().filter(|event| (event.op, event.phase) == (Op::Write, Phase::Fail));
    refused
        .filter_map(|write| {
            let alone = |hold: &&Hold| {
                let alone = hold.segments.iter().find(|segment| segment.mode == Mode::Exclusive);
                Some(hold.token) == write.token && alone.is_some_and(|own| own.from <= write.t && write.t < own.to)
            };
            let hold = holds.iter().find(alone)?;
            Some(format!(
                "a write at {} was refused to token {}, which held from {} to {}",
                write.t, hold.token, hold.from, hold.to
            ))
        })
        .collect()
}

/// When the fault lasted.
fn lasted(events: &[&Event]) -> Option<(u64, u64)> {
    let at = |phase| events.iter().find(|event| (event.op, event.phase) == (Op::Fault, phase)).map(|event| event.t);
    Some((at(Phase::Invoke)?, at(Phase::Ok).unwrap_or(u64::MAX)))
}

/// `Unavailable` is an answer while there is a fault. `Lost` is one at any time; where there is no fault, it is a loss.
fn errors_without_a_fault<'a>(events: &[&'a Event]) -> Vec<(&'a str, String)> {
    let lasted = lasted(events);
    let mut begun: HashMap<(Option<u64>, Op), u64> = HashMap::new();
    let mut says = Vec::new();
    for event in events {
        if event.phase == Phase::Invoke {
            begun.insert((event.claim, event.op), event.t);
        }
        let Some(error) = &event.error else { continue };
        let from = begun.get(&(event.claim, event.op)).copied().unwrap_or(event.t);
        let met = lasted.is_some_and(|(begin, end)| from <= end && event.t >= begin);
        if error != "Lost" && !(met && error == "Unavailable") {
            says.push((error.as_str(), format!("{:?} from {from} to {} ended with {error}", event.op, event.t)));
        }
    }
    says
}

/// Nobody loses what is renewed when nothing goes wrong.
fn lost_without_a_fault(events: &[&Event]) -> Vec<String> {
    let is_loss = |event: &&&Event| {
        let is_told = matches!((event.op, event.phase), (Op::Lost, _) | (Op::Release | Op::Check, Phase::Fail));
        event.stands.is_none() && (is_told || event.error.as_deref() == Some("Lost"))
    };
    events.iter().filter(is_loss).map(|event| format!("at {} a hold was lost: {:?}", event.t, event.token)).collect()
}

/// The longest time after the fault for which somebody waited and nobody held.
fn longest_gap(events: &[&Event], holds: &[Hold]) -> Duration {
    let since = lasted(events).map_or(0, |(_, end)| end);
    let last_seen: HashMap<u32, u64> = events.iter().map(|event| (event.process, event.t)).collect();
    // Who waits from when to when.
    let mut waits: HashMap<u64, (u64, u64)> = HashMap::new();
    for event in events.iter().filter(|event| event.op == Op::Acquire) {
        let (Some(claim), t) = (event.claim, event.t) else { continue };
        match event.phase {
            Phase::Invoke => drop(waits.insert(claim, (t, last_seen[&event.process]))),
            _ => drop(waits.entry(claim).and_modify(|wait| wait.1 = t)),
        }
    }
    let waits = union(waits.into_values().collect());
    let held = union(holds.iter().map(|hold| (hold.from, hold.to)).collect());
    let mut longest = 0;
    for (from, to) in waits {
        let mut free_from = from.max(since);
        for &(held_from, held_to) in &held {
            if held_from >= to {
                break;
            }
            longest = longest.max(held_from.saturating_sub(free_from));
            free_from = free_from.max(held_to);
        }
        longest = longest.max(to.saturating_sub(free_from));
    }
    Duration::from_nanos(longest)
}

/// These stretches of time, in order, and those that touch as one.
fn union(mut stretches: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    stretches.sort_unstable();
    let mut union: Vec<(u64, u64)> = Vec::new();
    for (from, to) in stretches {
        match union.last_mut() {
            Some(last) if last.1 >= from => last.1 = last.1.max(to),
            _ => union.push((from, to)),
        }
    }
    union
}
