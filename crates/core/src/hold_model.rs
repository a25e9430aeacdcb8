//! The hold's state machine against a store, a network and a clock: every interleaving, by model checking.
//!
//! The real [`State`] is driven by a keeper that may stand still at any time. Requests and replies may take any time or be
//! lost. The store renews a lease that is still there and gives it to somebody else once it is not. What must hold in
//! every reachable state: nobody else is inside while the holder still trusts its window. Each rule that this rests on
//! can be taken away, and then the checker must find how it breaks.
//!
//! A store may also forget: nothing can keep the holder from trusting its window then, but once it was told of the doubt
//! it is never safe again, whatever answers are still on their way.

use std::time::Duration;

use stateright::{Checker, Model, Property};

use super::{Duty, Phase, State};
use crate::Instant;

const TTL: u64 = 6;
/// The holder's margin: one step of the clock.
const WINDOW: u64 = TTL - 1;
const END_OF_TIME: u64 = 16;

fn at(step: u64) -> Instant {
    Instant::from_nanos(step * 1_000_000_000)
}

/// Which rule is taken away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sabotage {
    Nothing,
    /// The window is counted from the reply.
    FromReply,
    /// A renewal brings a lost hold back.
    LossIsNotFinal,
    /// The store keeps the name closed for less than the holder trusts it.
    ShortLease,
    /// A yes from before the doubt counts.
    AnyYesWillDo,
}

struct Lease {
    sabotage: Sabotage,
    /// Where renewal stops.
    cap: Instant,
    store_forgets: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: u64,
    hold: State,
    /// When the store's lease ends; `None` once it is somebody else's.
    lease: Option<u64>,
    request: Option<u64>,
    reply: Option<(u64, bool)>,
    /// The store has forgotten.
    forgot: bool,
    /// The holder was told that it may have.
    told: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    TimePasses,
    KeeperRuns,
    RequestArrives,
    RequestIsLost,
    ReplyArrives,
    KeeperGivesUp,
    OwnerLetsGo,
    AnotherIsLetIn,
    StoreForgets,
    HolderIsTold,
}

