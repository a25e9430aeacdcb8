//! P5: a fair mutex is given in the order of asking.

use std::collections::HashMap;
use std::time::Duration;

use tenure_core::{HANDOVER_TTL, margin};

use super::super::{Event, Hold, Kind, Op, Phase};
use super::Broken;

/// P5: if one ask was seen in the line before another was even begun, it is granted first, unless it was given up.
///
/// Grants are compared by token, which the store drew in its own order; when a task came to run is the machine's doing.
///
/// Whoever was let in and does not come within [`HANDOVER_TTL`], or its ttl if that is shorter, is passed over, and stands at the end
/// when it comes: GUARANTEES says so. That leaves a trace, and only where there is one it is no violation: nobody held for all that
/// time, or for as much of it as the window has, since whoever comes between the two gives back what it may not trust.
///
/// Where a place in line is a session's, one of a shorter ttl is lost when nothing is heard of its client for that long. The trace of that is
/// that nothing at all is on record meanwhile: the machine stood still.
pub(super) fn in_order(events: &[&Event], holds: &[Hold], broken: &mut Broken<'_>) {
    let granted: HashMap<u64, &Hold> =
        holds.iter().filter(|hold| hold.kind == Kind::Fair).map(|hold| (hold.claim, hold)).collect();
    let mut first_seen: HashMap<u64, u64> = HashMap::new();
    for event in events.iter().filter(|event| (event.op, event.phase) == (Op::Queue, Phase::Ok)) {
        if let Some(claim) = event.claim {
            first_seen.entry(claim).or_insert(event.t);
        }
    }
    let mut queued: Vec<(u64, &Hold)> =
        first_seen.iter().filter_map(|(claim, t)| Some((*t, *granted.get(claim)?))).collect();
    queued.sort_by_key(|(t, _)| *t);
    let mut asked: Vec<&Hold> = granted.values().copied().collect();
    asked.sort_by_key(|hold| hold.invoked);
    let mut queued = queued.into_iter().peekable();
    let (idle, still) = (idle(holds), still(events));
    let stands: HashMap<u64, u64> = events.iter().filter_map(|event| Some((event.claim?, event.stands?))).collect();
    let mut last: Option<(u64, &Hold)> = None; // of those in line before `hold` was asked for, the one granted last
    for hold in asked {
        while let Some(before) = queued.next_if(|(t, _)| *t < hold.invoked) {
            last = last.filter(|last| last.1.token >= before.1.token).or(Some(before));
        }
        if let Some((seen, before)) = last.filter(|(_, before)| before.token > hold.token) {
            let shorter = stands.get(&before.claim).copied();
            let stands = window(shorter.map_or(HANDOVER_TTL, Duration::from_nanos));
            let is_trace = |(from, to): &(u64, u64)| seen < *to && *to <= hold.from && to - from >= stands;
            if idle.iter().any(is_trace) || (shorter.is_some() && still.iter().any(is_trace)) {
                continue;
            }
            let (ours, theirs) = (hold.token, before.token);
            let asked = hold.invoked;
            broken.because(format!("token {ours}, asked for at {asked}, came before {theirs}, in line since {seen}"));
        }
    }
}

/// When nobody held: from the end of one hold to the next that was learned of.
fn idle(holds: &[Hold]) -> Vec<(u64, u64)> {
    let mut held_until = None;
    let mut idle = Vec::new();
    for hold in holds {
        if let Some(until) = held_until.filter(|until| *until < hold.from) {
            idle.push((until, hold.from));
        }
        held_until = held_until.max(Some(hold.to));
    }
    idle
}

/// When nothing happened: from each thing on record to the next.
fn still(events: &[&Event]) -> Vec<(u64, u64)> {
    let mut times: Vec<u64> = events.iter().map(|event| event.t).collect();
    times.sort_unstable();
    times.windows(2).map(|pair| (pair[0], pair[1])).collect()
}

