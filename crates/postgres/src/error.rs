//! What PostgreSQL's errors mean: for the code that must go on, and for the person who must act.
//!
//! Every request is one statement and so one transaction: a server that answers with an error has undone it. Only where there
//! is no answer, or the session was ended from outside while the commit may already have been written, is its fate unknown.

use std::error::Error as StdError;
use std::io;

use tenure_core::lease::{Failure, Fate};
use tenure_core::{Address, Error, ErrorKind};
use tokio_postgres::error::{DbError, SqlState};

use crate::config::Settings;
use crate::login::AsksForPassword;
use crate::schema::Layout;

/// What is to be done about a connection after an error on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// It goes on.
    Stays,
    /// It is of no more use: broken, or to a server that cannot do what we need.
    Over,
}

/// A failed request; `doing` completes "while …".
pub(crate) fn explain(
    error: tokio_postgres::Error,
    at: Option<&Address>,
    settings: &Settings,
    doing: &str,
) -> (Failure, After) {
    let (kind, what, hint) = words(&error, settings);
    let place = match at {
        Some(at) if settings.servers.len() > 1 => format!("{} at {at}", settings.describe()),
        _ => settings.describe(),
    };
    let mut explained = Error::new(kind, format!("{what} while {doing}")).with_store(place);
    if let Some(hint) = hint {
        explained = explained.with_hint(hint);
    }
    let (fate, again, after) = judge(&error);
    let source: Box<dyn StdError + Send + Sync> = match error.as_db_error() {
        Some(db) => source(db).into(),
        None => Box::new(error),
    };
    (Failure { error: without_secrets(explained, source, settings), fate, again }, after)
}

/// A connection that could not be made: nothing was asked for yet.
pub(crate) fn explain_connect(error: tokio_postgres::Error, at: &Address, settings: &Settings) -> Failure {
    let (failure, _) = explain(error, Some(at), settings, "connecting");
    Failure { fate: Fate::Refused, ..failure }
}

/// What failed before anything was sent: settings, files, checks.
pub(crate) fn refused(error: Error) -> Failure {
    let again = error.is_transient();
    Failure { error, fate: Fate::Refused, again }
}

/// What became of the request, whether trying again may help, and whether the connection goes on.
fn judge(error: &tokio_postgres::Error) -> (Fate, bool, After) {
    let Some(db) = error.as_db_error() else {
        let again = tls_error(error).is_none()
            && !asks_for_password(error)
            && io_error(error).is_none_or(|io| io.kind() != io::ErrorKind::InvalidInput);
        return (Fate::Unknown, again, After::Over);
    };
    let code = db.code();
    let ends = is_fatal(db);
    if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        return (Fate::Refused, true, After::Over); // demoted: whoever is the primary now is found by connecting anew
    }
    let again = is_transient(code);
    // A session that is ended by force may have been past its commit.
    let fate = if ends && *code != SqlState::IDLE_SESSION_TIMEOUT { Fate::Unknown } else { Fate::Refused };
    (fate, again, if ends { After::Over } else { After::Stays })
}

/// Whether the server ends the session with it.
fn is_fatal(db: &DbError) -> bool {
    let is_shutdown = [
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::DATABASE_DROPPED,
        SqlState::IDLE_SESSION_TIMEOUT,
    ];
    is_shutdown.contains(db.code()) || db.code().code().starts_with("08") || matches!(db.severity(), "FATAL" | "PANIC")
}

/// Whether the same request may succeed a moment later, without anybody changing anything.
fn is_transient(code: &SqlState) -> bool {
    let transient = [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::QUERY_CANCELED,
        SqlState::TOO_MANY_CONNECTIONS,
        SqlState::OUT_OF_MEMORY,
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::IDLE_SESSION_TIMEOUT,
    ];
    transient.contains(code) || code.code().starts_with("08")
}

