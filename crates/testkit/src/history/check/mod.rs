//! The properties, one small function each. Every one of them is shown a sound and a broken history by its tests: a
//! checker that cannot fail is worth nothing.

mod election;
mod exclusion;
mod fence;
mod fifo;
mod loss;
mod reentry;
mod tokens;

use std::fmt;
use std::time::Duration;

use super::{History, Kind};

/// How long after the end of its window a holder may be left in ignorance, on a machine that is not overloaded.
pub const LOSS_NOTICE: Duration = Duration::from_millis(50);

/// A promise that a history breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which: `P1` to `P14`, as FAILURES numbers them.
    pub property: &'static str,
    /// The name it was broken on.
    pub lock: String,
    /// What happened, with times and tokens.
    pub says: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {:?}: {}", self.property, self.lock, self.says)
    }
}

/// Checks every property that applies, with the [`LOSS_NOTICE`] of an idle machine.
pub fn check(history: &History) -> Result<(), Vec<Violation>> {
    check_within(history, LOSS_NOTICE)
}

/// The same on a machine where it takes so long until a holder is told.
pub fn check_within(history: &History, loss_notice: Duration) -> Result<(), Vec<Violation>> {
    let mut violations = Vec::new();
    for lock in history.locks() {
        let events: Vec<_> = history.events().iter().filter(|event| event.lock == lock).collect();
        let holds = history.holds(lock);
        let mut broken = Broken { property: "", lock, violations: &mut violations };
        broken.of("P1", |broken| exclusion::windows(&holds, broken));
        broken.of("P2", |broken| tokens::rise(&holds, history.readers_may_share, broken));
        broken.of("P3", |broken| fence::never_goes_back(&events, broken));
        broken.of("P5", |broken| fifo::in_order(&events, &holds, broken));
        broken.of("P9", |broken| exclusion::writers(&holds, broken));
        broken.of("P10", |broken| exclusion::permits(&holds, broken));
        broken.of("P11", |broken| reentry::same_token(&holds, broken));
        broken.of("P12", |broken| loss::is_told(&events, loss_notice, broken));
        broken.of("P14", |broken| election::terms_rise(&events, broken));
    }
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

/// For tests on machines of any speed: panics with every violation, and if nothing was granted at all. Only how *soon*
/// a loss is told is left out, since that is the machine's doing; that it is never too late for trust is P1 and P12.
#[track_caller]
pub fn expect_sound(history: &History) {
    assert!(history.grants() > 0, "a history without a grant proves nothing");
    if let Err(violations) = check_within(history, Duration::MAX) {
        let shown: Vec<String> = violations.iter().take(20).map(Violation::to_string).collect();
        panic!("{} violations in {} events:\n{}", violations.len(), history.events().len(), shown.join("\n"));
    }
}

/// The same, but for the order of the line.
#[track_caller]
pub fn expect_sound_but_order(history: &History) {
    assert!(history.grants() > 0, "a history without a grant proves nothing");
    let mut broken = check_within(history, Duration::MAX).err().unwrap_or_default();
    broken.retain(|broken| broken.property != "P5");
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Where a property says that it is broken.
pub(super) struct Broken<'a> {
    property: &'static str,
    lock: &'a str,
    violations: &'a mut Vec<Violation>,
}

impl Broken<'_> {
    fn of(&mut self, property: &'static str, check: impl FnOnce(&mut Self)) {
        self.property = property;
        check(self);
    }

    fn because(&mut self, says: String) {
        self.violations.push(Violation { property: self.property, lock: self.lock.to_owned(), says });
    }
}

/// Kinds whose holds are alone, so that P1 speaks of them.
fn is_exclusive(kind: Kind) -> bool {
    matches!(kind, Kind::Mutex | Kind::Fair | Kind::Reentrant | Kind::Election)
}

/// What the properties' tests are made of.
#[cfg(test)]
mod sample {
    use super::super::{Event, History, Kind, Mode, Op, Phase, check};

    /// A lock's events, built hold by hold.
    pub(super) struct Sample(pub(super) Vec<Event>, Kind);

    impl Sample {
        pub(super) fn of(kind: Kind) -> Self {
            Sample(Vec::new(), kind)
        }

        /// One hold: asked for at `from - 1`, let go of at `to`, window until `to + 10`.
        pub(super) fn hold(self, claim: u64, token: u64, from: u64, to: u64) -> Self {
            self.hold_as(claim, token, from, to, Mode::Exclusive)
        }

        pub(super) fn hold_as(self, claim: u64, token: u64, from: u64, to: u64, mode: Mode) -> Self {
            let event = Event::new(from - 1, "x", self.1, Op::Acquire, Phase::Invoke).claim(claim).mode(mode);
            let granted = Event { t: from, phase: Phase::Ok, ..event.clone() }.token(token).until(to + 10);
            let released = Event { t: to, op: Op::Release, ..event.clone() };
            let gone = Event { t: to, phase: Phase::Ok, ..released.clone() };
            self.with([event, granted, released, gone])
        }

        pub(super) fn with(mut self, events: impl IntoIterator<Item = Event>) -> Self {
            self.0.extend(events);
            self
        }

        pub(super) fn event(&self, t: u64, op: Op, phase: Phase) -> Event {
            Event::new(t, "x", self.1, op, phase)
        }

        /// Which properties this breaks.
        pub(super) fn broken(self) -> Vec<&'static str> {
            let mut broken: Vec<_> =
                check(&History::new(self.0)).err().unwrap_or_default().iter().map(|violation| violation.property).collect();
            broken.dedup();
            broken
        }
    }
}
