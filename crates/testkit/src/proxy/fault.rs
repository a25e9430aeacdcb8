//! The faults there are, and which of them a message meets. No sockets here: decisions only.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use super::resp;
use crate::Rng;

/// Which connections a fault is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// All there are and all to come.
    All,
    /// The one that was accepted last.
    Newest,
    /// All there are and to come that have sent this (in any case of letters) in their first 64 KiB: `SUBSCRIBE`.
    Sent(String),
    /// All there are, and none to come.
    Present,
    /// Those there are that have sent this so far, and none to come.
    SentBefore(String),
}

impl Which {
    /// Connections that have sent, or will send, this.
    pub fn sent(what: &str) -> Self {
        Which::Sent(what.to_owned())
    }

    /// Connections that have sent this so far.
    pub fn sent_before(what: &str) -> Self {
        Which::SentBefore(what.to_owned())
    }
}

/// In which direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toward {
    /// Requests.
    Server,
    /// Replies, and what is published.
    Client,
    /// Both.
    Both,
}

/// What goes wrong until it is lifted.
///
/// TCP never loses bytes in the middle of a stream, so no fault does either (but for `Mute` and the answers that
/// `Duplicate` keeps to itself): where something was swallowed, nothing comes after it, and when the fault is lifted the
/// connection is reset. What a client must cope with is silence, not a stream with a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Bytes are taken and go nowhere, ends too: a half-open connection.
    Blackhole(Toward),
    /// Nothing gets through until the fault is lifted; then everything does, in order.
    Hold(Toward),
    /// Every message takes so much longer; their order stays. What is under way when it is lifted still comes late.
    Delay(Toward, Duration),
    /// Every message takes longer by a random time below this; their order stays.
    Jitter(Toward, Duration),
    /// So many times a message is lost, and with it what would have followed on that connection. `Toward::Client`: the
    /// server has done what was asked and the client does not hear of it. What is published does not count as a reply.
    Lose(Toward, u32, After),
    /// Every request reaches the server twice, and the second answer is swallowed. Redis only; subscriptions go once.
    Duplicate,
    /// What is published does not arrive, and nothing else is wrong. Redis only.
    Mute,
}

/// What a client sees after a message was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Nothing more.
    Silence,
    /// A reset connection.
    Reset,
}

/// How a connection is cut, on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// RST, at once: what was on its way is lost.
    Reset,
    /// FIN, as from a peer that closed.
    Fin,
}

/// A fault that was set, to be lifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultId(u64);

/// What was seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections accepted.
    pub connections: u64,
    /// Connections open now.
    pub open: u64,
    /// Requests read from clients, lost ones too. Exact for Redis; reads of a socket for anything else.
    pub requests: u64,
    /// Bytes read from clients.
    pub bytes_to_server: u64,
    /// Bytes read from servers.
    pub bytes_to_client: u64,
    /// Messages that were swallowed by `Blackhole`, `Lose` or `Mute`, or in the silence after.
    pub lost: u64,
    /// Requests that were sent twice.
    pub duplicated: u64,
}

/// One of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    ToServer,
    ToClient,
}

/// What happens to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Pass { times: u8, delay: Duration },
    Swallow,
    Reset,
}

/// All that the proxy knows: its faults and its connections.
pub(super) struct State {
    pub(super) target: SocketAddr,
    pub(super) refusing: bool,
    pub(super) listening: bool,
    pub(super) over: bool,
    pub(super) counters: Counters,
    rules: Vec<Rule>,
    links: BTreeMap<u64, Link>,
    next: u64,
    rng: Rng,
}

struct Rule {
    id: u64,
    whom: Whom,
    fault: Fault,
}

enum Whom {
    All,
    Some(Vec<u64>),
    Sent(Vec<u8>),
}

/// What is known of one connection.
#[derive(Default)]
struct Link {
    /// The first of what it sent, in upper case.
    sent: Vec<u8>,
    /// The rule that swallowed something in each direction, after which nothing may follow.
    silenced: [Option<u64>; 2],
    /// For every request that is not answered yet: whether its answer is for the client.
    unanswered: VecDeque<bool>,
    /// It does not speak Redis' protocol, or no longer.
    foreign: bool,
    cut: Option<Cut>,
}

