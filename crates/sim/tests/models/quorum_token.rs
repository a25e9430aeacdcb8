//! Fencing tokens of a quorum: three nodes that count for themselves; of the votes that came, the highest of the lowest that
//! are a majority is the token, and it is written back to a majority before the grant returns.
//!
//! Nobody is kept out here: every ask is granted wherever it arrives, as if all leases were over at once. What must hold
//! even so is all that a fenced resource needs: whoever began to ask after a grant had returned has a higher token. Requests
//! arrive at any time or never. Nodes may forget, and where counters are seeded from clocks, one node's clock may be ahead.

use stateright::{Checker, HasDiscoveries, Model, Property};

const NODES: usize = 3;
const MAJORITY: usize = 2;
const CLIENTS: usize = 2;

/// What is so in this world, and which rule is taken away.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// The token is written back to a majority before the grant returns.
    write_back: bool,
    /// The token is the lowest of all votes, which more nodes know.
    lowest: bool,
    /// A token is never less than the node's clock.
    seeded: bool,
    /// How far the first node's clock is ahead.
    ahead: u8,
    /// How many nodes may lose everything.
    forget: u8,
    /// For how long a node that forgot has no vote.
    dark_for: u8,
    /// How often each client asks.
    rounds: [u8; CLIENTS],
}

