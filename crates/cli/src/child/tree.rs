//! Who descends from a process, read from `/proc`.
//!
//! On Linux we are a *subreaper*: a process whose parent died becomes our child, never init's. So
//! everything started under the lock stays below us, daemons and `setsid` included, and `/proc` can
//! tell. Elsewhere only the command's process group is known, and these lists are empty.
//!
//! A number read from `/proc` may belong to another process a moment later. Signals therefore go
//! through a [`Handle`].

use std::collections::HashMap;
use std::fs;
use std::io;

use rustix::process::{Pid, Signal, getpid};

/// Makes orphaned descendants our children. Must come before the first of them is started.
pub(super) fn adopt_orphans() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(getpid()))?;
    Ok(())
}

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) parent: Pid,
    pub(super) group: Pid,
    /// A zombie has ended, but is still in its parent's list.
    pub(super) lives: bool,
}

impl Stat {
    pub(super) fn of(pid: Pid) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(line: &str) -> Option<Self> {
        // The second field is a name that may itself contain blanks and brackets; the last bracket
        // closes it. Then: state, parent, group.
        let (_, rest) = line.rsplit_once(')')?;
        let mut fields = rest.split_ascii_whitespace();
        let lives = !matches!(fields.next()?, "Z" | "X");
        Some(Stat { parent: parse_pid(fields.next()?)?, group: parse_pid(fields.next()?)?, lives })
    }
}

/// One particular process, whatever its number comes to mean.
#[derive(Debug)]
pub(super) struct Handle {
    #[cfg(target_os = "linux")]
    fd: std::os::fd::OwnedFd,
}

#[cfg(target_os = "linux")]
impl Handle {
    pub(super) fn open(pid: Pid) -> Option<Self> {
        let fd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()?;
        Some(Self { fd })
    }

    pub(super) fn signal(&self, signal: Signal) {
        // It may have ended, or be a set-user-ID program that does not take our signals.
        let _ = rustix::process::pidfd_send_signal(&self.fd, signal);
    }

    pub(super) fn has_ended(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    }
}

#[cfg(not(target_os = "linux"))]
impl Handle {
    pub(super) fn open(_pid: Pid) -> Option<Self> {
        None
    }

    pub(super) fn signal(&self, _signal: Signal) {}

    pub(super) fn has_ended(&self) -> bool {
        false
    }
}

/// A handle on `pid` if it lives and `is_meant`.
pub(super) fn open_if(pid: Pid, is_meant: impl FnOnce(Stat) -> bool) -> Option<Handle> {
    let handle = Handle::open(pid)?;
    // Read after opening: if the number means another process by now, its parent tells; if it comes
    // to do so later, the handle is on the one that has ended.
    let stat = Stat::of(pid)?;
    (stat.lives && is_meant(stat)).then_some(handle)
}

/// The children of `root`, living and dead.
///
/// Complete if `root` removes none meanwhile: a dead child stays in the list until it is reaped.
pub(super) fn children(root: Pid) -> Vec<Pid> {
    listed_children(root).unwrap_or_else(|| family().remove(&root).unwrap_or_default())
}

/// All processes below `root`, parents before their children, without the children in `except` and theirs.
///
/// Below the children of `root` this is a snapshot of something that moves. A process missed today
/// becomes the subreaper's child when its parent dies, so whoever wants them all gone asks again.
pub(super) fn below(root: Pid, except: &[Pid]) -> Vec<Pid> {
    let mut found = children(root);
    found.retain(|pid| !except.contains(pid));
    let mut family: Option<HashMap<Pid, Vec<Pid>>> = None;
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        next += 1;
        let more = match &family {
            Some(family) => family.get(&parent).cloned().unwrap_or_default(),
            None => match listed_children(parent) {
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

/// Calls `act` with every living process below `root`, as [`below`] has them.
pub(super) fn each_below(root: Pid, except: &[Pid], mut act: impl FnMut(Pid, Stat, Handle)) {
    let found = below(root, except);
    for &pid in &found {
        let mut seen = None;
        let handle = open_if(pid, |stat| {
            seen = Some(stat);
            stat.parent == root || found.contains(&stat.parent)
        });
        if let (Some(handle), Some(stat)) = (handle, seen) {
            act(pid, stat, handle);
        }
    }
}

/// The program's name, as the kernel has it.
pub(crate) fn name_of(pid: Pid) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// The children of `pid` by the kernel's own list, one file a thread.
fn listed_children(pid: Pid) -> Option<Vec<Pid>> {
    let mut children = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
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
    for (pid, stat) in everybody() {
        family.entry(stat.parent).or_default().push(pid);
    }
    family
}

/// Every process of the machine that has a parent.
pub(super) fn everybody() -> Vec<(Pid, Stat)> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|process| parse_pid(process.file_name().to_str()?));
    pids.filter_map(|pid| Some((pid, Stat::of(pid)?))).collect()
}

/// The process group of `pid`, also when it is a zombie.
pub(super) fn group_of(pid: Pid) -> Option<Pid> {
    Stat::of(pid).map(|stat| stat.group)
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
        assert_eq!(Stat::parse(stat), Some(Stat { parent: pid(7), group: pid(9), lives: true }));
        assert!(!Stat::parse("42 (a) Z 7 9 9").unwrap().lives);
    }

    #[test]
    fn what_is_no_process_is_skipped() {
        assert_eq!(Stat::parse(""), None);
        assert_eq!(Stat::parse("2 (kthreadd) S 0 0 0"), None);
        assert_eq!(parse_pid("self"), None);
        assert_eq!(parse_pid("-1"), None);
        assert_eq!(parse_pid("0"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn both_ways_of_looking_agree() {
        let mut sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let sleeper_pid = Pid::from_child(&sleeper);
        assert!(children(getpid()).contains(&sleeper_pid));
        assert!(below(getpid(), &[]).contains(&sleeper_pid));
        assert!(!below(getpid(), &[sleeper_pid]).contains(&sleeper_pid));
        assert!(family()[&getpid()].contains(&sleeper_pid));
        assert_eq!(group_of(sleeper_pid), group_of(getpid()));
        assert!(open_if(sleeper_pid, |stat| stat.parent != getpid()).is_none());
        let handle = open_if(sleeper_pid, |stat| stat.parent == getpid()).unwrap();
        assert!(!handle.has_ended());
        handle.signal(Signal::KILL);
        sleeper.wait().unwrap();
        assert!(handle.has_ended());
        assert!(!children(getpid()).contains(&sleeper_pid));
    }
}
