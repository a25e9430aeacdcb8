//! One holder at a time.

use crate::client::Asker;
use crate::kinds::exclusive;
use crate::options::options;

/// A lock with one holder at a time. Which of several waiters is next is the store's choice: usually the one that asked
/// first, but a newcomer may get in ahead of a waiter that is on its way. See [`FairMutex`](crate::FairMutex) for strict
/// order.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// # let client = tenure_core::Client::new(tenure_core::memory::Memory::new().backend())?;
/// let mutex = client.mutex("nightly-report")?.note("started by cron")?;
/// if let Some(guard) = mutex.try_lock().await? {
///     // nobody else runs it tonight
///     guard.release().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    pub(crate) ask: Asker,
}

options!(Mutex);
exclusive!(Mutex);
