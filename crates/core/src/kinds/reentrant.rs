//! A mutex that its owner may enter again.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use crate::client::Asker;
use crate::guard::Lease;
use crate::options::options;
use crate::{ClaimId, Client, Guard, LockName, Mode, Result, Wait};

/// Who may re-enter: an explicit value, handed from call to call, never a thread or a task.
///
/// Clones are the same owner. Two owners exclude each other, also inside one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(ClaimId);

impl Owner {
    /// A new owner, different from every other.
    pub fn new(client: &Client) -> Self {
        Owner(client.environment().claim_id())
    }
}

/// What an owner holds of a name, if anything; the outer mutex lets one of an owner's tasks ask at a time.
type Slot = Arc<tokio::sync::Mutex<Weak<Lease>>>;
pub(crate) type Slots = HashMap<(LockName, Owner), Slot>;

/// A mutex that an [`Owner`] may enter again while it is inside: every guard of one hold has the same token, and the last
/// one to go lets go. To everybody else it is the [`Mutex`](crate::Mutex) of that name.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// # let client = tenure_core::Client::new(tenure_core::memory::Memory::new().backend())?;
/// use tenure_core::Owner;
/// let (mutex, me) = (client.reentrant_mutex("tree")?, Owner::new(&client));
/// let outer = mutex.lock(&me).await?;
/// let inner = mutex.lock(&me).await?;
/// assert_eq!(outer.token(), inner.token());
/// # drop((outer, inner));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ReentrantMutex {
    pub(crate) ask: Asker,
}

options!(ReentrantMutex);

impl ReentrantMutex {
    /// Locks for this owner, waiting for as long as it takes. At once if the owner is inside.
    ///
    /// # Cancel safety
    /// Dropping it gives up the place in line and leaves nothing behind.
    pub async fn lock(&self, owner: &Owner) -> Result<Guard> {
        loop {
            if let Some(guard) = self.enter(owner, Wait::Forever).await? {
                return Ok(guard);
            }
        }
    }

    /// Locks for this owner if it is inside or nobody is; `None` otherwise.
    ///
    /// # Cancel safety
    /// Dropping it leaves nothing behind.
    pub async fn try_lock(&self, owner: &Owner) -> Result<Option<Guard>> {
        self.enter(owner, Wait::No).await
    }

    /// Locks for this owner if that is possible within `wait`.
    ///
    /// # Cancel safety
    /// Dropping it gives up the place in line and leaves nothing behind.
    pub async fn try_lock_for(&self, owner: &Owner, wait: Duration) -> Result<Option<Guard>> {
        self.enter(owner, Wait::For(wait)).await
    }

    async fn enter(&self, owner: &Owner, wait: Wait) -> Result<Option<Guard>> {
        let (slot, clock) = (self.slot(owner), self.ask.client.environment().clock);
        let deadline = wait.deadline(clock.now());
        // An owner's own other task may be asking all the while. The store has a limit of its own: there a free lock is had
        // however short the wait, if its answer takes longer.
        let mut inside = match wait {
            Wait::No => match slot.try_lock() {
                Ok(inside) => inside,
                Err(_) => return Ok(None),
            },
            Wait::For(_) => tokio::select! {
                biased;
                inside = slot.lock() => inside,
                () = clock.sleep_until(deadline) => return Ok(None),
            },
            Wait::Forever => slot.lock().await,
        };
        let wait = wait.left(deadline, clock.now());
        if let Some(lease) = inside.upgrade() {
            // Entering a hold that is lost would hide the loss from the inner section.
            return if lease.is_trusted() { Ok(Some(self.guard(lease))) } else { Err(lease.lost()) };
        }
        let Some(lease) = self.ask.ask_for_lease(Mode::Exclusive, wait).await? else { return Ok(None) };
        let lease = Arc::new(lease);
        *inside = Arc::downgrade(&lease);
        Ok(Some(self.guard(lease)))
    }

    fn guard(&self, lease: Arc<Lease>) -> Guard {
        Guard::new(lease, Mode::Exclusive, self.ask.keys.clone())
    }

    fn slot(&self, owner: &Owner) -> Slot {
        let mut slots = self.ask.client.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(&(self.ask.name.clone(), owner.clone())) {
            return Arc::clone(slot);
        }
        // Slots of holds that are over go when a new one comes: as many stay as were ever held at once.
        slots.retain(|_, slot| {
            Arc::strong_count(slot) > 1 || slot.try_lock().map_or(true, |inside| inside.strong_count() > 0)
        });
        let slot = Slot::default();
        slots.insert((self.ask.name.clone(), owner.clone()), Arc::clone(&slot));
        slot
    }
}
