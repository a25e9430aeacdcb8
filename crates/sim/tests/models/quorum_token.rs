//! Fencing tokens of a quorum: three nodes that count for themselves; of the votes that came, the highest of the lowest that
//! are a majority is the token, and a majority of nodes that hold the claim know it before the grant returns.
//!
//! A node lets one claim in at a time and keeps a queue: whoever waits at some nodes may have votes of others already, which
//! are older than grants that return meanwhile. So tokens are compared in the order in which grants return, whenever their
//! requests were made: a fenced resource hears of nothing else. Requests and writes arrive at any time or never, and votes end
//! at any time. Nodes may forget, and where counters are seeded from clocks, one node's clock may be ahead.

use stateright::{Checker, HasDiscoveries, Model, Property};

const NODES: usize = 3;
const MAJORITY: usize = 2;
const CLIENTS: usize = 2;

/// What is so in this world, and which rule is taken away.
#[derive(Clone, Copy, Debug)]
struct Rules {
    /// The token is written back to a majority before the grant returns.
    write_back: bool,
    /// Only nodes that voted for the claim count as knowing it: the current vote of any other may belong to a waiter, who has it
    /// with a lower token.
    only_voters: bool,
    /// The token is the lowest of all votes, which more nodes know.
    lowest: bool,
    /// A token is never less than the node's clock.
    seeded: bool,
    /// How far the first node's clock is ahead.
    ahead: u8,
    /// How many votes may end before their claim was granted.
    expire: u8,
    /// How many nodes may lose everything.
    forget: u8,
    /// For how long a node that forgot has no vote, once what it forgot is over.
    dark_for: u8,
    /// How often each client asks.
    rounds: [u8; CLIENTS],
}

