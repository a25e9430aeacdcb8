//! What a record's tickets say of themselves, as the server's functions say it.

use std::collections::HashMap;
use std::time::Duration;

use tenure_core::record::{ClientKey, Moment, Record, Stage};
use tenure_core::{ClaimId, Instant, Mode};

use tenure_testkit::histories::{change_in, ends, moment};

/// Waiters are alive while their clients are; those of `heard` are.
pub(super) fn set_alive(record: &mut Record, alive: &HashMap<ClientKey, u64>, heard: Option<ClientKey>) {
    for ticket in &mut record.line {
        if let Stage::Waiting { alive_until } = &mut ticket.stage {
            let known = alive.get(&ticket.client).copied().unwrap_or(0);
            *alive_until = if heard == Some(ticket.client) { Instant::NEVER } else { moment(known).now };
        }
    }
}

pub(super) fn room(mode: Mode) -> u32 {
    match mode {
        Mode::Permits { of, .. } => of.get(),
        Mode::Exclusive | Mode::Shared => i32::MAX as u32,
    }
}

pub(super) fn left_with_delay(record: &Record, id: ClaimId, at: Moment) -> Duration {
    let ticket = record.line.iter().find(|ticket| ticket.id == id).expect("it was let in");
    ends(&ticket.stage).since(at.now)
}

/// Whether a waiter is the first, and then when time alone may let somebody in: the earliest end of a hold.
pub(super) fn standing(record: &Record, id: ClaimId, at: Moment) -> (bool, Option<Duration>) {
    let first = record.first_waiter() == Some(id);
    (first, change_in(record, at).filter(|_| first))
}
