//! What the server's errors mean: for the code that must go on, and for the person who must act.
//!
//! A procedure of ours undoes its transaction before it passes an error on, so what the server refused was not done.
//! Unknown is what broke off: a connection that ended, a server that shut down, a statement that somebody killed, a commit
//! that failed.

use std::io;

use mysql_async::{DriverError, Error as DriverFailure, IoError, ServerError, TlsError};
use tenure_core::lease::{Failure, Fate};
use tenure_core::{Error, ErrorKind, Secret};

use crate::config::Settings;
use crate::schema;

/// A failed request; `doing` completes "while …".
pub(crate) fn explain(error: DriverFailure, settings: &Settings, doing: &str) -> Failure {
    let (kind, what, hint) = words(&error, settings);
    let mut explained = Error::new(kind, format!("{what} while {doing}")).with_store(settings.describe());
    if let Some(hint) = hint {
        explained = explained.with_hint(hint);
    }
    let (fate, again) = (fate(&error), again(&error));
    let explained = match without_secrets(&error, settings) {
        None => explained.with_source(error),
        Some(text) => explained.with_source(text),
    };
    Failure { error: explained, fate, again }
}

/// A connection that could not be made: nothing was asked for yet.
pub(crate) fn explain_connect(error: DriverFailure, settings: &Settings) -> Failure {
    Failure { fate: Fate::Refused, ..explain(error, settings, "connecting") }
}

/// Tables or procedures that could not be made.
pub(crate) fn explain_create(error: DriverFailure, settings: &Settings) -> Error {
    let denied = is_denied(&error);
    let explained = explain(error, settings, "making the tables and procedures").error;
    if !denied {
        return explained;
    }
    explained.with_hint(format!(
        "Run `tenure migrate` once as somebody who may (CREATE, CREATE ROUTINE, ALTER ROUTINE), or apply what `tenure schema` \
         prints; the rights that this user {:?} needs then are listed there, at the top",
        settings.user
    ))
}

/// Whether a right is missing.
pub(crate) fn is_denied(error: &DriverFailure) -> bool {
    code(error).is_some_and(|code| DENIED.contains(&code))
}

/// What failed before anything was sent: settings, files, checks.
pub(crate) fn refused(error: Error) -> Failure {
    let again = error.is_transient();
    Failure { error, fate: Fate::Refused, again }
}

/// No answer in time.
pub(crate) fn silent(settings: &Settings, limit: std::time::Duration, doing: &str) -> Failure {
    let error = Error::new(ErrorKind::Unavailable, format!("no answer within {limit:?} while {doing}"))
        .with_store(settings.describe())
        .with_hint("Is the server reachable from here, and is nothing keeping it busy?");
    Failure { error, fate: Fate::Unknown, again: true }
}

/// Whether the connection may be used again after this: the server answered, and is the right one.
pub(crate) fn leaves_connection(error: &DriverFailure) -> bool {
    matches!(code(error), Some(code) if !INTERRUPTED.contains(&code) && !NOT_PRIMARY.contains(&code))
}

/// What the server calls it; none where no server answered.
pub(crate) fn code(error: &DriverFailure) -> Option<u16> {
    match error {
        DriverFailure::Server(ServerError { code, .. }) => Some(*code),
        _ => None,
    }
}

fn fate(error: &DriverFailure) -> Fate {
    match code(error) {
        Some(code) if !INTERRUPTED.contains(&code) && !FULL.contains(&code) => Fate::Refused,
        _ => Fate::Unknown,
    }
}

fn again(error: &DriverFailure) -> bool {
    match code(error) {
        Some(code) => {
            [LOCKED, TOO_MANY, NOT_PRIMARY, INTERRUPTED, MISSING, NOT_PREPARED].iter().any(|codes| codes.contains(&code))
        }
        None => match error {
            DriverFailure::Io(IoError::Tls(_)) => false,
            DriverFailure::Io(IoError::Io(error)) => tls_error(error).is_none(),
            _ => matches!(error, DriverFailure::Driver(DriverError::ConnectionClosed)),
        },
    }
}

