//! The line of a name, from the names of its nodes: who is in, who is next, and whom a waiter watches. Pure.
//!
//! Nobody asks the server who holds: the order of the nodes says it, by [`admit`](tenure_core::admit), the same to everybody who
//! lists them. Sequence numbers are signed and wrap, so they are compared by their distance. But servers from 3.6 on stop counting at
//! the highest one, and give it to everybody: whoever gets one of the last numbers [may not stay](is_used_up).
//!
//! **When is an event the grant?** A waiter watches one node. When that one goes, the waiter is in without another look if nobody
//! else can have been in its way:
//!
//! - mutex, fair mutex, election: it was the only one in front. Nobody can come in front later: numbers only rise.
//! - a reader: it was the only writer in front. Nobody in front becomes one.
//! - a writer of an rw lock looks again: the one in front may have gone as a writer and stayed as a reader, which is another node
//!   at the same place.
//! - permits look again: it takes a count.
//!
//! A waiter that was told nothing for a long time looks by itself. What lets it in then is [counted](tenure_core::Client::grants_by_poll),
//! unless the event came with the look: the server sends an event before any answer that shows what it tells.

use tenure_core::{Claim, ClaimId, Entry, Kind, Mode, admit};

use crate::layout::{Key, Layout, Place, place};

/// Everybody in line, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line(pub(crate) Vec<Place>);

/// How somebody in the line stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// In.
    Enter,
    /// Behind this node.
    Behind {
        /// Its name.
        node: String,
        /// Whose it is.
        key: Key,
        /// Its going is the grant.
        decides: bool,
    },
    /// First of those that wait for room: any of the holders may make it.
    First,
    /// Behind one that waits for room, and that says when it is in.
    BehindWaiter {
        /// Its name.
        node: String,
    },
    /// Not in line.
    Gone,
}

impl Line {
    /// The claims among the children of a name.
    pub(crate) fn read(layout: Layout, children: &[String]) -> Line {
        let mut places: Vec<Place> = children.iter().filter_map(|child| place(layout, child)).collect();
        if let Some(reference) = places.first().map(|place| place.sequence) {
            // As long as fewer than two thousand million came and went while somebody waited, distances are in order.
            places.sort_by_key(|place| place.sequence.wrapping_sub(reference));
        }
        Line(places)
    }

    /// Where a node stands.
    pub(crate) fn find(&self, node: &str) -> Option<usize> {
        self.0.iter().position(|place| place.node == node)
    }

    /// The nodes of a claim: one, and whatever a session before this one has left.
    pub(crate) fn of(&self, key: Key) -> impl Iterator<Item = &Place> {
        self.0.iter().filter(move |place| place.key == key)
    }

    /// Whether whoever stands at `me` gets in.
    pub(crate) fn standing(&self, me: usize) -> Standing {
        let Some(own) = self.0.get(me) else { return Standing::Gone };
        let behind = |at: usize, decides| {
            let Place { node, key, .. } = &self.0[at];
            Standing::Behind { node: node.clone(), key: *key, decides }
        };
        match self.entry(me) {
            Entry::Enter => Standing::Enter,
            Entry::Behind(other) => {
                let at = number(other);
                let ahead = &self.0[..me];
                let decides = match (own.kind, own.mode) {
                    (Kind::RwLock, Mode::Shared) => ahead.iter().filter(|place| place.mode == Mode::Exclusive).count() == 1,
                    (Kind::RwLock, _) => false,
                    _ => me == 1,
                };
                behind(at, decides)
            }
            Entry::BehindAny if self.entry(me - 1) == Entry::Enter => Standing::First,
            Entry::BehindAny => Standing::BehindWaiter { node: self.0[me - 1].node.clone() },
            Entry::Gone => Standing::Gone,
        }
    }

    /// How many are in: those are the first so many.
    pub(crate) fn holders(&self) -> usize {
        (0..self.0.len()).take_while(|at| self.entry(*at) == Entry::Enter).count()
    }

    /// The kind that the first in line has given to the name, and of how many permits it is.
    pub(crate) fn kind(&self) -> Option<(Kind, Option<u32>)> {
        self.0.first().map(|first| (first.kind, of(first.mode)))
    }

    /// Whether a claim is of the same kind, and of as many permits.
    pub(crate) fn fits(&self, claim: &Claim) -> bool {
        self.kind().is_none_or(|(kind, permits)| kind == claim.kind && permits == of(claim.mode))
    }

