//! Why a hold was lost, and how an operator says that a break is coming.

use std::fmt;
use std::sync::Arc;

use crate::{Ask, Note, Origin, Result};

/// Why a hold was lost: from [`Event::Lost`](crate::Event::Lost) and [`Guard::loss_reason`](crate::Guard::loss_reason).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// An operator ended the hold by force: who, and why. A break whose announcement did not arrive in time is
    /// [`Refused`](LossReason::Refused).
    Broken(Ask),
    /// The store does not have this hold any more, and does not say why: it was broken, or the store has forgotten it.
    Refused,
    /// What became of the store, in its own words: its file was replaced, for example.
    Store(Arc<str>),
    /// The maximum hold is over.
    MaxHold,
    /// No renewal succeeded before the window ended; with the last error, if there was one.
    NotRenewed(Option<Arc<str>>),
    /// The window ended, and renewal is off.
    Expired,
}

impl LossReason {
    /// One word for it, for machines to read.
    pub fn as_str(&self) -> &'static str {
        match self {
            LossReason::Broken(_) => "broken",
            LossReason::Refused => "refused",
            LossReason::Store(_) => "store",
            LossReason::MaxHold => "max_hold",
            LossReason::NotRenewed(_) => "not_renewed",
            LossReason::Expired => "expired",
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossReason::Broken(ask) => match ask.reason.as_str() {
                "" => write!(f, "{} broke it", ask.by),
                reason => write!(f, "{} broke it: {reason}", ask.by),
            },
            LossReason::Refused => f.write_str("it was broken, or the store has forgotten it"),
            LossReason::Store(what) => f.write_str(what),
            LossReason::MaxHold => f.write_str("its maximum hold is over"),
            LossReason::NotRenewed(None) => f.write_str("it could not be renewed in time"),
            LossReason::NotRenewed(Some(error)) => write!(f, "it could not be renewed in time: {error}"),
            LossReason::Expired => f.write_str("its ttl is over, and renewal is off"),
        }
    }
}

/// What the reason of an announcement begins with: a word joiner, which nobody types.
const MARK: &str = "\u{2060}break: ";

/// The message that a break is coming. It travels as an ask does, which every store carries to its holders.
pub(crate) fn announcement(reason: &str, by: Origin) -> Result<Ask> {
    Ok(Ask { reason: Note::new(format!("{MARK}{reason}"))?, by })
}

/// The break that an ask announces, if it does.
pub(crate) fn announced(ask: &Ask) -> Option<Ask> {
    let reason = Note::new(ask.reason.as_str().strip_prefix(MARK)?).ok()?;
    Some(Ask { reason, by: ask.by.clone() })
}
