//! Two clients, one name, one store that only knows its own clock, and messages that take any time, are lost or overtake
//! each other: what the contract's rules are for.
//!
//! Core models one hold with its real state machine (`hold_model`); this is the world around it, with asking, releasing
//! and a second client that really asks, so that rules of the *contract* can be taken away too.

use stateright::{Checker, HasDiscoveries, Model, Property};

const TTL: u64 = 2;
/// How many messages may be under way at once, so that the world stays small.
const MOST_UNDER_WAY: usize = 2;

/// Which rule is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    Nothing,
    /// A window is counted from the reply.
    FromReply,
    /// A release frees whoever holds.
    ReleaseIgnoresId,
    /// An owner goes on trusting its hold until the release is confirmed, which here is never.
    TrustsWhileReleasing,
    /// The store lets a hold expire before its ttl is over.
    ShortLease,
    /// The client's clock stands still while it sleeps, as `CLOCK_MONOTONIC` does.
    ClockStandsStill,
    /// A renewal extends whoever holds.
    RenewsAnybody,
    /// A yes that comes after the window's end counts.
    LateYesCounts,
    /// The last two together: either alone is harmless, since the other stands in its way.
    Both,
}

impl Sabotage {
    fn renews_anybody(self) -> bool {
        matches!(self, Sabotage::RenewsAnybody | Sabotage::Both)
    }

    fn late_yes_counts(self) -> bool {
        matches!(self, Sabotage::LateYesCounts | Sabotage::Both)
    }
}

struct Lease {
    clients: usize,
    end_of_time: u64,
    sabotage: Sabotage,
}

/// One claim of one client; each has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Client {
    Idle,
    Asking,
    Held { until: u64 },
    Lost,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Ask { client: usize, sent: u64 },
    Granted { client: usize, sent: u64 },
    Renew { client: usize, sent: u64 },
    Renewed { client: usize, sent: u64 },
    Release { client: usize },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: u64,
    clients: Vec<Client>,
    /// How far each client's clock is behind.
    behind: Vec<u64>,
    /// Who holds, as the store sees it, and until when.
    holder: Option<(usize, u64)>,
    /// Who has ended: nothing grants it again.
    over: Vec<bool>,
    /// Sorted: the order of messages under way means nothing.
    under_way: Vec<Message>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    TimePasses,
    /// Time passes while this client's clock, being a bad one, does not.
    Sleeps(usize),
    Asks(usize),
    Renews(usize),
    Releases(usize),
    Notices(usize),
    Arrives(usize),
    IsLost(usize),
}

impl World {
    fn clock(&self, client: usize) -> u64 {
        self.now - self.behind[client]
    }

    fn trusts(&self, client: usize) -> bool {
        matches!(self.clients[client], Client::Held { until } if self.clock(client) < until)
    }

    fn send(&mut self, message: Message) {
        self.under_way.push(message);
        self.under_way.sort_unstable();
    }
}

impl Lease {
    fn kept_until(&self, now: u64) -> u64 {
        now + if self.sabotage == Sabotage::ShortLease { TTL - 1 } else { TTL }
    }

    /// A message arrives, at the store or at a client.
    fn arrives(&self, world: &mut World, message: Message) {
        let now = world.now;
        let held_by = |client: usize| world.holder.is_some_and(|(holder, until)| holder == client && until > now);
        match message {
            Message::Ask { client, sent } => {
                let free = world.holder.is_none_or(|(_, until)| until <= now);
                if free && !world.over[client] {
                    world.holder = Some((client, self.kept_until(now)));
                    world.send(Message::Granted { client, sent });
                }
            }
            Message::Renew { client, sent } => {
                let anybody = self.sabotage.renews_anybody() && world.holder.is_some_and(|(_, until)| until > now);
                if held_by(client) || anybody {
                    let holder = world.holder.map_or(client, |(holder, _)| holder);
                    world.holder = Some((holder, self.kept_until(now)));
                    world.send(Message::Renewed { client, sent });
                }
            }
            Message::Release { client } => {
                world.over[client] = true;
                if held_by(client) || self.sabotage == Sabotage::ReleaseIgnoresId {
                    world.holder = None;
                }
            }
            Message::Granted { client, sent } | Message::Renewed { client, sent } => {
                let clock = world.clock(client);
                let until = TTL + if self.sabotage == Sabotage::FromReply { clock } else { sent };
                let state = &mut world.clients[client];
                *state = match (*state, message) {
                    (Client::Asking, Message::Granted { .. }) if clock < until => Client::Held { until },
                    (Client::Held { until: old }, Message::Renewed { .. })
                        if clock < old || self.sabotage.late_yes_counts() =>
                    {
                        Client::Held { until: until.max(old) }
                    }
                    (Client::Lost, Message::Renewed { .. }) if self.sabotage.late_yes_counts() => Client::Held { until },
                    (state, _) => state,
                };
            }
        }
    }
}