    fn entry(&self, me: usize) -> Entry {
        // The rule wants ids to tell places apart: their numbers do.
        admit(self.0[..=me].iter().enumerate().map(|(at, place)| (id(at), place.mode)), id(me))
    }
}

/// Whether a parent that gives this number has hardly any left, or none: then nobody knows for long who came first. It must go, with
/// its line, so that the next one begins anew.
pub(crate) fn is_used_up(sequence: i32) -> bool {
    !(0..i32::MAX - (1 << 20)).contains(&sequence)
}

/// Of how many permits.
pub(crate) fn of(mode: Mode) -> Option<u32> {
    match mode {
        Mode::Permits { of, .. } => Some(of.get()),
        Mode::Exclusive | Mode::Shared => None,
    }
}

fn id(at: usize) -> ClaimId {
    ClaimId::from_bytes((at as u128).to_be_bytes())
}

fn number(id: ClaimId) -> usize {
    u128::from_be_bytes(*id.as_bytes()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(nodes: &[&str]) -> Line {
        let nodes: Vec<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
        Line::read(Layout::Tenure, &nodes)
    }

    fn mutex(key: u64, sequence: i32) -> String {
        format!("mutex-{key:016x}-{sequence:010}")
    }

    #[test]
    fn numbers_wrap() {
        let nodes = [mutex(3, i32::MIN), mutex(1, i32::MAX - 1), mutex(4, i32::MIN + 1), mutex(2, i32::MAX)];
        let line = Line::read(Layout::Tenure, &nodes);
        let order: Vec<&str> = line.0.iter().map(|place| place.node.as_str()).collect();
        assert_eq!(order, [&*nodes[1], &*nodes[3], &*nodes[0], &*nodes[2]]);
        assert_eq!(nodes[0], "mutex-0000000000000003--2147483648");
    }

    #[test]
    fn the_last_numbers_are_nobodys() {
        assert!([0, 1, i32::MAX / 2, i32::MAX - (1 << 21)].into_iter().all(|sequence| !is_used_up(sequence)));
        assert!([i32::MAX - 1, i32::MAX, i32::MIN, -1].into_iter().all(is_used_up), "it sticks, or has wrapped");
    }

    #[test]
    fn only_the_one_behind_the_holder_is_let_in_by_an_event() {
        let nodes = [mutex(1, 1), mutex(2, 2), mutex(3, 3)];
        let line = Line::read(Layout::Tenure, &nodes);
        assert_eq!(line.standing(0), Standing::Enter);
        assert!(matches!(line.standing(1), Standing::Behind { node, decides: true, .. } if node == nodes[0]));
        assert!(matches!(line.standing(2), Standing::Behind { node, decides: false, .. } if node == nodes[1]));
        assert_eq!(line.standing(3), Standing::Gone);
        assert_eq!(line.holders(), 1);
    }

    #[test]
    fn readers_watch_the_last_writer_and_writers_look_again() {
        let line = line(&[
            "rw.w-0000000000000001-0000000001",
            "rw.r-0000000000000002-0000000002",
            "rw.w-0000000000000003-0000000003",
            "rw.r-0000000000000004-0000000004",
        ]);
        assert!(matches!(line.standing(1), Standing::Behind { node, decides: true, .. } if node == line.0[0].node));
        assert!(matches!(line.standing(2), Standing::Behind { node, decides: false, .. } if node == line.0[1].node));
        assert!(matches!(line.standing(3), Standing::Behind { node, decides: false, .. } if node == line.0[2].node));
    }

    #[test]
    fn only_the_first_of_those_that_wait_for_room_watches_the_holders() {
        let nodes: Vec<String> = (0..5).map(|n| format!("sem.1.2-{n:016x}-{n:010}")).collect();
        let line = Line::read(Layout::Tenure, &nodes);
        assert_eq!((line.standing(1), line.standing(2)), (Standing::Enter, Standing::First));
        assert_eq!(line.standing(3), Standing::BehindWaiter { node: nodes[2].clone() });
        assert_eq!((line.holders(), line.kind()), (2, Some((Kind::Semaphore, Some(2)))));
    }

    #[test]
    fn a_reader_that_was_a_writer_keeps_its_place() {
        let line = line(&[
            "rw.r-0000000000000002-0000000002",
            "rw.r-0000000000000001-0000000001",
            "rw.w-0000000000000003-0000000003",
            "not one of ours",
        ]);
        assert_eq!(line.0.iter().map(|place| place.sequence).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((line.standing(0), line.standing(1)), (Standing::Enter, Standing::Enter));
        assert!(matches!(line.standing(2), Standing::Behind { .. }));
    }
}