const SOUND: Rules =
    Rules { write_back: true, lowest: false, seeded: false, ahead: 0, forget: 0, dark_for: 0, rounds: [2, 2] };

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: u8,
    nodes: [Counter; NODES],
    clients: [Client; CLIENTS],
    /// The highest token of all grants that have returned.
    returned: u8,
    forgot: u8,
    went_back: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Counter {
    last: u8,
    dark_until: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client {
    rounds: u8,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Idle,
    /// Every node was asked; `floor` is the highest token that had been returned then.
    Asking {
        floor: u8,
        votes: [Option<u8>; NODES],
    },
    /// Every node was told of the token.
    Writing {
        floor: u8,
        token: u8,
        known: [bool; NODES],
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    TimePasses,
    Asks(usize),
    AskArrives(usize, usize),
    /// A majority has answered, and whoever has not is not waited for.
    Counts(usize),
    WriteArrives(usize, usize),
    Forgets(usize),
}

impl Rules {
    /// The clock of a node. It runs faster than tokens are given: each ask that arrives takes a step of it.
    fn clock(&self, node: usize, now: u8) -> u8 {
        now + if node == 0 { self.ahead } else { 0 }
    }

    fn returns(&self, world: &mut World, client: usize, floor: u8, token: u8) {
        world.went_back |= token <= floor;
        world.returned = world.returned.max(token);
        world.clients[client] = Client { rounds: world.clients[client].rounds + 1, stage: Stage::Idle };
    }
}

impl Model for Rules {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let client = Client { rounds: 0, stage: Stage::Idle };
        let (nodes, clients) = ([Counter::default(); NODES], [client; CLIENTS]);
        vec![World { now: 1, nodes, clients, returned: 0, forgot: 0, went_back: false }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.nodes.iter().any(|node| world.now < node.dark_until) {
            steps.push(Step::TimePasses); // else it makes no difference to anybody
        }
        for (client, Client { rounds, stage }) in world.clients.iter().enumerate() {
            match stage {
                Stage::Idle if *rounds < self.rounds[client] => steps.push(Step::Asks(client)),
                Stage::Idle => {}
                Stage::Asking { votes, .. } => {
                    for node in (0..NODES).filter(|node| votes[*node].is_none()) {
                        steps.push(Step::AskArrives(client, node));
                    }
                    if votes.iter().flatten().count() >= MAJORITY {
                        steps.push(Step::Counts(client));
                    }
                }
                Stage::Writing { known, .. } => {
                    steps.extend((0..NODES).filter(|node| !known[*node]).map(|node| Step::WriteArrives(client, node)));
                }
            }
        }
        if world.forgot < self.forget {
            steps.extend((0..NODES).map(Step::Forgets));
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        match step {
            Step::TimePasses => next.now += 1,
            Step::Asks(client) => {
                next.clients[client].stage = Stage::Asking { floor: world.returned, votes: [None; NODES] };
            }
            Step::AskArrives(client, node) => {
                let Counter { last, dark_until } = world.nodes[node];
                if world.now < dark_until {
                    return None; // not even asked
                }
                let seed = if self.seeded { self.clock(node, world.now) } else { 0 };
                let token = (last + 1).max(seed);
                next.nodes[node].last = token;
                next.now += u8::from(self.seeded);
                let Stage::Asking { votes, .. } = &mut next.clients[client].stage else { return None };
                votes[node] = Some(token);
            }
            Step::Counts(client) => {
                let Stage::Asking { floor, votes } = world.clients[client].stage else { return None };
                let mut tokens: Vec<u8> = votes.into_iter().flatten().collect();
                tokens.sort_unstable();
                let token = if self.lowest { tokens[0] } else { tokens[MAJORITY - 1] };
                // Whoever gave it, or a higher one, knows it.
                let known = votes.map(|vote| vote >= Some(token));
                if self.write_back && known.iter().filter(|known| **known).count() < MAJORITY {
                    next.clients[client].stage = Stage::Writing { floor, token, known };
                } else {
                    self.returns(&mut next, client, floor, token);
                }
            }
            Step::WriteArrives(client, node) => {
                let Stage::Writing { floor, token, known } = &mut next.clients[client].stage else { return None };
                let (floor, token) = (*floor, *token);
                known[node] = true;
                let enough = known.iter().filter(|known| **known).count() >= MAJORITY;
                next.nodes[node].last = next.nodes[node].last.max(token);
                if enough {
                    self.returns(&mut next, client, floor, token);
                }
            }
            Step::Forgets(node) => {
                next.nodes[node] = Counter { last: 0, dark_until: world.now + self.dark_for };
                next.forgot += 1;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("tokens rise", |_, world: &World| !world.went_back),
            Property::sometimes("everybody is served", |rules: &Rules, world: &World| {
                world.clients.iter().zip(rules.rounds).all(|(client, rounds)| client.rounds == rounds)
            }),
        ]
    }
}

fn check(what: &str, rules: Rules) -> impl Checker<Rules> + use<> {
    let checked = rules.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    eprintln!("{what}: {} states", checked.unique_state_count());
    checked
}

fn holds(what: &str, rules: Rules) {
    check(what, rules).assert_properties();
}

fn breaks(what: &str, rules: Rules) {
    let checked = check(what, rules);
    let path = checked.discovery("tokens rise").unwrap_or_else(|| panic!("{what}: nothing breaks"));
    eprintln!("  broken in {} steps", path.into_actions().len());
}

#[test]
fn tokens_rise_because_they_are_written_back() {
    holds("written back", SOUND);
    breaks("not written back", Rules { write_back: false, ..SOUND });
    breaks("the lowest vote of all", Rules { lowest: true, ..SOUND });
}

#[test]
fn counters_that_are_seeded_survive_a_node_that_forgets() {
    breaks("unseeded, one node forgets", Rules { forget: 1, ..SOUND });
    let seeded = Rules { seeded: true, rounds: [1, 1], ..SOUND };
    holds("seeded, one node forgets", Rules { forget: 1, ..seeded });
    holds("seeded, a majority forgets", Rules { forget: 2, ..seeded });
}

/// Seeding does not stand in for writing back: clocks differ.
#[test]
fn clocks_that_differ_need_both() {
    let ahead = Rules { seeded: true, ahead: 2, rounds: [2, 1], ..SOUND };
    holds("one clock ahead", ahead);
    breaks("one clock ahead, not written back", Rules { write_back: false, ..ahead });
}

/// The node that forgot had the token from one whose clock is ahead. It has no vote until its own clock is past that.
#[test]
fn a_clock_may_be_ahead_by_as_long_as_a_forgetful_node_is_dark() {
    let ahead = Rules { seeded: true, ahead: 3, forget: 1, rounds: [1, 1], ..SOUND };
    breaks("one clock ahead, one node forgets", ahead);
    holds("one clock ahead, one node forgets and is dark for as long", Rules { dark_for: 3, ..ahead });
    breaks("one clock ahead, one node forgets and is dark for less", Rules { dark_for: 1, ..ahead });
}
