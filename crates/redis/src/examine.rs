//! What is found out about a server: at connecting, and for `doctor`.
//!
//! One `INFO` says all of it. Nothing is ever changed on the server, and nothing but `INFO` is needed: a user without the
//! right to it can still lock, and is told what cannot be seen then.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};
use tenure_core::backend::{Finding, Level};
use tenure_core::{Clock, Error, ErrorKind};

use tenure_core::Address;

use crate::config::{Settings, Topology};
use crate::error::{Failure, Fate, Next};

/// Major, minor, patch.
pub(crate) type Version = (u32, u32, u32);

/// What a server says about itself. `None` or empty where it does not: the user may lack the right to `INFO`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Server {
    /// Whether it told anything at all.
    pub(crate) told: bool,
    /// The version of Redis it is, or is compatible with.
    pub(crate) version: Option<Version>,
    /// The version of Valkey, if it is one.
    pub(crate) valkey: Option<Version>,
    /// Another one after every start; empty if unknown.
    pub(crate) run_id: String,
    /// How long it has been up, in whole seconds.
    pub(crate) uptime: Option<Duration>,
    /// Still reading its data from disk.
    pub(crate) loading: bool,
    /// Whether it is a master.
    pub(crate) master: Option<bool>,
    /// Whether it belongs to a cluster.
    pub(crate) cluster: Option<bool>,
    /// Whether it appends every write to a file.
    pub(crate) aof: Option<bool>,
    /// Whether its last writes to disk went well.
    pub(crate) saves: Option<bool>,
    /// The most memory it may use, in bytes; 0 is any amount.
    pub(crate) maxmemory: Option<u64>,
    /// What it does beyond that.
    pub(crate) policy: Option<String>,
    /// How many replicas follow it.
    pub(crate) replicas: Option<u32>,
    /// How many microseconds its clock is ahead of ours; less than 0 if behind.
    pub(crate) ahead: Option<i64>,
}

/// Asks a server what it is. Without the right to ask, nothing is known and that is no error.
///
/// # Cancel safety
/// It only reads.
pub(crate) async fn look(connection: &mut MultiplexedConnection) -> RedisResult<Server> {
    let before = Clock::Boot.wall_micros();
    let answer = connection.send_packed_command(&redis::cmd("INFO")).await.and_then(Value::extract_error);
    let after = Clock::Boot.wall_micros();
    match answer {
        Ok(answer) => {
            let text: String = redis::from_redis_value(answer)?;
            Ok(Server::parse(&text, before.midpoint(after)))
        }
        // No right to ask: it refuses, but it is there.
        Err(error) if error.code() == Some("NOPERM") => Ok(Server::default()),
        Err(error) => Err(error),
    }
}

impl Server {
    /// Reads `INFO`'s text; `now` is what our own clock showed meanwhile, in microseconds.
    fn parse(text: &str, now: u64) -> Server {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let number = |name: &str| field(name).and_then(|text| text.parse::<u64>().ok());
        let fine = |name: &str| field(name).map(|status| status == "ok");
        let saves = [fine("rdb_last_bgsave_status"), fine("aof_last_write_status")];
        Server {
            told: true,
            version: field("redis_version").and_then(version),
            valkey: field("valkey_version").and_then(version),
            run_id: field("run_id").unwrap_or_default().to_owned(),
            uptime: number("uptime_in_seconds").map(Duration::from_secs),
            loading: number("loading") == Some(1),
            master: field("role").map(|role| role == "master"),
            cluster: number("cluster_enabled").map(|enabled| enabled == 1),
            aof: number("aof_enabled").map(|enabled| enabled == 1),
            saves: saves.into_iter().flatten().reduce(|one, other| one && other),
            maxmemory: number("maxmemory"),
            policy: field("maxmemory_policy").map(str::to_owned),
            replicas: number("connected_slaves").and_then(|count| u32::try_from(count).ok()),
            ahead: number("server_time_usec").map(|theirs| theirs as i64 - now as i64),
        }
    }
}

