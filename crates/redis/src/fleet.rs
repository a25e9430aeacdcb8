//! The servers of a store: which one has a bucket, and how a request gets there.
//!
//! A request may be answered, refused (nothing happened, and another try may do better: a server that loads, a node that
//! lost its slot, a master that became a replica), or have no answer, and then it may or may not have happened. [`Fleet::call`]
//! is one try, along redirections; [`Fleet::insist`] tries again for as long as there is patience, which is sound because
//! every request carries its claim's id and says the same thing each time. It also says whether a copy of the request may
//! still be on its way: then the claim's end must leave a mark, see `schema`.
//!
//! Each server has a connection for asks, which also hears our inbox, and another for keeping, so that a renewal never queues
//! behind anything a user does. In a cluster the inbox has a third: a server that moves a slot ends subscriptions unasked,
//! which on a connection with requests under way would look like an answer to one of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, RedisResult, Value};
use tenure_core::{Error, ErrorKind, Instant, Result, jitter};

use crate::cluster;
use tenure_core::Address;

use crate::config::{Settings, Topology};
use crate::error::{Failure, Fate, Next, explain, what_next};
use crate::link::{ANSWER_LIMIT, Link, Listener, Live};
use crate::schema::{Bucket, Layout};
use crate::scripts::Script;
use crate::sentinel;

/// Which of a server's connections carries a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// What users ask for.
    Asks,
    /// Renewals and heartbeats.
    Keep,
    /// What users ask for and must have reached replicas before it counts.
    SyncedAsks,
    /// Renewals that must have.
    SyncedKeep,
}

impl Lane {
    fn is_synced(self) -> bool {
        matches!(self, Lane::SyncedAsks | Lane::SyncedKeep)
    }

    fn keeps(self) -> bool {
        matches!(self, Lane::Keep | Lane::SyncedKeep)
    }
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) value: Value,
    /// Read before the request left, the time that counts.
    pub(crate) sent: Instant,
    /// Who answered.
    pub(crate) from: Arc<Node>,
    /// No other copy of the request can be on its way.
    pub(crate) clean: bool,
    /// How many replicas have it, where that was asked.
    pub(crate) replicas: u32,
}

/// The servers of one store, as one client sees them.
pub(crate) struct Fleet {
    pub(crate) settings: Arc<Settings>,
    pub(crate) layout: Layout,
    /// Names this client's inboxes; empty if it has none.
    client: String,
    /// Completes "while …" in errors.
    doing: &'static str,
    listener: Arc<dyn Listener>,
    /// Every server that was ever heard of.
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    /// Who has which bucket; `None` where that must be asked.
    route: Mutex<Vec<Option<Arc<Node>>>>,
    /// The buckets whose inbox was ever listened to.
    heard_of: Mutex<BTreeSet<Bucket>>,
    /// Who had which bucket when that was last asked. Also lets only one at a time ask.
    last: tokio::sync::Mutex<Vec<Option<Address>>>,
}

/// One server.
pub(crate) struct Node {
    pub(crate) address: Address,
    asks: Link,
    keep: Link,
    /// Each waits for the replicas of one request at a time, so there are several, taken in turn.
    synced: [Link; SYNCED],
    turn: AtomicUsize,
    synced_keep: Link,
    ear: Option<Link>,
}

impl Node {
    fn link(&self, lane: Lane) -> &Link {
        match lane {
            Lane::Asks => &self.asks,
            Lane::Keep => &self.keep,
            Lane::SyncedAsks => &self.synced[self.turn.fetch_add(1, Ordering::Relaxed) % SYNCED],
            Lane::SyncedKeep => &self.synced_keep,
        }
    }
}

/// How many requests may wait for replicas at once.
const SYNCED: usize = 8;
/// How often one request follows redirections.
const REDIRECTIONS: usize = 8;
/// A request that is dropped without an answer after this long gives its connection up, if that was silent all the while.
const STUCK_AFTER: Duration = Duration::from_millis(40);

impl Fleet {
    pub(crate) fn new(settings: Arc<Settings>, listener: Arc<dyn Listener>, client: String) -> Self {
        let layout = match &settings.topology {
            Topology::Cluster(_) => Layout::cluster(&settings.prefix),
            _ => Layout::single(&settings.prefix),
        };
        let route = Mutex::new(layout.buckets().map(|_| None).collect());
        let (nodes, last) = (Mutex::default(), tokio::sync::Mutex::default());
        // On a single server the connection for asks listens from the start, whether or not anybody ever waits.
        let heard_of = match &settings.topology {
            Topology::Cluster(_) => Mutex::default(),
            _ => Mutex::new(layout.buckets().collect()),
        };
        Fleet { settings, layout, client, doing: "asking it for a lock", listener, nodes, route, heard_of, last }
    }

