//! `tenure run x` inside `tenure run x`: the inner one would wait for the outer one, which waits for the inner one.

use std::fs;
use std::time::Duration;

use tenure::{Client, Holder, Mode, View};

use super::lock::Lock;
use crate::print::is_here;

/// Completes when this process waits for a hold of a `tenure` that is an ancestor of it: that one releases the lock only after this
/// process has ended. Says which process that is.
///
/// The ancestors are read from `/proc`. Only another `tenure` with this name among its arguments counts: a program that holds the
/// lock through the library may well release it while its child waits. A `tenure hold` does not count either, since a script
/// may release it.
pub(super) async fn outer(client: &Client, lock: &Lock) -> u32 {
    let outer = ancestors(lock.name().as_str());
    if outer.is_empty() {
        return std::future::pending().await;
    }
    loop {
        tokio::time::sleep(BETWEEN_LOOKS).await;
        if let Ok(view) = client.view(lock.name().as_str()).await
            && let Some(pid) =
                in_the_way(&view, lock.mode(), |held| outer.contains(&held.origin.pid) && is_here(&held.origin))
        {
            return pid;
        }
    }
}

/// The first of `ours` among the holders, if `wanted` is not to be had for as long as they hold.
fn in_the_way(view: &View, wanted: Mode, ours: impl Fn(&Holder) -> bool) -> Option<u32> {
    let outer: Vec<&Holder> = view.holders.iter().filter(|held| !held.closing && ours(held)).collect();
    let is_blocked = match wanted {
        Mode::Exclusive => !outer.is_empty(),
        Mode::Shared => outer.iter().any(|held| held.mode == Mode::Exclusive),
        Mode::Permits { take, of } => {
            let taken = |held: &&Holder| if let Mode::Permits { take, .. } = held.mode { take.get() } else { 0 };
            outer.iter().map(taken).sum::<u32>() + take.get() > of.get()
        }
    };
    outer.first().filter(|_| is_blocked).map(|held| held.origin.pid)
}

/// The processes above this one that run this program for that name.
fn ancestors(name: &str) -> Vec<u32> {
    let program = |pid: &str| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let ours = program("self");
    let mut found = Vec::new();
    let mut next = parent("self");
    while let Some(pid) = next.filter(|pid| *pid > 1) {
        let shown = pid.to_string();
        let command = fs::read(format!("/proc/{shown}/cmdline")).unwrap_or_default();
        if program(&shown) == ours && command.split(|byte| *byte == 0).any(|argument| argument == name.as_bytes()) {
            found.push(pid);
        }
        next = parent(&shown);
    }
    found
}

fn parent(pid: &str) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_parent() {
        assert_eq!(parent("self"), Some(std::os::unix::process::parent_id()));
        assert!(ancestors("no process was started with this").is_empty());
    }
}
