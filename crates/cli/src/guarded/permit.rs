//! Permit numbers: `TENURE_PERMIT`.
//!
//! A store counts permits and does not number them. So whoever has acquired a permit of NAME also acquires one of the mutexes
//! `NAME/permit/0` to `NAME/permit/N-1` for each permit it took, the lowest that is free. They are held with the same options and
//! under the same rules of loss, and released before the permit. With N permits at most N numbers are in use: one is free as
//! soon as a permit is, or, after a holder that died, when its last mutex has run out too.

use std::time::Duration;

use tenure::{Client, Clock, Guard, Instant, LockName, Note, Result, Wait};

use super::args::HoldArgs;
use super::lock::{Lock, Shape};

/// What the numbers of a name are acquired with.
pub(super) struct Numbers<'a> {
    pub(super) client: &'a Client,
    pub(super) name: &'a LockName,
    pub(super) hold: &'a HoldArgs,
    pub(super) note: &'a Note,
}

impl Numbers<'_> {
    /// Acquires `take` of the numbers below `of`, in ascending order; `None` if that took too long.
    ///
    /// # Cancel safety
    /// Dropping it releases what was acquired.
    pub(super) async fn acquire(
        &self,
        take: u32,
        of: u32,
        patience: Wait,
        deadline: Instant,
    ) -> Result<Option<Vec<(u32, Guard)>>> {
        let mut taken: Vec<(u32, Guard)> = Vec::new();
        loop {
            for number in 0..of {
                if taken.len() == take as usize {
                    break;
                }
                if taken.iter().all(|(mine, _)| *mine != number)
                    && let Some(guard) = self.lock(number)?.acquire(Wait::No).await?
                {
                    taken.push((number, guard));
                }
            }
            if taken.len() == take as usize {
                taken.sort_by_key(|(number, _)| *number);
                return Ok(Some(taken));
            }
            if patience == Wait::No || deadline <= Instant::now() {
                return Ok(None);
            }
            Clock::Boot.sleep_until(deadline.min(Instant::now() + PAUSE)).await;
        }
    }

    fn lock(&self, number: u32) -> Result<Lock> {
        let name = LockName::new(format!("{}/permit/{number}", self.name))?;
        Lock::new(self.client, &name, Shape::Mutex, self.hold, self.note)
    }
}

/// Before all numbers are tried again.
const PAUSE: Duration = Duration::from_millis(50);
