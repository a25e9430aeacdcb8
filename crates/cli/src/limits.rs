//! What options may say, in words of ours.

use std::num::NonZeroU32;

use tenure::MIN_TTL;

use crate::duration;
use crate::failure::Failure;
use crate::guarded::HoldArgs;

/// Whether the limits of a hold go together.
pub(crate) fn check(hold: &HoldArgs) -> Result<(), Failure> {
    let Some(longest) = hold.max_hold else { return Ok(()) };
    if longest < MIN_TTL {
        let what =
            format!("--max-hold {} is too short: it is at least {}", duration::show(longest), duration::show(MIN_TTL));
        return Err(Failure::new(what).with_hint("Leave it out to hold the lock for as long as the command runs"));
    }
    let Some(least) = hold.min_hold.filter(|least| *least > longest) else { return Ok(()) };
    let what = format!("--min-hold {} is longer than --max-hold {}", duration::show(least), duration::show(longest));
    Err(Failure::new(what).with_hint("The lock is lost when --max-hold is over: choose a --min-hold that is not longer"))
}

/// Reads a number of permits.
pub(crate) fn permits(text: &str) -> Result<NonZeroU32, String> {
    let bad = "that is no number of permits. It is a whole number, at least 1: `--permits 1` is one holder at a time";
    text.parse().map_err(|_| bad.to_owned())
}
