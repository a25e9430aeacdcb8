//! Which failures are worth another try, and for how long.

use std::future::Future;
use std::time::Duration;

use super::{Desk, Failure, Fate, jitter};
use crate::{Clock, Error, ErrorKind, Instant};

/// The first pause after a failure; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

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