impl Model for Lease {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let hold = State::new(Duration::from_secs(TTL), at(0), at(WINDOW), true, self.cap);
        vec![World { now: 0, hold, lease: Some(TTL), request: None, reply: None, forgot: false, told: false }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.now < END_OF_TIME {
            steps.push(Step::TimePasses);
        }
        steps.push(Step::KeeperRuns);
        if world.request.is_some() {
            steps.extend([Step::RequestArrives, Step::RequestIsLost]);
        }
        if world.reply.is_some() {
            steps.push(Step::ReplyArrives);
        }
        if world.hold.in_flight {
            steps.push(Step::KeeperGivesUp);
        }
        steps.push(Step::OwnerLetsGo);
        if world.lease.is_some_and(|ends| world.now >= ends) {
            steps.push(Step::AnotherIsLetIn);
        }
        if self.store_forgets {
            steps.extend([Step::StoreForgets, Step::HolderIsTold]);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        let now = at(world.now);
        match step {
            Step::TimePasses => next.now += 1,
            Step::KeeperRuns => {
                if next.hold.tick(now) == Duty::Renew {
                    next.hold.sent();
                    next.request = Some(world.now);
                }
            }
            Step::RequestArrives => {
                let sent = next.request.take()?;
                let alive = next.lease.is_some_and(|ends| world.now < ends);
                if alive {
                    let ttl = if self.sabotage == Sabotage::ShortLease { WINDOW - 1 } else { TTL };
                    next.lease = Some(world.now + ttl);
                }
                next.reply = Some((sent, alive));
            }
            Step::RequestIsLost => next.request = None,
            Step::ReplyArrives => {
                let (sent, alive) = next.reply.take()?;
                if !next.hold.in_flight {
                    return Some(next); // nobody waits for it any more
                }
                let counted_from = if self.sabotage == Sabotage::FromReply { world.now } else { sent };
                if !alive {
                    next.hold.refused();
                } else {
                    let due = at(sent + TTL / 3);
                    if self.sabotage == Sabotage::AnyYesWillDo {
                        next.hold.sent();
                    }
                    next.hold.renewed(at(counted_from + WINDOW), due, now);
                    if self.sabotage == Sabotage::LossIsNotFinal && next.hold.phase == Phase::Lost {
                        next.hold = State::new(Duration::from_secs(TTL), now, at(world.now + 1), true, Instant::NEVER);
                    }
                }
            }
            Step::KeeperGivesUp => {
                // The renewal's future is dropped: what still comes of it reaches nobody.
                next.hold.unknown(at(world.now + 1), now);
                next.reply = None;
                next.request = None;
            }
            Step::OwnerLetsGo => {
                next.hold.let_go(now);
            }
            Step::AnotherIsLetIn => next.lease = None,
            Step::StoreForgets => (next.lease, next.forgot) = (None, true),
            Step::HolderIsTold => {
                next.hold.verify(now);
                next.told = next.forgot;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nobody else is inside while the holder trusts its window", |_, world: &World| {
                let trusted = matches!(world.hold.phase_at(at(world.now)), Phase::Held | Phase::Jeopardy);
                world.forgot || !(trusted && world.lease.is_none())
            }),
            Property::always("who was told that it may be forgotten, and was, is never safe again", |_, world: &World| {
                !(world.told && world.hold.phase_at(at(world.now)) == Phase::Held)
            }),
            Property::always("nothing is renewed after the end", |_, world: &World| {
                let mut hold = world.hold.clone();
                let over = matches!(hold.phase_at(at(world.now)), Phase::Lost | Phase::Gone);
                !over || hold.tick(at(world.now)) == Duty::Nothing
            }),
            Property::always("what was looked at is not due again at once", |_, world: &World| {
                let mut hold = world.hold.clone();
                let now = at(world.now);
                hold.tick(now) == Duty::Renew || hold.next_event() > now
            }),
            Property::sometimes("a hold outlives its ttl", |_, world: &World| {
                world.now > TTL && matches!(world.hold.phase_at(at(world.now)), Phase::Held)
            }),
            Property::sometimes("jeopardy passes", |_, world: &World| {
                world.hold.phase == Phase::Jeopardy && world.reply.is_some_and(|(_, alive)| alive)
            }),
            Property::sometimes("a hold is lost and somebody else let in", |_, world: &World| {
                world.hold.phase == Phase::Lost && world.lease.is_none()
            }),
        ]
    }
}

fn check(sabotage: Sabotage, cap: Instant) -> impl Checker<Lease> {
    Lease { sabotage, cap, store_forgets: false }.checker().threads(2).spawn_bfs().join()
}

fn check_a_store_that_forgets(sabotage: Sabotage) -> impl Checker<Lease> {
    Lease { sabotage, cap: Instant::NEVER, store_forgets: true }.checker().threads(2).spawn_bfs().join()
}

#[test]
fn the_rules_hold_in_every_interleaving() {
    check(Sabotage::Nothing, at(9)).assert_properties();
    let checked = check(Sabotage::Nothing, Instant::NEVER);
    checked.assert_properties();
    assert!(checked.unique_state_count() > 1_000, "{}", checked.unique_state_count());
}

#[test]
fn a_forgotten_holder_that_was_told_is_never_safe_again() {
    check_a_store_that_forgets(Sabotage::Nothing).assert_properties();
    check_a_store_that_forgets(Sabotage::AnyYesWillDo)
        .assert_any_discovery("who was told that it may be forgotten, and was, is never safe again");
}

#[test]
fn every_rule_is_needed() {
    for sabotage in [Sabotage::FromReply, Sabotage::LossIsNotFinal, Sabotage::ShortLease] {
        check(sabotage, Instant::NEVER).assert_any_discovery("nobody else is inside while the holder trusts its window");
    }
}
