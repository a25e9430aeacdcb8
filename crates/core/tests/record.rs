//! The record under random histories of verbs, against a few lines of plain bookkeeping.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use proptest::prelude::*;
use tenure_core::record::{Admission, Moment, Record, Stage, Wake};
use tenure_core::{Claim, ClaimId, Instant, Kind, LockName, Mode, Note, Origin, Token};

const PERMITS: u32 = 4;

#[derive(Clone, Debug)]
enum Verb {
    Ask { mode: Mode, queue: bool },
    End { claim: usize },
    Renew { claim: usize },
    Downgrade { claim: usize },
    Touch { claim: usize },
    Bury { client: u64 },
    Break,
    TimePasses { seconds: u64 },
}

fn verb(kind: Kind) -> impl Strategy<Value = Verb> {
    let mode = match kind {
        Kind::RwLock => prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared)].boxed(),
        Kind::Semaphore => (1..=PERMITS).prop_map(permits).boxed(),
        _ => Just(Mode::Exclusive).boxed(),
    };
    let claim = 0..40usize;
    prop_oneof![
        6 => (mode, any::<bool>()).prop_map(|(mode, queue)| Verb::Ask { mode, queue }),
        4 => claim.clone().prop_map(|claim| Verb::End { claim }),
        2 => claim.clone().prop_map(|claim| Verb::Renew { claim }),
        1 => claim.clone().prop_map(|claim| Verb::Downgrade { claim }),
        1 => claim.prop_map(|claim| Verb::Touch { claim }),
        1 => (0..3u64).prop_map(|client| Verb::Bury { client }),
        1 => Just(Verb::Break),
        3 => (1..20u64).prop_map(|seconds| Verb::TimePasses { seconds }),
    ]
}

fn permits(take: u32) -> Mode {
    Mode::Permits { take: NonZeroU32::new(take).unwrap(), of: NonZeroU32::new(PERMITS).unwrap() }
}

fn history() -> impl Strategy<Value = (Kind, Vec<Verb>)> {
    prop::sample::select(&Kind::ALL[..]).prop_flat_map(|kind| (Just(kind), prop::collection::vec(verb(kind), 1..60)))
}

fn claim(number: usize, kind: Kind, mode: Mode) -> Claim {
    Claim {
        name: LockName::new("x").unwrap(),
        kind,
        mode,
        id: id(number),
        ttl: Duration::from_secs(10),
        handover_ttl: Duration::from_secs(2),
        lock_delay: Duration::from_secs(number as u64 % 3),
        min_hold: Duration::from_secs(number as u64 % 2 * 3),
        note: Note::none(),
        origin: Origin { host: "test".into(), pid: 1 },
    }
}

fn id(number: usize) -> ClaimId {
    ClaimId::from_bytes((number as u128 + 1).to_be_bytes())
}

/// The token and the mode of a claim that is held.
fn held(record: &Record, claim: usize) -> Option<(Token, Mode)> {
    record.line.iter().find(|ticket| ticket.id == id(claim)).and_then(|ticket| match ticket.stage {
        Stage::Held { token, .. } => Some((token, ticket.mode)),
        _ => None,
    })
}

const NOW: Moment = Moment { now: Instant::from_nanos(1), wall_micros: 5 };

