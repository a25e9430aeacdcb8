//! What the lock protects where many tasks want it: counts who comes in, and notices when two are inside.
//!
//! The room has a mutex of its own: a lock that does not exclude must be caught, not believed.

use crate::orders::Contended;
use crate::stats;

#[derive(Debug)]
pub(crate) struct Room {
    counting: bool,
    inside: u32,
    last: Option<usize>,
    /// When the lock first became free since it last changed hands. A lock that its last holder takes again was free, and
    /// whoever waited did not get it; so the wait goes on from there.
    free_since: Option<u64>,
    gaps: Vec<u64>,
    seen: Contended,
}

impl Room {
    pub(crate) fn new(tasks: usize) -> Self {
        let seen = Contended { per_task: vec![0; tasks], ..Contended::default() };
        Room { counting: false, inside: 0, last: None, free_since: None, gaps: Vec::new(), seen }
    }

    pub(crate) fn enter(&mut self, me: usize, now: u64) {
        self.seen.violations += u64::from(self.inside > 0); // also before counting: a broken lock is broken
        self.inside += 1;
        let changed = self.last.replace(me) != Some(me);
        let gap = if changed { self.free_since.take().map(|since| now.saturating_sub(since)) } else { None };
        if self.counting {
            self.seen.acquisitions += 1;
            self.seen.per_task[me] += 1;
            self.seen.handovers += u64::from(changed);
            self.gaps.extend(gap);
        }
    }

    pub(crate) fn leave(&mut self, now: u64) {
        self.inside -= 1;
        self.free_since.get_or_insert(now);
    }

    pub(crate) fn gave_up(&mut self) {
        self.seen.gave_up += u64::from(self.counting);
    }

    pub(crate) fn lost(&mut self) {
        self.seen.lost += 1;
    }

    pub(crate) fn start_counting(&mut self) {
        self.counting = true;
    }

    /// What was seen since counting began, so many seconds ago.
    pub(crate) fn sum_up(&mut self, seconds: f64) -> Contended {
        self.counting = false;
        let mut seen = self.seen.clone();
        seen.seconds = seconds;
        seen.gap_p50_ns = stats::percentile(&mut self.gaps, 0.5);
        seen.gap_p99_ns = stats::percentile(&mut self.gaps, 0.99);
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_inside_are_noticed() {
        let mut room = Room::new(2);
        room.enter(0, 1);
        room.enter(1, 2);
        assert_eq!(room.sum_up(1.0).violations, 1);
    }

    #[test]
    fn only_another_holder_is_a_handover_and_the_wait_is_from_the_first_release() {
        let mut room = Room::new(2);
        room.start_counting();
        for (me, at) in [(0, 10), (0, 20), (1, 30), (0, 50)] {
            room.enter(me, at);
            room.leave(at + 1);
        }
        let seen = room.sum_up(1.0);
        assert_eq!((seen.acquisitions, seen.handovers, seen.per_task), (4, 3, vec![3, 1]));
        assert_eq!((seen.gap_p50_ns, seen.gap_p99_ns), (Some(19), Some(19))); // 11 → 30 and 31 → 50
    }
}