const SOUND: Rules = Rules {
    write_back: true,
    only_voters: true,
    lowest: false,
    seeded: false,
    ahead: 0,
    expire: 1,
    forget: 0,
    dark_for: 0,
    rounds: [2, 2],
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: u8,
    nodes: [Node; NODES],
    clients: [Client; CLIENTS],
    /// The highest token of all grants that have returned.
    returned: u8,
    expired: u8,
    forgot: u8,
    went_back: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    last: u8,
    dark_until: u8,
    holder: Option<usize>,
    queue: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Client {
    rounds: u8,
    stage: Stage,
    /// How its claim stands at each node, as far as it knows.
    at: [At; NODES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Idle,
    Asking,
    /// Every node was told of the token.
    Writing(Writing),
    /// It was granted, or gives up: either way each node hears of its end in its time.
    Ending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Writing {
    token: u8,
    /// Who had voted when the token was made of the votes.
    voted: [bool; NODES],
    knows: [bool; NODES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Asked,
    Waits,
    Voted(u8),
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    TimePasses,
    Asks(usize),
    AskArrives(usize, usize),
    /// A majority has answered, and whoever has not is not waited for.
    Counts(usize),
    WriteArrives(usize, usize),
    /// A vote ends by time, or a release arrives.
    Ends(usize, usize),
    GivesUp(usize),
    Forgets(usize),
}

impl Client {
    fn votes(&self) -> impl Iterator<Item = u8> + '_ {
        self.at.iter().filter_map(|at| if let At::Voted(token) = at { Some(*token) } else { None })
    }

    fn end(&mut self) {
        // What has not arrived by now never does anything.
        self.at = self.at.map(|at| if at == At::Asked { At::Over } else { at });
        self.stage = if self.at == [At::Over; NODES] { Stage::Idle } else { Stage::Ending };
    }
}

impl Rules {
    /// The clock of a node. It runs faster than tokens are given: each vote takes a step of it.
    fn clock(&self, node: usize, now: u8) -> u8 {
        now + if node == 0 { self.ahead } else { 0 }
    }

    /// Lets the next one in, if nobody is inside.
    fn serve(&self, world: &mut World, place: usize) {
        let node = &mut world.nodes[place];
        if node.holder.is_some() || node.queue.is_empty() {
            return;
        }
        let client = node.queue.remove(0);
        let seed = if self.seeded { self.clock(place, world.now) } else { 0 };
        node.last = (node.last + 1).max(seed);
        node.holder = Some(client);
        world.now += u8::from(self.seeded);
        world.clients[client].at[place] = At::Voted(node.last);
    }

    /// Grants the claim if enough nodes know its token.
    fn try_to_return(&self, world: &mut World, client: usize, writing: Writing) {
        let Writing { token, voted, knows } = writing;
        // A vote that came after the token was made of the others does not help, nor does one that is over.
        let is_good = |node: &usize| voted[*node] && matches!(world.clients[client].at[*node], At::Voted(_));
        let known = (0..NODES).filter(|node| knows[*node] && (!self.only_voters || is_good(node))).count();
        let good = (0..NODES).filter(is_good).count();
        if (self.write_back && known < MAJORITY) || good < MAJORITY {
            world.clients[client].stage = Stage::Writing(writing);
            return;
        }
        world.went_back |= token <= world.returned;
        world.returned = world.returned.max(token);
        world.clients[client].rounds += 1;
        world.clients[client].end();
    }
}

impl Model for Rules {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        let client = Client { rounds: 0, stage: Stage::Idle, at: [At::Over; NODES] };
        let (nodes, clients) = (Default::default(), [client; CLIENTS]);
        vec![World { now: 1, nodes, clients, returned: 0, expired: 0, forgot: 0, went_back: false }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.nodes.iter().any(|node| world.now < node.dark_until) {
            steps.push(Step::TimePasses); // else it makes no difference to anybody
        }
        for (client, Client { rounds, stage, at }) in world.clients.iter().enumerate() {
            let nodes = |wanted: fn(&At) -> bool| (0..NODES).filter(move |node| wanted(&at[*node]));
            match stage {
                Stage::Idle if *rounds < self.rounds[client] => steps.push(Step::Asks(client)),
                Stage::Idle => {}
                Stage::Asking | Stage::Writing(_) => {
                    steps.extend(nodes(|at| *at == At::Asked).map(|node| Step::AskArrives(client, node)));
                    if world.expired < self.expire {
                        steps.extend(nodes(|at| matches!(at, At::Voted(_))).map(|node| Step::Ends(client, node)));
                    }
                    // It gives up once it has waited long enough for a majority; what matters is that votes are over.
                    if nodes(|at| *at == At::Over).count() > 0 {
                        steps.push(Step::GivesUp(client));
                    }
                }
                Stage::Ending => steps.extend(nodes(|at| *at != At::Over).map(|node| Step::Ends(client, node))),
            }
            match stage {
                Stage::Asking if world.clients[client].votes().count() >= MAJORITY => steps.push(Step::Counts(client)),
                Stage::Writing(writing) => {
                    steps.extend(
                        (0..NODES).filter(|node| !writing.knows[*node]).map(|node| Step::WriteArrives(client, node)),
                    );
                }
                _ => {}
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
                (next.clients[client].stage, next.clients[client].at) = (Stage::Asking, [At::Asked; NODES]);
            }
            Step::AskArrives(client, node) => {
                // Votes that a node forgot are over before it votes again.
                let is_stale = |client: usize| matches!(world.clients[client].at[node], At::Voted(_));
                let has_forgotten = world.nodes[node].holder.is_none() && (0..CLIENTS).any(is_stale);
                if has_forgotten || world.now < world.nodes[node].dark_until {
                    return None;
                }
                next.clients[client].at[node] = At::Waits;
                next.nodes[node].queue.push(client);
                self.serve(&mut next, node);
            }
            Step::Counts(client) => {
                let mut tokens: Vec<u8> = world.clients[client].votes().collect();
                tokens.sort_unstable();
                let token = if self.lowest { tokens[0] } else { tokens[MAJORITY - 1] };
                // Whoever gave it, or a higher one, knows it.
                let knows = world.clients[client].at.map(|at| matches!(at, At::Voted(given) if given >= token));
                let voted = world.clients[client].at.map(|at| matches!(at, At::Voted(_)));
                self.try_to_return(&mut next, client, Writing { token, voted, knows });
            }
            Step::WriteArrives(client, node) => {
                let Stage::Writing(mut writing) = world.clients[client].stage else { return None };
                writing.knows[node] = true;
                next.nodes[node].last = world.nodes[node].last.max(writing.token);
                self.try_to_return(&mut next, client, writing);
            }
            Step::Ends(client, node) => {
                next.expired += u8::from(world.clients[client].stage != Stage::Ending);
                next.clients[client].at[node] = At::Over;
                if next.clients[client].stage == Stage::Ending {
                    next.clients[client].end();
                }
                next.nodes[node].queue.retain(|waiter| *waiter != client);
                if world.nodes[node].holder == Some(client) {
                    next.nodes[node].holder = None;
                    self.serve(&mut next, node);
                }
            }
            Step::GivesUp(client) => next.clients[client].end(),
            Step::Forgets(node) => {
                next.nodes[node] = Node { dark_until: world.now + self.dark_for, ..Node::default() };
                for client in &mut next.clients {
                    if client.at[node] == At::Waits {
                        client.at[node] = if client.stage == Stage::Ending { At::Over } else { At::Asked };
                    }
                }
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

/// A node that knows the token and whose vote is somebody else's keeps nobody below it.
#[test]
fn only_nodes_that_voted_for_the_claim_count() {
    breaks("any node counts", Rules { only_voters: false, ..SOUND });
    breaks("any node counts, and no vote ends early", Rules { only_voters: false, expire: 0, ..SOUND });
    let ahead = Rules { seeded: true, ahead: 2, expire: 0, rounds: [1, 1], ..SOUND };
    holds("one clock ahead", ahead);
    breaks("one clock ahead, and any node counts", Rules { only_voters: false, ..ahead });
}

#[test]
fn counters_that_are_seeded_survive_a_node_that_forgets() {
    breaks("unseeded, one node forgets", Rules { forget: 1, ..SOUND });
    let seeded = Rules { seeded: true, expire: 0, rounds: [1, 1], ..SOUND };
    holds("seeded, one node forgets", Rules { forget: 1, ..seeded });
    holds("seeded, a majority forgets", Rules { forget: 2, ..seeded });
}

/// Seeding does not stand in for writing back: clocks differ.
#[test]
fn clocks_that_differ_need_both() {
    let ahead = Rules { seeded: true, ahead: 2, expire: 0, rounds: [2, 1], ..SOUND };
    holds("one clock ahead", ahead);
    breaks("one clock ahead, not written back", Rules { write_back: false, ..ahead });
}

/// The node that forgot had the token from one whose clock is ahead. It has no vote until its own clock is past that.
#[test]
fn a_clock_may_be_ahead_by_as_long_as_a_forgetful_node_is_dark() {
    let ahead = Rules { seeded: true, ahead: 3, expire: 0, forget: 1, rounds: [1, 1], ..SOUND };
    breaks("one clock ahead, one node forgets", ahead);
    holds("one clock ahead, one node forgets and is dark for as long", Rules { dark_for: 3, ..ahead });
    breaks("one clock ahead, one node forgets and is dark for less", Rules { dark_for: 1, ..ahead });
}
