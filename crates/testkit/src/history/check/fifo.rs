//! P5: a fair mutex is given in the order of asking.

use std::collections::HashMap;

use super::super::{Event, Hold, Kind, Op, Phase};
use super::Broken;

/// P5: if one ask was seen in the line before another was even begun, it is granted first, unless it was given up.
///
/// Grants are compared by token, which the store drew in its own order; when a task came to run is the machine's doing.
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
    let mut last: Option<(u64, &Hold)> = None; // of those in line before `hold` was asked for, the one granted last
    for hold in asked {
        while let Some(before) = queued.next_if(|(t, _)| *t < hold.invoked) {
            last = last.filter(|last| last.1.token >= before.1.token).or(Some(before));
        }
        if let Some((seen, before)) = last.filter(|(_, before)| before.token > hold.token) {
            let (ours, theirs) = (hold.token, before.token);
            let asked = hold.invoked;
            broken.because(format!("token {ours}, asked for at {asked}, came before {theirs}, in line since {seen}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::*;

    /// Claim 1 is asked for at 11 and seen in line at 12, claim 2 asked for at 14; the holder before them leaves at 20.
    fn two_in_line(kind: Kind, seen: u64, tokens: [u64; 2]) -> Vec<&'static str> {
        let sample = Sample::of(kind).hold(9, 5, 10, 20);
        let ask = |t, claim| sample.event(t, Op::Acquire, Phase::Invoke).claim(claim);
        let grant = |t, claim, token| sample.event(t, Op::Acquire, Phase::Ok).claim(claim).token(token).until(t + 3);
        let release = |t, claim| sample.event(t, Op::Release, Phase::Invoke).claim(claim);
        let (first, second) = if tokens[0] < tokens[1] { (21, 31) } else { (31, 21) };
        let events = [
            ask(11, 1),
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
        assert!(two_in_line(Kind::Fair, 12, [6, 7]).is_empty());
        assert_eq!(two_in_line(Kind::Fair, 12, [7, 6]), ["P5"]);
    }

    #[test]
    fn who_was_not_yet_in_line_was_not_overtaken() {
        assert!(two_in_line(Kind::Fair, 15, [7, 6]).is_empty());
    }

    #[test]
    fn a_plain_mutex_promises_no_order() {
        assert!(two_in_line(Kind::Mutex, 12, [7, 6]).is_empty());
    }
}
