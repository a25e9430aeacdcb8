//! A Redis Cluster whose nodes can be killed and whose slots can be moved, step by step.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::{Redis, RedisOptions};
use crate::servers::wait_until;

/// Several nodes that share the slots between them. They end when dropped.
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

/// How many slots there are.
const SLOTS: usize = 16_384;
/// After how long a replica has given up to take over that has not done it: then it may be told again.
const GIVEN_UP: Duration = Duration::from_secs(6);
/// After how long a node is greeted again that does not know who greeted it.
const FORGOTTEN: Duration = Duration::from_secs(2);

impl RedisCluster {
    /// Starts so many masters, each with so many replicas, and waits until every node says that all is well. The
    /// masters are the first nodes.
    ///
    /// With replicas, a node that is silent for a second is replaced by one; without, there is nothing to gain from
    /// haste, and a busy machine must not look like a dead one.
    pub fn start(masters: usize, replicas: usize) -> Self {
        let patience_ms = if replicas > 0 { "1000" } else { "15000" };
        let options = RedisOptions::new().cluster().arg("cluster-node-timeout", patience_ms);
        let nodes: Vec<Redis> = (0..masters * (1 + replicas)).map(|_| Redis::start(options.clone())).collect();
        for (index, master) in nodes[..masters].iter().enumerate() {
            let (first, end) = (SLOTS * index / masters, SLOTS * (index + 1) / masters);
            master.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &(end - 1).to_string()]);
            master.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
        }
        introduce(&nodes);
        for (index, replica) in nodes[masters..].iter().enumerate() {
            let master = nodes[index % masters].id();
            // It must have heard of its master first.
            let follows = || replica.try_command(&["CLUSTER", "REPLICATE", &master]).is_ok();
            assert!(wait_until(follows), "a replica does not meet its master:\n{}", replica.log());
        }
        let cluster = RedisCluster { nodes };
        assert!(wait_until(|| cluster.is_well()), "the cluster does not come together:\n{}", cluster.nodes[0].log());
        cluster
    }

    /// One of three masters for the whole test binary. Nobody may kill or flush it, or move its slots.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<RedisCluster> = OnceLock::new();
        SHARED.get_or_init(|| RedisCluster::start(3, 0))
    }

    /// All nodes; kill, pause and restart them as any [`Redis`].
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// `redis+cluster://` and the nodes.
    pub fn url(&self) -> String {
        super::url_of("redis+cluster", &self.nodes)
    }

    /// Whether every node lives and knows all others, every slot is served, and every replica is in touch.
    pub fn is_well(&self) -> bool {
        let (mut masters, mut replicas) = (0, 0);
        for node in &self.nodes {
            let Ok(info) = node.try_command(&["CLUSTER", "INFO"]) else { return false };
            let info = super::fields(&info.text());
            let knows = ("cluster_known_nodes", self.nodes.len().to_string());
            let facts = [("cluster_state", "ok".to_owned()), ("cluster_slots_ok", SLOTS.to_string()), knows];
            if facts.iter().any(|(name, value)| info.get(*name) != Some(value)) {
                return false;
            }
            let replication = node.info("replication");
            match replication["role"].as_str() {
                "master" => {
                    masters += 1;
                    replicas += replication["connected_slaves"].parse().unwrap_or(0);
                }
                _ if replication["master_link_status"] != "up" => return false,
                _ => {}
            }
        }
        masters + replicas == self.nodes.len()
    }

    /// The slot of a key.
    pub fn slot_of(&self, key: &str) -> u16 {
        self.living().command(&["CLUSTER", "KEYSLOT", key]).int() as u16
    }

    /// The number of the node that serves a slot, once all who live agree on it.
    pub fn node_of(&self, slot: u16) -> usize {
        let mut node = None;
        wait_until(|| {
            node = self.agreed_on(slot);
            node.is_some()
        });
        node.unwrap_or_else(|| panic!("the nodes do not agree on slot {slot}:\n{}", self.living().log()))
    }

    /// Makes a slot's node send askers for keys that it does not have to another node (`ASK`), which takes them.
    pub fn begin_move(&self, slot: u16, to: usize) -> Move<'_> {
        let moving = Move { cluster: self, slot: slot.to_string(), from: self.node_of(slot), to };
        assert_ne!(moving.from, to, "slot {slot} is there already");
        self.nodes[to].command(&["CLUSTER", "SETSLOT", &moving.slot, "IMPORTING", &self.nodes[moving.from].id()]);
        self.nodes[moving.from].command(&["CLUSTER", "SETSLOT", &moving.slot, "MIGRATING", &self.nodes[to].id()]);
        moving
    }

    /// Moves a slot with all its keys.
    pub fn move_slot(&self, slot: u16, to: usize) {
        let moving = self.begin_move(slot, to);
        moving.carry_keys(usize::MAX);
        moving.finish();
    }

    /// Makes a replica the master of a slot in place of its master, which agrees: no data are lost. Returns the numbers of
    /// both when all know of it.
    pub fn fail_over(&self, slot: u16) -> (usize, usize) {
        let master = self.node_of(slot);
        let port = self.nodes[master].port().to_string();
        let follows = |node: &&Redis| node.is_alive() && node.info("replication").get("master_port") == Some(&port);
        let mut again = Instant::now();
        let asking = || {
            if Instant::now() < again {
                return;
            }
            // Nobody follows it any more if a replica has taken over by itself, as on a machine that stood still.
            if let Some(replica) = self.nodes.iter().find(follows) {
                let _ = replica.try_command(&["CLUSTER", "FAILOVER"]);
            }
            again = Instant::now() + GIVEN_UP;
        };
        (master, self.successor(slot, master, asking))
    }

    /// Kills the master of a slot and waits until a replica has taken its place; returns the numbers of both.
    pub fn kill_master(&self, slot: u16) -> (usize, usize) {
        let master = self.node_of(slot);
        self.nodes[master].kill();
        (master, self.successor(slot, master, || {}))
    }

    /// Waits until all who live agree that another than this serves a slot, and serve all slots again; looks again and again, and
    /// does this before.
    fn successor(&self, slot: u16, before: usize, mut meanwhile: impl FnMut()) -> usize {
        let mut successor = None;
        wait_until(|| {
            meanwhile();
            let info = |node: &Redis| node.try_command(&["CLUSTER", "INFO"]);
            let serves = |node: &Redis| info(node).is_ok_and(|info| info.text().contains("cluster_state:ok"));
            successor = self.agreed_on(slot).filter(|node| *node != before && self.alive().all(serves));
            successor.is_some()
        });
        successor.unwrap_or_else(|| panic!("no replica takes over slot {slot}:\n{}", self.living().log()))
    }

    /// The living master that all who live name for a slot.
    fn agreed_on(&self, slot: u16) -> Option<usize> {
        let mut views = self.alive().map(|node| port_of(node, slot));
        let port = views.next().flatten().filter(|port| views.all(|view| view == Some(*port)))?;
        let node = self.nodes.iter().position(|node| node.port() == port)?;
        (self.nodes[node].is_alive() && self.nodes[node].role().as_deref() == Some("master")).then_some(node)
    }

    fn alive(&self) -> impl Iterator<Item = &Redis> {
        self.nodes.iter().filter(|node| node.is_alive())
    }

    fn living(&self) -> &Redis {
        self.alive().next().expect("a node lives")
    }
}

