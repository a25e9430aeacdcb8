//! One error type, written for the person who must act.
//!
//! An [`Error`] says what failed, on which lock, in which store, what was tried and what to do next, and keeps the
//! driver's own error whole as its source. Contention is never an error: `try_*` gives `Ok(None)`.

use std::fmt;
use std::sync::Arc;

use crate::LockName;

/// What every fallible function here returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, in one word; [`Error`] carries the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The name is empty, too long, or has control characters.
    BadName,
    /// The store's URL has an unknown scheme, an unknown parameter, or cannot be read.
    BadUrl,
    /// A duration, a note or a count is outside its limits.
    BadOption,
    /// This store cannot do that, and says so instead of pretending.
    Unsupported,
    /// The name is in use with another kind, or the semaphore with another number of permits.
    Mismatch,
    /// The hold can no longer be trusted: its window has ended, or the store gave it away.
    Lost,
    /// A sequencer is not signed, not with a key that is known, or was changed since.
    BadSignature,
    /// The store did not answer, or not in time. Nothing is known about what it did.
    Unavailable,
    /// The store answered with an error of its own.
    Backend,
}

/// An error of this library: what failed, on which lock, in which store, what to do next, and the driver's own error whole.
///
/// ```
/// use tenure_core::{ErrorKind, LockName};
/// let error = LockName::new("").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::BadName);
/// assert!(error.to_string().contains("empty"));
/// ```
#[derive(Clone, Debug)]
pub struct Error(Box<Detail>);

#[derive(Clone, Debug)]
struct Detail {
    kind: ErrorKind,
    what: String,
    name: Option<LockName>,
    store: Option<String>,
    hint: Option<String>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of this kind; `what` says what was tried and what came of it.
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Error(Box::new(Detail { kind, what: what.into(), name: None, store: None, hint: None, source: None }))
    }

    /// Says which lock it was about.
    pub fn with_name(mut self, name: &LockName) -> Self {
        self.0.name.get_or_insert_with(|| name.clone());
        self
    }

    /// Says which store it came from. Never pass a URL that may carry a secret.
    pub fn with_store(mut self, store: impl Into<String>) -> Self {
        self.0.store.get_or_insert_with(|| store.into());
        self
    }

    /// Says what to do next.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Keeps the driver's own error as the source.
    pub fn with_source(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let source: Box<dyn std::error::Error + Send + Sync> = source.into();
        self.0.source = Some(source.into());
        self
    }

    /// What went wrong, to match on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The lock it was about, where there was one.
    pub fn name(&self) -> Option<&LockName> {
        self.0.name.as_ref()
    }

    /// What went wrong and why, without lock, store and hint.
    pub(crate) fn cause(&self) -> String {
        let Detail { what, source, .. } = &*self.0;
        source.as_ref().map_or_else(|| what.clone(), |source| format!("{what}: {source}"))
    }

    /// What to do next, where the library knows.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// Whether asking again later may succeed without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        self.0.kind == ErrorKind::Unavailable
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Detail { what, name, store, hint, source, .. } = &*self.0;
        if let Some(name) = name {
            write!(f, "lock {:?}: ", name.as_str())?;
        }
        f.write_str(what)?;
        if let Some(store) = store {
            write!(f, " (store: {store})")?;
        }
        if let Some(source) = source {
            write!(f, ": {source}")?;
        }
        if let Some(hint) = hint {
            write!(f, ". {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
