//! What etcd's errors mean: for the code that must go on, and for the person who must act.

use std::error::Error as _;
use std::sync::Arc;

use tenure_core::{Address, Error, ErrorKind};
use tonic::{Code, Status};

use crate::config::Settings;

/// What came of a request that the cluster was sent.
pub(crate) type Attempt<T> = std::result::Result<T, Failure>;

/// A request that did not succeed: what to do now, and what to tell people.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) next: Next,
    /// The member may have done it, or may do it yet.
    pub(crate) in_doubt: bool,
    /// Somebody said what is wrong; it is not only that nobody said anything.
    pub(crate) spoken: bool,
    pub(crate) error: Error,
}

/// What to do after a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Ask another member: this one cannot be reached, or has lost the others.
    Elsewhere,
    /// Ask again, after a moment: it is busy.
    Later,
    /// Log in again.
    Login,
    /// The user may not do it.
    Denied,
    /// The lease that was named is not there any more.
    NoLease,
    /// The revision that was named is forgotten.
    Compacted,
    /// There is no room left for anything new; what is there can still be removed.
    Full,
    /// Trying again changes nothing; somebody must.
    Fatal,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure { next: Next::Fatal, in_doubt: false, spoken: true, error }
    }
}

/// A failed request; `doing` completes "while …".
pub(crate) fn explain(status: &Status, at: &Address, settings: &Settings, doing: &str) -> Failure {
    let next = what_next(status);
    let (kind, what, hint) = words(status, next, settings);
    let mut error = Error::new(kind, format!("{what} while {doing}")).with_store(place(at, settings));
    if let Some(hint) = hint {
        error = error.with_hint(hint);
    }
    let in_doubt = matches!(next, Next::Elsewhere) || status.code() == Code::Unknown;
    Failure { next, in_doubt, spoken: true, error: error.with_source(reason(status)) }
}

/// A member that has not answered in time.
pub(crate) fn silent(at: &Address, settings: &Settings, limit: std::time::Duration, doing: &str) -> Failure {
    let error = Error::new(ErrorKind::Unavailable, format!("no answer within {limit:?} while {doing}"))
        .with_store(place(at, settings))
        .with_hint("Is a majority of the members up, and in reach? answer_limit=TIME allows for more time");
    Failure { next: Next::Elsewhere, in_doubt: true, spoken: false, error }
}

fn place(at: &Address, settings: &Settings) -> String {
    format!("{}, asked at {at}", settings.describe())
}

/// Whether a member says that a login is over: its time is, the member was restarted, or users or roles have changed since. Of the last
/// old servers say so with a text that was meant for themselves.
pub(crate) fn is_over(login: &str) -> bool {
    let texts = ["invalid auth token", "revision of auth store is old", "auth: revision in header is old"];
    texts.iter().any(|text| login.contains(text))
}

fn what_next(status: &Status) -> Next {
    let text = status.message();
    match status.code() {
        _ if text.contains("requested lease not found") => Next::NoLease,
        _ if text.contains("has been compacted") => Next::Compacted,
        _ if text.contains("database space exceeded") => Next::Full,
        _ if is_over(text) => Next::Login,
        Code::Unauthenticated => Next::Login,
        Code::PermissionDenied => Next::Denied,
        _ if text.contains("too many requests") => Next::Later,
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Aborted => Next::Elsewhere,
        // What the transport says of itself: a connection that was reset, an answer that was cut short.
        Code::Unknown | Code::Internal if status.source().is_some() || text.contains("h2 protocol") => Next::Elsewhere,
        _ => Next::Fatal,
    }
}

fn words(status: &Status, next: Next, settings: &Settings) -> (ErrorKind, &'static str, Option<String>) {
    let text = status.message();
    let login = "Look at the user and the password in the URL: etcd://user:password@host";
    match next {
        Next::Full => (
            ErrorKind::Backend,
            "etcd has no space left and takes nothing new",
            Some(
                "Compact and defragment it, then disarm the alarm: etcdctl compact, etcdctl defrag, etcdctl alarm disarm"
                    .into(),
            ),
        ),
        Next::Login => (ErrorKind::Backend, "etcd does not know who asks", Some(login.into())),
        Next::Later => (ErrorKind::Unavailable, "etcd has too much to do", Some("Ask again later".into())),
        Next::NoLease => (ErrorKind::Unavailable, "the lease was gone", Some("Ask again".into())),
        Next::Compacted => (ErrorKind::Unavailable, "etcd has forgotten that revision", Some("Ask again".into())),
        Next::Elsewhere => (
            ErrorKind::Unavailable,
            "no member answered",
            tls_hint(status, settings)
                .or_else(|| Some("Is a majority of the members up, and in reach of this host?".into())),
        ),
        Next::Denied => (
            ErrorKind::Backend,
            "etcd does not allow it",
            Some(format!(
                "Give the user's role readwrite on the prefix {0:?}: etcdctl role grant-permission ROLE --prefix=true readwrite {0}",
                format!("{}/", settings.prefix)
            )),
        ),
        Next::Fatal if text.contains("authentication failed") => {
            (ErrorKind::Backend, "etcd refused the login", Some(login.into()))
        }
        Next::Fatal if text.contains("authentication is not enabled") => {
            (ErrorKind::Backend, "this etcd has no users", Some("Leave user and password out of the URL".into()))
        }
        Next::Fatal if text.contains("user name is empty") => {
            (ErrorKind::Backend, "etcd wants to know who asks", Some(login.into()))
        }
        Next::Fatal => (ErrorKind::Backend, "etcd refused it", None),
    }
}

/// What went wrong with TLS, where that is what went wrong.
fn tls_hint(status: &Status, settings: &Settings) -> Option<String> {
    let mut source = status.source();
    while let Some(error) = source {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let fault = error.downcast_ref::<rustls::Error>().or_else(|| inner.and_then(|inner| inner.downcast_ref()));
        if let Some(fault) = fault {
            return tenure_tls::hint(fault, "etcd://");
        }
        source = error.source();
    }
    let refused = status.message().contains("frame") || status.message().contains("connection closed");
    (refused && settings.tls.is_none()).then(|| "Does that port want TLS? Then write etcds://".to_owned())
}

/// The whole chain in one line: a status prints only its first.
fn reason(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = status.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !more.is_empty() && !text.contains(&more) {
            text = if text.is_empty() { more } else { format!("{text}: {more}") };
        }
        source = error.source();
    }
    text
}

/// An error from the transport as a status.
pub(crate) fn from_transport(error: impl std::error::Error + Send + Sync + 'static) -> Status {
    let mut status = Status::unavailable("the connection could not be made");
    status.set_source(Arc::new(error));
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_that_is_over_is_known_by_what_any_server_says() {
        for (code, text) in [
            (Code::Unauthenticated, "etcdserver: invalid auth token"),
            (Code::InvalidArgument, "etcdserver: revision of auth store is old"),
            (Code::Unknown, "auth: revision in header is old"),
        ] {
            assert_eq!(what_next(&Status::new(code, text)), Next::Login, "{text}");
        }
        assert_eq!(what_next(&Status::permission_denied("etcdserver: permission denied")), Next::Denied);
        assert_eq!(what_next(&Status::invalid_argument("etcdserver: user name is empty")), Next::Fatal);
    }
}
