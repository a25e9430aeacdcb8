//! Waiting for conditions instead of sleeping for durations.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

/// How long anything may take that must happen in the end. Far beyond what the slowest machine needs, so that running
/// into it means that it never happens.
pub const LIMIT: Duration = Duration::from_secs(90);

/// Waits until the condition holds; panics after [`LIMIT`].
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let mut pause = Pauses::new();
        while !holds() {
            assert!(pause.next().await, "{what}: not within {LIMIT:?} (asked at {caller})");
        }
    }
}

/// The same for a condition that must be asked for.
#[track_caller]
pub fn eventually_async(what: &str, mut holds: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let mut pause = Pauses::new();
        while !holds().await {
            assert!(pause.next().await, "{what}: not within {LIMIT:?} (asked at {caller})");
        }
    }
}

/// The same for one that says why it does not hold yet, or could not be asked for: the panic has the last reason.
#[track_caller]
pub(crate) fn eventually_ok<E: Debug>(
    what: &str,
    mut holds: impl AsyncFnMut() -> Result<(), E>,
) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let mut pause = Pauses::new();
        while let Err(why) = holds().await {
            assert!(pause.next().await, "{what}: not within {LIMIT:?} (asked at {caller}), but {why:?}");
        }
    }
}

/// What a future gives; panics if it takes longer than [`LIMIT`].
#[track_caller]
pub fn in_time<F: Future>(what: &str, future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        match timeout(LIMIT, future).await {
            Ok(output) => output,
            Err(_) => panic!("{what}: not within {LIMIT:?} (asked at {caller})"),
        }
    }
}

/// Short pauses that grow: a condition that is about to hold is seen soon, one that takes long is not asked for all day.
struct Pauses {
    end: Instant,
    round: u32,
}

impl Pauses {
    fn new() -> Self {
        Pauses { end: Instant::now() + LIMIT, round: 0 }
    }

    async fn next(&mut self) -> bool {
        self.round += 1;
        match self.round {
            0..20 => tokio::task::yield_now().await,
            20..60 => sleep(Duration::from_millis(1)).await,
            _ => sleep(Duration::from_millis(10)).await,
        }
        Instant::now() < self.end
    }
}
