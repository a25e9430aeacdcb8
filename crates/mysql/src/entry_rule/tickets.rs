//! What the record's tickets say, in the server's terms.

use std::time::Duration;

use tenure_core::record::{Moment, Record, Stage, Ticket};
use tenure_core::{ClaimId, Instant};

pub(super) fn moment(now: u64) -> Moment {
    Moment { now: Instant::from_nanos(now * 1_000), wall_micros: now }
}

pub(super) fn waits(ticket: &Ticket) -> bool {
    matches!(ticket.stage, Stage::Waiting { .. })
}

fn ends(stage: &Stage) -> Instant {
    match stage {
        Stage::Waiting { alive_until } => *alive_until,
        Stage::Held { expires, .. } | Stage::Closing { expires, .. } => *expires,
    }
}

/// What is left of a holder's window: its ticket's, which need not be its claim's.
pub(super) fn left(record: &Record, id: ClaimId, at: Moment) -> Duration {
    let ticket = record.line.iter().find(|ticket| ticket.id == id).expect("it was let in");
    (ends(&ticket.stage) - ticket.lock_delay).since(at.now)
}

/// When time alone may let somebody in: the earliest end of a hold.
pub(super) fn change_in(record: &Record, at: Moment) -> Option<Duration> {
    let holds = record.line.iter().filter(|ticket| !waits(ticket));
    holds.map(|ticket| ends(&ticket.stage).since(at.now)).min()
}
