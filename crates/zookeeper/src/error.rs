//! What went wrong on the way to a server, and what its refusals mean to the person who must act.

use std::fmt;
use std::sync::Arc;

use tenure_core::{Error, ErrorKind};

use crate::wire::Refusal;

/// Why a connection or a session is of no use. Cheap to clone: one reason ends many requests.
#[derive(Clone, Debug)]
pub(crate) struct Fault(Arc<Cause>);

#[derive(Debug)]
enum Cause {
    /// The network, or the other side closed.
    Io(std::io::Error),
    /// It did not answer in time.
    Silent,
    /// What it said is not ZooKeeper's protocol.
    Nonsense(&'static str),
    /// It does not know our login.
    Login,
    /// Our settings cannot be used; no member would change that.
    Settings(Error),
    /// The session is over.
    Expired,
    /// The session was closed by us.
    Closed,
}

impl Fault {
    pub(crate) fn io(error: std::io::Error) -> Self {
        Fault(Arc::new(Cause::Io(error)))
    }

    pub(crate) fn silent() -> Self {
        Fault(Arc::new(Cause::Silent))
    }

    pub(crate) fn nonsense(what: &'static str) -> Self {
        Fault(Arc::new(Cause::Nonsense(what)))
    }

    pub(crate) fn login() -> Self {
        Fault(Arc::new(Cause::Login))
    }

    pub(crate) fn settings(error: Error) -> Self {
        Fault(Arc::new(Cause::Settings(error)))
    }

    pub(crate) fn expired() -> Self {
        Fault(Arc::new(Cause::Expired))
    }

    pub(crate) fn closed() -> Self {
        Fault(Arc::new(Cause::Closed))
    }

    /// Whether trying again, there or elsewhere, cannot help.
    pub(crate) fn is_final(&self) -> bool {
        matches!(*self.0, Cause::Login | Cause::Settings(_))
    }

    /// In the words of the library; `at` is where it was tried.
    pub(crate) fn explain(&self, at: &str, plain: &str) -> Error {
        let tried = format!("the ZooKeeper at {at} cannot be used");
        let error = |kind, why: &str| Error::new(kind, format!("{tried}: {why}"));
        match &*self.0 {
            Cause::Io(fault) => {
                let tls = fault.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
                let error = Error::new(ErrorKind::Unavailable, tried).with_source(again(fault));
                match tls.and_then(|tls| tenure_tls::hint(tls, plain)) {
                    Some(hint) => error.with_hint(hint),
                    None => error.with_hint("Is it running, and does the URL name the port for clients?"),
                }
            }
            Cause::Silent => error(ErrorKind::Unavailable, "no answer in time").with_hint(
                "It may be overloaded, without a quorum, or cut off. A port for TLS does not answer without it, either: zks://",
            ),
            Cause::Nonsense(what) => {
                error(ErrorKind::Unavailable, &format!("{what} is not what a ZooKeeper would say")).with_hint("Is it another service's port?")
            }
            Cause::Login => error(ErrorKind::Backend, "it does not accept the login")
                .with_hint("Look at user and password of the URL; auth=sasl is for names of the server's JAAS file, auth=digest for ACLs"),
            Cause::Settings(error) => error.clone(),
            Cause::Expired => error(ErrorKind::Unavailable, "the session is over").with_hint("Ask again: that is another session"),
            Cause::Closed => error(ErrorKind::Unavailable, "this client was closed").with_hint("Connect again"),
        }
    }
}

/// The same error once more: what ends many requests is told to each.
fn again(error: &std::io::Error) -> std::io::Error {
    std::io::Error::new(error.kind(), error.to_string())
}

/// What a server's refusal means.
pub(crate) fn refused(refusal: Refusal, what: &str, path: &str) -> Error {
    let error = |kind, why: &str| Error::new(kind, format!("the server refused to {what} {path}: {why}"));
    match refusal {
        Refusal::NO_AUTH => error(ErrorKind::Backend, "no permission")
            .with_hint("Its ACL belongs to somebody else: give user and password in the URL, or use another root="),
        Refusal::INVALID_ACL => error(ErrorKind::Backend, "the login gives no identity that a node could belong to")
            .with_hint("Look at user, password and auth= of the URL"),
        Refusal::UNIMPLEMENTED => {
            error(ErrorKind::Backend, "it does not know this request").with_hint("ZooKeeper 3.5.3 or newer is needed")
        }
        Refusal::NOT_READ_ONLY => {
            error(ErrorKind::Unavailable, "it is read-only now").with_hint("It is cut off from its quorum; try again")
        }
        Refusal::SESSION_MOVED | Refusal::SESSION_EXPIRED => {
            error(ErrorKind::Unavailable, "the session is over").with_hint("Ask again: that is another session")
        }
        Refusal::NO_NODE => {
            error(ErrorKind::Unavailable, "there is no such node").with_hint("Somebody removed it; ask again")
        }
        Refusal(code) => error(ErrorKind::Backend, &format!("error {code}"))
            .with_hint("org.apache.zookeeper.KeeperException.Code says what that is"),
    }
}

/// A request that was given up.
pub(crate) fn late(what: impl fmt::Display, at: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{what} had no answer in time from the ZooKeeper at {at}"))
        .with_hint("It may have been done or not. Ask again; a longer answer_limit= helps where the network is slow")
}
