//! A number of permits.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::client::Asker;
use crate::options::options;
use crate::{Error, ErrorKind, Guard, Mode, Result, Wait};

/// A number of permits, taken one or several at a time. Strictly in order: a large request that waits is not starved by
/// small ones that would still fit.
///
/// Each guard is a holder of its own with a lease of its own, so a crash costs its permits for a ttl and not for ever.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// # let client = tenure_core::Client::new(tenure_core::memory::Memory::new().backend())?;
/// let connections = client.semaphore("connections to the archive", 3)?;
/// let (one, two) = (connections.acquire(1).await?, connections.acquire(2).await?);
/// assert!(connections.try_acquire(1).await?.is_none());
/// # drop((one, two));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    pub(crate) ask: Asker,
    pub(crate) of: NonZeroU32,
}

options!(Semaphore);

impl Semaphore {
    /// Takes `permits`, waiting for as long as it takes.
    ///
    /// # Cancel safety
    /// Dropping it gives up the place in line and leaves nothing behind.
    pub async fn acquire(&self, permits: u32) -> Result<Guard> {
        self.ask.ask_for_ever(self.mode(permits)?).await
    }

    /// Takes `permits` if they are free and nobody waits before; `None` otherwise.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<Guard>> {
        self.ask.ask(self.mode(permits)?, Wait::No).await
    }

    /// Takes `permits` if that is possible within `wait`.
    ///
    /// # Cancel safety
    /// Dropping it gives up the place in line and leaves nothing behind.
    pub async fn try_acquire_for(&self, permits: u32, wait: Duration) -> Result<Option<Guard>> {
        self.ask.ask(self.mode(permits)?, Wait::For(wait)).await
    }

    /// How many permits there are.
    pub fn permits(&self) -> u32 {
        self.of.get()
    }

    fn mode(&self, permits: u32) -> Result<Mode> {
        match NonZeroU32::new(permits) {
            Some(take) if take <= self.of => Ok(Mode::Permits { take, of: self.of }),
            _ => {
                let what = format!("{permits} permits cannot be had of {}", self.of);
                Err(Error::new(ErrorKind::BadOption, what).with_name(&self.ask.name))
            }
        }
    }
}
