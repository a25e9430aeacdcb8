//! Where the servers are and how they are used: settings and URLs.

use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo};
use tenure_core::{
    Address, Error, MAX_TTL, MIN_TTL, Result, Secret, StoreUrl, Tls, bad_url, bad_value, check_duration, check_limits,
};

use crate::tls;

/// The URL schemes of this store. With `rediss` every connection is encrypted.
pub const SCHEMES: &[&str] = &[
    "redis",
    "rediss",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
    "redlock",
    "rediss+redlock",
];

/// The parameters its URLs may have. Durations are written `50ms`, `30s`, `1m`; a plain number is seconds.
///
/// Everywhere:
/// - `prefix=TEXT` (default `tenure`): what every key and channel begins with; programs with another prefix do not meet.
/// - `connect_limit=TIME` (5 s): how long making a connection may take: name lookup, TCP, TLS and login.
/// - `answer_limit=TIME` (5 s): how long a request may go unanswered, a new connection included, before it is `Unavailable`.
/// - `patience=TIME` (30 s): how long whoever already waits in line puts up with a server that cannot be reached.
/// - `strict=yes`: refuse to connect where `doctor` would call something bad, such as an eviction policy.
/// - `nodelay=no`: let TCP wait to fill its packets. Saves packets, costs latency on a real network.
///
/// With TLS:
/// - `ca=FILE`: trust the certificates in this PEM file and no others, instead of the system's.
/// - `cert=FILE`, `key=FILE`: the client's own certificate and its key, for servers that ask for one.
/// - `server_name=NAME`: the name the certificate must have, where it is not the host's.
///
/// Not over Redlock, whose nodes have no replicas:
/// - `min_replicas=N` (0): a grant counts only when that many replicas have it.
/// - `replica_wait=TIME` (1 s): how long they may take; then the grant is given back.
///
/// With Sentinel:
/// - `sentinel_user=NAME`, `sentinel_password=TEXT`: for the sentinels themselves; user and password of the URL are the servers'.
///
/// Over Redlock:
/// - `node_limit=TIME` (50 ms; 1 ms to 5 s): how long each node may take before it counts as a no.
/// - `largest_ttl=TIME` (60 s): the longest ttl in use. A node that started less than this ago may have forgotten and does not vote.
/// - `durable=yes`: the nodes never forget what they acknowledged (`appendfsync always`); they vote at once after a restart.
/// - `fencing=majority`: tokens that rise for ever, at the price of a second round. Default `none`: tokens may go back.
pub const PARAMETERS: &[&str] = &[
    "prefix",
    "connect_limit",
    "answer_limit",
    "patience",
    "strict",
    "nodelay",
    "ca",
    "cert",
    "key",
    "server_name",
    "min_replicas",
    "replica_wait",
    "sentinel_user",
    "sentinel_password",
    "node_limit",
    "largest_ttl",
    "durable",
    "fencing",
];

/// How to reach and use the servers. Start from [`Settings::default`] or [`Settings::from_url`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Which servers there are, and what they are to each other.
    pub topology: Topology,
    /// The ACL user; none is Redis's `default`.
    pub user: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// The number of the database. A cluster has only 0.
    pub db: u32,
    /// Encryption; none is none.
    pub tls: Option<Tls>,
    /// What every key and channel begins with: 1 to 64 of letters, digits and `_ . : / -`.
    pub prefix: String,
    /// How many replicas must have a grant before it counts.
    pub min_replicas: u32,
    /// How long they may take.
    pub replica_wait: Duration,
    /// How long making a connection may take.
    pub connect_limit: Duration,
    /// How long a request may go unanswered.
    pub answer_limit: Duration,
    /// How long whoever waits in line puts up with a server that cannot be reached.
    pub patience: Duration,
    /// Refuse to connect where `doctor` would call something bad.
    pub strict: bool,
    /// Send at once instead of filling packets.
    pub nodelay: bool,
    /// The sentinels' ACL user.
    pub sentinel_user: Option<String>,
    /// The sentinels' password.
    pub sentinel_password: Option<Secret>,
    /// Redlock: how long each node may take before it counts as a no.
    pub node_limit: Duration,
    /// Redlock: the longest ttl in use; a node that started less than this ago does not vote.
    pub largest_ttl: Duration,
    /// Redlock: the operator declares that no node forgets what it acknowledged.
    pub durable: bool,
    /// Redlock: tokens that rise for ever, by majority counters.
    pub fencing: bool,
    /// These are the settings of one node of a Redlock.
    pub(crate) is_node: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            topology: Topology::Single(Address::new("127.0.0.1", REDIS_PORT)),
            user: None,
            password: None,
            db: 0,
            tls: None,
            prefix: "tenure".to_owned(),
            min_replicas: 0,
            replica_wait: Duration::from_secs(1),
            connect_limit: Duration::from_secs(5),
            answer_limit: Duration::from_secs(5),
            patience: Duration::from_secs(30),
            strict: false,
            nodelay: true,
            sentinel_user: None,
            sentinel_password: None,
            node_limit: Duration::from_millis(50),
            largest_ttl: Duration::from_secs(60),
            durable: false,
            fencing: false,
            is_node: false,
        }
    }
}

