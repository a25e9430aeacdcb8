//! The seven kinds: thin words over one ask.

mod election;
mod fair;
mod multi;
mod mutex;
pub(crate) mod reentrant;
mod rw;
mod semaphore;

pub use election::{Election, Leader, Observer};
pub use fair::FairMutex;
pub use multi::{Multi, MultiGuard};
pub use mutex::Mutex;
pub use reentrant::{Owner, ReentrantMutex};
pub use rw::RwLock;
pub use semaphore::Semaphore;

/// Gives a kind that is held alone its three ways of locking.
macro_rules! exclusive {
    ($kind:ident) => {
        impl $kind {
            /// Locks, waiting for as long as it takes.
            ///
            /// # Cancel safety
            /// Dropping it gives up the place in line and leaves nothing behind.
            pub async fn lock(&self) -> $crate::Result<$crate::Guard> {
                self.ask.ask_for_ever($crate::Mode::Exclusive).await
            }

            /// Locks if it is free; `None` if it is not.
            ///
            /// # Cancel safety
            /// Dropping it leaves nothing behind.
            pub async fn try_lock(&self) -> $crate::Result<Option<$crate::Guard>> {
                self.ask.ask($crate::Mode::Exclusive, $crate::Wait::No).await
            }

            /// Locks if that is possible within `wait`; `None` if it is not.
            ///
            /// # Cancel safety
            /// Dropping it gives up the place in line and leaves nothing behind.
            pub async fn try_lock_for(&self, wait: std::time::Duration) -> $crate::Result<Option<$crate::Guard>> {
                self.ask.ask($crate::Mode::Exclusive, $crate::Wait::For(wait)).await
            }
        }
    };
}
pub(crate) use exclusive;
