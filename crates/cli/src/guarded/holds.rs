//! Everything that one command holds: NAME, the names of `--and`, and the numbers of its permits.
//!
//! Names are acquired in the order in which the library's multi-lock takes them, whatever the order on the command line, so that
//! no two commands wait for each other. The loss of any one is the command's loss.

use std::future::poll_fn;
use std::task::Poll;

use tenure::{Error, ErrorKind, Guard, Instant, LockName};

use super::PATIENCE;
use super::events::{Event, Teller};

/// One of the holds.
pub(super) struct Hold<'a> {
    pub(super) guard: Guard,
    pub(super) teller: Teller<'a>,
    /// Which permit it is the number of.
    pub(super) number: Option<u32>,
}

/// All of them, in the order in which they were acquired.
#[derive(Default)]
pub(super) struct Holds<'a>(pub(super) Vec<Hold<'a>>);

impl Holds<'_> {
    /// The guard of a name.
    pub(super) fn of(&self, name: &LockName) -> Option<&Guard> {
        self.0.iter().map(|hold| &hold.guard).find(|guard| guard.name() == name)
    }

    /// The numbers of its permits.
    pub(super) fn numbers(&self) -> Vec<String> {
        self.0.iter().filter_map(|hold| hold.number).map(|number| number.to_string()).collect()
    }

    /// Until when all of them may be trusted.
    pub(super) fn valid_until(&self) -> Instant {
        self.0.iter().map(|hold| hold.guard.valid_until()).min().unwrap_or(Instant::NEVER)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        self.0.iter().try_for_each(|hold| hold.guard.check())
    }

    /// Releases all of them, the last one first: numbers before their permit. A hold that `owes` nothing is released without its
    /// minimum hold.
    pub(super) async fn release(mut self, owes: bool) {
        let unconfirmed = "the store did not confirm the release; it frees the lock after its ttl";
        let deadline = Instant::now() + PATIENCE;
        while let Some(Hold { guard, teller, number }) = self.0.pop() {
            let lost = Event::lost(&guard);
            let release = async { if owes && number.is_none() { guard.release().await } else { guard.give_up().await } };
            teller.tell(match tokio::time::timeout(deadline.since(Instant::now()), release).await {
                Ok(Ok(())) => Event::Released { error: None },
                Ok(Err(error)) if error.kind() == ErrorKind::Lost => lost,
                Ok(Err(error)) => Event::Released { error: Some(format!("{unconfirmed}: {error}")) },
                Err(_) => Event::Released { error: Some(unconfirmed.to_owned()) },
            });
        }
    }
}

/// The first of several futures to complete.
///
/// # Cancel safety
/// Dropping it drops all of them.
pub(super) async fn first<F: Future>(futures: impl IntoIterator<Item = F>) -> F::Output {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    poll_fn(|context| {
        let mut polled = futures.iter_mut().map(|future| future.as_mut().poll(context));
        polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}
