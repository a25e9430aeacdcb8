//! P2: tokens rise in the order of grants.

use std::collections::HashMap;

use super::super::{Hold, Mode};
use super::{Broken, is_exclusive};

/// P2: no two grants of a name have the same token; whoever asked after another's grant was known has a higher one; and
/// exclusive holds come in the order of their tokens. Entries of one owner into one hold share theirs. Whoever learned of its hold when
/// that was over already never held it, and may come at any time.
///
/// Where it is said that `readers_may_share`, those who enter at the same time may have the same one; not whoever asks when another's
/// is known.
pub(super) fn rise(holds: &[Hold], readers_may_share: bool, broken: &mut Broken<'_>) {
    unique(holds, readers_may_share, broken);
    after_the_known(holds, broken);
    in_order(holds, broken);
}

fn unique(holds: &[Hold], readers_may_share: bool, broken: &mut Broken<'_>) {
    let mut seen: HashMap<u64, (&Hold, Mode)> = HashMap::new();
    for hold in holds {
        let (token, mode) = (hold.token, hold.segments[0].mode);
        if let Some((other, theirs)) = seen.insert(token, (hold, mode))
            && !same_owner(hold, other)
            && !(readers_may_share && (mode, theirs) == (Mode::Shared, Mode::Shared))
        {
            broken.because(format!("token {token} was given twice, at {} and {}", other.from, hold.from));
        }
    }
}

fn after_the_known(holds: &[Hold], broken: &mut Broken<'_>) {
    let mut asked: Vec<&Hold> = holds.iter().collect();
    asked.sort_by_key(|hold| hold.invoked);
    let mut known = holds.iter().peekable(); // in order of when they were known
    let mut highest: Option<&Hold> = None;
    for hold in asked {
        while let Some(earlier) = known.next_if(|earlier| earlier.from < hold.invoked) {
            highest = highest.filter(|highest| highest.token >= earlier.token).or(Some(earlier));
        }
        if let Some(highest) = highest.filter(|highest| highest.token >= hold.token && !same_owner(highest, hold)) {
            let (ours, theirs) = (hold.token, highest.token);
            broken.because(format!(
                "token {ours} was asked for at {}, when {theirs} was known since {}",
                hold.invoked, highest.from
            ));
        }
    }
}

fn in_order(holds: &[Hold], broken: &mut Broken<'_>) {
    let exclusive: Vec<&Hold> = holds.iter().filter(|hold| is_exclusive(hold.kind) && hold.from < hold.to).collect();
    for pair in exclusive.windows(2) {
        let (first, second) = (pair[0], pair[1]);
        if first.token >= second.token && !same_owner(first, second) {
            let (a, b) = (first.token, second.token);
            broken.because(format!("token {b} was granted at {} after {a} at {}", second.from, first.from));
        }
    }
}

fn same_owner(a: &Hold, b: &Hold) -> bool {
    a.owner.is_some() && a.owner == b.owner && a.token == b.token
}

#[cfg(test)]
mod tests {
    use super::super::super::{Event, History, Kind, Mode, Op, Phase, check};
    use super::super::sample::Sample;

    #[test]
    fn rising_tokens_are_sound() {
        assert!(Sample::of(Kind::Mutex).hold(1, 7, 10, 20).hold(2, 8, 21, 30).hold(3, 90, 31, 40).broken().is_empty());
    }

    #[test]
    fn tokens_that_repeat_or_fall_are_found() {
        for second in [7, 6] {
            assert_eq!(Sample::of(Kind::Mutex).hold(1, 7, 10, 20).hold(2, second, 21, 30).broken(), ["P2"], "{second}");
        }
    }

    #[test]
    fn readers_too_have_tokens_of_their_own_that_rise() {
        let shared = |first, second| {
            Sample::of(Kind::Rw).hold_as(1, first, 10, 30, Mode::Shared).hold_as(2, second, 20, 30, Mode::Shared).broken()
        };
        assert!(shared(7, 8).is_empty());
        assert_eq!(shared(7, 7), ["P2"]);
        assert_eq!(shared(8, 7), ["P2"]);
    }

    #[test]
    fn readers_that_enter_together_may_share_one_where_that_is_said() {
        let together = |may_share, theirs| {
            let sample = Sample::of(Kind::Rw);
            let ask = |t, claim, mode| sample.event(t, Op::Acquire, Phase::Invoke).claim(claim).mode(mode);
            let granted = |t, claim, mode| Event { phase: Phase::Ok, ..ask(t, claim, mode) }.token(7).until(30);
            let asks = [ask(5, 1, Mode::Shared), ask(6, 2, theirs)];
            let events = asks.into_iter().chain([granted(10, 1, Mode::Shared), granted(11, 2, theirs)]);
            let history = History::new(events.collect());
            let history = if may_share { history.where_readers_may_share() } else { history };
            check(&history).err().unwrap_or_default().iter().any(|violation| violation.property == "P2")
        };
        assert!(!together(true, Mode::Shared));
        assert!(together(false, Mode::Shared));
        assert!(together(true, Mode::Exclusive));
    }
}
