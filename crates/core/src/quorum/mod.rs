//! One store made of several: a claim is held while a majority of N independent nodes holds it (Redlock's algorithm, over
//! any backend).
//!
//! # What it rests on
//!
//! Each node is a store of its own that knows nothing of the others and keeps its own promises: while it holds a claim for
//! us, until the instant it gave, it holds no other for anybody. Two majorities share a node, so two claims cannot both
//! have one at the same time. A vote's own `until` is [`Claim::window`] of an instant read before its request left: the
//! ttl, less the time that passed, less 1 % for clocks of different speed, less the loss signal's margin. The quorum's is
//! the moment at which the votes that are still good cease to be a majority: of N ends, sorted, the majority's last.
//! Redlock's `validity = ttl − elapsed − drift` is this, for N requests that left together.
//!
//! It holds as long as clocks *run* alike, and no node forgets what it granted less than a ttl ago. A node that may have
//! forgotten must say so in [`Node::vote`] until the longest ttl is over, and has no vote until then: "delayed restart",
//! enforced.
//!
//! # How it asks
//!
//! All nodes at once, never one after the other. Whoever waits stands in line at every node, so that a release, which goes
//! to all nodes at once, lets the next one in everywhere without anybody looking. Lines may be in different order, and then
//! votes split: who has some votes and not within [`node_limit`](Settings::node_limit) a majority gives all of them back and
//! stands in line anew after a random pause, whose bound doubles. Who has a majority goes on asking the other nodes in the
//! background, so that a node that was late or split has the vote in the end.
//!
//! # Who can interleave with what
//!
//! - **Rounds.** A node never grants an id again that was released, so every round of an ask has an id of its own, made of
//!   the claim's id and the round's number; what the caller says of the claim is said of its latest round. A request of an
//!   earlier round that arrives late finds an id that was released, at a node that promised never to grant it again.
//! - **An ask and its release.** The round is noted before its first request leaves: dropped anywhere, the release that the
//!   caller owes reaches the right id. A release first ends the asking in the background, and only then speaks to nodes.
//! - **Endings.** A node that did not confirm a release hears it again in the background until it does, or until it must
//!   have forgotten the claim by itself.
//! - **Votes.** A node that says "not held any more", asked or unasked, is a vote lost and never asked for it again by a
//!   renewal; the hold is lost when a majority is out of reach, and a node without an answer is neither.
//!
//! # What it cannot do
//!
//! A fair mutex, since nodes may disagree on who came first. A semaphore: of two permits A and B can hold both of one node,
//! B and C of the next, A and C of the third, and all three have two of three votes. Cells. A
//! downgrade: nodes that it did not reach would go on to keep readers out, and one hold would have
//! two modes.
//!
//! # Tokens
//!
//! Each node counts for itself, so a token that one majority makes may be lower than one that another made before. With
//! [`Settings::fencing`] a majority of nodes that hold the claim, and no others, must know it before the grant returns: whoever
//! comes next has one of those nodes in its own majority, and is let in there after this claim. (Any other node may have let
//! somebody in already, below the token, who waits elsewhere.) A grant's token is the highest of the lowest votes that are a majority, so that where every node
//! voted a majority knows it already, and it costs nothing; with fewer it costs a round trip. It rests on nodes that do not lose their counters, or seed
//! them from a clock that does not go back ([`Fencing::DataOrClock`]) and is ahead of no other node's by longer than a node
//! that forgot has no vote: it may have had the token from the one that is ahead. `quorum_token.rs` in the simulation's
//! models checks it, and finds what happens without the write-back; `quorum_lease.rs` does the same for the leases.

mod ask;
mod ballot;
mod claims;
mod keep;
mod look;

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use self::claims::Claims;
use crate::backend::{Abilities, Backend, Fencing, Finding, Liveness, Waiting, async_trait, released};
use crate::keeper::{Listener, News};
use crate::options::within;
use crate::{
    Ask, Claim, ClaimId, Clock, Environment, Error, ErrorKind, Grant, Kind, LockName, LossReason, Renewal, Result,
    Sequencer, Standing, Token, View, Wait,
};