/// How much of what a connection sent is remembered.
const REMEMBERED: usize = 64 * 1024;

impl State {
    pub(super) fn new(target: SocketAddr, seed: u64) -> Self {
        State {
            target,
            refusing: false,
            listening: true,
            over: false,
            counters: Counters::default(),
            rules: Vec::new(),
            links: BTreeMap::new(),
            next: 0,
            rng: Rng::new(seed),
        }
    }

    pub(super) fn set(&mut self, which: Which, fault: Fault) -> FaultId {
        let whom = self.whom(which);
        self.next += 1;
        self.rules.push(Rule { id: self.next, whom, fault });
        FaultId(self.next)
    }

    pub(super) fn lift(&mut self, id: Option<FaultId>) {
        self.rules.retain(|rule| id.is_some_and(|id| rule.id != id.0));
    }

    /// Marks connections to be cut, and says which.
    pub(super) fn cut(&mut self, which: Which, cut: Cut) -> Vec<u64> {
        let whom = self.whom(which);
        let hit: Vec<_> = self.links.iter_mut().filter(|(id, link)| whom.has(**id, link)).collect();
        hit.into_iter()
            .map(|(id, link)| {
                link.cut = Some(cut);
                *id
            })
            .collect()
    }

    pub(super) fn is_open(&self, link: u64) -> bool {
        self.links.contains_key(&link)
    }

    pub(super) fn opened(&mut self) -> u64 {
        self.next += 1;
        self.counters.connections += 1;
        self.counters.open += 1;
        self.links.insert(self.next, Link::default());
        self.next
    }

    pub(super) fn closed(&mut self, link: u64) {
        self.links.remove(&link);
        self.counters.open -= 1;
    }

    /// Whether a connection must end now: somebody cut it, or what it lost will never come.
    pub(super) fn doomed(&self, link: u64) -> Option<Cut> {
        let link = self.links.get(&link)?;
        let is_set = |id: &u64| self.rules.iter().any(|rule| rule.id == *id);
        link.cut.or_else(|| link.silenced.iter().flatten().any(|id| !is_set(id)).then_some(Cut::Reset))
    }

    pub(super) fn is_held(&self, link: u64, way: Way) -> bool {
        self.met(link).any(|rule| matches!(rule.fault, Fault::Hold(toward) if toward.is(way)))
    }

    /// Whether nothing gets through any more, not even an end; remembered if so.
    pub(super) fn is_silent(&mut self, link: u64, way: Way) -> bool {
        let hole = self.met(link).find(|rule| matches!(rule.fault, Fault::Blackhole(toward) if toward.is(way)));
        let hole = hole.map(|rule| rule.id);
        let Some(link) = self.links.get_mut(&link) else { return false };
        let silenced = &mut link.silenced[way as usize];
        *silenced = silenced.or(hole);
        silenced.is_some()
    }

    /// Notes what was read, before anything is decided about it.
    pub(super) fn read(&mut self, link: u64, way: Way, bytes: &[u8]) {
        match way {
            Way::ToServer => self.counters.bytes_to_server += bytes.len() as u64,
            Way::ToClient => self.counters.bytes_to_client += bytes.len() as u64,
        }
        if let (Way::ToServer, Some(link)) = (way, self.links.get_mut(&link)) {
            let room = REMEMBERED - link.sent.len();
            link.sent.extend(bytes.iter().take(room).map(u8::to_ascii_uppercase));
        }
    }

    /// How many bytes the next message has, if it is there. What is not Redis' protocol is taken as it comes.
    pub(super) fn next_message(&mut self, link: u64, bytes: &[u8]) -> Option<usize> {
        let link = self.links.get_mut(&link).filter(|_| !bytes.is_empty())?;
        if !link.foreign {
            match resp::head(bytes) {
                resp::Head::Whole(size) => return Some(size),
                resp::Head::Part => return None,
                resp::Head::Foreign => link.foreign = true,
            }
        }
        Some(bytes.len())
    }

