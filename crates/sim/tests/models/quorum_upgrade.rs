//! A reader that becomes the writer by majority and a reader again, beside another reader: three nodes with a lease for
//! each client.
//!
//! Every request may arrive at any time, also long after its client gave it up and did something else, or never; and an
//! answer may be lost. What must hold: nobody trusts that it reads while somebody trusts that it writes.
//!
//! Conversions carry tokens, and a node's token changes with every upgrade that it does. Of a request all that matters is
//! whether it carries the newest, since it is refused otherwise; so that is what is kept of tokens here.

use stateright::{Checker, HasDiscoveries, Model, Property};

const NODES: usize = 3;
const MAJORITY: usize = 2;
const TTL: u8 = 2;
const END_OF_TIME: u8 = 4;
/// The client that wants to become the writer.
const WRITER: usize = 0;
/// The client that only reads.
const READER: usize = 1;

/// Which rule is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    Nothing,
    /// One node where it is alone makes it the writer.
    OneIsEnough,
    /// A node that renews it as a reader has a vote on its being the writer.
    EveryVoteCounts,
    /// A renewal counts though it met the upgrade on its way. It would give the writer a reader's time.
    RenewalMeetsUpgrade,
    /// Nodes do not look at the token of a downgrade.
    TokensIgnored,
    /// A node where the claim is the writer still leaves it its token when it is asked for an upgrade.
    UpgradeKeepsToken,
    /// An upgrade that was not answered is taken back while the next one is under way.
    TakesBackTheNext,
}