/// A slot on its way from one node to another.
#[must_use = "a slot that is never settled makes a cluster that is never well"]
pub struct Move<'a> {
    cluster: &'a RedisCluster,
    slot: String,
    from: usize,
    to: usize,
}

impl Move<'_> {
    /// The numbers of the node that had it, and of the one that gets it.
    pub fn ends(&self) -> (usize, usize) {
        (self.from, self.to)
    }

    /// Carries at most so many keys over, and says how many there were. A request for several keys of which only some
    /// have gone is told to try again (`TRYAGAIN`).
    pub fn carry_keys(&self, at_most: usize) -> usize {
        let (from, port) = (&self.cluster.nodes[self.from], self.cluster.nodes[self.to].port().to_string());
        let mut carried = 0;
        while carried < at_most {
            let Some(key) = from.command(&["CLUSTER", "GETKEYSINSLOT", &self.slot, "1"]).texts().pop() else { break };
            // It may expire on the way: then there is nothing to carry (`NOKEY`).
            from.command(&["MIGRATE", "127.0.0.1", &port, &key, "0", "10000"]);
            carried += 1;
        }
        carried
    }

    /// Gives the slot to its new node and tells everyone. Whoever asks the old one is sent on (`MOVED`).
    pub fn finish(self) {
        let id = self.cluster.nodes[self.to].id();
        // The new one first: were the old one first, and the new one died, nobody would have it.
        for node in [self.to, self.from] {
            self.cluster.nodes[node].command(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &id]);
        }
        let slot = self.slot.parse().expect("it was a number");
        assert!(wait_until(|| self.cluster.agreed_on(slot) == Some(self.to)), "not all hear where slot {slot} is");
    }
}

/// Has the first node greet all others, and waits until each knows the other: then all hear of all. A node that does not hear back
/// within its timeout forgets the greeting, on either side, as on a machine that stands still for a second.
fn introduce(nodes: &[Redis]) {
    let ids: Vec<String> = nodes.iter().map(Redis::id).collect();
    let knows = |node: usize, other: usize| nodes[node].command(&["CLUSTER", "NODES"]).text().contains(&ids[other]);
    let mut again = Instant::now();
    let know_each_other = || {
        let strangers: Vec<usize> = (1..nodes.len()).filter(|node| !knows(0, *node) || !knows(*node, 0)).collect();
        if Instant::now() >= again {
            for node in strangers.iter().map(|node| &nodes[*node]) {
                let bus = node.ports.bus.as_ref().expect("a node of a cluster has one").number().to_string();
                nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string(), &bus]);
            }
            again = Instant::now() + FORGOTTEN;
        }
        strangers.is_empty()
    };
    assert!(wait_until(know_each_other), "the nodes do not meet:\n{}", nodes[0].log());
}

/// The port of the master of a slot as one node sees it.
fn port_of(node: &Redis, slot: u16) -> Option<u16> {
    let ranges = node.try_command(&["CLUSTER", "SLOTS"]).ok()?.list();
    ranges.into_iter().find_map(|range| {
        let mut parts = range.list().into_iter();
        let mut number = || parts.next().expect("first, last, master").int() as u16;
        let served = number()..=number();
        let master = parts.next().expect("first, last, master").list();
        served.contains(&slot).then(|| master[1].clone().int() as u16)
    })
}
