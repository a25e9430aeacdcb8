//! What Redis's errors mean: for the code that must go on, and for the person who must act.

use std::error::Error as _;
use std::io;
use std::sync::Arc;

use redis::RedisError;
use tenure_core::{Error, ErrorKind};

use tenure_core::{Address, Secret};

use crate::config::{Settings, Topology};

/// A request that did not succeed: what to do now, whether the server may have done it, and what to tell people.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) next: Next,
    pub(crate) fate: Fate,
    pub(crate) error: Error,
}

/// What to do after a failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The server does not have the script: send its text.
    NoScript,
    /// The slot lives there now: learn the map anew.
    Moved { slot: u16, to: Address },
    /// This one key is being moved: ask there once, with `ASKING`.
    Ask { slot: u16, to: Address },
    /// The server cannot at the moment: loading, failing over, busy, out of replicas.
    TryLater,
    /// It is not the master, or no longer: find out who is.
    NotMaster,
    /// The connection is of no more use.
    Broken,
    /// Trying again changes nothing; somebody must.
    Fatal,
}

/// Whether a failed request may have been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The server did not execute it, and will not.
    Refused,
    /// It may have, in whole or in part, or may still.
    Unknown,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

/// What failed before anything was sent: settings, files, checks.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let next = if error.is_transient() { Next::TryLater } else { Next::Fatal };
        Failure { next, fate: Fate::Refused, error }
    }
}

/// A failed request; `doing` completes "while …".
pub(crate) fn explain(error: &RedisError, at: &Address, settings: &Settings, doing: &str) -> Failure {
    let next = what_next(error, at);
    let (kind, what, hint) = words(error, &next, settings);
    let mut explained = Error::new(kind, format!("{what} while {doing}")).with_store(place(at, settings));
    if let Some(hint) = hint {
        explained = explained.with_hint(hint);
    }
    let explained = match without_secrets(error, settings) {
        None => explained.with_source(error.clone()),
        Some(text) => explained.with_source(text),
    };
    Failure { next, fate: fate(error), error: explained }
}

/// A connection that could not be made: nothing was asked for yet.
pub(crate) fn explain_connect(error: RedisError, at: &Address, settings: &Settings) -> Failure {
    Failure { fate: Fate::Refused, ..explain(&error, at, settings, "connecting") }
}

/// What to do after an error; `at` is who was asked, since a redirection may leave out the host.
pub(crate) fn what_next(error: &RedisError, at: &Address) -> Next {
    if let Some((to, slot)) = error.redirect_node() {
        let Some(to) = parse_node(to, at) else { return Next::TryLater };
        return if error.code() == Some("ASK") { Next::Ask { slot, to } } else { Next::Moved { slot, to } };
    }
    match code(error) {
        Some("NOSCRIPT") => Next::NoScript,
        Some("LOADING" | "CLUSTERDOWN" | "TRYAGAIN" | "MASTERDOWN" | "BUSY" | "NOREPLICAS") => Next::TryLater,
        // A master that was demoted ends blocked and running commands with this.
        Some("READONLY" | "UNBLOCKED") => Next::NotMaster,
        Some("ERR") if error.detail().is_some_and(|text| text.contains("max number of clients")) => Next::TryLater,
        Some(_) => Next::Fatal,
        None => match error.kind() {
            redis::ErrorKind::Io if tls_error(error).is_some() => Next::Fatal,
            redis::ErrorKind::Io | redis::ErrorKind::Parse => Next::Broken,
            _ => Next::Fatal,
        },
    }
}

/// Whether a request that ended so may have been executed.
///
/// A script is refused as a whole before it starts (no script, not here, not now, no right to run it), or at its first write
/// for a reason that holds for every write (read-only, no replicas, disk). Anything else may have come in the middle: out of
/// memory refuses what adds and lets pass what removes, and a user may have the right to one command and not to the next.
pub(crate) fn fate(error: &RedisError) -> Fate {
    match code(error) {
        Some(
            "NOSCRIPT" | "MOVED" | "ASK" | "LOADING" | "CLUSTERDOWN" | "TRYAGAIN" | "MASTERDOWN" | "BUSY" | "READONLY"
            | "NOREPLICAS" | "MISCONF" | "NOAUTH" | "WRONGPASS" | "NOPERM" | "CROSSSLOT" | "EXECABORT" | "DENIED",
        ) => Fate::Refused,
        Some("ERR") if error.detail().is_some_and(|text| text.starts_with("unknown command")) => Fate::Refused,
        _ => Fate::Unknown,
    }
}

