//! What the bench tells its helper processes, and what they answer: a line of JSON each, over their standard streams.
//!
//! Moments are nanoseconds on the clock that all processes of a host share ([`tenure::Instant`]), so "start all at once" is
//! a moment in an order and needs no barrier.

use serde::{Deserialize, Serialize};

/// What a helper is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Connect. The URL comes this way and not as an argument, since it may carry a password and `ps` shows arguments.
    Open { store: String },
    /// Take the mutex again and again between two moments, holding it so long each time. Answered by `Rounds`.
    Contend { name: String, hold_ns: u64, from_ns: u64, until_ns: u64 },
    /// Wait for the mutex, say when it was got, and let go.
    Wait { name: String },
    /// Take the mutex, say so, and keep it to the end.
    Hold { name: String, ttl_ms: u64 },
    /// Let go of everything and disconnect: a helper that is not needed now must cost nothing.
    Close,
}

/// What a helper answers: one of these for each order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Done.
    Done,
    /// It has, or had, the lock: at this moment.
    Got { at_ns: u64 },
    /// What happened while it contended.
    Rounds(Vec<Round>),
    /// It could not.
    Failed(String),
}

/// One hold of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Round {
    /// The hold's fencing token: tells the order without any clock.
    pub(super) token: u64,
    /// When it asked.
    pub(super) asked: u64,
    /// When it ran with the lock.
    pub(super) got: u64,
    /// When it called release.
    pub(super) released: u64,
}
