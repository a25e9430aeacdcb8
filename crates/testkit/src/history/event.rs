//! One line of a history.

use serde::{Deserialize, Serialize};

/// Something that a task did or saw. Fields that do not apply are left out of the JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When, in nanoseconds on the clock that trust is counted on. For [`Phase::Invoke`] read *before* the call, for every
    /// other phase *after* it, so that a window is never recorded longer than it was.
    pub t: u64,
    /// Which process.
    pub process: u32,
    /// Which task of it.
    pub task: u32,
    /// Which name; for [`Op::Write`] the name of the lock that the written resource belongs to.
    pub lock: String,
    /// Which kind.
    pub kind: Kind,
    /// What was done.
    pub op: Op,
    /// How far it had got.
    pub phase: Phase,
    /// Which ask it was about: a number of its own for every ask, over all processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<u64>,
    /// The fencing number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// The end of the window, as the holder knew it at `t`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// How the name was wanted, or is held from now on.
    #[serde(default)]
    pub mode: Mode,
    /// For a re-entrant mutex: whose ask it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u64>,
    /// For how long, in nanoseconds, a grant stands that was made to somebody in line who does not come, if that is shorter than usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stands: Option<u64>,
    /// For [`Phase::Unknown`]: the error's kind, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Event {
    /// An event of process 0, task 0; the rest is added by the methods below, or by field.
    pub fn new(t: u64, lock: &str, kind: Kind, op: Op, phase: Phase) -> Self {
        Event {
            t,
            process: 0,
            task: 0,
            lock: lock.to_owned(),
            kind,
            op,
            phase,
            claim: None,
            token: None,
            until: None,
            mode: Mode::Exclusive,
            owner: None,
            stands: None,
            error: None,
        }
    }

    /// With this ask's number.
    pub fn claim(self, claim: u64) -> Self {
        Event { claim: Some(claim), ..self }
    }

    /// With this token.
    pub fn token(self, token: u64) -> Self {
        Event { token: Some(token), ..self }
    }

    /// With this end of the window.
    pub fn until(self, until: u64) -> Self {
        Event { until: Some(until), ..self }
    }

    /// In this mode.
    pub fn mode(self, mode: Mode) -> Self {
        Event { mode, ..self }
    }

    /// By this owner.
    pub fn owner(self, owner: u64) -> Self {
        Event { owner: Some(owner), ..self }
    }

    /// By this task of this process.
    pub fn by(self, process: u32, task: u32) -> Self {
        Event { process, task, ..self }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Asked for the name: granted (`ok`), not in time (`fail`), or given up by its caller (`unknown`).
    Acquire,
    /// Somebody saw the ask standing in the line (`ok`).
    Queue,
    /// Let go: trust ends at `invoke`, and it is surely gone at `ok`, or at `fail` if it was lost.
    Release,
    /// Made a reader of the writer that it is, in place: it may not rely on being alone from
    /// `invoke` on.
    Downgrade,
    /// The holder was told that it lost the name (`ok`).
    Lost,
    /// The holder checked: trusted (`ok`) or not (`fail`).
    Check,
    /// Wrote to a fenced resource: accepted (`ok`) or refused (`fail`), recorded by the resource, in its order.
    Write,
    /// Saw somebody lead, with this term as token (`ok`).
    Observe,
    /// The test began (`invoke`) or ended (`ok`) a fault.
    Fault,
}

/// How far it had got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// About to.
    Invoke,
    /// It worked.
    Ok,
    /// It did not.
    Fail,
    /// Neither yes nor no: an error, or nobody waited for the answer.
    Unknown,
}

/// Which kind of lock, as its user sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // their names say it
pub enum Kind {
    Mutex,
    Fair,
    Reentrant,
    Rw,
    Semaphore,
    Election,
}

impl From<tenure_core::Kind> for Kind {
    fn from(kind: tenure_core::Kind) -> Self {
        match kind {
            tenure_core::Kind::FairMutex => Kind::Fair,
            tenure_core::Kind::RwLock => Kind::Rw,
            tenure_core::Kind::Semaphore => Kind::Semaphore,
            tenure_core::Kind::Election => Kind::Election,
            _ => Kind::Mutex,
        }
    }
}

/// How a name is wanted or held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Alone.
    #[default]
    Exclusive,
    /// With other readers.
    Shared,
    /// So many of so many permits.
    Permits {
        /// How many.
        take: u32,
        /// Of how many.
        of: u32,
    },
}

impl From<tenure_core::Mode> for Mode {
    fn from(mode: tenure_core::Mode) -> Self {
        match mode {
            tenure_core::Mode::Exclusive => Mode::Exclusive,
            tenure_core::Mode::Shared => Mode::Shared,
            tenure_core::Mode::Permits { take, of } => Mode::Permits { take: take.get(), of: of.get() },
        }
    }
}
