//! Many readers or one writer.

use std::time::Duration;

use crate::client::Asker;
use crate::options::options;
use crate::{Guard, Mode, Result, Wait};

/// Many readers or one writer. Phase-fair: readers that come after a waiting writer queue behind it, so neither a stream
/// of readers nor a stream of writers starves the other.
///
/// A writer may [`downgrade`](Guard::downgrade). A reader that wants to write releases and locks
/// for writing: two readers that waited for each other to leave would wait for ever.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// # let client = tenure_core::Client::new(tenure_core::memory::Memory::new().backend())?;
/// let catalogue = client.rw_lock("catalogue")?;
/// let (one, other) = (catalogue.read().await?, catalogue.read().await?);
/// assert!(catalogue.try_write().await?.is_none());
/// # drop((one, other));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    pub(crate) ask: Asker,
}

options!(RwLock);

impl RwLock {
    /// Locks for reading, waiting for as long as it takes.
    ///
    /// # Cancel safety
    /// Dropping it gives up the place in line and leaves nothing behind.
    pub async fn read(&self) -> Result<Guard> {
        self.ask.ask_for_ever(Mode::Shared).await
    }

    /// Locks for reading if no writer holds it or waits for it; `None` otherwise.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn try_read(&self) -> Result<Option<Guard>> {
        self.ask.ask(Mode::Shared, Wait::No).await
    }

    /// Locks for reading if that is possible within `wait`.
    ///
    /// # Cancel safety
    /// Dropping it gives up the place in line and leaves nothing behind.
    pub async fn try_read_for(&self, wait: Duration) -> Result<Option<Guard>> {
        self.ask.ask(Mode::Shared, Wait::For(wait)).await
    }

    /// Locks for writing, waiting for as long as it takes.
    ///
    /// # Cancel safety
    /// Dropping it gives up the place in line and leaves nothing behind.
    pub async fn write(&self) -> Result<Guard> {
        self.ask.ask_for_ever(Mode::Exclusive).await
    }

    /// Locks for writing if nobody holds it or waits for it; `None` otherwise.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn try_write(&self) -> Result<Option<Guard>> {
        self.ask.ask(Mode::Exclusive, Wait::No).await
    }

    /// Locks for writing if that is possible within `wait`.
    ///
    /// # Cancel safety
    /// Dropping it gives up the place in line and leaves nothing behind.
    pub async fn try_write_for(&self, wait: Duration) -> Result<Option<Guard>> {
        self.ask.ask(Mode::Exclusive, Wait::For(wait)).await
    }
}
