//! The few reads of an ask and of a look, against the entry rule over the whole line.

use std::num::NonZeroU32;

use proptest::prelude::*;
use tenure_core::LockName;

use super::*;
use crate::config::Layout;

/// A server's answer to one read.
fn answer(line: &[KeyValue], request: &RangeRequest) -> Vec<KeyValue> {
    let within = |kv: &&KeyValue| kv.key >= request.key && kv.key < request.range_end;
    let mut found: Vec<KeyValue> = line.iter().filter(within).cloned().collect();
    found.retain(|kv| request.max_create_revision == 0 || kv.create_revision <= request.max_create_revision);
    found.sort_by_key(|kv| kv.create_revision);
    if request.sort_order == crate::proto::DESCEND {
        found.reverse();
    }
    if request.limit > 0 {
        found.truncate(request.limit as usize);
    }
    found
}

fn permits(take: u32) -> Mode {
    Mode::Permits { take: NonZeroU32::new(take).unwrap(), of: NonZeroU32::new(4).unwrap() }
}

/// A line of one kind; each with a name in an order that is not its place.
fn a_line() -> impl Strategy<Value = (Kind, Vec<(Mode, u8)>)> {
    let alone = prop::collection::vec((Just(Mode::Exclusive), any::<u8>()), 1..8).prop_map(|line| (Kind::Mutex, line));
    let modes = prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared)];
    let rw = prop::collection::vec((modes, any::<u8>()), 1..10).prop_map(|line| (Kind::RwLock, line));
    let some = (1u32..=4).prop_map(permits);
    let semaphore = prop::collection::vec((some, any::<u8>()), 1..10).prop_map(|line| (Kind::Semaphore, line));
    prop_oneof![alone, rw, semaphore]
}

proptest! {
    /// The few reads of an ask and of a look say what the rule says over the whole line.
    #[test]
    fn a_few_reads_are_enough((kind, modes) in a_line(), downgraded in any::<bool>()) {
        let schema = Schema::new("tenure", Layout::Tenure);
        let name = LockName::new("x").unwrap();
        let mut line = Vec::new();
        for (at, (mode, letter)) in modes.iter().enumerate() {
            let tag = if kind == Kind::Semaphore { "semaphore-4".to_owned() } else { kind.as_str().replace(' ', "-") };
            let mode = match mode {
                Mode::Exclusive => "x".to_owned(),
                Mode::Shared => "r".to_owned(),
                Mode::Permits { take, .. } => take.to_string(),
            };
            let key = format!("tenure/lock/x {tag}/{mode}/{letter:02x}{:030x}", at + 1);
            // Whoever is first may have become a reader.
            let shared = at == 0 && downgraded && kind == Kind::RwLock && mode == "x";
            let value = if shared { b"\nmode shared".to_vec() } else { Vec::new() };
            let revision = 10 + 3 * at as i64;
            let kv = KeyValue { key: key.into(), create_revision: revision, mod_revision: revision, value, lease: 1 };
            line.push(kv);
        }
        let whole = super::line(&schema, line.clone());
        for (at, ticket) in whole.iter().enumerate() {
            let mode = ticket.parsed.mode;
            let place = schema.place(&name, kind, mode);
            let until_mine = &line[..=at];
            let first = first_read(&place, mode);
            let within = |kv: &&KeyValue| kv.key >= first.key && kv.key < first.range_end;
            let count = until_mine.iter().filter(within).count() as i64;
            let read = RangeResponse { kvs: answer(until_mine, &first), count, ..Default::default() };
            let at_first = first_seen(&schema, &place, mode, &line[at].key, &read);
            for (keys, up_to) in [(until_mine, 0), (&line[..], line[at].create_revision)] {
                let answers: Vec<_> =
                    reads(&place, kind, mode, up_to).iter().map(|request| answer(keys, request)).collect();
                let seen = seen(&schema, &place, mode, &line[at].key, &answers);
                let was_downgraded = ticket.mode != mode;
                prop_assert_eq!(&at_first, &seen, "a newcomer learns the same");
                match &seen {
                    _ if was_downgraded => {} // it holds, and asks for nothing
                    Seen::Enter => prop_assert!(ticket.holds),
                    Seen::Behind(front) => {
                        prop_assert!(!ticket.holds);
                        let ahead = |ticket: &Ticket| ticket.kv.key == front.key;
                        prop_assert!(!front.to.is_empty() || whole[..at].iter().any(ahead), "it stands before");
                        if front.only {
                            // Without it the claim gets in.
                            let rest: Vec<_> = line.iter().filter(|kv| kv.key != front.key).cloned().collect();
                            let rest = super::line(&schema, rest);
                            prop_assert!(rest.iter().any(|other| other.kv.key == line[at].key && other.holds));
                        }
                    }
                    Seen::Gone => prop_assert!(false, "it is in line"),
                }
            }
        }
    }
}
