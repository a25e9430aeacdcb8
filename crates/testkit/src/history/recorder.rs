//! Where tasks write what they do and see.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::Instant;

use super::{Event, History, Kind, Mode, Op, Phase};

/// Collects the events of one process, in memory or in a file that only grows. Clones write to the same place.
#[derive(Clone, Debug)]
pub struct Recorder {
    place: Arc<Mutex<Place>>,
    tasks: Arc<AtomicU32>,
}

#[derive(Debug)]
enum Place {
    Memory(Vec<Event>),
    File(File),
}

impl Recorder {
    /// Keeps events in memory.
    pub fn in_memory() -> Self {
        Self::at(Place::Memory(Vec::new()))
    }

    /// Appends events to a file, each as one write of one line: what a killed process wrote is there.
    pub fn to_file(path: impl AsRef<Path>) -> std::io::Result<Self> {
        Ok(Self::at(Place::File(File::options().create(true).append(true).open(path)?)))
    }

    fn at(place: Place) -> Self {
        Recorder { place: Arc::new(Mutex::new(place)), tasks: Arc::default() }
    }

    /// Writes one event as it stands.
    pub fn write(&self, event: Event) {
        match &mut *self.place.lock().unwrap_or_else(PoisonError::into_inner) {
            Place::Memory(events) => events.push(event),
            Place::File(file) => {
                let line = serde_json::to_string(&event).expect("events are plain") + "\n";
                file.write_all(line.as_bytes()).expect("the history can be written");
            }
        }
    }

    /// A new task of this process on this lock, to write events through.
    pub fn task(&self, lock: &str, kind: Kind) -> Task {
        let task = self.tasks.fetch_add(1, Ordering::Relaxed);
        let event = Event::new(0, lock, kind, Op::Check, Phase::Ok).by(std::process::id(), task);
        Task { recorder: self.clone(), event, asks: 0 }
    }

    /// What was recorded in memory so far.
    pub fn history(&self) -> History {
        match &*self.place.lock().unwrap_or_else(PoisonError::into_inner) {
            Place::Memory(events) => History::new(events.clone()),
            Place::File(_) => panic!("this recorder writes to a file: read it with History::read"),
        }
    }
}

/// One task's pen: knows who writes, about which lock and which ask.
#[derive(Clone, Debug)]
pub struct Task {
    recorder: Recorder,
    event: Event,
    asks: u32,
}

impl Task {
    /// Begins a new ask in this mode and records that; gives its number.
    pub fn asks(&mut self, mode: Mode) -> u64 {
        self.asks += 1;
        let claim = (u64::from(self.event.process) << 40) | (u64::from(self.event.task) << 20) | u64::from(self.asks);
        self.event = Event { claim: Some(claim), mode, token: None, ..self.event.clone() };
        self.write(Op::Acquire, Phase::Invoke, None);
        claim
    }

    /// From now on, what is granted while it waits stands for so long if it does not come.
    pub fn stands(&mut self, stands: Option<Duration>) {
        self.event.stands = stands.map(|stands| stands.as_nanos() as u64);
    }

    /// Writes of an owner from now on.
    pub fn owner(mut self, owner: u64) -> Self {
        self.event.owner = Some(owner);
        self
    }

    /// Records that the ask was granted.
    pub fn granted(&mut self, token: u64, until: Instant) {
        self.event.token = Some(token);
        self.write(Op::Acquire, Phase::Ok, Some(until));
    }

    /// Records a downgrade: before it with [`Phase::Invoke`], after it with what came of it.
    pub fn downgrades(&mut self, phase: Phase, until: Instant) {
        self.event.mode = Mode::Shared;
        self.write(Op::Downgrade, phase, Some(until));
    }

    /// Records something else about the ask under way.
    pub fn write(&self, op: Op, phase: Phase, until: Option<Instant>) {
        let until = until.map(Instant::as_nanos);
        // The clock is read last: an event is never recorded as earlier than it was decided to be.
        self.recorder.write(Event { op, phase, until, t: Instant::now().as_nanos(), ..self.event.clone() });
    }

    /// Records that an operation ended with an error that says nothing about what the store did.
    pub fn failed(&self, op: Op, error: &tenure_core::Error) {
        let mut pen = self.clone();
        pen.event.error = Some(format!("{:?}", error.kind()));
        pen.write(op, Phase::Unknown, None);
    }

    /// Checks the guard and records what it said, with the moment before and the window after: see P12.
    pub fn checks(&self, held: &crate::Held) {
        let t = Instant::now().as_nanos();
        let phase = if held.check().is_ok() { Phase::Ok } else { Phase::Fail };
        let until = Some(held.valid_until().as_nanos());
        self.recorder.write(Event { op: Op::Check, phase, until, t, ..self.event.clone() });
    }

    /// Records that this ask, of whatever task, was seen in the line, or that this term was seen.
    pub fn saw(&self, op: Op, claim: Option<u64>, token: Option<u64>) {
        let event = Event { op, phase: Phase::Ok, claim, token, until: None, ..self.event.clone() };
        self.recorder.write(Event { t: Instant::now().as_nanos(), ..event });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gives_back_what_was_written_to_it() {
        let path = std::env::temp_dir().join(format!("tenure-history-{}", std::process::id()));
        let recorder = Recorder::to_file(&path).unwrap();
        let mut task = recorder.task("é\"x", Kind::Semaphore).owner(3);
        task.asks(Mode::Permits { take: 2, of: 4 });
        task.granted(17, Instant::from_nanos(99));
        File::options().append(true).open(&path).unwrap().write_all(b"{\"t\":1,\"cut sh").unwrap();
        let history = History::read([&path]).unwrap();
        std::fs::remove_file(&path).unwrap();
        let [asked, granted] = history.events() else { panic!("{history:?}") };
        assert_eq!((asked.phase, granted.phase), (Phase::Invoke, Phase::Ok));
        assert_eq!((granted.token, granted.until, granted.owner), (Some(17), Some(99), Some(3)));
        assert_eq!((granted.mode, granted.lock.as_str()), (Mode::Permits { take: 2, of: 4 }, "é\"x"));
        assert_eq!(asked.claim, granted.claim);
    }

    #[test]
    fn every_ask_has_a_number_of_its_own() {
        let recorder = Recorder::in_memory();
        let (mut one, mut other) = (recorder.task("x", Kind::Mutex), recorder.task("x", Kind::Mutex));
        let mut asks = [one.asks(Mode::Exclusive), one.asks(Mode::Exclusive), other.asks(Mode::Exclusive)];
        asks.sort_unstable();
        assert!(asks.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(recorder.history().events().len(), 3);
    }
}
