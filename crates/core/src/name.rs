//! What is locked: a name, parsed once at the door.

use std::fmt;
use std::sync::Arc;

use crate::{Error, ErrorKind, Result};

/// The name of a lock: 1 to 512 bytes of UTF-8 text without control characters, `/` for hierarchy.
///
/// Names are compared byte by byte and never normalised: `a` and `A`, composed and decomposed `é`, `a` and `a ` are
/// different locks. All kinds share one space of names: while `x` is held as a mutex, asking for it as a semaphore is a
/// [`Mismatch`](ErrorKind::Mismatch), never a second, independent lock.
///
/// ```
/// use tenure_core::LockName;
/// let name = LockName::new("invoices/2026-11")?;
/// assert_eq!(name.as_str(), "invoices/2026-11");
/// assert!(LockName::new("two\nlines").is_err());
/// # Ok::<(), tenure_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Parses a name; the error says what is wrong with it.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        let bad = |why: String| Err(Error::new(ErrorKind::BadName, format!("a lock's name {why}")));
        if text.is_empty() {
            return bad("must not be empty".into());
        }
        if text.len() > Self::MAX_BYTES {
            return bad(format!("may have at most {} bytes, this one has {}", Self::MAX_BYTES, text.len()));
        }
        if let Some((at, character)) = text.char_indices().find(|(_, c)| c.is_control()) {
            return bad(format!("may not have control characters, this one has {character:?} at byte {at}"));
        }
        Ok(LockName(text.into()))
    }

    /// The text as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl std::str::FromStr for LockName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        LockName::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_exact() {
        assert!(LockName::new("x".repeat(512)).is_ok());
        assert!(LockName::new("x".repeat(513)).is_err());
        assert!(LockName::new("é".repeat(256)).is_ok());
        assert!(LockName::new("é".repeat(257)).is_err());
        assert!(LockName::new("").is_err());
    }

    #[test]
    fn control_characters_are_named() {
        for bad in ["a\0", "\n", "tab\there", "del\u{7f}", "c1\u{85}"] {
            let error = LockName::new(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadName);
            assert!(error.to_string().contains("control"), "{error}");
        }
    }
}
