//! Whether a history was as promised: FAILURES' properties, each a small pass over the events.
//!
//! Two independent looks at the same run. [`store`] replays what the store answered against the entry rule; [`holders`]
//! looks only at what guards told their owners. A bug in either side of the contract shows in one of them.

mod holders;
mod store;

use crate::history::History;
use crate::plan::Plan;

/// What was not as promised.
pub(crate) fn check(history: &History, plan: &Plan) -> Vec<String> {
    let (mut violations, grants) = store::check(history, plan);
    violations.extend(holders::check(history, &grants));
    violations
}
