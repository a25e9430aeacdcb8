//! Who takes part: what each one is, what it does and does not do, and how it is told to wait.

use crate::lines::Line;

/// A contender.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: &'static str,
    pub(crate) side: Side,
    pub(crate) program: Program,
    /// What it is, with its version.
    pub(crate) what: &'static str,
    /// How one waits, by the library's own defaults.
    pub(crate) waits: &'static str,
    /// What it leaves out of what tenure does on every grant: the reason, where it is ahead.
    pub(crate) leaves_out: &'static str,
    /// The lines it can take part in; where it cannot, `cannot` says why.
    pub(crate) lines: &'static [Line],
    pub(crate) cannot: &'static str,
    /// The longest pause between two questions of a waiter, if it polls. A hand-over is then measured from a random moment
    /// of that pause, and not always from its beginning.
    pub(crate) polls_ms: Option<u64>,
    /// The commands it sends itself, as MONITOR shows them. INFO commandstats counts those inside scripts as well.
    pub(crate) sends: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Redis itself, without a lock.
    Raw,
    Tenure,
    Peer,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Program {
    /// This binary.
    Rust,
    /// A script of `scripts/`.
    Python(&'static str),
    /// `scripts/redlock.js` with this argument.
    Node(&'static str),
}

const WAITING: &[Line] = &[Line::Solo, Line::Many, Line::Handover, Line::Contended, Line::Crowd];

pub(crate) const CONTENDERS: &[Entry] = &[
    Entry {
        key: "raw-evalsha",
        side: Side::Raw,
        program: Program::Rust,
        what: "two calls of a script that does nothing, redis crate 1.8",
        waits: "not at all",
        leaves_out: "everything: it locks nothing",
        lines: &[Line::Solo, Line::Many],
        cannot: "it locks nothing",
        polls_ms: None,
        sends: &["evalsha"],
    },
    Entry {
        key: "raw-publish",
        side: Side::Raw,
        program: Program::Rust,
        what: "PUBLISH to the other process's subscription",
        waits: "for the push",
        leaves_out: "everything: it locks nothing",
        lines: &[Line::Handover],
        cannot: "a message is no lock; only two processes taking turns can be told apart by it",
        polls_ms: None,
        sends: &["publish"],
    },
    Entry {
        key: "raw-blpop",
        side: Side::Raw,
        program: Program::Rust,
        what: "a baton in a list: BLPOP to take it, LPUSH to pass it on",
        waits: "blocked in BLPOP, one connection a waiter, first come, first served",
        leaves_out: "expiry (a holder that dies takes the baton with it), owner, token, renewal",
        lines: &[Line::Handover, Line::Contended, Line::Crowd],
        cannot: "its base is the script pair",
        polls_ms: None,
        sends: &["blpop", "lpush"],
    },
    Entry {
        key: "tenure",
        side: Side::Tenure,
        program: Program::Rust,
        what: "tenure, mutex",
        waits: "in line, woken by one push; all waiters of a client on one connection",
        leaves_out: "nothing: fencing token, renewal and loss signal are always on",
        lines: WAITING,
        cannot: "",
        polls_ms: None,
        sends: OURS,
    },
    Entry {
        key: "tenure-fair",
        side: Side::Tenure,
        program: Program::Rust,
        what: "tenure, fair mutex",
        waits: "in line, first come, first served, woken by one push",
        leaves_out: "nothing: fencing token, renewal and loss signal are always on",
        lines: WAITING,
        cannot: "",
        polls_ms: None,
        sends: OURS,
    },
    Entry {
        key: "rslock",
        side: Side::Peer,
        program: Program::Rust,
        what: "Rust crate rslock 0.10.0, LockManager::acquire",
        waits: "asks again after a random 0–200 ms, and clears up after each refusal with a script",
        leaves_out: "fencing token, renewal, loss signal, queue: one SET NX and a three-line script",
        lines: WAITING,
        cannot: "",
        polls_ms: Some(200),
        sends: &["set", "evalsha"],
    },
    Entry {
        key: "redis-lock",
        side: Side::Peer,
        program: Program::Rust,
        what: "Rust crate redis-lock 0.5.1, lock_across",
        waits: "asks again every 100 ms, gives up after 10 s",
        leaves_out: "fencing token, renewal, loss signal, queue: one SET NX and a three-line script",
        lines: WAITING,
        cannot: "",
        polls_ms: Some(100),
        sends: &["set", "eval"],
    },
    Entry {
        key: "distributed-lock",
        side: Side::Peer,
        program: Program::Rust,
        what: "Rust crate distributed-lock 0.2.0, Redis store (distributed-lock-redis)",
        waits: "not at all: acquire(Some(5 s)) answers Timeout at once when the lock is taken",
        leaves_out: "fencing token, queue, waiting; it renews and has a loss signal",
        lines: &[Line::Solo, Line::Many],
        cannot: "its acquire does not wait: it fails at once, whatever time limit it is given",
        polls_ms: None,
        sends: &["set", "eval"],
    },
    Entry {
        key: "redis-py",
        side: Side::Peer,
        program: Program::Python("redis_py.py"),
        what: "Python, redis 8.1.0, Redis.lock(name, timeout=10), threads",
        waits: "asks again every 100 ms",
        leaves_out: "fencing token, renewal, loss signal, queue",
        lines: WAITING,
        cannot: "",
        polls_ms: Some(100),
        sends: &["set", "evalsha"],
    },
    Entry {
        key: "python-redis-lock",
        side: Side::Peer,
        program: Program::Python("python_redis_lock.py"),
        what: "Python, python-redis-lock 4.0.1, Lock(client, name, expire=10), threads",
        waits: "blocked in BLPOP on a signal list, one connection a waiter; woken, it asks again and may be too late",
        leaves_out: "fencing token, loss signal; renewal is off here, as it is by default (it is a thread for every hold)",
        lines: WAITING,
        cannot: "",
        polls_ms: None,
        // Each EVALSHA makes one GET inside, and is counted by it.
        sends: &["get", "set", "blpop"],
    },
    Entry {
        key: "redlock4",
        side: Side::Peer,
        program: Program::Node("4"),
        what: "npm redlock 4.2.0 (`latest`) on ioredis 6.0.0, lock and unlock",
        waits: "asks again after 200–400 ms, gives up after 10 times",
        leaves_out: "fencing token, renewal, loss signal, queue",
        lines: WAITING,
        cannot: "",
        polls_ms: Some(400),
        sends: &["eval", "evalsha"],
    },
    Entry {
        key: "redlock5",
        side: Side::Peer,
        program: Program::Node("5"),
        what: "npm redlock 5.0.0-beta.2 on ioredis 6.0.0, acquire and release",
        waits: "asks again after 200–400 ms, gives up after 10 times",
        leaves_out: "fencing token, queue; renewal and loss signal only with its `using`",
        lines: WAITING,
        cannot: "",
        polls_ms: Some(400),
        sends: &["eval", "evalsha"],
    },
];

/// What tenure sends while it runs: its scripts, and now and then a look at its index of names. The PUBLISH that wakes a
/// waiter is inside a script.
const OURS: &[&str] = &["evalsha", "eval", "zrangebylex", "ping"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_missing_somewhere_says_why() {
        for entry in CONTENDERS {
            assert!(entry.lines.len() == WAITING.len() || !entry.cannot.is_empty(), "{}", entry.key);
        }
    }

    #[test]
    fn every_line_has_its_base() {
        for line in Line::ALL {
            let base = CONTENDERS.iter().find(|entry| entry.key == line.base()).expect("a base that takes part");
            assert!(base.side == Side::Raw && base.lines.contains(line), "{line:?}");
        }
    }
}