/// A lock that was waited for too long, or a deadlock: the transaction was undone. On Galera, also a commit that another
/// node's was in the way of; and, where the server goes by snapshots, a row that was changed since.
const LOCKED: &[u16] = &[1205, DEADLOCK, 3572, 3101, 1020];
const DEADLOCK: u16 = 1213;
/// What MariaDB says at once to whoever does not want to wait.
pub(crate) const ROW_IS_LOCKED: u16 = 1205;
/// A statement could not be prepared, or is not prepared any more: too many are, or a proxy in between knows of none. Nothing was done.
pub(crate) const NOT_PREPARED: &[u16] = &[1243, 1295, 1461, 1615];
/// No connection left.
const TOO_MANY: &[u16] = &[1040, 1203, 1226];
/// Cannot write, or not now.
const NOT_PRIMARY: &[u16] = &[1290, 1836, 1792, 1047];
/// Broke off in the middle.
const INTERRUPTED: &[u16] = &[1053, 1317, 1927, 1180, 1152, 1159, 1161, 1969, 3024, 4031];
/// Nothing more can be stored; whether a commit was is not known.
const FULL: &[u16] = &[3, 1021, 1026, 1114];
/// User or password are wrong.
pub(crate) const NOT_YOU: u16 = 1045;
/// A table is not there.
pub(crate) const NO_TABLE: u16 = 1146;
/// A table or procedure is not there: somebody may be making it.
const MISSING: &[u16] = &[NO_TABLE, 1305];
/// No right to a table, a column, a procedure, or something else.
const DENIED: &[u16] = &[1142, 1143, 1370, 1227, 1044];

/// The kind, what happened, and what to do.
fn words(error: &DriverFailure, settings: &Settings) -> (ErrorKind, &'static str, Option<String>) {
    use ErrorKind::{Backend, Unavailable};
    let Settings { user, database, prefix, .. } = settings;
    let hint = |text: &str| Some(text.to_owned());
    let Some(code) = code(error) else { return unanswered(error, settings) };
    match code {
        1205 | 1213 | 3572 | 3101 | 1020 => (
            Unavailable,
            "others were at the same rows all the time",
            hint("Try again. If it stays so, look for a transaction that was left open: SHOW ENGINE INNODB STATUS"),
        ),
        1040 => (
            Unavailable,
            "the server has no connection left",
            hint(
                "A client of ours needs three at most. Raise max_connections, or find out who has so many: SHOW PROCESSLIST",
            ),
        ),
        1203 | 1226 => (
            Unavailable,
            "the user has no connection left",
            Some(format!("A client of ours needs three at most. Raise MAX_USER_CONNECTIONS of {user:?}")),
        ),
        1461 => (
            Unavailable,
            "the server has no room for another prepared statement",
            hint("Raise max_prepared_stmt_count, or find out who has so many: SHOW STATUS LIKE 'Prepared_stmt_count'"),
        ),
        1290 | 1836 | 1792 => (
            Unavailable,
            "the server is read-only and cannot grant locks",
            hint("Name the primary; if this is it, SET GLOBAL read_only = 0"),
        ),
        1047 => (
            Unavailable,
            "the Galera node has no quorum, or has not joined",
            hint("SHOW STATUS LIKE 'wsrep%' says why; name another node meanwhile"),
        ),
        1053 | 1927 | 1317 | 1152 | 1159 | 1161 | 4031 => {
            (Unavailable, "the server broke off the request", hint("It shuts down, or somebody has killed the session"))
        }
        1969 | 3024 => (
            Unavailable,
            "the server ended the statement as it took too long",
            hint("Its max_statement_time (max_execution_time) is shorter than a moment's wait for a lock"),
        ),
        1180 => (Unavailable, "the commit failed", hint("Its log says why; nobody knows whether it was made")),
        1045 | 1698 => {
            let tls = if settings.tls.is_none() { ". Some servers refuse so whoever comes without tls=yes" } else { "" };
            let hint = format!(
                "The user was {user:?}. In a URL write / as %2F and @ as %40; an account also says from which host{tls}"
            );
            (Backend, "the server refused user and password", Some(hint))
        }
        3159 => (
            Backend,
            "the server takes only encrypted connections",
            hint("Write tls=yes, and ca=FILE if its signer is not known here"),
        ),
        1049 => (
            Backend,
            "there is no such database",
            Some(format!("CREATE DATABASE `{database}`, or name another in the URL's path")),
        ),
        1044 => (
            Backend,
            "the user may not use the database",
            Some(format!(
                "Has its owner run `tenure migrate`? These are all the rights it needs: {}",
                schema::grants(settings)
            )),
        ),
        _ if DENIED.contains(&code) => (
            Backend,
            "the user lacks a right",
            Some(format!("Has its owner run `tenure migrate`? These are all it needs: {}", schema::grants(settings))),
        ),
        1146 | 1305 => (
            Backend,
            "a table or procedure of ours is not there",
            Some(format!(
                "Run `tenure migrate` as somebody who may create them, or apply what `tenure schema` prints; the prefix is {prefix:?}"
            )),
        ),
        1114 | 1021 | 1026 | 3 => (
            Backend,
            "the server cannot store anything more",
            hint("Its disk or its tablespace is full; what is held stays held until its ttl is over"),
        ),
        1665 => {
            (Backend, "the server's binary log cannot take it", hint("Its binlog_format is STATEMENT: set MIXED or ROW"))
        }
        1064 => (
            Backend,
            "the server does not understand a statement that is needed",
            hint("MariaDB 10.6 or MySQL 8.0.1 is the oldest that can be used. Is a proxy in between?"),
        ),
        _ => (Backend, "the server refused", None),
    }
}

