//! From events to holds: what each holder could trust, from when to when, in which mode.

use std::collections::HashMap;

use super::{Event, Kind, Mode, Op, Phase};

/// One grant, from the moment its holder learned of it to the moment it could no longer be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The ask's number.
    pub claim: u64,
    /// The kind of lock.
    pub kind: Kind,
    /// Whose, for a re-entrant mutex.
    pub owner: Option<u64>,
    /// When it was asked for.
    pub invoked: u64,
    /// When the holder learned that it had it.
    pub from: u64,
    /// When trust ended: the first of release begun, loss told, window over.
    pub to: u64,
    /// When its holder knew that it was gone, if it ever did: only from then on it surely was.
    pub gone: Option<u64>,
    /// The fencing number it was granted with.
    pub token: u64,
    /// What it was held as: one piece, or two where it was downgraded, which follow each other
    /// without a gap.
    pub segments: Vec<Segment>,
}

/// A stretch of a hold in one mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// When it began.
    pub from: u64,
    /// When it ended.
    pub to: u64,
    /// The mode.
    pub mode: Mode,
}

/// All holds of a name, by when they were learned of.
pub(super) fn holds(events: &[Event], lock: &str) -> Vec<Hold> {
    let last_seen = last_seen(events);
    let mut by_claim: HashMap<u64, Vec<&Event>> = HashMap::new();
    for event in events.iter().filter(|event| event.lock == lock && event.op != Op::Write && event.op != Op::Queue) {
        if let Some(claim) = event.claim {
            by_claim.entry(claim).or_default().push(event);
        }
    }
    let mut holds: Vec<Hold> = by_claim.into_iter().filter_map(|(claim, events)| hold(claim, &events, &last_seen)).collect();
    holds.sort_by_key(|hold| (hold.from, hold.claim));
    holds
}

/// The last sign of life of each process: whoever was killed trusts nothing any more.
fn last_seen(events: &[Event]) -> HashMap<u32, u64> {
    events.iter().map(|event| (event.process, event.t)).collect() // in order of time, so the last one stays
}

fn hold(claim: u64, events: &[&Event], last_seen: &HashMap<u32, u64>) -> Option<Hold> {
    let granted = events.iter().find(|event| (event.op, event.phase) == (Op::Acquire, Phase::Ok))?;
    let invoked =
        events.iter().find(|event| (event.op, event.phase) == (Op::Acquire, Phase::Invoke)).map_or(granted.t, |e| e.t);
    let token = granted.token?;
    // The window as the holder last knew it; a renewal moves it on.
    let until = events.iter().rev().find_map(|event| event.until).unwrap_or(u64::MAX);
    let let_go = events.iter().find(|event| (event.op, event.phase) == (Op::Release, Phase::Invoke) || event.op == Op::Lost);
    let is_gone = |event: &&&Event| event.op == Op::Release && matches!(event.phase, Phase::Ok | Phase::Fail);
    let gone = events.iter().find(is_gone).map(|event| event.t);
    let silent = || last_seen.get(&granted.process).copied().unwrap_or(granted.t) + 1; // it did trust at that moment
    let to = let_go.map_or_else(silent, |event| event.t).min(until).max(granted.t);
    let mut segments = vec![Segment { from: granted.t, to, mode: granted.mode }];
    // From the moment a writer steps down it may not rely on being alone.
    let steps_down = |event: &&&Event| (event.op, event.phase) == (Op::Downgrade, Phase::Invoke) && event.t <= to;
    if let Some(event) = events.iter().find(steps_down)
        && granted.mode == Mode::Exclusive
    {
        segments[0].to = event.t;
        segments.push(Segment { from: event.t, to, mode: Mode::Shared });
    }
    Some(Hold { claim, kind: granted.kind, owner: granted.owner, invoked, from: granted.t, to, gone, token, segments })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(t: u64, op: Op, phase: Phase) -> Event {
        Event::new(t, "x", Kind::Rw, op, phase).claim(1)
    }

    fn granted() -> Vec<Event> {
        vec![event(1, Op::Acquire, Phase::Invoke), event(2, Op::Acquire, Phase::Ok).token(9).until(100)]
    }

    fn only(events: Vec<Event>) -> Hold {
        let [hold] = holds(&events, "x").try_into().unwrap();
        hold
    }

    #[test]
    fn trust_ends_with_whatever_comes_first() {
        let after = |event: Event| only([granted(), vec![event]].concat()).to;
        assert_eq!(after(event(50, Op::Release, Phase::Invoke)), 50);
        assert_eq!(after(event(50, Op::Lost, Phase::Ok)), 50);
        assert_eq!(after(event(150, Op::Lost, Phase::Ok)), 100, "the window was over before anybody said so");
        assert_eq!(after(event(150, Op::Release, Phase::Invoke).until(200)), 150, "it had been renewed");
    }

    #[test]
    fn a_killed_process_trusts_nothing() {
        let other = event(90, Op::Check, Phase::Ok).by(7, 0).claim(8);
        assert_eq!(only([granted(), vec![other]].concat()).to, 3, "its last sign of life was the grant");
    }

    #[test]
    fn what_was_never_granted_is_no_hold() {
        assert!(holds(&[event(1, Op::Acquire, Phase::Invoke), event(2, Op::Acquire, Phase::Unknown)], "x").is_empty());
        assert!(holds(&granted(), "y").is_empty());
    }

    #[test]
    fn a_downgrade_splits_the_hold() {
        let down = |t, phase| event(t, Op::Downgrade, phase).mode(Mode::Shared);
        let steps = vec![
            down(10, Phase::Invoke),
            down(12, Phase::Unknown),
            down(14, Phase::Invoke),
            down(15, Phase::Ok),
            event(30, Op::Release, Phase::Invoke),
        ];
        let pieces: Vec<_> =
            only([granted(), steps].concat()).segments.into_iter().map(|s| (s.from, s.to, s.mode)).collect();
        assert_eq!(pieces, [(2, 10, Mode::Exclusive), (10, 30, Mode::Shared)]);
    }
}
