//! What happened, and whether it may have: a recorder of events and a checker of the promises (FAILURES, P1–P16).
//!
//! Every process of a test is on one host, so one clock orders all events exactly, and checking needs no search: sort,
//! sweep, done. The parts are pure and know no store:
//!
//! - [`Event`]: one line of a history, written as JSON
//! - [`Recorder`]: where tasks write events, in memory or in a file of their process
//! - [`History`]: all events of a test, merged by time, and the [`Hold`]s in them
//! - [`check()`]: the properties, one small function each
//!
//! ```
//! use tenure_testkit::history::{Event, History, Kind, Op, Phase, check};
//! let grant = |t, claim, token| {
//!     let event = Event::new(t, "x", Kind::Mutex, Op::Acquire, Phase::Invoke).claim(claim);
//!     [event.clone(), Event { t: t + 1, phase: Phase::Ok, ..event }.token(token).until(t + 100)]
//! };
//! let overlapping = History::new([grant(0, 1, 7), grant(10, 2, 8)].concat());
//! assert_eq!(check(&overlapping).unwrap_err()[0].property, "P1");
//! ```

mod check;
mod event;
mod hold;
mod on_disk;
mod recorder;

pub use check::{LOSS_NOTICE, Violation, check, check_within, expect_sound, expect_sound_but_order};
pub use event::{Event, Kind, Mode, Op, Phase};
pub use hold::{Hold, Segment};
pub use recorder::{Recorder, Task};

use std::path::Path;

/// All events of a test, in order of time.
#[derive(Clone, Debug, Default)]
pub struct History {
    events: Vec<Event>,
    readers_may_share: bool,
}

impl History {
    /// A history of these events, in whatever order they come.
    pub fn new(mut events: Vec<Event>) -> Self {
        events.sort_by_key(|event| event.t); // stable: what one task wrote within one tick stays in its order
        History { events, readers_may_share: false }
    }

    /// Merges the files that processes left. A last line that is cut short is left out: its writer was killed.
    pub fn read(files: impl IntoIterator<Item = impl AsRef<Path>>) -> std::io::Result<Self> {
        let mut events = Vec::new();
        for file in files {
            let text = std::fs::read_to_string(file)?;
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            for line in whole.lines() {
                events.push(serde_json::from_str(line).map_err(std::io::Error::other)?);
            }
        }
        Ok(History::new(events))
    }

    /// Writes it as JSON lines, in order of time.
    pub fn write(&self, file: impl AsRef<Path>) -> std::io::Result<()> {
        let mut text = String::new();
        for event in &self.events {
            text += &serde_json::to_string(event)?;
            text.push('\n');
        }
        std::fs::write(file, text)
    }

    /// This history, of a store where readers that enter at the same time may have the same number.
    pub fn where_readers_may_share(self) -> Self {
        History { readers_may_share: true, ..self }
    }

    /// This history and another one, as one.
    pub fn merge(self, other: History) -> Self {
        History::new([self.events, other.events].concat())
    }

    /// The events, in order of time.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// The names that occur, each once.
    pub fn locks(&self) -> Vec<&str> {
        let mut locks: Vec<&str> = self.events.iter().map(|event| event.lock.as_str()).collect();
        locks.sort_unstable();
        locks.dedup();
        locks
    }

    /// Every hold of a name, in order of when its holder learned of it.
    pub fn holds(&self, lock: &str) -> Vec<Hold> {
        hold::holds(&self.events, lock)
    }

    /// Every grant whose token was not above all that were known when it was asked for, or that somebody else has who holds alone: with
    /// those a fence lets a late holder pass, whatever became of exclusion. (Of two who hold at once, either may be the first to
    /// learn of it.) An owner that enters again what it has is given nothing: it may not know yet that somebody else has more.
    pub fn stale_tokens(&self, lock: &str) -> Vec<String> {
        let (known, mut asked) = (self.holds(lock), self.holds(lock));
        asked.sort_by_key(|hold| hold.invoked);
        let same_owner = |a: &Hold, b: &Hold| a.owner.is_some() && (a.owner, a.token) == (b.owner, b.token);
        let mut stale = Vec::new();
        for hold in &asked {
            let later = |other: &&Hold| other.from < hold.invoked && other.token >= hold.token && !same_owner(other, hold);
            let again = known.iter().any(|first| same_owner(first, hold) && first.from < hold.invoked);
            if let Some(other) = known.iter().find(later).filter(|_| !again) {
                stale.push(format!("{lock:?}: token {} was given when {} was known", hold.token, other.token));
            }
            let alone = |hold: &Hold| hold.segments[0].mode == Mode::Exclusive;
            let twin = |other: &&Hold| other.claim < hold.claim && other.token == hold.token && !same_owner(other, hold);
            if alone(hold) && known.iter().any(|other| twin(&other) && alone(other)) {
                stale.push(format!("{lock:?}: token {} was given twice", hold.token));
            }
        }
        stale
    }

    /// How many asks were granted: a history that granted nothing proves nothing.
    pub fn grants(&self) -> usize {
        self.events.iter().filter(|event| (event.op, event.phase) == (Op::Acquire, Phase::Ok)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(t: u64, claim: u64, owner: u64, token: u64) -> [Event; 2] {
        let event = Event::new(t, "x", Kind::Reentrant, Op::Acquire, Phase::Invoke).claim(claim).owner(owner);
        [event.clone(), Event { t: t + 1, phase: Phase::Ok, ..event }.token(token).until(t + 100)]
    }

    /// Its owner knows no better: the store gave the token before the other one, and to the first that entered.
    #[test]
    fn entering_again_is_given_no_token() {
        let (first, other, again) = (grant(0, 1, 1, 7), grant(10, 2, 2, 8), grant(20, 3, 1, 7));
        assert_eq!(History::new([first, other.clone(), again.clone()].concat()).stale_tokens("x"), [""; 0]);
        assert_eq!(History::new([other, again].concat()).stale_tokens("x").len(), 1);
    }
}