/// The kind, what happened, and what to do.
fn words(error: &RedisError, next: &Next, settings: &Settings) -> (ErrorKind, &'static str, Option<String>) {
    use ErrorKind::{Backend, Unavailable};
    let prefix = &settings.prefix;
    let user = settings.user.as_deref().unwrap_or("default");
    let detail = error.detail().unwrap_or_default();
    let hint = |text: &str| Some(text.to_owned());
    match code(error) {
        Some("LOADING") => (Unavailable, "the server is still loading its data", hint("Try again when it is up")),
        Some("CLUSTERDOWN") => (
            Unavailable,
            "the cluster is down",
            hint("`redis-cli --cluster check HOST:PORT` says which slots have no master"),
        ),
        Some("TRYAGAIN" | "ASK") => (Unavailable, "the slot is being moved to another node", hint("Try again")),
        Some("MASTERDOWN") => {
            (Unavailable, "the server is a replica that has lost its master", hint("Try again when the failover is over"))
        }
        Some("BUSY") => (
            Unavailable,
            "the server is busy with a script of somebody's",
            hint("Ours take microseconds. `redis-cli SLOWLOG GET` names the culprit, SCRIPT KILL ends it"),
        ),
        Some("NOREPLICAS") => (
            Unavailable,
            "the server has fewer replicas than its own min-replicas-to-write asks for",
            hint("Bring the replicas back, or lower that setting of the server"),
        ),
        Some("READONLY" | "UNBLOCKED") => (
            Unavailable,
            "the server is a replica and cannot grant locks",
            match settings.topology {
                Topology::Single(_) | Topology::Redlock(_) => hint(
                    "Name the master instead; redis+sentinel:// and redis+cluster:// find it by themselves, after a failover too",
                ),
                _ => hint("A failover may be under way; try again"),
            },
        ),
        Some("MOVED") => match settings.topology {
            Topology::Cluster(_) => (Unavailable, "the slot has moved to another node", hint("Try again")),
            _ => (Backend, "the server belongs to a cluster", hint("Write redis+cluster:// instead of redis://")),
        },
        Some("NOSCRIPT") => (Unavailable, "the server has lost the script", hint("Try again")),
        Some("NOPERM") => (Backend, "the ACL user lacks a right", Some(missing_right(user, prefix, detail))),
        Some("NOAUTH") => (
            Backend,
            "the server wants a password",
            hint("Give it in the URL: redis://user:password@host, redis://:password@host"),
        ),
        Some("WRONGPASS") => (
            Backend,
            "the server refused user and password",
            Some(format!(
                "The user was {user:?}. Without a user's name the password is that of `default`; in a URL write / as %2F, @ as %40"
            )),
        ),
        Some("OOM") => (
            Backend,
            "the server is out of memory",
            hint("Raise maxmemory or remove something; locks need little, so something else fills it. Releases still work"),
        ),
        Some("MISCONF") => (
            Backend,
            "the server cannot save its data and refuses to write",
            hint(
                "Its disk is full or broken: its log says why. It accepts writes again after the next good save (or with \
                 stop-writes-on-bgsave-error no, which only hides it)",
            ),
        ),
        Some("CROSSSLOT") => (
            Backend,
            "the server wants all keys of a request in one slot",
            hint("It belongs to a cluster: write redis+cluster:// instead of redis://"),
        ),
        Some("WRONGTYPE") => (
            Backend,
            "a key of ours has another program's data in it",
            Some(format!("Choose a prefix of your own with prefix=TEXT; this one is {prefix:?}")),
        ),
        Some("DENIED") => (
            Backend,
            "the server is in protected mode and talks to its own host only",
            hint("Give it a password or an ACL, then bind it to the network"),
        ),
        Some(_) if *next == Next::TryLater => (
            Unavailable,
            "the server has too many clients",
            hint("Raise its maxclients, or find out who has so many connections: `redis-cli CLIENT LIST`"),
        ),
        Some("ERR") if detail.starts_with("unknown command") => (
            Backend,
            "the server does not know a command that is needed",
            hint("Redis 6.0 is the oldest that can be used. Was a command renamed, or is a proxy in between?"),
        ),
        Some("ERR") if is_script_acl(detail) => {
            (Backend, "the ACL user lacks a right that a script needs", Some(missing_right(user, prefix, detail)))
        }
        Some("ERR") if detail.contains("cluster support disabled") => {
            (Backend, "the server is not a node of a cluster", hint("Write redis:// instead of redis+cluster://"))
        }
        Some("ERR") if detail.contains("DB index") || detail.contains("SELECT is not allowed") => {
            (Backend, "the server has no such database", hint("The number stands last in the URL's path; 0 is always there"))
        }
        Some(_) => (Backend, "the server refused", None),
        None => unanswered(error, settings),
    }
}

