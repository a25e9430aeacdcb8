//! Planted bugs: each is one that a lock library really had, or nearly had. The simulation must catch them all.
//!
//! They live in the simulated store and its backend, never in core: what is tested is whether the *checker* has power.

/// One planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mutant {
    /// A window is counted from the reply instead of from sending.
    WindowFromReply,
    /// A grant made to a waiter is trusted for a whole ttl, although the store lets it stand for the short first one.
    HandoverTrustedTooLong,
    /// Release frees whoever holds the name.
    ReleaseIgnoresId,
    /// A waiter that polls goes to the end of the line.
    RequeueOnPoll,
    /// A waiter for permits only looks again when the one directly before it has gone.
    OnePredecessor,
    /// A writer that finds the rw lock idle takes it on a fast path that readers do not look at.
    WriterFastPath,
    /// Tokens are counted in the record, and start again with it.
    TokenRestarts,
    /// A released id is forgotten, so a late request with it is granted.
    NoTombstones,
    /// An id that was turned away is forgotten, so a late copy of its request is granted.
    BusyForgotten,
    /// A repeated request stands in line twice.
    DuplicateIsSecondTicket,
    /// A renewal revives a hold that has expired.
    RenewAfterExpiry,
    /// A renewal extends whoever holds the name, and says yes.
    RenewWrongId,
    /// A grant made to a waiter stays until somebody releases it.
    HandoverNeverExpires,
    /// A waiter relies on being woken: no poll beneath.
    NoSlowPoll,
    /// The lock-delay of a lost holder is not kept.
    LockDelayIgnored,
    /// The store lets a hold expire a fifth early.
    ExpiryShort,
    /// A newcomer takes a free fair mutex ahead of the line.
    NewcomerBarges,
    /// Readers pass a waiting writer.
    ReadersPassWriters,
    /// A downgrade makes a reader of whoever holds the name first, and says yes.
    DowngradeWrongId,
    /// A downgrade revives a hold that has expired.
    DowngradeAfterExpiry,
    /// A downgrade says yes, and leaves the writer a writer.
    DowngradeLetsNobodyIn,
    /// An ask without an answer is reported as "not in time".
    TimeoutIsBusy,
    /// A renewal without an answer is reported as "lost".
    TimeoutIsLost,
    /// Permits are counted per hold, not per permit.
    PermitsNotWeighed,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 24] = [
        Mutant::WindowFromReply,
        Mutant::HandoverTrustedTooLong,
        Mutant::ReleaseIgnoresId,
        Mutant::RequeueOnPoll,
        Mutant::OnePredecessor,
        Mutant::WriterFastPath,
        Mutant::TokenRestarts,
        Mutant::NoTombstones,
        Mutant::BusyForgotten,
        Mutant::DuplicateIsSecondTicket,
        Mutant::RenewAfterExpiry,
        Mutant::RenewWrongId,
        Mutant::HandoverNeverExpires,
        Mutant::NoSlowPoll,
        Mutant::LockDelayIgnored,
        Mutant::ExpiryShort,
        Mutant::NewcomerBarges,
        Mutant::ReadersPassWriters,
        Mutant::DowngradeWrongId,
        Mutant::DowngradeAfterExpiry,
        Mutant::DowngradeLetsNobodyIn,
        Mutant::TimeoutIsBusy,
        Mutant::TimeoutIsLost,
        Mutant::PermitsNotWeighed,
    ];

    /// The mutant of this name, as `Debug` prints it.
    pub fn named(name: &str) -> Option<Mutant> {
        Mutant::ALL.into_iter().find(|mutant| format!("{mutant:?}") == name)
    }
}