/// Which servers there are, and what they are to each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single(Address),
    /// One master at a time, and sentinels that know which.
    Sentinel {
        /// Where the sentinels are.
        sentinels: Vec<Address>,
        /// What they call the master.
        service: String,
    },
    /// A cluster; any of its nodes tells about the others.
    Cluster(Vec<Address>),
    /// Independent servers that vote.
    Redlock(Vec<Address>),
}

impl Settings {
    /// Reads a URL.
    pub fn from_url(url: &StoreUrl) -> Result<Settings> {
        let door = Door::of(url)?;
        url.allow_parameters(&door.parameters())?;
        let mut settings = Settings { topology: door.topology(url)?, ..Settings::default() };
        settings.db = door.db(url)?;
        settings.user = url.user().map(str::to_owned);
        settings.password = url.password().map(Secret::new);
        settings.sentinel_user = url.parameter("sentinel_user").map(str::to_owned);
        settings.sentinel_password = url.parameter("sentinel_password").map(Secret::new);
        if door.tls {
            settings.tls = Some(Tls::from_url(url)?);
        }
        if let Some(prefix) = url.parameter("prefix") {
            settings.prefix = prefix.to_owned();
        }
        if let Some(text) = url.parameter("min_replicas") {
            settings.min_replicas = text.parse().map_err(|_| bad_value("min_replicas", text, "a whole number"))?;
        }
        url.read_limits(&mut settings.connect_limit, &mut settings.answer_limit, &mut settings.patience)?;
        url.read_duration("replica_wait", &mut settings.replica_wait)?;
        url.read_duration("node_limit", &mut settings.node_limit)?;
        url.read_duration("largest_ttl", &mut settings.largest_ttl)?;
        url.read_yes_no("strict", &mut settings.strict)?;
        url.read_yes_no("nodelay", &mut settings.nodelay)?;
        url.read_yes_no("durable", &mut settings.durable)?;
        settings.fencing = match url.parameter("fencing") {
            None | Some("none") => false,
            Some("majority") => true,
            Some(other) => return Err(bad_value("fencing", other, "majority or none")),
        };
        settings.check()?;
        Ok(settings)
    }

