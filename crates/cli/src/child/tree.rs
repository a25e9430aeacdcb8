//! Who descends from us.
//!
//! On Linux we are a *subreaper*: a process whose parent died becomes our child, never init's. So
//! everything started under the lock stays below us, daemons and `setsid` included, and `/proc` can
//! tell. Elsewhere only the command's process group is known, and these lists are empty.

use std::collections::HashMap;
use std::fs;
use std::io;

use rustix::process::{Pid, getpid};

/// Makes orphaned descendants our children. Must come before the first of them is started.
pub(super) fn adopt_orphans() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(getpid()))?;
    Ok(())
}

/// Our own children, living and dead.
///
/// Complete, because nobody but us removes an entry from this list: a dead child stays in it until
/// we reap it.
pub(super) fn children() -> Vec<Pid> {
    let me = getpid();
    children_of(me).unwrap_or_else(|| family().remove(&me).unwrap_or_default())
}

/// All processes below us, parents before their children.
///
/// Below our own children this is a snapshot of something that moves. A process missed today
/// becomes our child when its parent dies, so whoever wants them all gone asks again.
pub(super) fn descendants() -> Vec<Pid> {
    let mut found = children();
    let mut family: Option<HashMap<Pid, Vec<Pid>>> = None;
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        next += 1;
        let more = match &family {
            Some(family) => family.get(&parent).cloned().unwrap_or_default(),
            None => match children_of(parent) {
                Some(children) => children,
                // It ended since, or this kernel has no such file: one look at everything settles it.
                None => family.insert(self::family()).get(&parent).cloned().unwrap_or_default(),
            },
        };
        // A pid may be reused while we read; without this a cycle could keep us here.
        let more: Vec<Pid> = more.into_iter().filter(|p| !found.contains(p)).collect();
        found.extend(more);
    }
    found
}

/// The children of `pid` by the kernel's own list, one file a thread.
fn children_of(pid: Pid) -> Option<Vec<Pid>> {
    let mut children = Vec::new();
    for task in fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).ok()? {
        match fs::read_to_string(task.ok()?.path().join("children")) {
            Ok(list) => children.extend(list.split_ascii_whitespace().filter_map(parse_pid)),
            // A thread that just ended has handed its children to another one of the process; that
            // one may have been read already, so only the whole picture will do.
            Err(_) => return None,
        }
    }
    Some(children)
}

/// Every process of the machine by its parent: slower (milliseconds), needs no special kernel.
fn family() -> HashMap<Pid, Vec<Pid>> {
    let mut family: HashMap<Pid, Vec<Pid>> = HashMap::new();
    let Ok(processes) = fs::read_dir("/proc") else {
        return family;
    };
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(parse_pid) else {
            continue;
        };
        let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        if let Some((parent, _)) = parse_stat(&stat) {
            family.entry(parent).or_default().push(pid);
        }
    }
    family
}

/// The process group of `pid`, also when it is a zombie.
pub(super) fn group_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    parse_stat(&stat).map(|(_, group)| group)
}

/// Parent and process group from a line of `/proc/PID/stat`.
fn parse_stat(stat: &str) -> Option<(Pid, Pid)> {
    // The second field is a name that may itself contain blanks and brackets; the last bracket
    // closes it. Then: state, parent, group.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(1);
    Some((parse_pid(fields.next()?)?, parse_pid(fields.next()?)?))
}

fn parse_pid(text: &str) -> Option<Pid> {
    let raw: i32 = text.parse().ok()?;
    if raw < 0 { None } else { Pid::from_raw(raw) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pid(raw: i32) -> Pid {
        Pid::from_raw(raw).unwrap()
    }

    #[test]
    fn a_name_may_look_like_fields() {
        let stat = "42 (a) S 1 (b)) R 7 9 9 34816 9 4194304 0 0";
        assert_eq!(parse_stat(stat), Some((pid(7), pid(9))));
    }

    #[test]
    fn what_is_no_process_is_skipped() {
        assert_eq!(parse_stat(""), None);
        assert_eq!(parse_stat("2 (kthreadd) S 0 0 0"), None);
        assert_eq!(parse_pid("self"), None);
        assert_eq!(parse_pid("-1"), None);
        assert_eq!(parse_pid("0"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn both_ways_of_looking_agree() {
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let sleeper_pid = Pid::from_child(&sleeper);
        assert!(children().contains(&sleeper_pid));
        assert!(descendants().contains(&sleeper_pid));
        assert!(family()[&getpid()].contains(&sleeper_pid));
        assert_eq!(group_of(sleeper_pid), group_of(getpid()));
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(!children().contains(&sleeper_pid));
    }
}