/// For so long a grant may be trusted that stands for `stands`.
fn window(stands: Duration) -> u64 {
    (stands - margin(stands)).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::*;

    /// Claim 1 is asked for at 11 and seen in line at `seen`, claim 2 asked for at 14; the holder before them leaves at 20. Whoever
    /// has token 6 is let in at `next`.
    fn two_in_line(kind: Kind, seen: u64, tokens: [u64; 2], next: u64) -> Vec<&'static str> {
        two_in_line_of_whom(kind, None, seen, tokens, next)
    }

    /// The same, where what claim 1 is granted stands for so long.
    fn two_in_line_of_whom(kind: Kind, stands: Option<u64>, seen: u64, tokens: [u64; 2], next: u64) -> Vec<&'static str> {
        let sample = Sample::of(kind).hold(9, 5, 10, 20);
        let ask = |t, claim| sample.event(t, Op::Acquire, Phase::Invoke).claim(claim);
        let grant = |t, claim, token| sample.event(t, Op::Acquire, Phase::Ok).claim(claim).token(token).until(t + 3);
        let release = |t, claim| sample.event(t, Op::Release, Phase::Invoke).claim(claim);
        let (first, second) = if tokens[0] < tokens[1] { (next, next + 10) } else { (next + 10, next) };
        let events = [
            Event { stands, ..ask(11, 1) },
            sample.event(seen, Op::Queue, Phase::Ok).claim(1),
            ask(14, 2),
            grant(first, 1, tokens[0]),
            release(first + 2, 1),
            grant(second, 2, tokens[1]),
            release(second + 2, 2),
        ];
        Sample::of(kind).hold(9, 5, 10, 20).with(events).broken()
    }

    #[test]
    fn overtaking_is_found() {
        assert!(two_in_line(Kind::Fair, 12, [6, 7], 21).is_empty());
        assert_eq!(two_in_line(Kind::Fair, 12, [7, 6], 21), ["P5"]);
    }

    #[test]
    fn who_did_not_come_when_let_in_is_passed_over() {
        let lapsed = 20 + window(HANDOVER_TTL);
        assert!(two_in_line(Kind::Fair, 12, [7, 6], lapsed).is_empty());
        assert_eq!(two_in_line(Kind::Fair, 12, [7, 6], lapsed - 1), ["P5"]);
    }

    #[test]
    fn who_has_less_time_to_come_is_passed_over_sooner() {
        let lapsed = 20 + window(Duration::from_nanos(100));
        assert!(two_in_line_of_whom(Kind::Fair, Some(100), 12, [7, 6], lapsed).is_empty());
        assert_eq!(two_in_line_of_whom(Kind::Fair, Some(100), 12, [7, 6], lapsed - 1), ["P5"]);
    }

    /// Here it is held all the while, by claim 9 until 200.
    #[test]
    fn whose_session_ended_while_the_machine_stood_still_is_passed_over() {
        let broken = |stands: Option<u64>| {
            let sample = Sample::of(Kind::Fair).hold(9, 5, 10, 200);
            let ask = |t, claim| sample.event(t, Op::Acquire, Phase::Invoke).claim(claim);
            let grant = |t, claim, token| sample.event(t, Op::Acquire, Phase::Ok).claim(claim).token(token).until(t + 3);
            let release = |t, claim| sample.event(t, Op::Release, Phase::Invoke).claim(claim);
            let events = [
                Event { stands, ..ask(11, 1) },
                sample.event(12, Op::Queue, Phase::Ok).claim(1),
                ask(14, 2),
                grant(201, 2, 6),
                release(202, 2),
                grant(203, 1, 7),
                release(204, 1),
            ];
            Sample::of(Kind::Fair).hold(9, 5, 10, 200).with(events).broken()
        };
        assert!(broken(Some(100)).is_empty());
        assert_eq!(broken(Some(1_000)), ["P5"]);
        assert_eq!(broken(None), ["P5"]);
    }

    #[test]
    fn who_was_not_yet_in_line_was_not_overtaken() {
        assert!(two_in_line(Kind::Fair, 15, [7, 6], 21).is_empty());
    }

    #[test]
    fn a_plain_mutex_promises_no_order() {
        assert!(two_in_line(Kind::Mutex, 12, [7, 6], 21).is_empty());
    }
}
