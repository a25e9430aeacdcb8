//! The fence at the resource: it keeps the highest token that was ever shown for a name, and refuses anything lower.
//!
//! A lease can end while its holder works; its write then arrives after somebody else's. A resource that has a fence in front of
//! it does not care who believes to hold what, nor whether the lock store can be reached: a token that is lower than one it has
//! seen is refused, however late it comes. That rests on two things only: tokens rise, and the fence does not forget.
//!
//! - [`Fence`]: the contract, and what each implementation owes. [`MemoryFence`] is here; the stores' crates have their own, and
//!   `tenure::fence(url)` opens any of them.
//! - [`Rule`]: which tokens are too high to be true; [`Verdict`]: what a fence says.
//! - [`Raised`]: most of a fence, for a store that can raise a number in one step.
//! - [`Gate`]: what stands in front of a resource and takes [sequencers](crate::Sequencer).
//!
//! **Check and write in one step.** A fence orders *checks*. Whoever is let through and stands still before it writes may write
//! after somebody with a higher token: between the check and the write there must be nothing that can be overtaken. A database
//! does both in one transaction (the stores' own `fence(&mut tx, …)`, over the same row as their [`Fence`]); a resource that is
//! one process does both under one lock of its own, which is [`Gate::write`].

mod gate;
mod memory;
mod raised;
mod rule;

use crate::backend::async_trait;
use crate::{Error, ErrorKind, LockName, Mode, Result, Sequencer, Token};
pub use gate::{Gate, Turn};
pub use memory::MemoryFence;
pub use raised::{Marks, Raised};
pub use rule::{Rule, Verdict};

/// The highest token that was shown for each name, kept where the resource is.
///
/// # Contract
///
/// - **One step.** [`advance`](Fence::advance) compares and remembers in one atomic step, for everybody who shares the fence:
///   tasks, processes, hosts. [`Verdict::of`] is the rule to the letter.
/// - **Remembered before it is said.** When `Accepted` is returned, every lower token is refused from then on, also after a crash
///   of this process or of the store, as far as the store keeps what it has acknowledged.
/// - **Never back.** What cannot be read is an error, never an empty fence.
/// - **Unknown is an error.** Without an answer the token may have been shown or not. Showing it again is always right.
/// - **Cancel safety.** Every future may be dropped at any await; the token may have been shown or not.
/// - **Only this.** It needs no lock, no table of locks and no right to lock.
#[async_trait]
pub trait Fence: Send + Sync + 'static {
    /// Where it is kept, in words and without secrets: `sqlite:/var/lib/app/fence.db`.
    fn describe(&self) -> String;

    /// Shows a token. Accepted if nobody has shown a higher one and it is plausible; from then on lower ones are refused. An
    /// equal one is accepted: a holder writes many times.
    async fn advance(&self, name: &LockName, token: Token, rule: Rule) -> Result<Verdict>;

    /// The highest token that was shown for the name. Changes nothing.
    async fn highest(&self, name: &LockName) -> Result<Option<Token>>;

    /// One plain write to the same store, as lasting as what a fence remembers, with nothing compared: what
    /// `tenure bench --fence` divides by. It touches no name's token; `number` is to be another one each time.
    async fn probe(&self, number: u64) -> Result<()>;
}

/// The token to show for a write to what the lock `name` protects: what a store's `fence(&mut tx, …)` checks in the transaction.
///
/// An error of kind [`Mismatch`](ErrorKind::Mismatch) for another lock's sequencer, and of kind
/// [`Unsupported`](ErrorKind::Unsupported) for a holder that is not alone inside: a reader, or one with some of a semaphore's permits.
pub fn writers_token(name: &LockName, sequencer: &Sequencer) -> Result<i64> {
    if !is_alone(name, sequencer)? {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the sequencer is a reader's, and other readers may be inside with it",
        )
        .with_name(name)
        .with_hint("Take the lock for writing to write what it protects"));
    }
    storable(sequencer.token)
}

/// Whether the holder is alone inside, so that its token is one to remember; a reader is not. An error for another lock's sequencer, and for
/// some of a semaphore's permits: all of their holders write, so no order of their tokens means anything.
fn is_alone(name: &LockName, sequencer: &Sequencer) -> Result<bool> {
    if sequencer.name != *name {
        let what = format!("the sequencer is one of the lock {:?}", sequencer.name.as_str());
        return Err(Error::new(ErrorKind::Mismatch, what)
            .with_name(name)
            .with_hint("What is protected here is protected by another lock: take that one"));
    }
    match sequencer.mode {
        Mode::Exclusive => Ok(true),
        Mode::Shared => Ok(false),
        Mode::Permits { take, of } if take == of => Ok(true),
        Mode::Permits { take, of } => {
            let what = format!("{take} of {of} permits cannot be fenced: their holders are inside together");
            Err(Error::new(ErrorKind::Unsupported, what)
                .with_name(name)
                .with_hint("Fence what each of them does alone, under a mutex of its own"))
        }
    }
}

/// The token as stores keep it; an error for one that does not fit.
pub fn storable(token: Token) -> Result<i64> {
    i64::try_from(token.get()).map_err(|_| {
        Error::new(ErrorKind::BadOption, format!("{token} is no token: the highest there is is {}", i64::MAX))
            .with_hint("No store gives such a number. Where does it come from?")
    })
}