    /// Whether the values are within their limits, wherever they come from.
    pub(crate) fn check(&self) -> Result<()> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.:/-".contains(c);
        if self.prefix.is_empty() || self.prefix.len() > 64 || !self.prefix.chars().all(plain) {
            return Err(bad_value("prefix", &self.prefix, "1 to 64 of letters, digits and _ . : / -"));
        }
        check_limits(self.connect_limit, self.answer_limit, self.patience)?;
        check_duration("replica_wait", self.replica_wait, Duration::from_millis(1), Duration::from_secs(3_600))?;
        check_duration("node_limit", self.node_limit, Duration::from_millis(1), Duration::from_secs(5))?;
        // A ttl is at least 100 ms and at most a day, so the largest one is too.
        check_duration("largest_ttl", self.largest_ttl, MIN_TTL, MAX_TTL)?;
        tenure_tls::check(self.tls.as_ref())?;
        if let Topology::Redlock(nodes) = &self.topology {
            check_nodes(nodes)?;
        }
        Ok(())
    }

    /// The store in words, as a URL without secrets.
    pub(crate) fn describe(&self) -> String {
        let list = |nodes: &[Address]| nodes.iter().map(Address::to_string).collect::<Vec<_>>().join(",");
        let (kind, hosts) = match &self.topology {
            Topology::Single(address) => ("", address.to_string()),
            Topology::Sentinel { sentinels, service } => ("+sentinel", format!("{}/{service}", list(sentinels))),
            Topology::Cluster(seeds) => ("+cluster", list(seeds)),
            Topology::Redlock(nodes) => ("+redlock", list(nodes)),
        };
        let scheme = match (self.tls.is_some(), kind) {
            (false, "+redlock") => "redlock".to_owned(),
            (tls, kind) => format!("redis{}{kind}", if tls { "s" } else { "" }),
        };
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let db = if self.db == 0 { String::new() } else { format!("/{}", self.db) };
        format!("{scheme}://{user}{hosts}{db}")
    }

    /// The same for one node of a Redlock, as a server of its own.
    pub(crate) fn of_node(&self, address: &Address) -> Settings {
        Settings { topology: Topology::Single(address.clone()), is_node: true, ..self.clone() }
    }

    /// How the redis crate reaches a server: RESP3, logged in, in the right database, and nothing else sent at connecting,
    /// so that an ACL user needs no right that locking does not need.
    pub(crate) fn client(&self, address: &Address) -> Result<redis::Client> {
        let mut login = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_skip_set_lib_name()
            .set_db(i64::from(self.db));
        login = with_login(login, self.user.as_deref(), self.password.as_ref());
        self.open(address, login)
    }

    /// How it reaches a sentinel: RESP2, which sentinels of any age speak without being asked.
    pub(crate) fn sentinel_client(&self, address: &Address) -> Result<redis::Client> {
        let login = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
        let login = with_login(login, self.sentinel_user.as_deref(), self.sentinel_password.as_ref());
        self.open(address, login)
    }

    /// Limits of a connection: one for making it, none for answers, since those belong to each request. A caller adds
    /// where its pushes go.
    pub(crate) fn connection(&self, address: &Address) -> AsyncConnectionConfig {
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(self.connect_limit)).set_response_timeout(None);
        match self.tls.as_ref().and_then(|tls| tls.server_name.as_ref()) {
            Some(_) => config.set_dns_resolver(tls::Behind(address.clone())),
            None => config,
        }
    }

    fn open(&self, address: &Address, login: RedisConnectionInfo) -> Result<redis::Client> {
        let port = address.port;
        let place = match &self.tls {
            None => ConnectionAddr::Tcp(address.host.clone(), port),
            Some(tls) => {
                tenure_tls::install_provider();
                // The certificate is checked against this name; `connection` resolves it to the address.
                let host = tls.server_name.clone().unwrap_or_else(|| address.host.clone());
                ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
            }
        };
        // A peer that vanished without a word is found out by probes, and by what it does not acknowledge.
        let probes = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        let tcp = TcpSettings::default()
            .set_nodelay(self.nodelay)
            .set_keepalive(probes)
            .set_user_timeout(self.answer_limit.max(KEEPALIVE * 2));
        let info = place.into_connection_info().map_err(|error| self.unusable(error))?;
        let info = info.set_tcp_settings(tcp).set_redis_settings(login);
        match &self.tls {
            None => redis::Client::open(info),
            Some(tls) => redis::Client::build_with_tls(info, tls::read(tls)?),
        }
        .map_err(|error| self.unusable(error))
    }

    fn unusable(&self, error: redis::RedisError) -> Error {
        bad_url("these settings cannot be used").with_store(self.describe()).with_source(error)
    }
}

fn with_login(login: RedisConnectionInfo, user: Option<&str>, password: Option<&Secret>) -> RedisConnectionInfo {
    match (user, password) {
        (None, None) => login,
        (None, Some(password)) => login.set_password(password.reveal()),
        // A user with `nopass` logs in with any password; without one the crate would not name the user at all.
        (Some(user), password) => login.set_username(user).set_password(password.map_or("", Secret::reveal)),
    }
}

