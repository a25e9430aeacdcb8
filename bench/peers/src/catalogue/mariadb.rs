//! Who takes part on MariaDB. tenure's leases are committed; the other libraries use locks of a session, which are not.

use super::{Entry, NOTHING, Program, Side, WAITING};
use crate::lines::Line;

pub(super) const CONTENDERS: &[Entry] = &[
    Entry {
        key: "raw-upsert",
        side: Side::Raw,
        program: Program::Rust,
        what: "two upserts of one row, each committed, on one connection; mysql_async 0.37, prepared",
        waits: "not at all",
        leaves_out: "everything: it locks nothing",
        lines: &[Line::Solo, Line::Many],
        cannot: "it locks nothing",
        polls_ms: None,
        sends: &[],
        base: of_leases,
    },
    Entry {
        key: "raw-upsert-2",
        side: Side::Raw,
        program: Program::Rust,
        what: "the same on two connections, one for each of the two upserts, as tenure's leases have them",
        waits: "not at all",
        leaves_out: "everything: it locks nothing",
        lines: &[Line::Many],
        cannot: "one task gains nothing by a second connection",
        polls_ms: None,
        sends: &[],
        base: of_leases,
    },
    Entry {
        key: "raw-getlock",
        side: Side::Raw,
        program: Program::Rust,
        what: "GET_LOCK without waiting and RELEASE_LOCK on one connection for all tasks, prepared",
        waits: "not at all",
        leaves_out: "exclusion: a session that has the lock gets it again",
        lines: &[Line::Solo, Line::Many],
        cannot: "one session can always take its own lock again",
        polls_ms: None,
        sends: &[],
        base: of_sessions,
    },
    Entry {
        key: "tenure",
        side: Side::Tenure,
        program: Program::Rust,
        what: "tenure, mutex: a lease in a row, committed",
        waits: "in line; MariaDB tells nobody, so the first looks again after 1/16 of its wait, every 1–100 ms",
        leaves_out: NOTHING,
        lines: WAITING,
        cannot: "",
        polls_ms: Some(100),
        sends: &[],
        base: of_leases,
    },
    Entry {
        key: "distributed-lock",
        side: Side::Peer,
        program: Program::Rust,
        what: "Rust crate distributed-lock 0.2.0, MySQL store (distributed-lock-mysql on sqlx 0.8), acquire(Some(5 s))",
        waits: "in GET_LOCK, or for one of its pool's ten connections; gives up after 5 s",
        leaves_out: "fencing token, keepalive and with it the loss signal (both off by default), every write to disk",
        lines: WAITING,
        cannot: "",
        polls_ms: None,
        sends: &[],
        base: of_sessions,
    },
    Entry {
        key: "getlock",
        side: Side::Peer,
        program: Program::Rust,
        what: "by hand: GET_LOCK and RELEASE_LOCK, a connection a task; mysql_async 0.37, prepared",
        waits: "in the server's queue, one connection a waiter",
        leaves_out: "fencing token, loss signal, a bound for vanished hosts, sharing of connections, every write to disk",
        lines: WAITING,
        cannot: "",
        polls_ms: None,
        sends: &[],
        base: of_sessions,
    },
];

fn of_leases(line: Line) -> &'static str {
    match line {
        Line::Solo => "raw-upsert",
        Line::Many => "raw-upsert-2",
        // Nothing in the server tells another session of a commit: its queue for locks is as quick as it can be.
        Line::Handover | Line::Contended | Line::Crowd => "getlock",
    }
}

fn of_sessions(line: Line) -> &'static str {
    match line {
        Line::Solo | Line::Many => "raw-getlock",
        Line::Handover | Line::Contended | Line::Crowd => "getlock",
    }
}
