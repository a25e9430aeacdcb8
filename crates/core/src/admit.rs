//! The entry rule: given the line, does this claim get in, and if not, for whom does it wait?
//!
//! Written once and pure. A store that must repeat it in its own language (Lua, SQL) is held to this function by a
//! property test over the same random histories.
//!
//! The line has everybody in order of asking, holders first. Who is let in is always a *prefix* of it:
//!
//! - exclusive: only the first;
//! - shared: nobody exclusive stands before it, waiting or holding, so a stream of readers cannot starve a writer;
//! - permits: everything taken or wanted before it leaves enough room, so a stream of small requests cannot starve a
//!   large one.
//!
//! The prefix is what makes a hand-over cheap: walk from the front, stop at the first that must wait.

use crate::{ClaimId, Mode};

/// Whether a claim gets in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It does.
    Enter,
    /// It waits for this one to leave, and need not look again before that.
    Behind(ClaimId),
    /// It waits for any of those before it to leave.
    BehindAny,
    /// It is not in the line.
    Gone,
}

/// Applies the rule to the claim `me` in a line given in order of asking.
///
/// ```
/// use tenure_core::{admit, ClaimId, Entry, Mode};
/// let [a, b, c] = [1, 2, 3].map(|n| ClaimId::from_bytes([n; 16]));
/// let line = [(a, Mode::Shared), (b, Mode::Exclusive), (c, Mode::Shared)];
/// assert_eq!(admit(line, a), Entry::Enter);
/// assert_eq!(admit(line, b), Entry::Behind(a)); // the writer waits for the reader
/// assert_eq!(admit(line, c), Entry::Behind(b)); // and the next reader waits for the writer
/// ```
pub fn admit(line: impl IntoIterator<Item = (ClaimId, Mode)>, me: ClaimId) -> Entry {
    let mut before = Before::default();
    for (id, mode) in line {
        if id == me {
            return before.admits(mode);
        }
        before.pass(id, mode);
    }
    Entry::Gone
}

/// What stands before a place in the line: all that the rule looks at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before {
    last: Option<ClaimId>,
    last_exclusive: Option<ClaimId>,
    permits: u64,
}

impl Before {
    /// Steps past one claim.
    pub(crate) fn pass(&mut self, id: ClaimId, mode: Mode) {
        self.last = Some(id);
        match mode {
            Mode::Exclusive => self.last_exclusive = Some(id),
            Mode::Shared => {}
            Mode::Permits { take, .. } => self.permits += u64::from(take.get()),
        }
    }

    /// Whether a claim that stands here gets in.
    pub(crate) fn admits(&self, mode: Mode) -> Entry {
        match mode {
            Mode::Exclusive => self.last.map_or(Entry::Enter, Entry::Behind),
            Mode::Shared => self.last_exclusive.map_or(Entry::Enter, Entry::Behind),
            Mode::Permits { take, of } if self.permits + u64::from(take.get()) <= u64::from(of.get()) => Entry::Enter,
            Mode::Permits { .. } => Entry::BehindAny,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    fn id(n: usize) -> ClaimId {
        ClaimId::from_bytes((n as u128 + 1).to_be_bytes())
    }

    fn permits(take: u32, of: u32) -> Mode {
        Mode::Permits { take: NonZeroU32::new(take).unwrap(), of: NonZeroU32::new(of).unwrap() }
    }

    fn rw_line() -> impl Strategy<Value = Vec<Mode>> {
        prop::collection::vec(prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared)], 0..12)
    }

    fn permit_line() -> impl Strategy<Value = Vec<Mode>> {
        prop::collection::vec((1u32..=4).prop_map(|take| permits(take, 4)), 0..12)
    }

    proptest! {
        #[test]
        fn whoever_is_let_in_is_a_prefix(modes in prop_oneof![rw_line(), permit_line()]) {
            let line: Vec<_> = modes.iter().enumerate().map(|(n, mode)| (id(n), *mode)).collect();
            let entered: Vec<bool> = line.iter().map(|(me, _)| admit(line.clone(), *me) == Entry::Enter).collect();
            let first_out = entered.iter().position(|entered| !entered).unwrap_or(entered.len());
            prop_assert!(entered[first_out..].iter().all(|entered| !entered));
            prop_assert!(line.is_empty() || entered[0], "the first in line always gets in");
        }

        #[test]
        fn whoever_is_in_may_be_in_together(modes in prop_oneof![rw_line(), permit_line()]) {
            let line: Vec<_> = modes.iter().enumerate().map(|(n, mode)| (id(n), *mode)).collect();
            let inside: Vec<Mode> =
                line.iter().filter(|(me, _)| admit(line.clone(), *me) == Entry::Enter).map(|(_, mode)| *mode).collect();
            let writers = inside.iter().filter(|mode| **mode == Mode::Exclusive).count();
            prop_assert!(writers == 0 || inside.len() == 1);
            let taken: u32 = inside.iter().map(|mode| match mode { Mode::Permits { take, .. } => take.get(), _ => 0 }).sum();
            prop_assert!(taken <= 4);
        }

        #[test]
        fn whom_it_waits_for_stands_before_it(modes in rw_line()) {
            let line: Vec<_> = modes.iter().enumerate().map(|(n, mode)| (id(n), *mode)).collect();
            for (place, (me, _)) in line.iter().enumerate() {
                if let Entry::Behind(other) = admit(line.clone(), *me) {
                    prop_assert!(line[..place].iter().any(|(before, _)| *before == other));
                }
            }
        }
    }

    #[test]
    fn a_large_request_is_not_starved() {
        let line = [(id(0), permits(3, 4)), (id(1), permits(4, 4)), (id(2), permits(1, 4))];
        assert_eq!(admit(line, id(2)), Entry::BehindAny, "one permit is free, but a larger request is before it");
    }

    #[test]
    fn a_stranger_is_gone() {
        assert_eq!(admit([(id(0), Mode::Exclusive)], id(7)), Entry::Gone);
    }
}
