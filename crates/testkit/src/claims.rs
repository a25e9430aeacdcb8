//! Claims by hand, for tests that speak to a store without a client.

use std::time::Duration;

use tenure_core::{Claim, ClaimId, HANDOVER_TTL, Kind, LockName, Mode, Note, Origin};

/// The claim with this number, for the name `x`, with a ttl that no test outlives.
///
/// # Panics
/// Never: `x` is a name.
pub fn claim(kind: Kind, number: usize) -> Claim {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
    Claim {
        name: LockName::new("x").expect("it is a name"),
        kind,
        mode: Mode::Exclusive,
        id: ClaimId::from_bytes(id),
        ttl: Duration::from_secs(600),
        handover_ttl: HANDOVER_TTL,
        lock_delay: Duration::ZERO,
        min_hold: Duration::ZERO,
        note: Note::none(),
        origin: Origin { host: "here".into(), pid: 1 },
    }
}
