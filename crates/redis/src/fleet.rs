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

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, RedisResult, Value};
use tenure_core::{Error, ErrorKind, Instant, Result};

use crate::cluster::{self, SlotMap};
use crate::config::{Address, Settings, Topology};
use crate::error::{Failure, Fate, Next, explain, what_next};
use crate::link::{Link, Listener, Live, jitter};
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
    /// Whatever must have reached replicas before it counts.
    Synced,
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) value: Value,
    /// Read before the request left, the time that counts.
    pub(crate) sent: Instant,
    /// Who answered.
    pub(crate) from: Address,
    /// No other copy of the request can be on its way.
    pub(crate) clean: bool,
    /// How many replicas have it, where that was asked.
    pub(crate) replicas: u32,
}

/// The servers of one store, as one client sees them.
pub(crate) struct Fleet {
    pub(crate) settings: Arc<Settings>,
    pub(crate) layout: Layout,
    /// Names this client's inboxes.
    client: String,
    listener: Arc<dyn Listener>,
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    route: Mutex<Route>,
    /// One at a time asks where the servers are.
    finding: tokio::sync::Mutex<()>,
}

/// Where the servers are.
enum Route {
    /// One place, now known or not: a single server, or the sentinels' master.
    One(Option<Address>),
    /// A cluster's slots; `None` before they were asked for.
    Slots(Option<SlotMap>),
}

/// One server.
pub(crate) struct Node {
    asks: Link,
    keep: Link,
    synced: Link,
    ear: Option<Link>,
}

impl Node {
    fn link(&self, lane: Lane) -> &Link {
        match lane {
            Lane::Asks => &self.asks,
            Lane::Keep => &self.keep,
            Lane::Synced => &self.synced,
        }
    }
}

/// How often one request follows redirections.
const REDIRECTIONS: usize = 8;
/// A request that is dropped without an answer after this long gives its connection up, if that was silent all the while.
const STUCK_AFTER: Duration = Duration::from_millis(40);

impl Fleet {
    pub(crate) fn new(settings: Arc<Settings>, listener: Arc<dyn Listener>, client: String) -> Self {
        let (layout, route) = match &settings.topology {
            Topology::Single(address) => (Layout::single(&settings.prefix), Route::One(Some(address.clone()))),
            Topology::Cluster(_) => (Layout::cluster(&settings.prefix), Route::Slots(None)),
            _ => (Layout::single(&settings.prefix), Route::One(None)),
        };
        let (nodes, route, finding) = (Mutex::default(), Mutex::new(route), tokio::sync::Mutex::default());
        Fleet { settings, layout, client, listener, nodes, route, finding }
    }

