//! P3: a fenced resource never goes back.

use super::super::{Event, Op, Phase};
use super::Broken;

/// P3: the tokens that a resource accepted never fall, under any fault and with no assumption about time.
pub(super) fn never_goes_back(events: &[&Event], broken: &mut Broken<'_>) {
    let accepted = events.iter().filter(|event| (event.op, event.phase) == (Op::Write, Phase::Ok));
    let mut highest = 0;
    for event in accepted {
        let token = event.token.unwrap_or(0);
        if token < highest {
            broken.because(format!("at {} a write with token {token} was accepted after one with {highest}", event.t));
        }
        highest = highest.max(token);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Kind;
    use super::super::sample::Sample;
    use super::*;

    fn written(writes: [(u64, Phase); 3]) -> Vec<&'static str> {
        let sample = Sample::of(Kind::Mutex);
        let writes: Vec<Event> =
            writes.into_iter().zip(1..).map(|((token, phase), t)| sample.event(t, Op::Write, phase).token(token)).collect();
        sample.with(writes).broken()
    }

    #[test]
    fn a_stale_write_must_be_refused() {
        assert!(written([(7, Phase::Ok), (8, Phase::Ok), (8, Phase::Ok)]).is_empty());
        assert!(written([(7, Phase::Ok), (8, Phase::Ok), (7, Phase::Fail)]).is_empty());
        assert_eq!(written([(7, Phase::Ok), (8, Phase::Ok), (7, Phase::Ok)]), ["P3"]);
    }
}