/// A store that can be one of several: beside the [`Backend`] contract it has a voice of its own.
#[async_trait]
pub trait Node: Backend {
    /// No token that this node gives for the name from now on is this low. The highest it has given or was told of.
    ///
    /// # Cancel safety
    /// Dropped before it completes, the counter may or may not have been raised, which harms nobody.
    async fn raise(&self, name: &LockName, at_least: Token) -> Result<Token>;

    /// Whether its grants count right now; the error says why not. A node that may have forgotten holds it granted has no
    /// vote until the longest ttl anybody may have asked for is over. Must not wait.
    fn vote(&self) -> Result<()>;

    /// What tells this server from any other: two nodes with one identity are one server, which would vote twice.
    fn identity(&self) -> String;
}

/// How a [`Quorum`] asks its nodes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// How long one node may take: for an answer, and to follow where others let a waiter in. Several round trips, and far
    /// less than any ttl.
    pub node_limit: Duration,
    /// Whether tokens rise over all nodes together: each is known to a majority before its grant returns.
    pub fencing: bool,
    /// The store's word, in abilities and errors: what this quorum is known as.
    pub store: &'static str,
    /// Time and randomness.
    pub environment: Environment,
}

impl Settings {
    /// The longest [`node_limit`](Settings::node_limit).
    pub const LONGEST_LIMIT: Duration = Duration::from_secs(5);
}

impl Default for Settings {
    /// 50 ms, no fencing, the real world.
    fn default() -> Self {
        let (node_limit, environment) = (Duration::from_millis(50), Environment::real());
        Settings { node_limit, fencing: false, store: "quorum", environment }
    }
}

/// A store made of an odd number of independent nodes, of which a majority decides.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// use tenure_core::quorum::{Node, Quorum, Settings};
/// use tenure_core::{Client, memory::Memory};
/// let stores: Vec<Memory> = (0..5).map(|_| Memory::new()).collect();
/// let nodes = stores.iter().map(|store| store.node()).collect();
/// let client = Client::new(Quorum::new(nodes, Settings::default())?)?;
/// let guard = client.mutex("invoices")?.lock().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub struct Quorum(Arc<Members>);

/// The nodes and what is known of their votes: what requests in the background share with the backend.
struct Members {
    nodes: Vec<Arc<dyn Node>>,
    settings: Settings,
    claims: Claims,
    /// Every ending that goes on in the background has a receiver.
    endings: watch::Sender<()>,
    news: OnceLock<News>,
    /// What the nodes report to; theirs is a weak reference.
    ears: OnceLock<Vec<Arc<dyn Listener>>>,
}

/// The kinds that a majority can decide.
const KINDS: [Kind; 3] = [Kind::Mutex, Kind::RwLock, Kind::Election];

impl Quorum {
    /// A store made of these nodes: an odd number of them, at least three, each another server.
    pub fn new(nodes: Vec<Arc<dyn Node>>, settings: Settings) -> Result<Self> {
        let refuse = |what: String, hint: &str| Err(Error::new(ErrorKind::BadOption, what).with_hint(hint));
        let many = nodes.len();
        if many < 3 || many.is_multiple_of(2) || many > claims::MOST_NODES {
            let what = format!("a quorum has an odd number of nodes from 3 to {}, this one has {many}", claims::MOST_NODES);
            return refuse(what, "An even number tolerates no more failures than one node less, and splits more votes");
        }
        for (place, node) in nodes.iter().enumerate() {
            let twin = nodes[..place].iter().find(|other| other.identity() == node.identity());
            if let Some(twin) = twin {
                let what = format!("{} and {} are one server, which would vote twice", twin.describe(), node.describe());
                return refuse(what, "Name every server once");
            }
            KINDS.iter().try_for_each(|kind| node.abilities().require(*kind))?;
        }
        within("a node's limit", settings.node_limit, Duration::from_millis(1), Settings::LONGEST_LIMIT)?;
        let (claims, endings) = (Claims::default(), watch::Sender::default());
        let (news, ears) = (OnceLock::new(), OnceLock::new());
        Ok(Quorum(Arc::new(Members { nodes, settings, claims, endings, news, ears })))
    }
}

