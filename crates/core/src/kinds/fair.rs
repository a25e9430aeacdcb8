//! One holder at a time, first come, first served.

use crate::client::Asker;
use crate::kinds::exclusive;
use crate::options::options;

/// A lock with one holder at a time, given strictly in the order in which the store heard of the asks. Not even
/// [`try_lock`](FairMutex::try_lock) gets in ahead of somebody who waits.
#[derive(Clone, Debug)]
pub struct FairMutex {
    pub(crate) ask: Asker,
}

options!(FairMutex);
exclusive!(FairMutex);
