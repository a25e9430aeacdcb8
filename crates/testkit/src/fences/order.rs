//! Whether what a fence said can have been said in one order in which it never went back (P3). Pure.
//!
//! Operations are intervals on one clock. Of two that overlap either may have come first; one that ended before another began came
//! before it. What was accepted may never be lower than what was accepted before.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// One token that was shown, by whom does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Before it was shown, in nanoseconds of the clock that all processes of a host share.
    pub start: u64,
    /// After the answer.
    pub end: u64,
    /// The token.
    pub token: u64,
    /// What was said.
    pub said: Said,
}

/// What a fence said, or that it said nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Said {
    /// Accepted.
    Accepted,
    /// Refused, as this one is higher.
    Stale(u64),
    /// No answer: it may have been shown or not.
    Unknown,
}

/// The first contradiction, if there is one. The fence had seen nothing before.
pub fn check(shown: &[Shown]) -> Result<(), String> {
    // By their ends, with the highest that was accepted up to there.
    let mut accepted: Vec<&Shown> = shown.iter().filter(|it| it.said == Said::Accepted).collect();
    accepted.sort_by_key(|it| it.end);
    let mut highest = 0;
    let so_far: Vec<u64> = accepted
        .iter()
        .map(|it| {
            highest = highest.max(it.token);
            highest
        })
        .collect();
    let before = |start: u64| match accepted.partition_point(|it| it.end < start) {
        0 => 0,
        many => so_far[many - 1],
    };
    // When somebody first showed a token. Whatever was said of it: a fence that gets no answer asks again, and what it then
    // finds superseded may have been taken the first time.
    let mut first: HashMap<u64, u64> = HashMap::new();
    for it in shown {
        first.entry(it.token).and_modify(|start| *start = it.start.min(*start)).or_insert(it.start);
    }
    for it in shown {
        match it.said {
            Said::Accepted if it.token < before(it.start) => {
                return Err(format!("{it:?} was accepted after {} had been", before(it.start)));
            }
            Said::Stale(highest) if highest <= it.token => return Err(format!("{it:?} was not lower")),
            Said::Stale(highest) if highest < before(it.start) => {
                return Err(format!("{it:?} was refused for less than {}, which had been accepted", before(it.start)));
            }
            Said::Stale(highest) if first.get(&highest).is_none_or(|start| *start >= it.end) => {
                return Err(format!("{it:?} was refused for a token that nobody had shown"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// What the fence must remember in the end: at least the highest that was accepted, and nothing that nobody has shown.
pub fn check_end(shown: &[Shown], highest: Option<u64>) -> Result<(), String> {
    let least = shown.iter().filter(|it| it.said == Said::Accepted).map(|it| it.token).max();
    let is_known = |token| shown.iter().any(|it| it.token == token);
    match highest {
        found if found < least => Err(format!("it remembers {found:?}, and {least:?} was accepted")),
        Some(found) if !is_known(found) => Err(format!("it remembers {found}, which nobody has shown")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(start: u64, end: u64, token: u64, said: Said) -> Shown {
        Shown { start, end, token, said }
    }

    #[test]
    fn what_overlaps_may_come_in_any_order() {
        let one = shown(0, 10, 7, Said::Accepted);
        assert!(check(&[one, shown(5, 15, 6, Said::Accepted)]).is_ok());
        assert!(check(&[one, shown(11, 15, 6, Said::Accepted)]).is_err());
        assert!(check(&[one, shown(11, 15, 7, Said::Accepted)]).is_ok());
    }

    #[test]
    fn a_refusal_needs_a_reason_that_is_true() {
        let one = shown(0, 10, 7, Said::Accepted);
        assert!(check(&[one, shown(5, 15, 6, Said::Stale(7))]).is_ok());
        assert!(check(&[one, shown(5, 15, 7, Said::Stale(7))]).is_err());
        assert!(check(&[one, shown(5, 15, 6, Said::Stale(8))]).is_err(), "nobody has shown it");
        assert!(check(&[one, shown(11, 15, 5, Said::Stale(6)), shown(0, 1, 6, Said::Unknown)]).is_err(), "it knew 7");
        assert!(check(&[shown(11, 15, 5, Said::Stale(6)), shown(0, 1, 6, Said::Unknown)]).is_ok());
    }

    #[test]
    fn the_end_is_what_was_accepted() {
        let all = [shown(0, 10, 7, Said::Accepted), shown(0, 10, 9, Said::Unknown)];
        assert!(check_end(&all, Some(7)).is_ok() && check_end(&all, Some(9)).is_ok());
        assert!(check_end(&all, Some(8)).is_err() && check_end(&all, Some(6)).is_err() && check_end(&all, None).is_err());
        assert!(check_end(&[], None).is_ok());
    }
}
