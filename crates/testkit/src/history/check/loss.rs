//! P12: a holder learns of its loss, and nothing is trusted after the end of the window.

use std::time::Duration;

use super::super::{Event, Op, Phase};
use super::Broken;

/// P12: `lost` is told at the latest `notice` after the window's end, and a check begun after that end is not `ok`.
///
/// For [`Op::Check`] the event's `t` is the moment *before* the check, and `until` the window's end *after* it.
pub(super) fn is_told(events: &[&Event], notice: Duration, broken: &mut Broken<'_>) {
    let notice = u64::try_from(notice.as_nanos()).unwrap_or(u64::MAX);
    for event in events {
        let Some(until) = event.until else { continue };
        if event.op == Op::Lost && event.t > until.saturating_add(notice) {
            broken.because(format!("the window ended at {until}, and its holder was told at {}", event.t));
        }
        if (event.op, event.phase) == (Op::Check, Phase::Ok) && event.t > until {
            broken.because(format!("the window ended at {until}, and a check at {} said that it was held", event.t));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Kind;
    use super::super::LOSS_NOTICE;
    use super::super::sample::Sample;
    use super::*;

    fn with(t: u64, op: Op, phase: Phase) -> Vec<&'static str> {
        let sample = Sample::of(Kind::Mutex);
        let event = sample.event(t, op, phase).claim(1).until(100);
        sample.with([event]).broken()
    }

    #[test]
    fn a_late_notice_is_found() {
        let notice = LOSS_NOTICE.as_nanos() as u64;
        assert!(with(100 + notice, Op::Lost, Phase::Ok).is_empty());
        assert_eq!(with(101 + notice, Op::Lost, Phase::Ok), ["P12"]);
    }

    #[test]
    fn a_check_that_trusts_too_long_is_found() {
        assert!(with(100, Op::Check, Phase::Ok).is_empty());
        assert!(with(101, Op::Check, Phase::Fail).is_empty());
        assert_eq!(with(101, Op::Check, Phase::Ok), ["P12"]);
    }
}