/// The kind, what happened, and what to do.
fn words(error: &tokio_postgres::Error, settings: &Settings) -> (ErrorKind, &'static str, Option<String>) {
    use ErrorKind::{Backend, Unavailable};
    let Some(db) = error.as_db_error() else { return unanswered(error, settings) };
    let user = settings.user.as_deref().unwrap_or("the user of this process");
    let hint = |text: &str| Some(text.to_owned());
    let code = db.code();
    if is_transient(code) {
        return match *code {
            SqlState::TOO_MANY_CONNECTIONS => (
                Unavailable,
                "the server has no connection left",
                hint(
                    "A client needs up to 3. Raise max_connections (or the role's or database's limit), use a pooler, or find \
                     out who has so many: SELECT usename, count(*) FROM pg_stat_activity GROUP BY 1",
                ),
            ),
            SqlState::CANNOT_CONNECT_NOW => {
                (Unavailable, "the server is starting up or shutting down", hint("Try again when it is up"))
            }
            SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN => {
                (Unavailable, "the server ended the connection", hint("Was it restarted, or the session terminated?"))
            }
            SqlState::QUERY_CANCELED => (
                Unavailable,
                "the server cancelled the statement",
                hint("A statement_timeout of this user or database may be too short; statements here take milliseconds"),
            ),
            SqlState::LOCK_NOT_AVAILABLE => (
                Unavailable,
                "a lock on tenure's tables could not be had in time",
                hint("Is somebody altering or vacuuming them (VACUUM FULL, ALTER TABLE)?"),
            ),
            SqlState::OUT_OF_MEMORY => (Unavailable, "the server is out of memory", hint("Its log says more")),
            _ => (Unavailable, "the server could not do it just now", hint("Try again")),
        };
    }
    match *code {
        SqlState::READ_ONLY_SQL_TRANSACTION => (
            Unavailable,
            "the server is read-only and cannot grant locks",
            hint(
                "Name the primary; of several servers (host1,host2) the one that is it is taken, after a failover too. Or is \
                 default_transaction_read_only set for this user?",
            ),
        ),
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            authentication(db.message(), settings, user)
        }
        SqlState::INVALID_CATALOG_NAME => (
            Backend,
            "the server has no such database",
            Some(format!(
                "The URL's path names it: postgres://host/DATABASE{}. Make it with: CREATE DATABASE …",
                if settings.database.is_none() { "; without one it is that with the user's name" } else { "" }
            )),
        ),
        SqlState::INSUFFICIENT_PRIVILEGE => (Backend, "the user lacks a right", Some(missing_right(user, settings))),
        SqlState::UNDEFINED_TABLE
        | SqlState::UNDEFINED_FUNCTION
        | SqlState::UNDEFINED_COLUMN
        | SqlState::INVALID_SCHEMA_NAME
        | SqlState::UNDEFINED_OBJECT => (
            Backend,
            "tenure's tables or functions are not as they should be",
            hint("Somebody has removed or changed them: `tenure migrate --store URL` as their owner makes what is missing"),
        ),
        SqlState::DISK_FULL => (
            Backend,
            "the server's disk is full",
            hint("Make room: locks need little, so something else fills it. What is held stays held until its ttl is over"),
        ),
        SqlState::INSUFFICIENT_RESOURCES | SqlState::CONFIGURATION_LIMIT_EXCEEDED => {
            (Backend, "the server has run out of something", hint("Its own words, above, say of what"))
        }
        SqlState::UNTRANSLATABLE_CHARACTER | SqlState::CHARACTER_NOT_IN_REPERTOIRE => (
            Backend,
            "the database cannot store every character",
            hint("Its encoding must be UTF8, as it is by default: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"),
        ),
        // PgBouncer's own.
        SqlState::PROTOCOL_VIOLATION => (Backend, "the server or a pooler before it refused", None),
        _ if code.code().starts_with("58") => {
            (Backend, "the server has trouble with its files", hint("Its log says which; mostly a disk is full or broken"))
        }
        _ => (Backend, "the server refused", None),
    }
}

