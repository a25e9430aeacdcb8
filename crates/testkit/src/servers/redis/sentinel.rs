//! A master with replicas, watched by three Sentinels that replace it when it is gone.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use super::{Redis, RedisOptions};
use crate::proxy::{Fault, FaultId, Proxy, Toward, Which};
use crate::servers::{wait_until, wait_until_within};

/// A master, its replicas, and three Sentinels. They end when dropped.
pub struct Sentinels {
    servers: Vec<Redis>,
    sentinels: Vec<Redis>,
    proxy: Option<Proxy>,
}

/// How they are to be started.
#[derive(Clone, Debug)]
pub struct SentinelOptions {
    replicas: usize,
    down_after: Duration,
    proxied: bool,
    servers: RedisOptions,
    password: Option<String>,
}

impl Default for SentinelOptions {
    /// One replica, which takes over when the master was silent for a second and a half. (With half a second, Sentinels on
    /// a busy machine were seen to replace masters that were well.)
    fn default() -> Self {
        SentinelOptions {
            replicas: 1,
            down_after: Duration::from_millis(1500),
            proxied: false,
            servers: RedisOptions::new(),
            password: None,
        }
    }
}

impl SentinelOptions {
    /// With so many replicas.
    pub fn replicas(self, replicas: usize) -> Self {
        SentinelOptions { replicas, ..self }
    }

    /// How long the master must be silent to be replaced.
    pub fn down_after(self, down_after: Duration) -> Self {
        SentinelOptions { down_after, ..self }
    }

    /// The first master is known to everyone, replicas and Sentinels too, by the address of a proxy in front of it; see
    /// [`Sentinels::stall_replication`].
    pub fn proxied(self) -> Self {
        SentinelOptions { proxied: true, ..self }
    }

    /// How master and replicas are started: persistence, a password, users.
    pub fn servers(self, servers: RedisOptions) -> Self {
        SentinelOptions { servers, ..self }
    }

    /// A password for the Sentinels themselves.
    pub fn sentinel_password(self, password: &str) -> Self {
        SentinelOptions { password: Some(password.to_owned()), ..self }
    }
}

/// What the Sentinels call the master and those who follow it.
const SERVICE: &str = "main";

/// A Sentinel that saw time jump, as on a machine that is too busy, does nothing for half a minute.
const TILT: Duration = Duration::from_secs(90);

impl Sentinels {
    /// Starts all of them, and waits until every Sentinel knows the others and every replica.
    pub fn start(options: SentinelOptions) -> Self {
        let mut servers = options.servers.clone();
        if let Some(password) = &servers.password {
            servers = servers.clone().arg("masterauth", password);
        }
        let (master, proxy) = Self::start_master(&servers, options.proxied);
        let address = proxy.as_ref().map_or(master.address(), Proxy::address);
        let (host, port) = (address.ip(), address.port());
        let follower = servers.arg("replicaof", &format!("{host} {port}"));
        let replicas = (0..options.replicas).map(|_| Redis::start(follower.clone()));
        let servers: Vec<Redis> = std::iter::once(master).chain(replicas).collect();
        // A Sentinel looks for replicas once when it starts, and then every ten seconds.
        assert!(wait_until(|| servers[1..].iter().all(Redis::follows)), "a replica finds no master:\n{}", servers[1].log());

        let mut watcher = RedisOptions { sentinel: true, password: options.password.clone(), ..RedisOptions::new() }
            .arg("sentinel", &format!("monitor {SERVICE} {host} {port} 2"))
            .arg("sentinel", &format!("down-after-milliseconds {SERVICE} {}", options.down_after.as_millis()))
            .arg("sentinel", &format!("failover-timeout {SERVICE} 3000"));
        if let Some(password) = &options.servers.password {
            watcher = watcher.arg("sentinel", &format!("auth-pass {SERVICE} {password}"));
        }
        if let Some(password) = &options.password {
            watcher = watcher.arg("sentinel", &format!("sentinel-pass {password}"));
        }
        let sentinels: Vec<Redis> = (0..3).map(|_| Redis::start(watcher.clone())).collect();
        for sentinel in &sentinels {
            // Ten times as eager as they are by themselves; and a jump of time on a busy machine is no reason to rest.
            let pace = ["INFO-PERIOD", "1000", "PUBLISH-PERIOD", "200", "TILT-TRIGGER", "60000"];
            sentinel.command(&[&["SENTINEL", "DEBUG"], pace.as_slice()].concat());
        }
        let all = Sentinels { servers, sentinels, proxy };
        all.wait_until_well();
        all
    }