impl Members {
    fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }

    /// How many nodes may fail or refuse without taking the majority away.
    fn spare(&self) -> usize {
        self.nodes.len() - self.majority()
    }

    fn clock(&self) -> Clock {
        self.settings.environment.clock
    }

    fn limit(&self) -> Duration {
        self.settings.node_limit
    }

    /// Waits for about so long, each time for another.
    async fn nap(&self, pause: Duration) {
        let nap = self.settings.environment.between(pause / 2, pause);
        self.clock().sleep_until(self.clock().now() + nap).await;
    }

    /// Where work in the background lives: the keeper's runtime; without a keeper, the caller's.
    fn runtime(&self) -> Option<Handle> {
        self.news.get().map_or_else(|| Handle::try_current().ok(), News::runtime)
    }

    /// The error when too few nodes did what was asked of them. What all of them refuse in earnest is said as one says it.
    fn too_few(&self, did: usize, what: &str, failures: impl IntoIterator<Item = (usize, Error)>) -> Error {
        let mut failures: Vec<(usize, Error)> = failures.into_iter().collect();
        if !failures.is_empty() && failures.iter().all(|(_, error)| !error.is_transient()) {
            return failures.swap_remove(0).1;
        }
        let said: Vec<String> =
            failures.iter().map(|(node, error)| format!("{}: {error}", self.nodes[*node].describe())).collect();
        let (many, needed) = (self.nodes.len(), self.majority());
        let missing = if said.is_empty() { String::new() } else { format!(" ({})", said.join("; ")) };
        Error::new(ErrorKind::Unavailable, format!("{did} of {many} nodes {what}, and {needed} must{missing}"))
    }

    fn no_answer(&self) -> Error {
        Error::new(ErrorKind::Unavailable, format!("no answer within {:?}", self.limit()))
    }
}

/// What a node says unasked, in the words of the caller's claim.
struct Ear {
    members: Weak<Members>,
    node: usize,
    news: News,
}

impl Listener for Ear {
    fn asked(&self, id: ClaimId, ask: Ask) {
        let caller = self.members.upgrade().and_then(|members| members.claims.caller(id));
        caller.into_iter().for_each(|caller| self.news.asked(caller, ask.clone()));
    }

    fn lost(&self, id: ClaimId, reason: LossReason) {
        let Some(members) = self.members.upgrade() else { return };
        if let Some((caller, left)) = members.claims.vote(id, self.node, false)
            && left < members.majority()
        {
            self.news.lost_for(caller, reason);
        }
    }

    fn verify(&self) {
        self.news.verify(); // one node's doubt is one vote's: the renewals that follow count it
    }

    fn renew_now(&self) {
        self.news.renew_now();
    }

    fn grant_by_poll(&self, id: ClaimId, is_told: bool) {
        self.news.grant_by_poll(id, is_told); // each node's is one of its own
    }

    fn runtime(&self) -> Option<Handle> {
        self.news.runtime()
    }
}

#[async_trait]
impl Backend for Quorum {
    fn abilities(&self) -> Abilities {
        let nodes = || self.0.nodes.iter().map(|node| node.abilities());
        let seeded = nodes().all(|node| node.fencing == Fencing::DataOrClock);
        let counted = nodes().all(|node| node.fencing != Fencing::None);
        Abilities {
            store: self.0.settings.store,
            kinds: &KINDS,
            fencing: match (self.0.settings.fencing && counted, seeded) {
                (true, true) => Fencing::DataOrClock,
                (true, false) => Fencing::Data,
                (false, _) => Fencing::None,
            },
            waiting: nodes().find(|node| node.waiting == Waiting::Polled).map_or(Waiting::Notified, |node| node.waiting),
            liveness: Liveness::Lease,
            reach: nodes().map(|node| node.reach).min().expect("there are nodes"),
            cells: false,
            delays: nodes().all(|node| node.delays),
            downgrade: false,
            shortest_ttl: nodes().map(|node| node.shortest_ttl).max().expect("there are nodes"),
        }
    }

    fn describe(&self) -> String {
        let nodes: Vec<String> = self.0.nodes.iter().map(|node| node.describe()).collect();
        format!("a majority of {}", nodes.join(", "))
    }

    fn attach(&self, news: News) {
        let ear = |node| Arc::new(Ear { members: Arc::downgrade(&self.0), node, news: news.clone() }) as Arc<dyn Listener>;
        let ears = self.0.ears.get_or_init(|| (0..self.0.nodes.len()).map(ear).collect());
        let _ = self.0.news.set(news.clone());
        for (node, ear) in self.0.nodes.iter().zip(ears) {
            node.attach(News::to(Arc::downgrade(ear)));
        }
    }

