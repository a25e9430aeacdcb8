//! Stopping a process where it keeps nothing from others.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// SIGSTOP, and waits until it stands still outside of a transaction on a file. In the middle of one it would keep the file from
/// everybody for as long as it stands, which is known of files (GUARANTEES), and hides what a test wants to see.
///
/// Panics if there is no such process of ours.
pub fn stop_between_writes(pid: Pid) {
    loop {
        kill_process(pid, Signal::STOP).expect("it is ours and lives");
        while !stands_still(pid) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !writes_to_a_file(pid) {
            return;
        }
        kill_process(pid, Signal::CONT).expect("it is ours and lives");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Stopped with all its threads, or no more.
pub(crate) fn stands_still(pid: Pid) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_pid())).into_iter().flatten().flatten();
    tasks.filter_map(|task| state(&task.path().join("stat"))).all(|state| matches!(state, 'T' | 'Z' | 'X'))
}

/// `R`unning, `S`leeping, s`T`opped …
fn state(stat: &std::path::Path) -> Option<char> {
    std::fs::read_to_string(stat).ok()?.rsplit_once(") ")?.1.chars().next()
}

/// Whether the kernel knows an exclusive lock of it, as SQLite takes one to write: `1: POSIX  ADVISORY  WRITE 4321 08:01:77 120 120`.
fn writes_to_a_file(pid: Pid) -> bool {
    let pid = pid.to_string();
    let locks = std::fs::read_to_string("/proc/locks").expect("Linux has it");
    locks.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.contains(&"WRITE") && words.contains(&&*pid)
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::fs::{FlockOperation, fcntl_lock};
    use rustix::process::getpid;

    use super::*;

    #[test]
    fn a_write_is_seen() {
        let file = tempfile::tempfile().expect("a temporary file");
        fcntl_lock(&file, FlockOperation::LockExclusive).expect("nobody else has it");
        assert!(writes_to_a_file(getpid()));
    }

    #[test]
    fn who_writes_nothing_stands_at_once() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("it starts");
        let pid = Pid::from_raw(child.id() as i32).expect("a child has a process id");
        stop_between_writes(pid);
        assert!(stands_still(pid) && !writes_to_a_file(pid));
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }
}