fn authentication(message: &str, settings: &Settings, user: &str) -> (ErrorKind, &'static str, Option<String>) {
    let encryption = message.contains("no encryption") || message.contains("SSL off");
    if message.contains("pg_hba.conf") && encryption && settings.tls.is_none() {
        let hint = "It lets nobody in like this without TLS, it seems: add tls=yes to the URL. Or pg_hba.conf has no line for \
                    this user, database and address";
        return (ErrorKind::Backend, "the server does not let this user in", Some(hint.to_owned()));
    }
    if message.contains("pg_hba.conf") {
        let hint = format!("pg_hba.conf has no line that lets {user} into this database from here");
        return (ErrorKind::Backend, "the server does not let this user in", Some(hint));
    }
    if message.contains("certificate") {
        let hint = "Give the client's certificate with cert=FILE and key=FILE";
        return (ErrorKind::Backend, "the server wants a certificate of the client's", Some(hint.to_owned()));
    }
    let hint = format!(
        "The user was {user:?}. In a URL: postgres://user:password@host/database, with / written as %2F and @ as %40"
    );
    (ErrorKind::Backend, "the server refused user and password", Some(hint))
}

/// What a user must be given.
pub(crate) fn missing_right(user: &str, settings: &Settings) -> String {
    let grants = Layout::new(&settings.schema, &settings.prefix).map(|layout| layout.grants(&format!("\"{user}\"")));
    format!("Grant it, as the tables' owner: {}", grants.unwrap_or_default().join(" "))
}

/// No answer of the server's at all.
fn unanswered(error: &tokio_postgres::Error, settings: &Settings) -> (ErrorKind, &'static str, Option<String>) {
    use ErrorKind::{Backend, Unavailable};
    let hint = |text: &str| Some(text.to_owned());
    if let Some(fault) = tls_error(error) {
        return (Backend, "TLS with the server failed", tenure_tls::hint(fault, "tls=no"));
    }
    if asks_for_password(error) {
        let hint = "Nothing is encrypted here, and whoever answers at that address would have it. Use tls=yes, or have the server keep and \
                    ask for passwords as scram-sha-256; insecure_login=yes gives it all the same";
        return (Backend, "the server asks for the password in clear or as MD5", Some(hint.to_owned()));
    }
    let text = error.to_string();
    let cause = error.source().map(ToString::to_string).unwrap_or_default();
    if text.contains("TLS handshake") && cause.contains("does not support TLS") {
        return (Backend, "the server speaks no TLS", hint("Set ssl = on there, or write tls=no in the URL"));
    }
    if text.contains("invalid configuration") && cause.contains("password missing") {
        return (Backend, "the server wants a password", hint("Give it in the URL: postgres://user:password@host/database"));
    }
    match io_error(error).map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused) => {
            (Unavailable, "nobody listens there", hint("Is the server running, and are host and port right?"))
        }
        Some(io::ErrorKind::TimedOut) => (
            Unavailable,
            "the server did not answer in time",
            hint("Is it reachable from here, and is nothing keeping it busy?"),
        ),
        _ if cause.contains("lookup") => (
            Unavailable,
            "the server's name could not be looked up",
            hint("Is the host right, and does its name exist here?"),
        ),
        _ if settings.tls.is_none() => (Unavailable, "the connection broke", None),
        _ => (Unavailable, "the connection broke", hint("If it always does at connecting: does that port speak TLS?")),
    }
}

/// The server's own words, on one line.
fn source(db: &DbError) -> String {
    let detail = db.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
    format!("{}: {}{}", db.code().code(), db.message(), detail).replace('\n', " ")
}

fn io_error(error: &tokio_postgres::Error) -> Option<&io::Error> {
    error.source()?.downcast_ref::<io::Error>()
}

/// Whether the server wants what is not told it.
fn asks_for_password(error: &tokio_postgres::Error) -> bool {
    io_error(error).and_then(io::Error::get_ref).is_some_and(|inner| inner.is::<AsksForPassword>())
}

/// What rustls says, where that is the trouble: it is the certificate or the settings, not the network.
fn tls_error(error: &tokio_postgres::Error) -> Option<&rustls::Error> {
    io_error(error)?.get_ref()?.downcast_ref::<rustls::Error>()
}

/// A server may quote what it was sent, and a proxy in between may quote anything: a password never gets into an error.
fn without_secrets(error: Error, source: Box<dyn StdError + Send + Sync>, settings: &Settings) -> Error {
    let secret = settings.password.as_ref().map_or("", |password| password.reveal());
    let text = source.to_string();
    if !secret.is_empty() && text.contains(secret) {
        return error.with_source(text.replace(secret, "***"));
    }
    error.with_source(source)
}

#[cfg(test)]
mod tests;
