//! Several names as one lock.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::client::Asker;
use crate::options::options;
use crate::{Client, Error, ErrorKind, Guard, Instant, Kind, LockName, Mode, Result, Token, Wait};

/// Several names as one lock: all of them or none. Names are sorted and taken once each, so two multi-locks that share
/// names cannot wait for each other in a circle. Each name is the [`Mutex`](crate::Mutex) of that name to everybody else.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// # let client = tenure_core::Client::new(tenure_core::memory::Memory::new().backend())?;
/// let transfer = client.multi(["account/7", "account/3", "account/7"])?;
/// let guard = transfer.lock().await?;
/// assert_eq!(guard.tokens().count(), 2);
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Multi {
    asks: Vec<Asker>,
}

options!(Multi: setters);

impl Multi {
    pub(crate) fn new<N: AsRef<str>>(client: &Client, names: impl IntoIterator<Item = N>) -> Result<Self> {
        let names: BTreeSet<LockName> = names.into_iter().map(LockName::new).collect::<Result<_>>()?;
        if names.is_empty() {
            return Err(Error::new(ErrorKind::BadName, "a multi-lock needs at least one name"));
        }
        let asks = names.iter().map(|name| client.asker(name.as_str(), Kind::Mutex)).collect::<Result<_>>()?;
        Ok(Multi { asks })
    }

    /// The names, in the order in which they are taken.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.asks.iter().map(|ask| &ask.name)
    }

    fn asker(&self) -> &Asker {
        &self.asks[0]
    }

    fn set(mut self, set: impl Fn(&mut Asker)) -> Self {
        self.asks.iter_mut().for_each(set);
        self
    }

    /// Locks all names, waiting for as long as it takes.
    ///
    /// # Cancel safety
    /// Dropping it lets go of what was taken so far and leaves nothing behind.
    pub async fn lock(&self) -> Result<MultiGuard> {
        loop {
            if let Some(guard) = self.take(Wait::Forever).await? {
                return Ok(guard);
            }
        }
    }

    /// Locks all names if all are free; `None` if one is not, and then none is held.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.take(Wait::No).await
    }

    /// Locks all names if that is possible within `wait` altogether.
    ///
    /// # Cancel safety
    /// Dropping it lets go of what was taken so far and leaves nothing behind.
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>> {
        self.take(Wait::For(wait)).await
    }

    async fn take(&self, wait: Wait) -> Result<Option<MultiGuard>> {
        let clock = self.asks[0].client.environment().clock;
        let deadline = wait.deadline(clock.now());
        let mut taken = MultiGuard { guards: Vec::with_capacity(self.asks.len()) };
        for ask in &self.asks {
            match ask.ask(Mode::Exclusive, wait.left(deadline, clock.now())).await {
                Ok(Some(guard)) => taken.guards.push(guard),
                Ok(None) => {
                    taken.give_up().await;
                    return Ok(None);
                }
                Err(error) => {
                    taken.give_up().await;
                    return Err(error);
                }
            }
        }
        // Waiting for the last may have outlasted the first: never a partial hold.
        if taken.check().is_err() {
            taken.give_up().await;
            return Ok(None);
        }
        Ok(Some(taken))
    }
}

/// A held multi-lock: a [`Guard`] for each name, and the weakest of them speaks for all.
#[must_use = "a guard that is dropped at once releases its locks at once"]
#[derive(Debug)]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl MultiGuard {
    /// The guards, in the order of their names.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Each name's fencing number.
    pub fn tokens(&self) -> impl Iterator<Item = (&LockName, Token)> {
        self.guards.iter().map(|guard| (guard.name(), guard.token()))
    }

    /// The smallest of the windows.
    pub fn valid_until(&self) -> Instant {
        self.guards.iter().map(Guard::valid_until).min().unwrap_or(Instant::NEVER)
    }

    /// `Ok` while every one of them may be trusted.
    pub fn check(&self) -> Result<()> {
        self.guards.iter().try_for_each(Guard::check)
    }

    /// Completes when the first of them may no longer be trusted.
    ///
    /// # Cancel safety
    /// Dropping it stops listening, nothing else.
    pub async fn lost(&self) {
        first(self.guards.iter().map(Guard::lost)).await
    }

    /// Completes when somebody has asked for one of them.
    ///
    /// # Cancel safety
    /// Dropping it stops listening; the request stays.
    pub async fn asked(&self) -> crate::Ask {
        first(self.guards.iter().map(Guard::asked)).await
    }

    /// Runs a future for as long as all of them may be trusted. See [`Guard::run`].
    ///
    /// # Cancel safety
    /// Dropping it drops the future; the locks stay held.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output> {
        tokio::pin!(work);
        let lost = self.lost();
        tokio::pin!(lost);
        std::future::poll_fn(move |context| {
            self.check()?;
            if lost.as_mut().poll(context).is_ready() {
                return std::task::Poll::Ready(Err(self.guards[0].lease.lost()));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Lets go of all of them, the last one taken first. The first error is given, but all are tried.
    ///
    /// # Cancel safety
    /// Dropping it hands the rest to the background.
    pub async fn release(mut self) -> Result<()> {
        let mut answer = Ok(());
        while let Some(guard) = self.guards.pop() {
            let released = guard.release().await;
            answer = answer.and(released);
        }
        answer
    }
}

impl MultiGuard {
    /// Lets go of what was taken in vain. What cannot be confirmed now goes on in the background.
    async fn give_up(mut self) {
        while let Some(guard) = self.guards.pop() {
            let _ = guard.give_up().await;
        }
    }
}

/// The first of several futures to complete.
async fn first<F: Future>(futures: impl Iterator<Item = F>) -> F::Output {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        futures
            .iter_mut()
            .map(|future| future.as_mut().poll(context))
            .find(std::task::Poll::is_ready)
            .unwrap_or(std::task::Poll::Pending)
    })
    .await
}
