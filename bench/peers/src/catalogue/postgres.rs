//! Who takes part on PostgreSQL.
//!
//! There are two ways to lock in a database, with a base each. A lease is written and committed, and so waits for the disk.
//! An advisory lock is in the server's memory and ends with a connection; nothing is written and nothing waits.

use super::{Entry, NOTHING, Program, Side, WAITING};
use crate::lines::Line;

pub(super) const CONTENDERS: &[Entry] = &[
    Entry {
        key: "raw-upsert",
        side: Side::Raw,
        program: Program::Rust,
        what: "two upserts of one row, each committed, on one connection; tokio-postgres 0.7, prepared",
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
        key: "raw-advisory",
        side: Side::Raw,
        program: Program::Rust,
        what: "pg_try_advisory_lock and pg_advisory_unlock on one connection for all tasks, prepared",
        waits: "not at all",
        leaves_out: "exclusion: a session that has the lock gets it again",
        lines: &[Line::Solo, Line::Many],
        cannot: "one session can always take its own lock again",
        polls_ms: None,
        sends: &[],
        base: of_sessions,
    },
    Entry {
        key: "raw-notify",
        side: Side::Raw,
        program: Program::Rust,
        what: "an upsert of one row with pg_notify to the other process's LISTEN, committed together",
        waits: "for the notification",
        leaves_out: "everything: it locks nothing",
        lines: &[Line::Handover],
        cannot: "a message is no lock; only two processes taking turns can be told apart by it",
        polls_ms: None,
        sends: &[],
        base: of_leases,
    },
    Entry {
        key: "tenure",
        side: Side::Tenure,
        program: Program::Rust,
        what: "tenure, mutex: a lease in a row, committed",
        waits: "in line, woken by one NOTIFY; three connections a client, however many wait",
        leaves_out: NOTHING,
        lines: WAITING,
        cannot: "",
        polls_ms: None,
        sends: &[],
        base: of_leases,
    },
    Entry {
        key: "tenure-session",
        side: Side::Tenure,
        program: Program::Rust,
        what: "tenure, mutex with liveness=session: the server's advisory locks",
        waits: "in the server's queue, a connection for each that waits there (50 at most), the others in this process",
        leaves_out: NOTHING,
        lines: WAITING,
        cannot: "",
        polls_ms: None,
        sends: &[],
        base: of_sessions,
    },
    Entry {
        key: "distributed-lock",
        side: Side::Peer,
        program: Program::Rust,
        what: "Rust crate distributed-lock 0.2.0, PostgreSQL store (distributed-lock-postgres on sqlx 0.8), acquire(Some(5 s))",
        waits: "in pg_advisory_lock, or for one of its pool's ten connections; gives up after 5 s",
        leaves_out: "fencing token, loss signal (nothing ever sets its lost_token), a bound for vanished hosts, every write to disk",
        lines: WAITING,
        cannot: "",
        polls_ms: None,
        sends: &[],
        base: of_sessions,
    },
    Entry {
        key: "advisory",
        side: Side::Peer,
        program: Program::Rust,
        what: "by hand: pg_advisory_lock and pg_advisory_unlock, a connection a task; tokio-postgres 0.7, prepared",
        waits: "in the server's queue, one connection a waiter",
        leaves_out: "fencing token, loss signal, a bound for vanished hosts, sharing of connections, poolers, every write to disk",
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
        Line::Handover => "raw-notify",
        Line::Contended | Line::Crowd => "advisory",
    }
}

fn of_sessions(line: Line) -> &'static str {
    match line {
        Line::Solo | Line::Many => "raw-advisory",
        Line::Handover | Line::Contended | Line::Crowd => "advisory",
    }
}