/// No answer of the server's at all.
fn unanswered(error: &DriverFailure, settings: &Settings) -> (ErrorKind, &'static str, Option<String>) {
    use ErrorKind::{Backend, Unavailable};
    let hint = |text: &str| Some(text.to_owned());
    match error {
        DriverFailure::Io(IoError::Tls(fault)) => {
            let hint = match fault {
                TlsError::Tls(fault) => tenure_tls::hint(fault, "tls=no"),
                _ => None,
            };
            (Backend, "TLS with the server failed", hint)
        }
        DriverFailure::Io(IoError::Io(error)) => match tls_error(error) {
            Some(fault) => (Backend, "TLS with the server failed", tenure_tls::hint(fault, "tls=no")),
            None if error.kind() == io::ErrorKind::ConnectionRefused => {
                (Unavailable, "nobody listens there", hint("Is the server running, and are host and port right?"))
            }
            None if error.kind() == io::ErrorKind::TimedOut => {
                (Unavailable, "the server did not answer in time", hint("Is it reachable from here?"))
            }
            None if error.to_string().contains("lookup") => (
                Unavailable,
                "the server's name could not be looked up",
                hint("Is the host right, and does its name exist here?"),
            ),
            None => (Unavailable, "the connection broke", None),
        },
        DriverFailure::Driver(DriverError::NoClientSslFlagFromServer) => {
            (Backend, "the server speaks no TLS", hint("Give it a certificate (ssl-cert, ssl-key), or write tls=no"))
        }
        DriverFailure::Driver(DriverError::UnknownAuthPlugin { .. }) => (
            Backend,
            "the server wants a proof of who we are that the driver does not know",
            Some(format!("Give {:?} a password: mysql_native_password, caching_sha2_password or ed25519", settings.user)),
        ),
        DriverFailure::Driver(DriverError::ConnectionClosed) => (Unavailable, "the connection broke", None),
        DriverFailure::Driver(DriverError::PacketTooLarge) => {
            (Backend, "the request is larger than the server takes", hint("Raise its max_allowed_packet"))
        }
        _ => (Backend, "the request could not be made", None),
    }
}

/// What rustls says, where that is the trouble: it is the certificate or the settings, not the network.
fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref::<rustls::Error>()
}

/// What an error says with its secrets blotted out, if it has any.
fn without_secrets(error: &DriverFailure, settings: &Settings) -> Option<String> {
    let text = error.to_string();
    let secret = settings.password.as_ref().map(Secret::reveal).filter(|secret| !secret.is_empty())?;
    text.contains(secret).then(|| text.replace(secret, "***"))
}

#[cfg(test)]
mod tests;
