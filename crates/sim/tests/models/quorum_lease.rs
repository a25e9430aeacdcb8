//! Redlock: three nodes with a lease each, two clients that ask, renew and let go by majority, and one node that may restart
//! with nothing.
//!
//! Every request may arrive at any time, or never; its answer is counted when the client gets to it. A vote is good for as
//! long as the node's lease at most (counted from sending it is shorter, which only helps); a hold until its good votes
//! cease to be a majority. What must hold: never two clients that trust theirs at the same moment.

use stateright::{Checker, HasDiscoveries, Model, Property};

const NODES: usize = 3;
const MAJORITY: usize = 2;
const CLIENTS: usize = 2;
const TTL: u8 = 2;

/// Which rule is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    Nothing,
    /// A node that restarted with nothing votes at once.
    NoDarkness,
    /// It is dark, but not for as long as what it forgot may last.
    ShortDarkness,
    /// A window is counted from when the majority was complete.
    FromReply,
    /// A hold is good until the last of its votes is not.
    LastVoteCounts,
    /// One node's yes renews the hold.
    OneYesRenews,
    /// A renewal makes anew what a node does not know, dark or not, and counts however late: either alone is harmless,
    /// since the other stands in its way.
    RenewalRecreates,
}

#[derive(Clone, Copy)]
struct Redlock {
    sabotage: Sabotage,
    restarts: u8,
    end_of_time: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: u8,
    nodes: [Node; NODES],
    clients: [Client; CLIENTS],
    restarts: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    /// Who holds it here, and until when.
    lease: Option<(usize, u8)>,
    dark_until: u8,
}

/// One claim of one client; each has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Client {
    Idle,
    /// Every node was asked.
    Asking {
        votes: Votes,
    },
    /// Trusted until then; a renewal may be under way.
    Held {
        until: u8,
        renewal: Option<Votes>,
    },
    /// Let go of: the nodes may hear of it, or not.
    Gone,
}

/// Who said yes, and until when.
type Votes = [Option<u8>; NODES];

const NO_VOTES: Votes = [None; NODES];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    TimePasses,
    Asks(usize),
    AskArrives(usize, usize),
    Wins(usize),
    Renews(usize),
    RenewalArrives(usize, usize),
    IsRenewed(usize),
    LetsGo(usize),
    ReleaseArrives(usize, usize),
    Restarts(usize),
}

impl World {
    fn trusts(&self, client: usize) -> bool {
        matches!(self.clients[client], Client::Held { until, .. } if self.now < until)
    }

    /// Whether the node holds it for this client.
    fn holds(&self, node: usize, client: usize) -> bool {
        self.nodes[node].lease.is_some_and(|(holder, _)| holder == client)
    }

    /// Forgets what time has ended, so that worlds which differ in nothing else are one.
    fn time_passes(&mut self) {
        self.now += 1;
        for node in &mut self.nodes {
            node.lease = node.lease.filter(|(_, until)| self.now < *until);
            node.dark_until = if self.now < node.dark_until { node.dark_until } else { 0 };
        }
    }
}

impl Redlock {
    fn is_enough(&self, votes: Votes, renewal: bool) -> bool {
        votes.iter().flatten().count() >= if renewal && self.sabotage == Sabotage::OneYesRenews { 1 } else { MAJORITY }
    }

    /// Until when so many votes are good.
    fn until(&self, votes: Votes, now: u8) -> u8 {
        let mut ends: Vec<u8> = votes.into_iter().flatten().collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        match self.sabotage {
            Sabotage::FromReply => now + TTL,
            Sabotage::LastVoteCounts => ends[0],
            Sabotage::OneYesRenews if ends.len() < MAJORITY => ends[0],
            _ => ends[MAJORITY - 1],
        }
    }

    fn dark_for(&self) -> u8 {
        match self.sabotage {
            Sabotage::NoDarkness => 0,
            Sabotage::ShortDarkness => TTL - 1,
            _ => TTL,
        }
    }
}