    async fn acquire(&self, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        ask::acquire(&self.0, claim, wait).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        keep::renew(&self.0, claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<()> {
        released(keep::release(&self.0, claim).await?, claim, self.describe())
    }

    async fn downgrade(&self, _: &Claim) -> Result<bool> {
        Err(Error::new(ErrorKind::Unsupported, "a quorum cannot downgrade a write lock"))
    }

    async fn view(&self, name: &LockName) -> Result<View> {
        look::view(&self.0, name).await
    }

    async fn check(&self, sequencer: &Sequencer) -> Result<Standing> {
        look::check(&self.0, sequencer).await
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        look::list(&self.0, prefix, after, limit).await
    }

    async fn watch(&self, name: &LockName, seen: &View) -> Result<View> {
        look::watch(&self.0, name, seen).await
    }

    async fn ask(&self, name: &LockName, ask: &Ask) -> Result<usize> {
        look::ask(&self.0, name, ask).await
    }

    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Result<usize> {
        look::break_holds(&self.0, name, only).await
    }

    async fn cell_get(&self, _: &LockName) -> Result<crate::Versioned> {
        Err(no_cells())
    }

    async fn cell_set(&self, _: &LockName, _: u64, _: Option<&[u8]>) -> Result<Option<u64>> {
        Err(no_cells())
    }

    async fn probe(&self) -> Result<()> {
        look::probe(&self.0).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        let mut findings = vec![self.0.who_votes()];
        findings.extend(look::examine(&self.0).await);
        Ok(findings)
    }

    async fn close(&self) -> Result<()> {
        look::close(&self.0).await
    }
}

impl Members {
    fn who_votes(&self) -> Finding {
        let silent: Vec<String> = self
            .nodes
            .iter()
            .filter_map(|node| node.vote().err().map(|error| format!("{}: {error}", node.describe())))
            .collect();
        let (many, voting) = (self.nodes.len(), self.nodes.len() - silent.len());
        let why = if silent.is_empty() { String::new() } else { format!("; not {}", silent.join("; not ")) };
        let says = format!("{voting} of {many} nodes vote, and {} must agree{why}", self.majority());
        match voting {
            _ if silent.is_empty() => Finding::good("votes", says),
            _ if voting >= self.majority() => Finding::warning("votes", says),
            _ => Finding::bad("votes", says),
        }
    }
}

fn no_cells() -> Error {
    Error::new(ErrorKind::Unsupported, "a quorum has no cells: nodes that were not asked would have an older value")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use crate::{Client, Instant};

    #[test]
    fn a_window_ends_when_its_votes_cease_to_be_a_majority() {
        let nodes = (0..5).map(|_| Memory::new().node()).collect();
        let Quorum(members) = Quorum::new(nodes, Settings::default()).unwrap();
        let until = |votes: &[u64]| keep::until(&members, votes.iter().copied().map(Instant::from_nanos));
        assert_eq!(until(&[9, 5, 7]), Some(Instant::from_nanos(5)));
        assert_eq!(until(&[9, 5, 7, 6, 8]), Some(Instant::from_nanos(7)));
        assert_eq!(until(&[9, 5]), None);
    }

    #[tokio::test]
    async fn nothing_is_remembered_of_what_is_over() {
        let stores = [(); 3].map(|()| Memory::new());
        let quorum = Quorum::new(stores.iter().map(Memory::node).collect(), Settings::default()).unwrap();
        let members = Arc::clone(&quorum.0);
        let client = Client::new(quorum).unwrap();
        let mutex = client.mutex("x").unwrap();
        let held = mutex.lock().await.unwrap();
        assert!(mutex.try_lock().await.unwrap().is_none());
        assert!(mutex.try_lock_for(Duration::from_millis(5)).await.unwrap().is_none());
        assert!(tokio::time::timeout(Duration::from_millis(5), mutex.lock()).await.is_err());
        held.release().await.unwrap();
        drop(mutex.lock().await.unwrap());
        stores[..2].iter().for_each(|store| store.be_dark(true));
        mutex.try_lock().await.unwrap_err();
        client.close().await.unwrap();
        assert_eq!(members.claims.len(), 0);
    }
}
