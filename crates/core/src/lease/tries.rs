//! Which failures are worth another try, and for how long.

use std::future::Future;
use std::time::Duration;

use super::{Desk, Failure, Fate};
use crate::{Clock, Error, ErrorKind, Instant, jitter};

/// The first pause after a failure; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// How long to leave a server alone to which so many connections in a row could not be made: a random while, up to 10 ms after the
/// first, never more than a second.
pub fn pause_after(failures: u32) -> Duration {
    jitter(Duration::from_millis(10).saturating_mul(1 << failures.min(7)).min(Duration::from_secs(1)))
}

/// All tries of one request.
pub struct Tries {
    limit: Duration,
    deadline: Instant,
    pause: Duration,
    store: String,
    /// Whether every try so far certainly did nothing, so that the answer to the last one is the only one there is.
    pub(crate) clean: bool,
}

impl Tries {
    /// Tries for as long as an answer may take.
    pub(crate) fn of<D: Desk>(desk: &D) -> Self {
        Tries::within(desk.limits().answer, desk.describe())
    }

    /// Tries for so long to reach this store.
    pub fn within(limit: Duration, store: String) -> Self {
        Tries { limit, deadline: Instant::now() + limit, pause: FIRST_PAUSE, store, clean: true }
    }

    /// Tries what is the same when it is done twice, until there is an answer or no sense in it any more.
    ///
    /// # Cancel safety
    /// As of the attempt.
    pub async fn insist<T, F>(&mut self, mut attempt: impl FnMut() -> F) -> crate::Result<T>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        loop {
            match self.limit(attempt()).await {
                Ok(said) => return Ok(said),
                Err(failure) if self.again(&failure).await => {}
                Err(failure) => return Err(failure.error),
            }
        }
    }

    /// The same for what is not: only what certainly was not executed is tried again.
    ///
    /// # Cancel safety
    /// As of the attempt.
    pub async fn once<T, F>(&mut self, attempt: impl Fn() -> F) -> crate::Result<T>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let refused = |failure: Failure| Failure { again: failure.again && failure.fate == Fate::Refused, ..failure };
        let attempt = || {
            let attempt = attempt();
            async move { attempt.await.map_err(refused) }
        };
        self.insist(attempt).await
    }

    /// One try. Without an answer in time nothing is known of it.
    ///
    /// # Cancel safety
    /// As of the attempt.
    pub async fn limit<T>(&self, attempt: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        match tokio::time::timeout(self.deadline.since(Instant::now()), attempt).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure { error: self.silent(), fate: Fate::Unknown, again: false }),
        }
    }

    /// Whether to try again, after a pause.
    ///
    /// # Cancel safety
    /// Dropped, it has only not paused.
    pub async fn again(&mut self, failure: &Failure) -> bool {
        self.clean &= failure.fate == Fate::Refused;
        failure.again && self.pause().await
    }

    /// Waits a moment; whether there is time left after it.
    ///
    /// # Cancel safety
    /// Dropped, it has only not paused.
    pub(crate) async fn pause(&mut self) -> bool {
        let pause = self.pause / 2 + jitter(self.pause / 2);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        if Instant::now() + pause >= self.deadline {
            return false;
        }
        Clock::Boot.sleep_until(Instant::now() + pause).await;
        true
    }

    fn silent(&self) -> Error {
        Error::new(ErrorKind::Unavailable, format!("no answer within {:?}", self.limit))
            .with_store(self.store.clone())
            .with_hint("Is the server reachable from here, and is nothing keeping it busy?")
    }
}
