//! Keys: injective, prefix-free, in the order of names, and good to read.

use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;
use tenure_core::{HANDOVER_TTL, Note, Origin};

use super::*;

fn claim(name: &str, kind: Kind, mode: Mode) -> Claim {
    Claim {
        name: LockName::new(name).unwrap(),
        kind,
        mode,
        id: ClaimId::from_bytes([7; 16]),
        ttl: Duration::from_secs(2),
        handover_ttl: HANDOVER_TTL,
        lock_delay: Duration::ZERO,
        min_hold: Duration::ZERO,
        note: Note::none(),
        origin: Origin { host: "here".into(), pid: 1 },
    }
}

const SEAT: Seat = Seat { client: 0xab, number: 3 };

fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take: NonZeroU32::new(take).unwrap(), of: NonZeroU32::new(of).unwrap() }
}

/// Text out of few letters, among them all that could be mixed up.
fn name() -> impl Strategy<Value = String> {
    let letters = prop::sample::select(vec![' ', '!', '0', '1', '/', 'x', '~', '"', '#', 'é', '🔒', '.', 'm']);
    prop::collection::vec(letters, 1..8).prop_map(|letters| letters.into_iter().collect())
}

proptest! {
    /// F44: what is written comes back; different names never share a key, nor is one among another's; order is names' order.
    #[test]
    fn names_never_meet(one in name(), other in name()) {
        let schema = Schema::new("tenure", Layout::Tenure);
        let [a, b] = [&one, &other].map(|text| LockName::new(text).unwrap());
        let key = schema.key(&claim(&one, Kind::Mutex, Mode::Exclusive), SEAT, 7);
        prop_assert_eq!(schema.parse(&key).map(|parsed| parsed.name), Some(a.clone()));
        let range = schema.name(&b);
        prop_assert_eq!(range.from <= key && key < range.to, one == other);
        prop_assert_eq!(schema.name(&a).from.cmp(&range.from), one.as_bytes().cmp(other.as_bytes()));
        let listed = schema.names(&other);
        prop_assert_eq!(listed.from <= key && key < listed.to, one.starts_with(&other));
        prop_assert_eq!(schema.cell(&a) == schema.cell(&b), one == other);
    }
}

#[test]
fn keys_can_be_read_by_people() {
    let schema = Schema::new("tenure", Layout::Tenure);
    let text = |claim: &Claim| String::from_utf8(schema.key(claim, SEAT, 7)).unwrap();
    let shown = "00000000000000ab00000003";
    assert_eq!(text(&claim("jobs/7", Kind::Mutex, Mode::Exclusive)), format!("tenure/lock/jobs/7 mutex/x/{shown}"));
    assert_eq!(text(&claim("a b!", Kind::RwLock, Mode::Shared)), format!("tenure/lock/a!0b!1 rw-lock/r/{shown}"));
    assert_eq!(text(&claim("s", Kind::Semaphore, permits(2, 5))), format!("tenure/lock/s semaphore-5/2/{shown}"));
}

#[test]
fn keys_come_back() {
    let schema = Schema::new("a/b", Layout::Tenure);
    let shapes = [
        (Kind::Mutex, Mode::Exclusive),
        (Kind::FairMutex, Mode::Exclusive),
        (Kind::RwLock, Mode::Exclusive),
        (Kind::RwLock, Mode::Shared),
        (Kind::Semaphore, permits(3, 4)),
        (Kind::Election, Mode::Exclusive),
    ];
    for (kind, mode) in shapes {
        let claim = claim("x /mutex/x/", kind, mode);
        let parsed = schema.parse(&schema.key(&claim, SEAT, 7)).unwrap();
        assert_eq!((parsed.name, parsed.kind, parsed.mode), (claim.name.clone(), kind, mode));
        let place = schema.place(&claim.name, kind, mode);
        let key = schema.key(&claim, SEAT, 7);
        assert!(place.kind.from <= key && key < place.kind.to);
        assert_eq!(place.writers.from <= key && key < place.writers.to, mode == Mode::Exclusive);
        for other in place.others() {
            assert!(key < other.from || key >= other.to);
        }
    }
    for foreign in ["a/b/lock/x", "a/b/lock/x mutex/x", "a/b/lock/x other/x/1", "a/b/cell/x ", "c", "a/b/lock/!7 mutex/x/1"]
    {
        assert_eq!(schema.parse(foreign.as_bytes()), None, "{foreign}");
    }
}

#[test]
fn the_secret_is_not_shown() {
    let id = ClaimId::from_bytes(*b"sixteen  secrets");
    assert!(!shown(id).contains(&hex(&id.as_bytes()[..4])));
    assert_eq!(shown(id).len(), 32);
}

#[test]
fn the_other_layout_is_that_of_etcdctl() {
    let schema = Schema::new("tenure", Layout::Concurrency);
    let claim = claim("jobs/7", Kind::Mutex, Mode::Exclusive);
    let key = schema.key(&claim, SEAT, 0x694d_8a3f);
    assert_eq!(key, b"jobs/7/694d8a3f");
    assert_eq!(schema.parse(&key).map(|parsed| parsed.name), Some(claim.name.clone()));
    assert_eq!(schema.place(&claim.name, claim.kind, claim.mode).others().count(), 0);
    assert_eq!(schema.parse(b"jobs/7/not hex"), None);
}