/// No answer of the server's at all.
fn unanswered(error: &RedisError, settings: &Settings) -> (ErrorKind, &'static str, Option<String>) {
    use ErrorKind::{Backend, Unavailable};
    let hint = |text: &str| Some(text.to_owned());
    match error.kind() {
        redis::ErrorKind::RESP3NotSupported => (
            Backend,
            "the server is older than Redis 6.0",
            hint("Scripts and RESP3 are needed; any Redis or Valkey in support has them"),
        ),
        redis::ErrorKind::AuthenticationFailed => {
            (Backend, "the server refused user and password", hint("Look at the URL, and at `redis-cli ACL LIST`"))
        }
        redis::ErrorKind::Io => match tls_error(error) {
            Some(fault) => {
                (Backend, "TLS with the server failed", tenure_tls::hint(&fault, "redis:// instead of rediss://"))
            }
            None if error.is_timeout() => (
                Unavailable,
                "the server did not answer in time",
                match settings.tls {
                    None => hint("Is it reachable from here, and is nothing keeping it busy?"),
                    Some(_) => {
                        hint("Is it reachable from here? A port that speaks no TLS looks like this too: then it is redis://")
                    }
                },
            ),
            None if error.is_connection_refusal() => {
                (Unavailable, "nobody listens there", hint("Is the server running, and are host and port right?"))
            }
            None if error.to_string().contains("lookup") => (
                Unavailable,
                "the server's name could not be looked up",
                hint("Is the host right, and does its name exist here?"),
            ),
            None if settings.tls.is_none() => (
                Unavailable,
                "the connection broke",
                hint("If it always does at connecting, the port may want TLS: rediss://"),
            ),
            None => (Unavailable, "the connection broke", None),
        },
        redis::ErrorKind::Parse => (Unavailable, "the server's answer could not be read", hint("Is that port Redis's?")),
        _ => (Backend, "the request could not be made", None),
    }
}

/// What an ACL user must be given, from what the server says it lacks.
fn missing_right(user: &str, prefix: &str, detail: &str) -> String {
    let command = detail.split('\'').nth(1).filter(|_| detail.contains("command"));
    let lower = detail.to_ascii_lowercase();
    let grant = if lower.contains("channel") {
        format!("&{prefix}:*")
    } else if lower.contains("key") {
        format!("~{prefix}:*")
    } else if let Some(command) =
        command.filter(|text| text.chars().all(|c| c.is_ascii_alphanumeric() || "|-_.".contains(c)))
    {
        format!("+{command}")
    } else {
        return format!("The documentation of tenure-redis has the whole ACL line for a user such as {user:?}");
    };
    format!("Allow it: ACL SETUSER {user} {grant} (the whole line is in the documentation of tenure-redis)")
}

fn is_script_acl(detail: &str) -> bool {
    detail.contains("ACL failure in script") || detail.contains("The user executing the script can't")
}

/// What rustls says, where that is the trouble: it is the certificate or the settings, not the network.
fn tls_error(error: &RedisError) -> Option<rustls::Error> {
    let source = error.source()?;
    let io = match source.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>() {
        Some(shared) => shared.downcast_ref::<io::Error>()?,
        None => source.downcast_ref::<io::Error>()?,
    };
    io.get_ref()?.downcast_ref::<rustls::Error>().cloned()
}

/// The server's error word: `NOSCRIPT`, `READONLY`; none where no server answered.
fn code(error: &RedisError) -> Option<&str> {
    match error.kind() {
        redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => error.code(),
        _ => None,
    }
}

/// `host:port` of a redirection; without a host it is that of whoever was asked.
pub(crate) fn parse_node(text: &str, at: &Address) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let host = if host.is_empty() || host == "?" { at.host.as_str() } else { host };
    Some(Address::new(host, port.parse().ok()?))
}

/// The store, and which of its servers.
fn place(at: &Address, settings: &Settings) -> String {
    match settings.topology {
        Topology::Single(_) => settings.describe(),
        _ => format!("{} at {at}", settings.describe()),
    }
}

/// What an error says with its secrets blotted out, if it has any: a server that does not know a command quotes its
/// arguments, and those of the login are user and password.
fn without_secrets(error: &RedisError, settings: &Settings) -> Option<String> {
    let text = error.to_string();
    let secrets = [&settings.password, &settings.sentinel_password].into_iter().flatten().map(Secret::reveal);
    let found: Vec<&str> = secrets.filter(|secret| !secret.is_empty() && text.contains(secret)).collect();
    if found.is_empty() {
        return None;
    }
    Some(found.iter().fold(text, |text, secret| text.replace(secret, "***")))
}

#[cfg(test)]
mod tests;