/// What a scheme says.
#[derive(Clone, Copy)]
struct Door {
    kind: Servers,
    tls: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Servers {
    Single,
    Sentinel,
    Cluster,
    Redlock,
}

impl Door {
    fn of(url: &StoreUrl) -> Result<Door> {
        let (kind, tls) = match url.scheme() {
            "redis" => (Servers::Single, false),
            "rediss" => (Servers::Single, true),
            "redis+sentinel" => (Servers::Sentinel, false),
            "rediss+sentinel" => (Servers::Sentinel, true),
            "redis+cluster" => (Servers::Cluster, false),
            "rediss+cluster" => (Servers::Cluster, true),
            "redlock" => (Servers::Redlock, false),
            "rediss+redlock" => (Servers::Redlock, true),
            other => {
                let what = format!("the Redis store has no scheme {other:?}");
                return Err(bad_url(what).with_hint(format!("It is one of {}", SCHEMES.join(", "))));
            }
        };
        Ok(Door { kind, tls })
    }

    fn parameters(self) -> Vec<&'static str> {
        let fits = |name: &&str| match *name {
            "ca" | "cert" | "key" | "server_name" => self.tls,
            "min_replicas" | "replica_wait" => self.kind != Servers::Redlock,
            "sentinel_user" | "sentinel_password" => self.kind == Servers::Sentinel,
            "node_limit" | "largest_ttl" | "durable" | "fencing" => self.kind == Servers::Redlock,
            _ => true,
        };
        PARAMETERS.iter().copied().filter(fits).collect()
    }

    fn topology(self, url: &StoreUrl) -> Result<Topology> {
        let port = if self.kind == Servers::Sentinel { SENTINEL_PORT } else { REDIS_PORT };
        let mut hosts = Address::list(url, port)?;
        Ok(match self.kind {
            Servers::Single if hosts.len() == 1 => Topology::Single(hosts.remove(0)),
            Servers::Single => {
                return Err(bad_url(format!("{}: URLs name one server, not {}", url.scheme(), hosts.len())).with_hint(
                    "For several that belong together write redis+sentinel:// or redis+cluster://, for independent ones redlock://",
                ));
            }
            Servers::Sentinel => {
                let service = url.path().split('/').nth(1).unwrap_or_default();
                let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
                if service.is_empty() || !service.chars().all(plain) {
                    return Err(bad_url(format!("a {}: URL must say what the sentinels call the master", url.scheme()))
                        .with_hint(
                            "As its path: redis+sentinel://host1,host2,host3/mymaster, or /mymaster/2 for database 2",
                        ));
                }
                Topology::Sentinel { sentinels: hosts, service: service.to_owned() }
            }
            Servers::Cluster => Topology::Cluster(hosts),
            Servers::Redlock => Topology::Redlock(hosts),
        })
    }

    fn db(self, url: &StoreUrl) -> Result<u32> {
        let path = url.path().strip_prefix('/').unwrap_or(url.path());
        let number = match self.kind {
            Servers::Sentinel => path.split_once('/').map_or("", |(_, rest)| rest),
            _ => path,
        };
        // The path is not shown: whoever mistypes a URL may have put a secret there.
        match (number, number.parse::<u32>()) {
            ("", _) => Ok(0),
            (_, Ok(0)) => Ok(0),
            (_, Ok(_)) if self.kind == Servers::Cluster => Err(bad_url("a cluster has no database but 0")
                .with_hint("Leave the path away; use prefix=TEXT to keep programs apart")),
            (_, Ok(number)) if number <= LARGEST_DB => Ok(number),
            _ => Err(bad_url(format!("the path of a {}: URL is the number of a database", url.scheme()))
                .with_hint("Such as /0; leave it away for database 0")),
        }
    }
}

/// What can be known of a Redlock's nodes before they are asked.
fn check_nodes(nodes: &[Address]) -> Result<()> {
    let hint = "Name 3, 5 or 7 independent servers, each once";
    if nodes.len() < 3 || nodes.len().is_multiple_of(2) {
        let what = format!("a Redlock needs an odd number of servers, 3 at least, not {}", nodes.len());
        return Err(bad_url(what).with_hint(hint));
    }
    match nodes.iter().enumerate().find(|(place, node)| nodes[..*place].contains(node)) {
        Some((_, node)) => {
            Err(bad_url(format!("{node} is named twice in a Redlock and would have two votes")).with_hint(hint))
        }
        None => Ok(()),
    }
}

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const LARGEST_DB: u32 = i32::MAX as u32;
const KEEPALIVE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