    /// One that has no inbox, and so needs no right to listen: for a fence.
    pub(crate) fn deaf(settings: Arc<Settings>, listener: Arc<dyn Listener>) -> Self {
        Fleet { doing: "showing it a token", ..Fleet::new(settings, listener, String::new()) }
    }

    fn route(&self) -> MutexGuard<'_, Vec<Option<Arc<Node>>>> {
        self.route.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channel on which this client hears about its claims in a bucket.
    pub(crate) fn inbox(&self, bucket: Bucket) -> Vec<u8> {
        self.layout.inbox(bucket, &self.client)
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.settings.topology, Topology::Cluster(_))
    }

    /// The word that scripts publish with: in a cluster only the servers of one slot hear it.
    pub(crate) fn publish(&self) -> &'static str {
        if self.is_cluster() { "spublish" } else { "publish" }
    }

    fn node(&self, address: &Address) -> Arc<Node> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = nodes.get(address) {
            return Arc::clone(node);
        }
        let link = |inbox| Link::new(&self.settings, address.clone(), inbox, &self.listener);
        let (inbox, ear) = match (self.is_cluster(), self.client.is_empty()) {
            (true, _) => (None, Some(link(None))),
            (false, true) => (None, None),
            (false, false) => (Some(self.inbox(0)), None),
        };
        let (asks, keep, synced_keep) = (link(inbox), link(None), link(None));
        let (synced, turn) = (std::array::from_fn(|_| link(None)), AtomicUsize::new(0));
        let node = Arc::new(Node { address: address.clone(), asks, keep, synced, turn, synced_keep, ear });
        nodes.insert(address.clone(), Arc::clone(&node));
        node
    }

    /// The server that has a bucket, if that is known.
    pub(crate) fn known(&self, bucket: Bucket) -> Option<Arc<Node>> {
        self.route()[usize::from(bucket)].clone()
    }

    fn slot(&self, bucket: Bucket) -> u16 {
        cluster::slot_of_tag(self.layout.tag(bucket).as_bytes())
    }

    /// The server that has a bucket, asked for if that is not known.
    async fn node_of(&self, bucket: Bucket) -> Result<Arc<Node>, Failure> {
        match self.known(bucket) {
            Some(node) => Ok(node),
            None => Box::pin(self.find(bucket)).await,
        }
    }

    async fn find(&self, bucket: Bucket) -> Result<Arc<Node>, Failure> {
        let mut last = self.last.lock().await;
        if let Some(node) = self.known(bucket) {
            return Ok(node); // somebody was faster
        }
        let found: Vec<Option<Address>> = match &self.settings.topology {
            Topology::Single(address) => vec![Some(address.clone())],
            Topology::Sentinel { .. } => vec![Some(sentinel::master(&self.settings).await?)],
            _ => {
                let slots = cluster::discover(&self.settings, &self.seeds()).await?;
                self.layout.buckets().map(|bucket| slots.node_of(self.slot(bucket)).cloned()).collect()
            }
        };
        *self.route() = found.iter().map(|address| address.as_ref().map(|address| self.node(address))).collect();
        // Whoever has a bucket now may not know what its last server knew.
        if !last.is_empty() && *last != found {
            self.listener.moved();
        }
        *last = found;
        self.known(bucket).ok_or_else(|| {
            let what = format!("no server of the cluster has slot {}", self.slot(bucket));
            Error::new(ErrorKind::Unavailable, what).with_hint("CLUSTER INFO says what is missing").into()
        })
    }

    /// Every server that was ever heard of: those of the URL may be gone by now.
    fn seeds(&self) -> Vec<Address> {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seeds: Vec<Address> = nodes.keys().cloned().collect();
        if let Topology::Cluster(given) = &self.settings.topology {
            seeds.extend(given.iter().filter(|seed| !nodes.contains_key(*seed)).cloned());
        }
        seeds
    }

    /// Forgets where the servers are: the next request asks.
    fn find_anew(&self) {
        if !matches!(self.settings.topology, Topology::Single(_)) {
            self.route().fill(None);
        }
    }

    /// A server said that another one has this slot.
    fn moved(&self, slot: u16, to: &Address) {
        let node = self.node(to);
        let mut is_news = false;
        for (bucket, place) in self.layout.buckets().zip(&mut *self.route()) {
            if self.slot(bucket) == slot {
                is_news |= place.replace(Arc::clone(&node)).is_none_or(|last| last.address != *to);
            }
        }
        if is_news {
            self.listener.moved();
        }
    }

    /// Connects to the server of one bucket: to learn early what is wrong.
    pub(crate) async fn reach(&self, bucket: Bucket) -> Result<Arc<Live>, Failure> {
        let node = self.node_of(bucket).await?;
        node.asks.live().await.inspect_err(|_| self.find_anew())
    }

    /// Listens to the inbox of a bucket. On a single server the connection for asks does so by itself.
    pub(crate) async fn listen(&self, bucket: Bucket) -> Result<(), Failure> {
        self.heard_of.lock().unwrap_or_else(PoisonError::into_inner).insert(bucket);
        for _ in 0..REDIRECTIONS {
            let node = self.node_of(bucket).await?;
            let Some(ear) = &node.ear else { return node.asks.live().await.map(drop) };
            let live = ear.live().await.inspect_err(|_| self.find_anew())?;
            if live.listens_to(bucket) {
                return Ok(());
            }
            let under_way = UnderWay { live: &live, sent: Instant::now(), always: false };
            let answer = live.send(redis::cmd("SSUBSCRIBE").arg(self.inbox(bucket))).await;
            std::mem::forget(under_way);
            match answer {
                Ok(_) => {
                    live.listens_now_to(bucket);
                    return Ok(());
                }
                Err(error) => match what_next(&error, &ear.address) {
                    Next::Moved { slot, to } => self.moved(slot, &to),
                    _ => return Err(self.failed(&error, ear)),
                },
            }
        }
        Err(self.lost_its_way(bucket))
    }

    /// Whether a request on this lane finds a connection.
    fn is_connected(&self, lane: Lane, bucket: Bucket) -> bool {
        let Some(node) = self.known(bucket) else { return false };
        match lane {
            Lane::SyncedAsks => node.synced.iter().all(|link| link.open().is_some()),
            lane => node.link(lane).open().is_some(),
        }
    }

    /// The buckets that were ever listened to.
    pub(crate) fn heard_of(&self) -> impl Iterator<Item = Bucket> + use<> {
        self.heard_of.lock().unwrap_or_else(PoisonError::into_inner).clone().into_iter()
    }

    /// Whether the inbox of a bucket is being listened to, as far as we know.
    pub(crate) fn is_listening(&self, bucket: Bucket) -> bool {
        let Some(node) = self.known(bucket) else { return false };
        let live = node.ear.as_ref().unwrap_or(&node.asks).open();
        live.is_some_and(|live| node.ear.is_none() || live.listens_to(bucket))
    }

    /// One try, along redirections.
    ///
    /// # Cancel safety
    /// Dropped, the request may or may not reach the server.
    pub(crate) async fn call(
        &self,
        lane: Lane,
        bucket: Bucket,
        script: Option<&'static Script>,
        command: &Cmd,
    ) -> Result<Answer, Failure> {
        let mut node = self.node_of(bucket).await?;
        let mut asking = false;
        for _ in 0..REDIRECTIONS {
            let link = node.link(lane);
            let live = link.live().await.inspect_err(|_| self.find_anew())?;
            let sent = Instant::now();
            let under_way = UnderWay { live: &live, sent, always: lane.keeps() };
            let outcome = match asking || lane.is_synced() {
                false => live.send(command).await.map(|value| (value, 0)),
                true => Box::pin(self.send_with_company(&live, lane, asking, command)).await,
            };
            std::mem::forget(under_way);
            let error = match outcome {
                Ok((value, replicas)) => {
                    let from = Arc::clone(&node);
                    return Ok(Answer { value, sent, from, clean: true, replicas });
                }
                Err(error) => error,
            };
            match (what_next(&error, &link.address), script) {
                (Next::NoScript, Some(script)) => {
                    live.send(&script.load()).await.map_err(|e| self.failed(&e, link))?;
                }
                (Next::Moved { slot, to }, _) => {
                    self.moved(slot, &to);
                    (node, asking) = (self.node(&to), false);
                }
                (Next::Ask { to, .. }, _) => (node, asking) = (self.node(&to), true),
                _ => return Err(self.failed(&error, link)),
            }
        }
        Err(self.lost_its_way(bucket))
    }

    /// Sends a command that needs another one right before or behind it.
    async fn send_with_company(&self, live: &Live, lane: Lane, asking: bool, command: &Cmd) -> RedisResult<(Value, u32)> {
        let mut pipeline = redis::pipe();
        if asking {
            pipeline.cmd("ASKING");
        }
        pipeline.add_command(command.clone());
        if lane.is_synced() {
            // On the same connection, right behind the write: elsewhere WAIT would answer for somebody else's.
            pipeline.cmd("WAIT").arg(self.settings.min_replicas).arg(self.settings.replica_wait.as_millis() as u64);
        }
        let count = pipeline.len();
        let mut answers = live.send_all(&pipeline, count).await?.into_iter().map(Value::extract_error);
        let mut next = || answers.next().unwrap_or_else(|| Ok(Value::Nil));
        if asking {
            next()?;
        }
        let value = next()?;
        let replicas = if lane.is_synced() { redis::from_redis_value(next()?)? } else { 0 };
        Ok((value, replicas))
    }

    /// Tries again, for as long as there is patience, where a try may do better.
    ///
    /// # Cancel safety
    /// Dropped, the request may or may not reach the server.
    pub(crate) async fn insist(
        &self,
        lane: Lane,
        bucket: Bucket,
        script: Option<&'static Script>,
        command: &Cmd,
        patience: Duration,
    ) -> Result<Answer, Failure> {
        // What waits for replicas may take so much longer.
        let waits = if lane.is_synced() { self.settings.replica_wait } else { Duration::ZERO };
        let whole = patience + waits;
        let mut patience = Patience::new(whole);
        loop {
            // A connection that is silent for this long is dropped with its request, and the next try gets another one. Making
            // one has a limit of its own.
            let connecting = if self.is_connected(lane, bucket) { Duration::ZERO } else { self.settings.connect_limit };
            let limit = patience.left().min(ANSWER_LIMIT + waits + connecting);
            match tokio::time::timeout(limit, self.call(lane, bucket, script, command)).await {
                Ok(Ok(answer)) => return Ok(Answer { clean: patience.clean, ..answer }),
                Ok(Err(failure)) => Box::pin(patience.after(failure)).await?,
                Err(_) => Box::pin(patience.after(self.silent(bucket, whole))).await?,
            }
        }
    }

    /// Listens to the inbox of a bucket, tried again while there is patience.
    ///
    /// # Cancel safety
    /// Dropped, it may or may not be listened to.
    pub(crate) async fn insist_on_listening(&self, bucket: Bucket, patience: Duration) -> Result<(), Failure> {
        let whole = patience;
        let mut patience = Patience::new(whole);
        loop {
            let hears = |node: Arc<Node>| node.ear.as_ref().unwrap_or(&node.asks).open().is_some();
            let connecting =
                if self.known(bucket).is_some_and(hears) { Duration::ZERO } else { self.settings.connect_limit };
            let limit = patience.left().min(ANSWER_LIMIT + connecting);
            match tokio::time::timeout(limit, self.listen(bucket)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(failure)) => patience.after(failure).await?,
                Err(_) => patience.after(self.silent(bucket, whole)).await?,
            }
        }
    }

    fn failed(&self, error: &redis::RedisError, link: &Link) -> Failure {
        let failure = explain(error, &link.address, &self.settings, self.doing);
        if failure.next != Next::Fatal {
            self.find_anew();
        }
        failure
    }

    fn lost_its_way(&self, bucket: Bucket) -> Failure {
        self.find_anew();
        let what = format!("the cluster's servers sent a request for slot {} from one to another", self.slot(bucket));
        let error = Error::new(ErrorKind::Unavailable, what).with_hint("Slots are being moved; try again");
        error.into()
    }

    /// Nobody answered.
    pub(crate) fn silent(&self, bucket: Bucket, patience: Duration) -> Failure {
        let whom = self.known(bucket).map_or_else(|| self.settings.describe(), |node| node.address.to_string());
        let what = format!("{whom} did not answer within {patience:?}");
        let error = Error::new(ErrorKind::Unavailable, what).with_hint("Is the server up, and the way to it?");
        Failure { next: Next::Broken, fate: Fate::Unknown, error }
    }
}

/// How long it is worth trying, and what came of it so far.
struct Patience {
    deadline: Instant,
    pause: Duration,
    /// No try so far can have left anything on its way.
    clean: bool,
}

impl Patience {
    fn new(limit: Duration) -> Self {
        Patience { deadline: Instant::now() + limit, pause: Duration::from_millis(10), clean: true }
    }

    fn left(&self) -> Duration {
        self.deadline.since(Instant::now())
    }

    /// Rests for a while, longer each time, if another try may do better; else gives the failure back.
    async fn after(&mut self, failure: Failure) -> Result<(), Failure> {
        self.clean &= failure.fate == Fate::Refused;
        let nap = jitter(self.pause);
        if failure.next == Next::Fatal || nap >= self.left() {
            return Err(failure);
        }
        tokio::time::sleep(nap).await;
        self.pause = (self.pause * 2).min(Duration::from_millis(500));
        Ok(())
    }
}

/// A request under way. Dropped without an answer, its connection may be stuck.
struct UnderWay<'a> {
    live: &'a Live,
    sent: Instant,
    always: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.always {
            self.live.give_up();
        } else if Instant::now().since(self.sent) >= STUCK_AFTER {
            self.live.give_up_if_silent_since(self.sent);
        }
    }
}
