//! What happened, in order, from all three: the two workers and the store between them.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Something that happened to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Event {
    /// When: microseconds since 1970. Only to be shown: nothing is decided by it.
    pub at: u64,
    /// Whose it is: worker 1 or 2.
    pub worker: u8,
    pub what: What,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum What {
    Asked,
    Held { token: u64 },
    Checked { left: Duration },
    Stopped,
    Broken,
    GoesOn,
    Wrote { text: String, status: u16, why: Option<String> },
    Lost,
    Released,
}

impl Event {
    pub fn now(worker: u8, what: What) -> Self {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970").as_micros() as u64;
        Event { at, worker, what }
    }
}

/// One run, whole.
pub struct Run {
    pub store: String,
    pub is_fenced: bool,
    /// By time.
    pub events: Vec<Event>,
    /// What is in the store at the end.
    pub text: String,
}

impl Run {
    /// Whether the work of the second worker, who held the lock last, is gone.
    pub fn is_overwritten(&self) -> bool {
        self.text != worker_text(2)
    }

    /// Seconds since the beginning.
    pub fn seconds(&self, event: &Event) -> f64 {
        (event.at - self.events[0].at) as f64 / 1e6
    }
}

/// What a worker writes.
pub fn worker_text(worker: u8) -> String {
    format!("report of worker {worker}")
}

/// The end of a token: they are long, and differ there.
pub fn short(token: u64) -> String {
    format!("…{:06}", token % 1_000_000)
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with = if self.is_fenced { "With the fence" } else { "Without a fence" };
        writeln!(f, "{with} (the lock is in {})\n", self.store)?;
        for event in &self.events {
            let worker = event.worker;
            let says = match &event.what {
                What::Asked => "asks for the lock".to_owned(),
                What::Held { token } => format!("holds the lock, with the token {}", short(*token)),
                What::Checked { left } => format!(
                    "looks whether it still holds it: yes, for {:.1} s more. It is about to write",
                    left.as_secs_f64()
                ),
                What::Stopped => "is stopped (SIGSTOP), between that look and the write".to_owned(),
                What::Broken => "is taken for dead by an operator, who breaks its lock".to_owned(),
                What::GoesOn => "goes on (SIGCONT), and writes: it has looked, after all".to_owned(),
                What::Wrote { text, status, why: None } => format!("wrote {text:?}: {status}"),
                What::Wrote { text, status, why: Some(why) } => {
                    format!("was refused to write {text:?}: {status}\n{:20}{why}", "")
                }
                What::Lost => "hears that its lock is lost".to_owned(),
                What::Released => "lets go of the lock".to_owned(),
            };
            writeln!(f, "{:7.2} s  worker {worker}  {says}", self.seconds(event))?;
        }
        let verdict = match self.is_overwritten() {
            true => "the work of worker 2, who held the lock last, is OVERWRITTEN",
            false => "the work of worker 2, who held the lock last, is still there",
        };
        writeln!(f, "\n   => in the store: {:?}: {verdict}", self.text)
    }
}