fn version(text: &str) -> Option<Version> {
    let mut parts = text.split('.').map(|part| part.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok());
    Some((parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
}

/// Refuses a server that cannot do what is asked of it, or, where the settings are strict, not safely.
pub(crate) fn require(server: &Server, at: &Address, settings: &Settings) -> Result<(), Failure> {
    let refuse = |next: Next, kind: ErrorKind, what: String, hint: &str| {
        let error = Error::new(kind, what).with_store(settings.describe()).with_hint(hint);
        Err(Failure { next, fate: Fate::Refused, error })
    };
    let is_cluster = matches!(settings.topology, Topology::Cluster(_));
    if server.loading {
        let what = format!("{at} is still loading its data");
        return refuse(Next::TryLater, ErrorKind::Unavailable, what, "Try again when it is up");
    }
    if let Some(found @ (major, minor, _)) = server.version
        && (major < 6 || is_cluster && major < 7)
    {
        let (least, why) = if is_cluster { ("7.0", "in a cluster, for sharded messages") } else { ("6.0", "for RESP3") };
        let what = format!("{at} is Redis {major}.{minor}.{}, and {least} is needed {why}", found.2);
        return refuse(Next::Fatal, ErrorKind::Backend, what, "Update the server; Valkey of any version will do too");
    }
    match (server.cluster, is_cluster) {
        (Some(true), false) => {
            let (what, hint) = match settings.is_node {
                true => ("is a node of a cluster, and a Redlock needs independent servers", "Name others"),
                false => ("is a node of a cluster", "Write redis+cluster:// (or rediss+cluster://) instead"),
            };
            return refuse(Next::Fatal, ErrorKind::Backend, format!("{at} {what}"), hint);
        }
        (Some(false), true) => {
            let what = format!("{at} is not a node of a cluster");
            return refuse(Next::Fatal, ErrorKind::Backend, what, "Write redis:// (or rediss://) for a single server");
        }
        _ => {}
    }
    if server.master == Some(false) {
        let what = format!("{at} is a replica and cannot grant locks");
        return match settings.topology {
            // A failover may be under way: whoever is asked next may say better.
            Topology::Sentinel { .. } | Topology::Cluster(_) => refuse(
                Next::NotMaster,
                ErrorKind::Unavailable,
                what,
                "If no failover is under way, the sentinels or nodes disagree",
            ),
            _ => refuse(
                Next::NotMaster,
                ErrorKind::Unavailable,
                what,
                "Name the master; redis+sentinel:// and redis+cluster:// find it by themselves, after a failover too",
            ),
        };
    }
    if settings.strict
        && let Some(bad) = findings(server, settings).into_iter().find(|finding| finding.level == Level::Bad)
    {
        let what = format!("{at} is refused, as strict=yes asks: {}: {}", bad.what, bad.says);
        return refuse(Next::Fatal, ErrorKind::Backend, what, "`tenure doctor` shows everything that was found");
    }
    Ok(())
}

/// What `doctor` says about a server.
pub(crate) fn findings(server: &Server, settings: &Settings) -> Vec<Finding> {
    if !server.told {
        let says = "the user may not run INFO, so a restart of the server, its eviction policy and its persistence cannot be \
                    seen. Allow it: ACL SETUSER … +info";
        return vec![Finding::warning("server", says), login(settings)];
    }
    let found = [
        version_finding(server),
        eviction(server),
        persistence(server, settings),
        replicas(server, settings),
        server.ahead.map(Finding::clock),
    ];
    found.into_iter().flatten().chain([login(settings)]).collect()
}

fn version_finding(server: &Server) -> Option<Finding> {
    let (name, found @ (major, minor, patch)) = match server.valkey {
        Some(version) => ("Valkey", version),
        None => ("Redis", server.version?),
    };
    let mended: &[Version] = if name == "Valkey" { &VALKEY_MENDED } else { &REDIS_MENDED };
    let shown = format!("{name} {major}.{minor}.{patch}");
    // A line that is not listed is mended if it is newer than all that are.
    let line = mended.iter().find(|(line_major, line_minor, _)| (*line_major, *line_minor) == (major, minor));
    let is_mended = match line {
        Some(least) => found >= *least,
        None => mended.last().is_some_and(|newest| found > *newest),
    };
    Some(if is_mended {
        Finding::good("version", shown)
    } else {
        let least: Vec<String> = mended.iter().map(|(major, minor, patch)| format!("{major}.{minor}.{patch}")).collect();
        let says = format!(
            "{shown} lets anybody who may run scripts take over the server (CVE-2025-49844, CVE-2025-46817, CVE-2025-46818), \
             unless your distribution mended it. Mended are {}, and newer lines",
            least.join(", ")
        );
        Finding::warning("version", says)
    })
}

fn eviction(server: &Server) -> Option<Finding> {
    let what = "eviction";
    let policy = server.policy.as_deref()?;
    Some(match (server.maxmemory?, policy) {
        (0, "noeviction") => Finding::good(what, "none"),
        (0, policy) => {
            Finding::warning(what, format!("none, as there is no maxmemory; with one, {policy} would throw locks away"))
        }
        (_, "noeviction") => Finding::good(what, "none: a full server refuses new locks and keeps those that are held"),
        (_, policy) => {
            let says = format!(
                "{policy}: a full server throws held locks away (volatile-* throws away exactly what has a ttl, as locks have). \
                 Set maxmemory-policy noeviction, or use a server of its own"
            );
            Finding::bad(what, says)
        }
    })
}

fn persistence(server: &Server, settings: &Settings) -> Option<Finding> {
    let what = "persistence";
    if server.saves == Some(false) {
        let says = "the last save to disk failed, so the server may refuse to write (MISCONF). Its log says why; mostly the disk is full";
        return Some(Finding::bad(what, says));
    }
    Some(match (server.aof?, settings.durable) {
        (false, true) => Finding::bad(
            what,
            "no append-only file, although durable=yes says that nothing is forgotten. Set appendonly yes and appendfsync always",
        ),
        (true, true) => Finding::good(
            what,
            "append-only file; whether it is `appendfsync always`, as durable=yes says, cannot be seen from here",
        ),
        (false, _) if settings.is_node => {
            let says =
                format!("no append-only file: after a restart this node does not vote for {:?}", settings.largest_ttl);
            Finding::good(what, says)
        }
        (false, _) => {
            let says = "no append-only file: a restart forgets who holds what, and others get in while old holders still trust their \
                        ttl. Set appendonly yes, or check tokens where it matters; tokens go on rising";
            Finding::warning(what, says)
        }
        (true, _) => {
            let says = "append-only file: a killed server forgets nothing; a power cut may take the last second with it, unless \
                        appendfsync is `always`, which cannot be seen from here";
            Finding::good(what, says)
        }
    })
}

fn replicas(server: &Server, settings: &Settings) -> Option<Finding> {
    let what = "replicas";
    let (found, wanted) = (server.replicas?, settings.min_replicas);
    let fails_over = matches!(settings.topology, Topology::Sentinel { .. } | Topology::Cluster(_));
    Some(match found {
        1.. if settings.is_node => {
            let says = format!("{found}: nodes of a Redlock stand alone; a failover to a replica would forget votes");
            Finding::warning(what, says)
        }
        _ if found < wanted => Finding::bad(
            what,
            format!("{found}, but min_replicas is {wanted}: nothing can be granted. Bring replicas back, or ask for fewer"),
        ),
        _ if wanted > 0 => Finding::good(what, format!("{found}; a grant counts when {wanted} have it")),
        _ if fails_over || found > 0 => {
            let says = format!(
                "{found}; a grant does not wait for them, so a failover may forget one that was just made. min_replicas=1 makes that \
                 rare; a token checked where it matters makes it harmless"
            );
            Finding::warning(what, says)
        }
        _ => Finding::good(what, "none, and none are asked for"),
    })
}

fn login(settings: &Settings) -> Finding {
    let what = "network";
    let hosts = match &settings.topology {
        Topology::Single(address) => std::slice::from_ref(address),
        Topology::Sentinel { sentinels: hosts, .. } | Topology::Cluster(hosts) | Topology::Redlock(hosts) => hosts,
    };
    match (&settings.tls, &settings.password) {
        (Some(_), _) => Finding::good(what, "encrypted"),
        _ if hosts.iter().all(Address::is_this_host) => Finding::good(what, "this host only"),
        (None, Some(_)) => {
            Finding::warning(what, "the password crosses the network in the clear. Use rediss://, or a network you trust")
        }
        (None, None) => {
            let says = "no password and no encryption: whoever reaches the server can break every lock. Use an ACL user and rediss://";
            Finding::warning(what, says)
        }
    }
}

/// The first of each line without the Lua flaws of 2025: CVE-2025-49844 (RediShell), -46817, -46818, -46819. Oldest first.
const REDIS_MENDED: [Version; 5] = [(6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)];
const VALKEY_MENDED: [Version; 3] = [(7, 2, 11), (8, 0, 6), (8, 1, 4)];

#[cfg(test)]
mod tests;