impl Model for Lease {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let (clients, behind, over) = (vec![Client::Idle; self.clients], vec![0; self.clients], vec![false; self.clients]);
        vec![World { now: 0, clients, behind, holder: None, over, under_way: vec![] }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        let may_send = world.under_way.len() < MOST_UNDER_WAY;
        if world.now < self.end_of_time {
            steps.push(Step::TimePasses);
        }
        for client in 0..self.clients {
            if world.now < self.end_of_time && self.sabotage == Sabotage::ClockStandsStill {
                steps.push(Step::Sleeps(client));
            }
            match world.clients[client] {
                Client::Idle | Client::Asking if may_send => steps.push(Step::Asks(client)), // a retry is the same ask
                Client::Held { .. } if !world.trusts(client) => steps.push(Step::Notices(client)),
                Client::Held { .. } if may_send => steps.extend([Step::Renews(client), Step::Releases(client)]),
                Client::Lost if may_send => steps.push(Step::Releases(client)),
                _ => {}
            }
        }
        for message in 0..world.under_way.len() {
            steps.extend([Step::Arrives(message), Step::IsLost(message)]);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        match step {
            Step::TimePasses => next.now += 1,
            Step::Sleeps(client) => {
                next.now += 1;
                next.behind[client] += 1;
            }
            Step::Asks(client) => {
                next.clients[client] = Client::Asking;
                next.send(Message::Ask { client, sent: world.clock(client) });
            }
            Step::Renews(client) => next.send(Message::Renew { client, sent: world.clock(client) }),
            Step::Releases(client) => {
                if self.sabotage != Sabotage::TrustsWhileReleasing {
                    next.clients[client] = Client::Gone;
                }
                next.send(Message::Release { client });
            }
            Step::Notices(client) => next.clients[client] = Client::Lost,
            Step::Arrives(message) => {
                let message = next.under_way.remove(message);
                self.arrives(&mut next, message);
            }
            Step::IsLost(message) => drop(next.under_way.remove(message)),
        }
        Some(next)
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.under_way.len() <= MOST_UNDER_WAY
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never two", |model: &Lease, world: &World| {
                (0..model.clients).filter(|client| world.trusts(*client)).count() < 2
            }),
            Property::sometimes("one after the other", |_, world: &World| {
                world.clients[0] == Client::Gone && world.trusts(1)
            }),
            Property::sometimes("lost to another", |_, world: &World| world.clients[0] == Client::Lost && world.trusts(1)),
            Property::sometimes("a hold outlives its ttl", |_, world: &World| {
                world.now > TTL + 1 && matches!(world.clients[0], Client::Held { .. }) && world.trusts(0)
            }),
        ]
    }
}

fn check(clients: usize, end_of_time: u64, sabotage: Sabotage) -> impl Checker<Lease> {
    let checker = Lease { clients, end_of_time, sabotage }.checker().threads(2);
    match sabotage {
        Sabotage::Nothing => checker.spawn_bfs().join(),
        _ => checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join(),
    }
}

#[test]
fn two_clients_never_trust_the_same_hold() {
    let checked = check(2, 5, Sabotage::Nothing);
    eprintln!("lease: {} states", checked.unique_state_count());
    checked.assert_properties();
}

#[test]
fn every_rule_is_needed() {
    let breaking = [
        (2, Sabotage::FromReply),
        (3, Sabotage::ReleaseIgnoresId), // frees the second, so that the third gets in
        (2, Sabotage::TrustsWhileReleasing),
        (2, Sabotage::ShortLease),
        (2, Sabotage::ClockStandsStill),
        (2, Sabotage::Both),
    ];
    for (clients, sabotage) in breaking {
        let checked = check(clients, 5, sabotage);
        assert!(checked.discovery("never two").is_some(), "{sabotage:?} breaks nothing");
        eprintln!("{sabotage:?}: found after {} states", checked.unique_state_count());
    }
}

/// Rules that stand behind one another: it takes two to fall.
#[test]
fn some_rules_are_a_second_line() {
    for sabotage in [Sabotage::RenewsAnybody, Sabotage::LateYesCounts] {
        assert!(check(2, 4, sabotage).discovery("never two").is_none(), "{sabotage:?} breaks something by itself");
    }
}