/// A copy of the request changes nothing, whether it finds the reader or no hold.
#[test]
fn a_downgrade_that_arrives_again_does_nothing() {
    let mut record = Record::new(Kind::RwLock, Token::new(0));
    let ask = |record: &mut Record, number, mode| {
        record.ask_for(&claim(number, Kind::RwLock, mode), 1, None, NOW, &mut Vec::new()).unwrap()
    };
    let Admission::Granted(token) = ask(&mut record, 0, Mode::Exclusive) else { panic!("nobody else is there") };
    let before = record.clone();
    assert!(record.downgrade(id(0), NOW, &mut Vec::new()));
    assert_eq!(held(&record, 0), Some((token, Mode::Shared)));
    assert_eq!(record.line[0].stage, before.line[0].stage, "it keeps its token and its expiry");
    let once = record.clone();
    assert!(record.downgrade(id(0), NOW, &mut Vec::new()), "the answer was lost: it is said again");
    assert_eq!(record, once);
    record.end(id(0), Duration::ZERO, NOW, &mut Vec::new());
    assert!(matches!(ask(&mut record, 1, Mode::Exclusive), Admission::Granted(_)));
    let next = record.clone();
    assert!(!record.downgrade(id(0), NOW, &mut Vec::new()));
    assert_eq!(record, next, "another hold is not its own");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Besides what the record asserts of itself after every verb: tokens rise strictly over all grants, whoever was ended
    /// is never let in, nobody passes somebody who asked before and still waits, and time alone frees the name.
    #[test]
    fn every_history_keeps_the_rules((kind, verbs) in history()) {
        let mut record = Record::new(kind, Token::new(0));
        let (mut now, mut asked, mut last, mut ended) = (1_000u64, 0usize, Token::new(0), BTreeSet::new());
        for verb in verbs {
            let at = Moment { now: Instant::from_nanos(now * 1_000_000_000), wall_micros: 5 };
            let mut woken: Vec<Wake> = Vec::new();
            let mut direct = None;
            match verb {
                Verb::Ask { mode, queue } => {
                    let until = queue.then_some(at.now + Duration::from_secs(15));
                    let before = record.line.clone();
                    if let Admission::Granted(token) =
                        record.ask_for(&claim(asked, kind, mode), asked as u64 % 3, until, at, &mut woken).unwrap()
                    {
                        direct = Some(token);
                        let passed = before.iter().any(|ticket| matches!(ticket.stage, Stage::Waiting { alive_until } if alive_until > at.now)
                            && record.line.iter().any(|still| still.id == ticket.id && matches!(still.stage, Stage::Waiting { .. })));
                        prop_assert!(!passed, "a newcomer passed somebody who waits");
                    }
                    asked += 1;
                }
                Verb::End { claim } => {
                    let ticket = record.line.iter().find(|ticket| ticket.id == id(claim));
                    let is_there = ticket.is_some_and(|ticket| !matches!(ticket.stage, Stage::Closing { .. }));
                    let was_there = record.end(id(claim), Duration::from_secs(claim as u64 % 2 * 3), at, &mut woken);
                    prop_assert_eq!(was_there, is_there, "what was broken, and only keeps the name closed, was not there");
                    if was_there {
                        ended.insert(id(claim));
                    }
                    prop_assert!(record.renew(id(claim), at).is_none(), "an ended claim cannot be renewed");
                }
                Verb::Renew { claim } => {
                    let ticket = record.line.iter().find(|ticket| ticket.id == id(claim));
                    let is_held = ticket.is_some_and(|ticket| matches!(ticket.stage, Stage::Held { expires, .. } if expires > at.now));
                    prop_assert_eq!(record.renew(id(claim), at).is_some(), is_held, "what has expired is not brought back to life");
                }
                Verb::Downgrade { claim } => {
                    let before = held(&record, claim);
                    let is_held = record.downgrade(id(claim), at, &mut woken);
                    let after = held(&record, claim);
                    prop_assert!(!is_held || after.is_some_and(|(_, mode)| mode == Mode::Shared));
                    prop_assert!(!is_held || before.is_none() || before.map(|(token, _)| token) == after.map(|(token, _)| token));
                }
                Verb::Touch { claim } => drop(record.touch(id(claim), at.now + Duration::from_secs(15), at, &mut woken)),
                Verb::Bury { client } => record.bury(client, at, &mut woken),
                Verb::Break => drop(record.break_holds(None, at, &mut woken)),
                Verb::TimePasses { seconds } => now += seconds,
            }
            // Whom it woke may have come before the verb's own grant.
            let mut given: Vec<Token> = woken.iter().map(|wake| wake.token).chain(direct).collect();
            given.sort_unstable();
            for token in given {
                prop_assert!(token > last, "tokens rise");
                last = token;
            }
            prop_assert!(woken.iter().all(|wake| !ended.contains(&wake.id)), "an ended claim is never let in");
            prop_assert_eq!(record.last, last, "the record remembers its last token");
        }
        // Time alone: nobody renews, nobody is heard of; soon nothing is left.
        for _ in 0..200 {
            let Some(next) = record.next_change() else { break };
            record.sweep(Moment { now: next, wall_micros: 5 }, &mut Vec::new());
        }
        prop_assert!(record.is_idle());
    }
}
