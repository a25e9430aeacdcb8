//! Who holds and who waits: what `ls`, `show` and `watch` see.

use std::time::Duration;

use crate::{Ask, Fingerprint, Kind, LockName, Mode, Note, Origin, Token};

/// A name as the store sees it now: its holders, and the line behind them in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The name.
    pub name: LockName,
    /// Its kind, while it is in use.
    pub kind: Option<Kind>,
    /// Who holds it, in the order of their grants. Empty when it is free.
    pub holders: Vec<Holder>,
    /// Who waits, in order.
    pub line: Vec<Waiter>,
    /// The highest token that the store remembers to have given for this name; `None` if it remembers none. Stores forget it
    /// some time after the name's last use.
    pub last: Option<Token>,
}

/// One hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What may be shown of its claim.
    pub claim: Fingerprint,
    /// How it holds.
    pub mode: Mode,
    /// Its fencing number.
    pub token: Token,
    /// What it shows.
    pub note: Note,
    /// Who it is.
    pub origin: Origin,
    /// How long it has held.
    pub held_for: Duration,
    /// When the store will let the next one in if nothing more is heard from it.
    pub expires_in: Duration,
    /// Already released, but the name stays closed for its minimum hold.
    pub closing: bool,
    /// Somebody asked it to let go.
    pub asked: Option<Ask>,
}

/// One claim in the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// What may be shown of its claim.
    pub claim: Fingerprint,
    /// How it wants the name.
    pub mode: Mode,
    /// What it shows.
    pub note: Note,
    /// Who it is.
    pub origin: Origin,
    /// How long it has waited.
    pub waiting_for: Duration,
}

impl View {
    /// The view of a name that nobody holds and nobody waits for.
    pub fn free(name: LockName) -> Self {
        View { name, kind: None, holders: Vec::new(), line: Vec::new(), last: None }
    }

    /// Whether nobody holds the name and nobody waits for it.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.line.is_empty()
    }

    /// Whether the same claims hold and wait, and nobody new was asked to let go. Ages and the last token do not count.
    pub fn says_the_same_as(&self, other: &View) -> bool {
        self.kind == other.kind
            && self.holders.len() == other.holders.len()
            && self.line.len() == other.line.len()
            && self.holders.iter().zip(&other.holders).all(|(a, b)| {
                (a.claim, a.mode, a.token, a.closing, &a.asked) == (b.claim, b.mode, b.token, b.closing, &b.asked)
            })
            && self.line.iter().zip(&other.line).all(|(a, b)| a.claim == b.claim)
    }
}
