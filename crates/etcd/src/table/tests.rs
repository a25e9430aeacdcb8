//! Seats: given back, used again, and never two in one. And for how long a claim trusts its lease.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{HANDOVER_TTL, Kind, Mode, Note, Origin};

use super::*;

fn claim(number: u8, name: &str) -> Claim {
    Claim {
        name: LockName::new(name).unwrap(),
        kind: Kind::Mutex,
        mode: Mode::Exclusive,
        id: ClaimId::from_bytes([number; 16]),
        ttl: Duration::from_secs(2),
        handover_ttl: HANDOVER_TTL,
        lock_delay: Duration::ZERO,
        min_hold: Duration::ZERO,
        note: Note::none(),
        origin: Origin { host: "here".into(), pid: 1 },
    }
}

#[test]
fn seats_are_used_again_and_never_by_two() {
    let mut table = Table::default();
    let [a, b, c, other] = [claim(1, "x"), claim(2, "x"), claim(3, "x"), claim(4, "y")];
    let first = table.seat(&a);
    assert_eq!((first.number, table.seat(&a)), (0, first), "a claim keeps its seat");
    assert_eq!((table.seat(&b).number, table.seat(&other).number), (1, 0), "each name has its own");
    let entry = table.remove(a.id).unwrap();
    assert_eq!(table.seat(&c).number, 2, "nobody has left it yet");
    table.leave(&entry);
    assert_eq!(table.seat(&a), first);
    table.move_over(c.id);
    assert!(table.seat(&c).client != first.client, "its key is somebody else's");
    let entry = table.remove(a.id).unwrap();
    table.leave(&entry);
    assert_eq!(table.seat(&claim(6, "x")).number, 1, "a seat of the past gives none back");
}

/// A waiter that is let in has all that the short lease has: a dead one costs others that much anyway. What the name stays closed for
/// after it is not its own.
#[test]
fn a_claim_trusts_what_its_lease_has() {
    for (ttl, delay, lease, trusted) in [(30, 0, 30, 30), (30, 0, 5, 5), (30, 10, 15, 5), (30, 10, 40, 30), (2, 0, 5, 2)] {
        let (ttl, lock_delay) = (Duration::from_secs(ttl), Duration::from_secs(delay));
        let mut entry = Entry::new(&Claim { ttl, lock_delay, ..claim(1, "x") });
        entry.on = Some(OnLease::of(&Arc::new(Lease::new(1, lease, Instant::now()))));
        assert_eq!(entry.trusted(), Duration::from_secs(trusted));
        assert_eq!(entry.is_on_the_short_one(), entry.trusted() < ttl);
        assert!(entry.pace() <= entry.trusted() / 3, "it is kept alive in time");
    }
}