struct Upgrade(Sabotage);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: u8,
    nodes: [[Option<Lease>; 2]; NODES],
    clients: [Client; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease {
    until: u8,
    writes: bool,
    /// Whether the client knows its newest token.
    known: bool,
    /// Whether there are requests under way that carry it: an upgrade, a downgrade.
    upgrade: bool,
    downgrade: bool,
}

impl Lease {
    fn new(until: u8) -> Self {
        Lease { until, writes: false, known: true, upgrade: false, downgrade: false }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Client {
    Asking(Votes),
    Held(Hold),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Hold {
    until: u8,
    writes: bool,
    /// The nodes whose votes count.
    counts: [bool; NODES],
    renewal: Option<Votes>,
    upgrade: Option<Votes>,
}

/// Who said yes, and until when.
type Votes = [Option<u8>; NODES];

const NO_VOTES: Votes = [None; NODES];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    TimePasses,
    AskArrives(usize, usize),
    Wins(usize),
    Renews,
    RenewalArrives(usize),
    IsRenewed,
    Upgrades,
    /// At this node; and whether its answer arrives too.
    UpgradeArrives(usize, bool),
    IsUpgraded,
    /// The upgrade is taken back where it was answered; whether nodes hear of that or not.
    TakesBack,
    /// The node is asked once more for an upgrade that it did and that was not answered, and then to take it back.
    TakesBackUnknown(usize),
    Downgrades,
    DowngradeArrives(usize),
}

impl World {
    fn hold(&self, client: usize) -> Option<Hold> {
        match self.clients[client] {
            Client::Held(hold) => Some(hold),
            Client::Asking(_) => None,
        }
    }

    fn writes(&self) -> bool {
        self.trusts(WRITER).is_some_and(|hold| hold.writes)
    }

    fn trusts(&self, client: usize) -> Option<Hold> {
        self.hold(client).filter(|hold| self.now < hold.until)
    }

    fn hold_mut(&mut self, client: usize) -> Option<&mut Hold> {
        match &mut self.clients[client] {
            Client::Held(hold) => Some(hold),
            Client::Asking(_) => None,
        }
    }

    fn leases(&mut self) -> impl Iterator<Item = &mut Lease> {
        self.nodes.iter_mut().filter_map(|node| node[WRITER].as_mut())
    }

    /// Sends a downgrade to every node, with the token that is known. Where that is not the newest it does nothing.
    fn steps_down(&mut self) {
        self.leases().filter(|lease| lease.known).for_each(|lease| lease.downgrade = true);
    }

    /// Forgets what time has ended, so that worlds which differ in nothing else are one.
    fn time_passes(&mut self) {
        self.now += 1;
        for lease in self.nodes.iter_mut().flatten() {
            *lease = lease.filter(|lease| self.now < lease.until);
        }
    }
}

/// The moment at which these cease to be a majority.
fn until(votes: Votes) -> Option<u8> {
    let mut ends: Vec<u8> = votes.into_iter().flatten().collect();
    ends.sort_unstable_by(|a, b| b.cmp(a));
    ends.get(MAJORITY - 1).copied()
}

impl Upgrade {
    /// Until when the upgrade's votes make it the writer.
    fn upgraded(&self, votes: Votes) -> Option<u8> {
        match self.0 {
            Sabotage::OneIsEnough => votes.into_iter().flatten().max(),
            _ => until(votes),
        }
    }
}

impl Model for Upgrade {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World { now: 0, nodes: [[None; 2]; NODES], clients: [Client::Asking(NO_VOTES); 2] }]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if [WRITER, READER].iter().any(|client| world.hold(*client).is_some() && world.trusts(*client).is_none()) {
            return; // whose hold is over never trusts it again, and nothing can go wrong between two of which one is left
        }
        if world.now < END_OF_TIME {
            steps.push(Step::TimePasses);
        }
        let open = |votes: Votes| (0..NODES).filter(move |node| votes[*node].is_none());
        for client in [WRITER, READER] {
            match world.clients[client] {
                Client::Asking(votes) => {
                    steps.extend(open(votes).map(|node| Step::AskArrives(client, node)));
                    steps.extend(until(votes).map(|_| Step::Wins(client)));
                }
                Client::Held(_) => {}
            }
        }
        match world.hold(WRITER) {
            Some(Hold { renewal: None, .. }) => steps.push(Step::Renews),
            Some(Hold { renewal: Some(votes), .. }) => {
                steps.extend(open(votes).map(Step::RenewalArrives));
                steps.push(Step::IsRenewed);
            }
            None => {}
        }
        match world.hold(WRITER) {
            Some(Hold { writes: true, .. }) => steps.push(Step::Downgrades),
            Some(Hold { upgrade: None, .. }) => steps.push(Step::Upgrades),
            Some(Hold { upgrade: Some(votes), .. }) => {
                steps.extend(open(votes).map(|node| Step::UpgradeArrives(node, true)));
                steps.extend(self.upgraded(votes).map(|_| Step::IsUpgraded));
                steps.push(Step::TakesBack);
            }
            None => return,
        }
        for node in 0..NODES {
            steps.extend([Step::UpgradeArrives(node, false), Step::TakesBackUnknown(node), Step::DowngradeArrives(node)]);
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let (mut next, now) = (world.clone(), world.now);
        let end = now + TTL;
        match step {
            Step::TimePasses => next.time_passes(),
            Step::AskArrives(client, node) => {
                if world.nodes[node].iter().flatten().any(|lease| lease.writes) {
                    return None;
                }
                next.nodes[node][client] = Some(Lease::new(end));
                let Client::Asking(votes) = &mut next.clients[client] else { return None };
                votes[node] = Some(end);
            }
            Step::Wins(client) => {
                let Client::Asking(votes) = world.clients[client] else { return None };
                let until = until(votes).filter(|until| now < *until)?;
                let counts = [true; NODES];
                next.clients[client] = Client::Held(Hold { until, writes: false, counts, renewal: None, upgrade: None });
            }
            Step::Renews => {
                let hold = world.trusts(WRITER)?;
                if hold.upgrade.is_some() && self.0 != Sabotage::RenewalMeetsUpgrade {
                    return None;
                }
                next.hold_mut(WRITER)?.renewal = Some(NO_VOTES);
            }
            Step::RenewalArrives(node) => {
                next.nodes[node][WRITER].as_mut()?.until = end; // a lease that is over is a vote lost
                next.hold_mut(WRITER)?.renewal.as_mut()?[node] = Some(end);
            }
            Step::IsRenewed => {
                let trusted = world.trusts(WRITER).is_some(); // a yes that comes after the end is too late
                let hold = next.hold_mut(WRITER)?;
                let mut votes = hold.renewal.take()?;
                for (vote, counts) in votes.iter_mut().zip(hold.counts) {
                    *vote = vote.filter(|_| counts || self.0 == Sabotage::EveryVoteCounts);
                }
                if let Some(until) = until(votes).filter(|_| trusted) {
                    hold.until = hold.until.max(until);
                }
            }
            Step::Upgrades => {
                world.trusts(WRITER)?;
                let hold = next.hold_mut(WRITER)?;
                hold.upgrade = Some(NO_VOTES);
                if self.0 != Sabotage::RenewalMeetsUpgrade {
                    hold.renewal = None;
                }
                next.leases().filter(|lease| lease.known).for_each(|lease| lease.upgrade = true);
            }
            Step::UpgradeArrives(node, heard) => {
                let lease = next.nodes[node][WRITER].as_mut()?;
                if lease.upgrade {
                    if !lease.writes && world.nodes[node][READER].is_some() {
                        return None; // it is not alone
                    }
                    let keeps = lease.writes && self.0 == Sabotage::UpgradeKeepsToken;
                    let downgrade = lease.downgrade && (keeps || self.0 == Sabotage::TokensIgnored);
                    *lease = Lease { writes: true, known: heard || keeps, downgrade, ..Lease::new(end) };
                } else if heard && lease.writes && !lease.known {
                    (lease.until, lease.known) = (end, true); // it was done before, and the answer was lost
                } else {
                    return None;
                }
                if heard {
                    next.hold_mut(WRITER)?.upgrade.as_mut()?[node] = Some(end);
                }
            }
            Step::IsUpgraded => {
                world.trusts(WRITER)?;
                let hold = next.hold_mut(WRITER)?;
                let votes = hold.upgrade.take()?;
                let until = self.upgraded(votes)?;
                (hold.writes, hold.until, hold.counts) = (true, hold.until.max(until), votes.map(|vote| vote.is_some()));
            }
            Step::TakesBack => {
                next.hold_mut(WRITER)?.upgrade = None;
                next.steps_down();
            }
            Step::TakesBackUnknown(node) => {
                let hold = world.hold(WRITER)?;
                if (hold.writes || hold.upgrade.is_some()) && self.0 != Sabotage::TakesBackTheNext {
                    return None;
                }
                let lease = next.nodes[node][WRITER].as_mut().filter(|lease| lease.writes && !lease.known)?;
                (lease.until, lease.downgrade) = (end, true);
                lease.known = !(hold.writes || hold.upgrade.is_some());
            }
            Step::Downgrades => {
                let hold = next.hold_mut(WRITER)?;
                (hold.writes, hold.counts, hold.renewal) = (false, [true; NODES], None);
                next.steps_down();
            }
            Step::DowngradeArrives(node) => {
                let lease = next.nodes[node][WRITER].as_mut().filter(|lease| lease.writes && lease.downgrade)?;
                (lease.until, lease.writes) = (end, false);
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nobody reads while somebody writes", |_, world: &World| {
                !(world.writes() && world.trusts(READER).is_some())
            }),
            Property::sometimes("two read", |_, world: &World| {
                world.trusts(WRITER).is_some() && world.trusts(READER).is_some()
            }),
            Property::sometimes("one writes for longer than its ttl", |_, world: &World| world.now > TTL && world.writes()),
            Property::sometimes("it writes while a downgrade from before is under way", |_, world: &World| {
                world.writes() && world.nodes.iter().flatten().flatten().any(|lease| !lease.writes && lease.downgrade)
            }),
            Property::sometimes("it writes where another still reads at a node", |_, world: &World| {
                world.writes() && world.nodes.iter().any(|node| node[READER].is_some())
            }),
        ]
    }
}

fn check(sabotage: Sabotage) -> impl Checker<Upgrade> {
    let checker = Upgrade(sabotage).checker().threads(2);
    let checked = match sabotage {
        Sabotage::Nothing => checker.spawn_bfs().join(),
        _ => checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join(),
    };
    eprintln!("{sabotage:?}: {} states", checked.unique_state_count());
    checked
}

#[test]
fn a_writer_by_majority_is_alone() {
    check(Sabotage::Nothing).assert_properties();
}

#[test]
fn every_rule_is_needed() {
    for sabotage in [
        Sabotage::OneIsEnough,
        Sabotage::EveryVoteCounts,
        Sabotage::RenewalMeetsUpgrade,
        Sabotage::TokensIgnored,
        Sabotage::UpgradeKeepsToken,
        Sabotage::TakesBackTheNext,
    ] {
        let checked = check(sabotage);
        let path = checked.discovery("nobody reads while somebody writes");
        let path = path.unwrap_or_else(|| panic!("{sabotage:?} breaks nothing"));
        eprintln!("  broken in {} steps", path.into_actions().len());
    }
}
