//! The cases, a file for each promise. Which of them there are is said once, in [`cases!`](crate::cases).
//!
//! All are `async fn case(scene: &Scene)`; those of [`mutex`] also take the kind that plays the mutex.

pub mod blocking;
pub mod boxed;
pub mod cancel;
pub mod cell;
pub mod check;
pub mod closing;
pub mod delays;
pub mod downgrade;
pub mod durations;
pub mod election;
pub mod fair;
pub mod fencing;
mod line;
pub mod loss;
pub mod multi;
pub mod mutex;
pub mod names;
pub mod options;
pub mod process;
pub mod reentrant;
pub mod renewal;
pub mod residue;
pub mod rw;
pub mod semaphore;
pub mod view;

use std::time::Duration;

/// A ttl that no case outlives: what is still held after [`LIMIT`](crate::LIMIT) was leaked, and not about to expire.
///
/// A waiter that is renewed is let in for two seconds at first, and a machine that stands still for that long loses the hold as it
/// should. So a case that is not about renewal does not keep what it waits for: `keep(false)` has its whole ttl from the start.
const LONG: Duration = Duration::from_secs(600);
/// A machine that stands still for so long may lose a hold of two seconds or a bit more, though it is renewed: a quarter of that.
pub(crate) const STANDS_STILL: Duration = Duration::from_millis(500);
/// A ttl for cases that wait for its end.
const SHORT: Duration = Duration::from_millis(300);
