//! Looking until everybody shows what they hold.

use std::time::Duration;

use tenure_core::Instant;

/// How long whoever looks waits for others to show what they have held for only a moment.
const SHOWN_WITHIN: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_millis(3);

/// Looks that are repeated while something is missing from what they see: a hold of a few milliseconds is not shown yet, and
/// where somebody shows nothing at all, that is so.
#[derive(Debug)]
pub(super) struct Looks {
    end: Instant,
    fewest: u64,
}

impl Default for Looks {
    fn default() -> Self {
        Looks { end: Instant::now() + SHOWN_WITHIN, fewest: u64::MAX }
    }
}

impl Looks {
    /// Whether to make do with what was seen, of which so many are missing; else there was a pause. It goes on for as long as
    /// there are fewer and fewer.
    ///
    /// # Cancel safety
    /// It only waits.
    pub(super) async fn were_enough(&mut self, missing: u64) -> bool {
        let now = Instant::now();
        if missing < self.fewest {
            (self.fewest, self.end) = (missing, now + SHOWN_WITHIN);
        }
        if missing == 0 || now >= self.end {
            return true;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        false
    }
}