    /// Decides what happens to a message.
    pub(super) fn decide(&mut self, id: u64, way: Way, message: &[u8]) -> Fate {
        let foreign = self.links.get(&id).is_none_or(|link| link.foreign);
        let push = way == Way::ToClient && !foreign && resp::is_push(message);
        // An answer nobody waits for is no answer to lose.
        let spare = way == Way::ToClient && !foreign && !push && !self.answer_is_wanted(id);
        if way == Way::ToServer {
            self.counters.requests += 1;
        }
        if spare {
            return Fate::Swallow;
        }
        if self.is_silent(id, way) || (push && self.is_mute(id) && resp::is_published(message)) {
            self.counters.lost += 1;
            return Fate::Swallow;
        }
        if !push && let Some(after) = self.lose(id, way) {
            self.counters.lost += 1;
            return if after == After::Reset { Fate::Reset } else { Fate::Swallow };
        }
        let times = if way == Way::ToServer && !foreign { self.send(id, message) } else { 1 };
        Fate::Pass { times, delay: self.delay(id, way) }
    }

    /// Takes one answer from the list of those to come.
    fn answer_is_wanted(&mut self, link: u64) -> bool {
        self.links.get_mut(&link).and_then(|link| link.unanswered.pop_front()).unwrap_or(true)
    }

    /// Uses up one of the times that a message is to be lost.
    fn lose(&mut self, id: u64, way: Way) -> Option<After> {
        let link = self.links.get_mut(&id)?;
        let due = |rule: &&mut Rule| {
            rule.whom.has(id, link) && matches!(rule.fault, Fault::Lose(toward, 1.., _) if toward.is(way))
        };
        let rule = self.rules.iter_mut().find(due)?;
        let Fault::Lose(_, times, after) = &mut rule.fault else { return None };
        *times -= 1;
        link.silenced[way as usize] = Some(rule.id);
        Some(*after)
    }

    /// How often a request is sent, and which answers will come of that.
    fn send(&mut self, id: u64, message: &[u8]) -> u8 {
        let twice = self.met(id).any(|rule| rule.fault == Fault::Duplicate);
        let Some(link) = self.links.get_mut(&id) else { return 1 };
        match resp::request(message) {
            resp::Request::Subscription => 1,
            resp::Request::Takeover => {
                link.foreign = true;
                1
            }
            resp::Request::Plain => {
                link.unanswered.push_back(true);
                if twice {
                    link.unanswered.push_back(false);
                    self.counters.duplicated += 1;
                }
                1 + u8::from(twice)
            }
        }
    }

    fn delay(&mut self, link: u64, way: Way) -> Duration {
        let (mut fixed, mut random) = (Duration::ZERO, Duration::ZERO);
        for rule in self.met(link) {
            match rule.fault {
                Fault::Delay(toward, by) if toward.is(way) => fixed += by,
                Fault::Jitter(toward, below) if toward.is(way) => random += below,
                _ => {}
            }
        }
        fixed + if random.is_zero() { random } else { self.rng.up_to(random) }
    }

    fn is_mute(&self, link: u64) -> bool {
        self.met(link).any(|rule| rule.fault == Fault::Mute)
    }

    /// The rules that are for a connection.
    fn met(&self, id: u64) -> impl Iterator<Item = &Rule> {
        let link = self.links.get(&id);
        self.rules.iter().filter(move |rule| link.is_some_and(|link| rule.whom.has(id, link)))
    }

    fn whom(&self, which: Which) -> Whom {
        match which {
            Which::All => Whom::All,
            Which::Newest => Whom::Some(vec![*self.links.keys().next_back().expect("there is a connection")]),
            Which::Sent(what) => Whom::Sent(what.to_ascii_uppercase().into_bytes()),
            Which::Present => Whom::Some(self.links.keys().copied().collect()),
            Which::SentBefore(what) => {
                let whom = Whom::Sent(what.to_ascii_uppercase().into_bytes());
                Whom::Some(self.links.iter().filter(|(id, link)| whom.has(**id, link)).map(|(id, _)| *id).collect())
            }
        }
    }
}

impl Whom {
    fn has(&self, id: u64, link: &Link) -> bool {
        match self {
            Whom::All => true,
            Whom::Some(some) => some.contains(&id),
            Whom::Sent(what) => link.sent.windows(what.len().max(1)).any(|part| part == what),
        }
    }
}

impl Toward {
    fn is(self, way: Way) -> bool {
        match self {
            Toward::Server => way == Way::ToServer,
            Toward::Client => way == Way::ToClient,
            Toward::Both => true,
        }
    }
}