    fn route(&self) -> MutexGuard<'_, Route> {
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
        let node = if self.is_cluster() {
            Node { asks: link(None), keep: link(None), synced: link(None), ear: Some(link(None)) }
        } else {
            Node { asks: link(Some(self.inbox(0))), keep: link(None), synced: link(None), ear: None }
        };
        let node = Arc::new(node);
        nodes.insert(address.clone(), Arc::clone(&node));
        node
    }

    fn known_address(&self, bucket: Bucket) -> Option<Address> {
        match &*self.route() {
            Route::One(address) => address.clone(),
            Route::Slots(slots) => slots.as_ref()?.node_of(self.slot(bucket)).cloned(),
        }
    }

    fn slot(&self, bucket: Bucket) -> u16 {
        cluster::slot_of_tag(self.layout.tag(bucket).as_bytes())
    }

    /// The server that has a bucket, asked for if that is not known.
    async fn node_of(&self, bucket: Bucket) -> Result<Arc<Node>, Failure> {
        if let Some(address) = self.known_address(bucket) {
            return Ok(self.node(&address));
        }
        let _one_at_a_time = self.finding.lock().await;
        if let Some(address) = self.known_address(bucket) {
            return Ok(self.node(&address));
        }
        let found = match &self.settings.topology {
            Topology::Single(address) => Route::One(Some(address.clone())),
            Topology::Sentinel { .. } => Route::One(Some(sentinel::master(&self.settings).await?)),
            _ => Route::Slots(Some(cluster::discover(&self.settings, &self.seeds()).await?)),
        };
        *self.route() = found;
        match self.known_address(bucket) {
            Some(address) => Ok(self.node(&address)),
            None => {
                self.find_anew();
                let what = format!("no server of the cluster has slot {}", self.slot(bucket));
                let error = Error::new(ErrorKind::Unavailable, what).with_hint("CLUSTER INFO says what is missing");
                Err(error.into())
            }
        }
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
        match &mut *self.route() {
            Route::One(_) if matches!(self.settings.topology, Topology::Single(_)) => {}
            Route::One(address) => *address = None,
            Route::Slots(slots) => *slots = None,
        }
    }

    /// A server said that another one has this slot.
    fn moved(&self, slot: u16, to: &Address) {
        if let Route::Slots(Some(slots)) = &mut *self.route() {
            slots.moved(slot, to.clone());
        }
    }

    /// Connects to the server of one bucket: to learn early what is wrong.
    pub(crate) async fn reach(&self, bucket: Bucket) -> Result<Arc<Live>, Failure> {
        let node = self.node_of(bucket).await?;
        node.asks.live().await.inspect_err(|_| self.find_anew())
    }

    /// The address of the server of one bucket, if it is known.
    pub(crate) fn address(&self, bucket: Bucket) -> Option<Address> {
        self.known_address(bucket)
    }

    /// Listens to the inbox of a bucket. On a single server the connection for asks does so by itself.
    pub(crate) async fn listen(&self, bucket: Bucket) -> Result<(), Failure> {
        for _ in 0..REDIRECTIONS {
            let node = self.node_of(bucket).await?;
            let Some(ear) = &node.ear else { return node.asks.live().await.map(drop) };
            let live = ear.live().await.inspect_err(|_| self.find_anew())?;
            let mut listens = live.listens.lock().await;
            if listens.contains(&bucket) {
                return Ok(());
            }
            match live.send(redis::cmd("SSUBSCRIBE").arg(self.inbox(bucket))).await {
                Ok(_) => {
                    listens.push(bucket);
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

    /// Whether the inbox of a bucket is being listened to, as far as we know.
    pub(crate) fn is_listening(&self, bucket: Bucket) -> bool {
        let Some(address) = self.known_address(bucket) else { return false };
        let node = self.node(&address);
        let live = node.ear.as_ref().unwrap_or(&node.asks).open();
        live.is_some_and(|live| node.ear.is_none() || live.listens.try_lock().is_ok_and(|listens| listens.contains(&bucket)))
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
            let under_way = UnderWay { live: &live, sent, always: lane == Lane::Keep };
            let outcome = self.send(&live, lane, asking, command).await;
            std::mem::forget(under_way);
            let error = match outcome {
                Ok((value, replicas)) => {
                    return Ok(Answer { value, sent, from: link.address.clone(), clean: true, replicas });
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

    async fn send(&self, live: &Live, lane: Lane, asking: bool, command: &Cmd) -> RedisResult<(Value, u32)> {
        if !asking && lane != Lane::Synced {
            return Ok((live.send(command).await?, 0));
        }
        let mut pipeline = redis::pipe();
        if asking {
            pipeline.cmd("ASKING");
        }
        pipeline.add_command(command.clone());
        if lane == Lane::Synced {
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
        let replicas = if lane == Lane::Synced { redis::from_redis_value(next()?)? } else { 0 };
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
        let deadline = Instant::now() + patience;
        let (mut clean, mut pause) = (true, Duration::from_millis(10));
        let mut last: Option<Failure> = None;
        loop {
            let left = deadline.since(Instant::now());
            match tokio::time::timeout(left, self.call(lane, bucket, script, command)).await {
                Ok(Ok(answer)) => return Ok(Answer { clean, ..answer }),
                Ok(Err(failure)) => {
                    clean &= failure.fate == Fate::Refused;
                    let nap = jitter(pause);
                    if failure.next == Next::Fatal || Instant::now() + nap >= deadline {
                        return Err(failure);
                    }
                    last = Some(failure);
                    tokio::time::sleep(nap).await;
                    pause = (pause * 2).min(Duration::from_millis(500));
                }
                Err(_) => {
                    let silent = || self.silent(bucket, patience);
                    return Err(Failure { fate: Fate::Unknown, ..last.unwrap_or_else(silent) });
                }
            }
        }
    }

    fn failed(&self, error: &redis::RedisError, link: &Link) -> Failure {
        let failure = explain(error, &link.address, &self.settings, "asking it for a lock");
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
        let whom = self.known_address(bucket).map_or_else(|| self.settings.describe(), |address| address.to_string());
        let what = format!("{whom} did not answer within {patience:?}");
        let error = Error::new(ErrorKind::Unavailable, what).with_hint("Is the server up, and the way to it?");
        Failure { next: Next::Broken, fate: Fate::Unknown, error }
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