    /// One master with one replica for the whole test binary. Nobody may kill or flush them; and so that a busy machine
    /// does not look like a dead one, these Sentinels take half a minute to act.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Sentinels> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(SentinelOptions::default().down_after(Duration::from_secs(30))))
    }

    /// What the Sentinels call the master.
    pub fn service(&self) -> &'static str {
        SERVICE
    }

    /// `redis+sentinel://`, the Sentinels, and the service; with the servers' password if there is one.
    pub fn url(&self) -> String {
        let password = self.servers[0].options.password.as_deref();
        let user = password.map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis+sentinel://{user}{}/{SERVICE}", super::hosts_of(&self.sentinels))
    }

    /// Master and replicas; the first is the one that was master first.
    pub fn servers(&self) -> &[Redis] {
        &self.servers
    }

    /// The three.
    pub fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// The proxy in front of the first master, if there is one.
    pub fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }

    /// The master that all living Sentinels name, if they agree.
    pub fn master(&self) -> Option<&Redis> {
        let mut views =
            self.sentinels.iter().filter(|sentinel| sentinel.is_alive()).map(|sentinel| self.master_of(sentinel));
        let master = views.next().flatten()?;
        views.all(|view| view.is_some_and(|view| view.port() == master.port())).then_some(master)
    }

    /// Replicas of the first master hear nothing from it and do not know, until the fault is lifted: they lag. Only if
    /// [`proxied`](SentinelOptions::proxied).
    pub fn stall_replication(&self) -> FaultId {
        let proxy = self.proxy.as_ref().expect("started as `proxied`");
        proxy.set(Which::sent("PSYNC"), Fault::Blackhole(Toward::Client))
    }

    /// Kills the master and waits until another has taken its place; returns both.
    pub fn kill_master(&self) -> (&Redis, &Redis) {
        let lost = self.agreed_master();
        lost.kill();
        (lost, self.successor(lost))
    }

    /// Has the Sentinels replace a master that is well; returns both.
    pub fn fail_over(&self) -> (&Redis, &Redis) {
        let before = self.agreed_master();
        let sentinel = &self.sentinels[0];
        // Refused while another is under way, and given up when the replica does not obey soon: so told again.
        let told = || {
            let same = self.master_of(sentinel).is_some_and(|master| master.port() == before.port());
            if same {
                let _ = sentinel.try_command(&["SENTINEL", "FAILOVER", SERVICE]);
            }
            !same
        };
        assert!(wait_until_within(TILT, told), "no failover comes to an end:\n{}", sentinel.log());
        (before, self.successor(before))
    }

    /// Waits until every Sentinel knows the others, a master that is up and every server beside it as its replica. Whoever was
    /// master and comes back is made a replica only after a while.
    pub fn wait_until_well(&self) {
        assert!(wait_until_within(TILT, || self.are_well()), "they do not find each other:\n{}", self.sentinels[0].log());
    }

    /// The master, once they agree: a machine that stood still may have made them change their minds, one after the other.
    fn agreed_master(&self) -> &Redis {
        self.master_that(|_| true)
    }

    fn successor(&self, before: &Redis) -> &Redis {
        self.master_that(|redis| redis.port() != before.port() && redis.role().as_deref() == Some("master"))
    }

    fn master_that(&self, counts: impl Fn(&Redis) -> bool) -> &Redis {
        let mut found = None;
        wait_until_within(TILT, || {
            found = self.master().filter(|redis| counts(redis));
            found.is_some()
        });
        found.unwrap_or_else(|| panic!("no such master:\n{}", self.sentinels[0].log()))
    }

    fn are_well(&self) -> bool {
        // A Sentinel's word about a replica may be ten seconds old.
        let replicas = self.servers.iter().filter(|server| server.follows()).count();
        replicas == self.servers.len() - 1
            && self.master().is_some()
            && self.sentinels.iter().all(|sentinel| self.is_content(sentinel).unwrap_or(false))
    }

    fn is_content(&self, sentinel: &Redis) -> std::io::Result<bool> {
        let facts = [
            ("num-other-sentinels", (self.sentinels.len() - 1).to_string()),
            ("num-slaves", (self.servers.len() - 1).to_string()),
            ("flags", "master".to_owned()),
        ];
        let master = pairs(sentinel.try_command(&["SENTINEL", "MASTER", SERVICE])?.texts());
        let replicas = sentinel.try_command(&["SENTINEL", "REPLICAS", SERVICE])?.list();
        let is_linked = |replica: BTreeMap<String, String>| replica["master-link-status"] == "ok";
        Ok(facts.iter().all(|(name, value)| master[*name] == *value)
            && replicas.into_iter().map(|replica| pairs(replica.texts())).all(is_linked))
    }

    fn start_master(options: &RedisOptions, proxied: bool) -> (Redis, Option<Proxy>) {
        if !proxied {
            return (Redis::start(options.clone()), None);
        }
        // It must know by which address it is known before there is something behind that address.
        let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let proxy = Proxy::start(nowhere);
        let port = proxy.port().to_string();
        let announced = options.clone().arg("replica-announce-ip", "127.0.0.1").arg("replica-announce-port", &port);
        let master = Redis::start(announced);
        proxy.retarget(master.address());
        (master, Some(proxy))
    }

    fn master_of(&self, sentinel: &Redis) -> Option<&Redis> {
        let port = sentinel.try_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]).ok()?.texts().pop()?;
        if self.proxy.as_ref().is_some_and(|proxy| proxy.port().to_string() == port) {
            return self.servers.first();
        }
        self.servers.iter().find(|server| server.port().to_string() == port)
    }
}

fn pairs(list: Vec<String>) -> BTreeMap<String, String> {
    list.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}
