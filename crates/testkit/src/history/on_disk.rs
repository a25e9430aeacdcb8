//! What a server that was killed may have shown and not kept.

use std::collections::HashMap;

use tenure_core::Instant;

use super::{Event, History, Op, Phase};

impl History {
    /// This history without those who were seen in the line when it may not have been on the server's disk yet.
    ///
    /// Some servers (InnoDB) show a commit before it is on their disk, and only whoever made it waits for that. So a sighting
    /// counts if the server was not killed after it; or if a release was begun after it and confirmed before the kill: a log is
    /// written in order.
    pub fn on_disk(self, kills: &[Instant]) -> Self {
        let releases = self.releases();
        let counts = |event: &Event| {
            let is_sighting = (event.op, event.phase) == (Op::Queue, Phase::Ok);
            let killed = kills.iter().map(|kill| kill.as_nanos()).find(|kill| *kill > event.t);
            match killed.filter(|_| is_sighting) {
                Some(killed) => releases.iter().any(|(begun, confirmed)| *begun > event.t && *confirmed < killed),
                None => true,
            }
        };
        History { events: self.events.into_iter().filter(counts).collect(), ..self }
    }

    /// When each release was begun and confirmed.
    fn releases(&self) -> Vec<(u64, u64)> {
        let of = |phase| self.events.iter().filter(move |event| (event.op, event.phase) == (Op::Release, phase));
        let begun: HashMap<_, _> = of(Phase::Invoke).map(|event| (event.claim, event.t)).collect();
        of(Phase::Ok).filter_map(|event| Some((*begun.get(&event.claim)?, event.t))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    /// Whether somebody who was seen at 10 counts, where a release was begun and confirmed then, and the server killed then.
    fn counts(release: [u64; 2], kill: u64) -> bool {
        let event = |t, op, phase, claim| Event::new(t, "x", Kind::Fair, op, phase).claim(claim);
        let history = History::new(vec![
            event(10, Op::Queue, Phase::Ok, 1),
            event(release[0], Op::Release, Phase::Invoke, 2),
            event(release[1], Op::Release, Phase::Ok, 2),
        ]);
        let kept = history.on_disk(&[Instant::from_nanos(5), Instant::from_nanos(kill)]);
        assert!(kept.events().len() >= 2, "nothing but a sighting is left out");
        kept.events().len() == 3
    }

    #[test]
    fn a_sighting_counts_once_something_later_was_confirmed() {
        assert!(counts([11, 12], 20));
        assert!(!counts([9, 12], 20), "it may have been written before");
        assert!(!counts([11, 21], 20), "the answer may be another run's");
    }

    #[test]
    fn it_counts_where_nobody_was_killed() {
        assert!(counts([8, 9], 7));
    }
}
