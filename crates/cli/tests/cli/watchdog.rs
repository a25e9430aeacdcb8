//! Tenure is stopped or killed, its watchdog too, and what has left the command's process group must not run on.
//!
//! Locks are taken with a lock-delay: it gives a machine that stands still at the wrong moment time to kill what must be dead, and
//! no case an excuse.

use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, Signal, getpgid, kill_process, prlimit};
use tenure_testkit::stop_between_writes;

use crate::support::{Running, STAY, Store, TENURE, eventually, lives, pid};

/// One in the command's group, one in a group of its own, one in a session of its own, and a daemon whose parent has gone.
/// Each says its pid; the command itself is the first.
const FOUR: &str = "echo $$
    sh -c 'echo $$; exec sleep 1000' &
    timeout 1000 sh -c 'echo $$; exec sleep 1000' &
    setsid sh -c 'echo $$; exec sleep 1000' &
    setsid sh -c 'sh -c \"echo \\$\\$; exec sleep 1000\" & exit' &
    wait";

struct Held {
    tenure: Running,
    pids: Vec<Pid>,
}

impl Held {
    fn start(store: &Store) -> Self {
        let tenure = store.start_run(&["--ttl", "3s", "--lock-delay", "20s", "x"], FOUR);
        let pids = (0..5).map(|_| pid(&tenure.line())).collect();
        Held { tenure, pids }
    }

    /// The process that tenure has beside the command.
    fn watchdog(&self) -> Option<Pid> {
        helpers_of(self.tenure.pid()).first().copied()
    }

    /// Waits until it has handles on all that have left the group: these it can kill even when tenure is no more.
    fn wait_for_handles(&self) {
        let watchdog = self.watchdog().unwrap();
        eventually("the watchdog knows who has left the group", || {
            let files = std::fs::read_dir(format!("/proc/{watchdog}/fdinfo")).unwrap().flatten();
            let infos: String = files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect();
            let has = |pid: &Pid| infos.lines().any(|line| line.split_whitespace().eq(["Pid:", &pid.to_string()]));
            let has_left = |pid: &&Pid| getpgid(Some(**pid)) != Ok(self.pids[0]);
            self.pids.iter().filter(has_left).all(has)
        });
    }

    /// The next command begins, and nothing of this one runs.
    fn must_be_dead_when_the_next_begins(self, store: &Store) {
        let next = store.start_run(&["--on-lost", "ignore", "x"], STAY);
        next.expect_line("in");
        let living: Vec<_> = self.pids.iter().filter(|pid| lives(**pid)).collect();
        assert!(living.is_empty(), "of {:?}, {living:?} run beside the next command", self.pids);
        next.end();
    }
}

/// The processes that tenure started for itself.
fn helpers_of(tenure: Pid) -> Vec<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{tenure}/task/{tenure}/children")).unwrap();
    let is_helper = |child: &Pid| {
        let line = std::fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.split('\0').nth(1) == Some("__child")
    };
    children.split_whitespace().map(pid).filter(is_helper).collect()
}

impl Drop for Held {
    /// A case that failed leaves nothing behind either.
    fn drop(&mut self) {
        for pid in &self.pids {
            let _ = kill_process(*pid, Signal::KILL);
        }
    }
}

#[test]
fn all_descendants_of_a_stopped_tenure_end_with_its_lease() {
    let store = Store::new();
    let held = Held::start(&store);
    stop_between_writes(held.tenure.pid());
    held.must_be_dead_when_the_next_begins(&store);
}

#[test]
fn all_that_the_watchdog_knew_end_with_a_killed_tenure() {
    let store = Store::new();
    let held = Held::start(&store);
    held.wait_for_handles();
    held.tenure.signal(Signal::KILL);
    held.must_be_dead_when_the_next_begins(&store);
}

/// Whether a process has a handler for a signal.
fn catches(pid: Pid, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|set| set & 1 << (signal.as_raw() - 1) != 0)
}

#[test]
fn the_watchdog_does_not_mind_signals() {
    let store = Store::new();
    let held = Held::start(&store);
    let watchdog = held.watchdog().unwrap();
    eventually("it catches signals", || catches(watchdog, Signal::TSTP));
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::ALARM, Signal::TSTP] {
        kill_process(watchdog, signal).unwrap();
    }
    stop_between_writes(held.tenure.pid());
    assert_eq!(held.watchdog(), Some(watchdog));
    held.must_be_dead_when_the_next_begins(&store);
}

#[test]
fn a_watchdog_that_was_killed_is_replaced() {
    let store = Store::new();
    let held = Held::start(&store);
    let first = held.watchdog().unwrap();
    kill_process(first, Signal::KILL).unwrap();
    eventually("there is another one", || held.watchdog().is_some_and(|watchdog| watchdog != first));
    stop_between_writes(held.tenure.pid());
    held.must_be_dead_when_the_next_begins(&store);
}

#[test]
fn a_watchdog_that_was_stopped_is_continued() {
    let store = Store::new();
    let held = Held::start(&store);
    let watchdog = held.watchdog().unwrap();
    kill_process(watchdog, Signal::STOP).unwrap();
    // It reads on, and so learns of the farewell by itself when the command ends.
    held.wait_for_handles();
    stop_between_writes(held.tenure.pid());
    held.must_be_dead_when_the_next_begins(&store);
}

/// A process that may open no file can start no other.
#[test]
fn without_a_watchdog_the_command_ends() {
    let store = Store::new();
    let held = store.start_run(&["x"], "echo $$; exec sleep 1000");
    let command = pid(&held.line());
    let no_more = Rlimit { current: Some(3), maximum: Some(3) };
    prlimit(Some(held.pid()), Resource::Nofile, no_more).unwrap();
    let [watchdog] = helpers_of(held.pid())[..] else { panic!("it has one watchdog") };
    kill_process(watchdog, Signal::KILL).unwrap();
    let ended = held.wait();
    assert_eq!(ended.code(), 125, "{ended:?}");
    assert!(ended.stderr.contains("the watchdog was killed, and another one could not be started"), "{ended:?}");
    assert!(!lives(command));
}

/// A careless program blocked signals before it started tenure.
#[test]
fn blocked_signals_do_no_harm() {
    let store = Store::new();
    let blocked = |command: &str| {
        let mut env = Command::new("env");
        env.args(["--block-signal=CHLD,TERM", TENURE, "run", "x", "--", "sh", "-c", command])
            .env("TENURE_STORE", store.url());
        Running::start(env)
    };
    let ended = blocked("grep SigBlk /proc/self/status; exit 3").wait();
    assert_eq!((ended.code(), ended.stdout.as_str()), (3, "SigBlk:\t0000000000000000\n"));
    let held = blocked(STAY);
    held.expect_line("in");
    held.signal(Signal::TERM);
    assert_eq!(held.wait().code(), 143);
    store.assert_empty();
}
