//! Random histories show something only if what matters happened in them.

use std::collections::BTreeMap;

/// Has histories run, which count what they saw, until everything of this list was seen, ten times at most; panics with what
/// never was.
#[track_caller]
pub fn until_all_are_seen(everything: &[&'static str], mut histories: impl FnMut(&mut BTreeMap<&'static str, u32>)) {
    let mut seen = BTreeMap::new();
    for _ in 0..10 {
        histories(&mut seen);
        if everything.iter().all(|what| seen.contains_key(what)) {
            return;
        }
    }
    let missing: Vec<_> = everything.iter().filter(|what| !seen.contains_key(*what)).collect();
    panic!("never happened in all these histories: {missing:?}; but {seen:?}");
}
