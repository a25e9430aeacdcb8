//! P14: observers of an election see terms rise.

use std::collections::HashMap;

use super::super::{Event, Op, Phase};
use super::Broken;

/// P14: every observer sees strictly rising terms. (One leader a term, and terms that rise, are P1 and P2.)
pub(super) fn terms_rise(events: &[&Event], broken: &mut Broken<'_>) {
    let mut seen: HashMap<(u32, u32), u64> = HashMap::new();
    for event in events.iter().filter(|event| (event.op, event.phase) == (Op::Observe, Phase::Ok)) {
        let term = event.token.unwrap_or(0);
        if let Some(before) = seen.insert((event.process, event.task), term).filter(|before| *before >= term) {
            broken.because(format!("at {} an observer saw term {term} after {before}", event.t));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Kind;
    use super::super::sample::Sample;
    use super::*;

    fn seen(terms: [(u32, u64); 3]) -> Vec<&'static str> {
        let sample = Sample::of(Kind::Election);
        let events: Vec<Event> = terms
            .into_iter()
            .zip(1..)
            .map(|((task, term), t)| sample.event(t, Op::Observe, Phase::Ok).token(term).by(0, task))
            .collect();
        sample.with(events).broken()
    }

    #[test]
    fn an_observer_that_goes_back_is_found() {
        assert!(seen([(0, 5), (0, 6), (1, 5)]).is_empty());
        assert_eq!(seen([(0, 5), (0, 6), (0, 5)]), ["P14"]);
        assert_eq!(seen([(0, 5), (0, 5), (0, 6)]), ["P14"]);
    }
}
