//! The optimistic lock: write only if nobody wrote since you read.

use crate::retry::Retries;
use crate::{Client, Error, ErrorKind, LockName, Result};

/// A value that is only written if nobody wrote it since it was read: no lock is held while you think.
///
/// For short changes with few contenders it is cheaper than a lock, and nobody can hold it up. Versions rise and never
/// start over, also when a cell is removed and made anew.
///
/// A value that lives in a table of your own is not a cell: give that table a version column, and use
/// [`Retries`](crate::retry::Retries) around reading and writing it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// # let client = tenure_core::Client::new(tenure_core::memory::Memory::new().backend())?;
/// let stock = client.cell("stock/lamp")?;
/// stock.set_if(0, "3").await?;
/// let left = stock
///     .update(|value| {
///         let left: u32 = std::str::from_utf8(value?).ok()?.parse().ok()?;
///         left.checked_sub(1).map(|left| left.to_string().into_bytes())
///     })
///     .await?;
/// assert_eq!(left.and_then(|(value, _)| value).as_deref(), Some(&b"2"[..]));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Cell {
    pub(crate) name: LockName,
    pub(crate) client: Client,
}

/// A cell's value, or `None` if it has none, and its version.
pub type Versioned = (Option<Vec<u8>>, u64);

/// The largest value, in bytes.
const MAX_BYTES: usize = 64 * 1024;

impl Cell {
    /// The value and its version; `(None, 0)` if there is none.
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn get(&self) -> Result<Versioned> {
        self.client.backend().cell_get(&self.name).await.map_err(|error| error.with_name(&self.name))
    }

    /// Writes if the version is still `version`: the new version, or `None` if somebody was faster. Version 0 means that
    /// there is no value yet. Values have at most 64 KiB.
    ///
    /// # Cancel safety
    /// Dropped before it completes, the value may or may not have been written: read again.
    pub async fn set_if(&self, version: u64, value: impl AsRef<[u8]>) -> Result<Option<u64>> {
        self.write(version, Some(value.as_ref())).await
    }

    /// Removes the value if the version is still `version`; whether it did.
    ///
    /// # Cancel safety
    /// Dropped before it completes, the value may or may not have been removed: read again.
    pub async fn remove_if(&self, version: u64) -> Result<bool> {
        Ok(self.write(version, None).await?.is_some())
    }

    /// Reads, changes and writes, again if somebody was faster, up to 64 times with growing random pauses. `change` gets
    /// the value and gives the new one, or `None` to leave it as it is, which ends the update with `None`.
    ///
    /// # Cancel safety
    /// Dropped before it completes, the value may or may not have been changed: read again.
    pub async fn update(&self, mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>) -> Result<Option<Versioned>> {
        let mut retries = Retries::within(self.client.environment());
        loop {
            let (value, version) = self.get().await?;
            let Some(changed) = change(value.as_deref()) else { return Ok(None) };
            if let Some(version) = self.set_if(version, &changed).await? {
                return Ok(Some((Some(changed), version)));
            }
            retries.pause().await.map_err(|error| error.with_name(&self.name).with_store(self.client.describe()))?;
        }
    }

    async fn write(&self, version: u64, value: Option<&[u8]>) -> Result<Option<u64>> {
        if let Some(value) = value.filter(|value| value.len() > MAX_BYTES) {
            let what = format!("a cell's value may have at most {MAX_BYTES} bytes, this one has {}", value.len());
            return Err(Error::new(ErrorKind::BadOption, what).with_name(&self.name));
        }
        self.client.backend().cell_set(&self.name, version, value).await.map_err(|error| error.with_name(&self.name))
    }
}