impl Model for Redlock {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World { now: 0, nodes: [Node::default(); NODES], clients: [Client::Idle; CLIENTS], restarts: 0 }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.now < self.end_of_time {
            steps.push(Step::TimePasses);
        }
        for client in 0..CLIENTS {
            let at = |step: fn(usize, usize) -> Step, votes: Votes| {
                (0..NODES).filter(move |node| votes[*node].is_none()).map(move |node| step(client, node))
            };
            match world.clients[client] {
                Client::Idle => steps.push(Step::Asks(client)),
                Client::Asking { votes } => {
                    steps.extend(at(Step::AskArrives, votes));
                    if self.is_enough(votes, false) {
                        steps.push(Step::Wins(client));
                    }
                }
                Client::Held { renewal, .. } => {
                    match renewal {
                        None if world.trusts(client) => steps.push(Step::Renews(client)),
                        None => {}
                        Some(votes) => {
                            steps.extend(at(Step::RenewalArrives, votes));
                            if self.is_enough(votes, true) {
                                steps.push(Step::IsRenewed(client));
                            }
                        }
                    }
                    steps.push(Step::LetsGo(client));
                }
                Client::Gone => steps.extend(at(Step::ReleaseArrives, NO_VOTES)),
            }
        }
        if world.restarts < self.restarts {
            // One that has nothing to forget only goes dark, which lets nobody in.
            steps.extend((0..NODES).filter(|node| world.nodes[*node].lease.is_some()).map(Step::Restarts));
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let (mut next, now) = (world.clone(), world.now);
        match step {
            Step::TimePasses => next.time_passes(),
            Step::Asks(client) => next.clients[client] = Client::Asking { votes: NO_VOTES },
            Step::AskArrives(client, node) => {
                if now < world.nodes[node].dark_until || world.nodes[node].lease.is_some() {
                    return None; // nothing changes; it may ask again
                }
                next.nodes[node].lease = Some((client, now + TTL));
                let Client::Asking { votes } = &mut next.clients[client] else { return None };
                votes[node] = Some(now + TTL);
            }
            Step::Wins(client) => {
                let Client::Asking { votes } = world.clients[client] else { return None };
                let until = self.until(votes, now);
                // Too late is no grant.
                next.clients[client] = if now < until { Client::Held { until, renewal: None } } else { Client::Gone };
            }
            Step::Renews(client) => {
                let Client::Held { renewal, .. } = &mut next.clients[client] else { return None };
                *renewal = Some(NO_VOTES);
            }
            Step::RenewalArrives(client, node) => {
                let recreates = self.sabotage == Sabotage::RenewalRecreates && world.nodes[node].lease.is_none();
                if !world.holds(node, client) && !recreates {
                    return None; // a vote lost
                }
                next.nodes[node].lease = Some((client, now + TTL));
                let Client::Held { renewal: Some(votes), .. } = &mut next.clients[client] else { return None };
                votes[node] = Some(now + TTL);
            }
            Step::IsRenewed(client) => {
                let Client::Held { until, renewal: Some(votes) } = world.clients[client] else { return None };
                let renewed = self.until(votes, now);
                // A yes that comes after the end is too late.
                let counts = now < until || self.sabotage == Sabotage::RenewalRecreates;
                let until = if counts { until.max(renewed) } else { until };
                next.clients[client] = Client::Held { until, renewal: None };
            }
            Step::LetsGo(client) => next.clients[client] = Client::Gone,
            Step::ReleaseArrives(client, node) => {
                if !world.holds(node, client) {
                    return None;
                }
                next.nodes[node].lease = None;
            }
            Step::Restarts(node) => {
                next.nodes[node] = Node { lease: None, dark_until: now + self.dark_for() };
                next.restarts += 1;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("never two", |_, world: &World| !(world.trusts(0) && world.trusts(1))),
            Property::sometimes("one after the other", |_, world: &World| {
                world.clients[0] == Client::Gone && world.trusts(1)
            }),
            Property::sometimes("lost to another", |_, world: &World| {
                matches!(world.clients[0], Client::Held { .. }) && !world.trusts(0) && world.trusts(1)
            }),
            Property::sometimes("a hold outlives its ttl", |_, world: &World| world.now > TTL + 1 && world.trusts(0)),
        ]
    }
}

fn check(sabotage: Sabotage, restarts: u8, end_of_time: u8) -> impl Checker<Redlock> {
    let checker = Redlock { sabotage, restarts, end_of_time }.checker().threads(2);
    let checked = match sabotage {
        Sabotage::Nothing => checker.spawn_bfs().join(),
        _ => checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join(),
    };
    eprintln!("{sabotage:?}, {restarts} restarts: {} states", checked.unique_state_count());
    checked
}

#[test]
fn two_majorities_never_trust_the_same_moment() {
    check(Sabotage::Nothing, 0, 5).assert_properties();
}

#[test]
fn a_node_that_restarts_with_nothing_and_stays_dark_harms_nobody() {
    check(Sabotage::Nothing, 1, 4).assert_properties();
}

#[test]
fn every_rule_is_needed() {
    let breaking = [
        (Sabotage::NoDarkness, 1),
        (Sabotage::ShortDarkness, 1),
        (Sabotage::FromReply, 0),
        (Sabotage::LastVoteCounts, 0),
        (Sabotage::OneYesRenews, 0),
        (Sabotage::RenewalRecreates, 1),
    ];
    for (sabotage, restarts) in breaking {
        let checked = check(sabotage, restarts, 5);
        let path = checked.discovery("never two").unwrap_or_else(|| panic!("{sabotage:?} breaks nothing"));
        eprintln!("  broken in {} steps", path.into_actions().len());
    }
}
