//! The watchdog's own process.
//!
//! It reads from its standard input the number of a process group and then, line by line, until when
//! its lock is safe.
//!
//! - **If that time passes**, the parent is stopped or starved. It is still a subreaper, so everything
//!   the command started is below it: all of that gets SIGKILL, again and again until nobody is left.
//! - **If the input ends without a farewell** (`.`), the parent was killed, and its descendants went to
//!   init: `/proc` cannot tell them any more. So the watchdog looks twice a second who has left the
//!   command's group, and keeps a handle on each. Those, the group, and all that descends from either are stopped
//!   first, so that none of them forks a process whose parent then dies, and killed together.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::process::exit;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, getppid, getrlimit, kill_process_group, setrlimit};
use tenure::Instant;
use tokio::signal::unix::{SignalKind, signal};

use super::super::tree::{self, Handle, Stat};
use super::super::{shim::parse_pid, terminal::signal_group};

struct Watch {
    parent: Pid,
    /// Says whether the parent lives, which its number alone does not.
    parent_handle: Option<Handle>,
    /// Whom to leave alone: the watchdog itself, and children of the parent that are not the command's.
    except: Vec<Pid>,
    group: Option<Pid>,
    safe_until: Instant,
    /// Who has left the group.
    known: HashMap<Pid, Handle>,
}

/// Runs the watchdog; `args` are its parent, what it is to guard (0: it will be told) and
/// until when, and the parent's children that are not the command's.
pub(in super::super) fn watch(mut args: impl Iterator<Item = OsString>) -> ! {
    catch_signals();
    // It has a handle on each process that has left the group.
    let files = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files });
    let parent = parse_pid(args.next());
    let parent_handle = Handle::open(parent).filter(|_| getppid() == Some(parent));
    let mut number = || args.next().and_then(|arg| arg.to_str()?.parse().ok()).unwrap_or(0_u64);
    let group = i32::try_from(number()).ok().and_then(Pid::from_raw);
    let safe_until = Instant::from_nanos(number());
    let except = args.map(|arg| parse_pid(Some(arg))).chain([getpid()]).collect();
    Watch { parent, parent_handle, except, group, safe_until, known: HashMap::new() }.run()
}

/// Makes every signal that can be caught do nothing, so that `kill`, `killall` and a hangup leave the watchdog alone.
fn catch_signals() {
    // Without a handler it can still do its work.
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
    let _inside = runtime.enter();
    for number in 1..32 {
        // SIGKILL, SIGSTOP and the signs of a bug are refused.
        let _ = signal(SignalKind::from_raw(number));
    }
}

impl Watch {
    fn run(mut self) -> ! {
        let input = io::stdin();
        let mut words = String::new();
        loop {
            let nap = match (self.group, self.safe_until.since(Instant::now())) {
                (Some(group), Duration::ZERO) if self.kill_all(group) => ROUND,
                (Some(_), Duration::ZERO) => LOOK,
                (Some(group), left) => {
                    self.remember(group);
                    // Short naps also because the system's timers stand still while the machine sleeps, and the lease does not.
                    left.min(LOOK)
                }
                (None, _) => LOOK,
            };
            let nap = Timespec { tv_sec: 0, tv_nsec: nap.as_nanos() as _ };
            if !matches!(poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&nap)), Ok(1)) {
                continue;
            }
            let mut bytes = [0; 256];
            let length = retry_on_intr(|| rustix::io::read(&input, &mut bytes)).unwrap_or(0);
            words.push_str(&String::from_utf8_lossy(&bytes[..length]));
            if words.ends_with('.') {
                exit(0);
            }
            if length == 0 {
                if let Some(group) = self.group {
                    self.kill_orphans(group);
                }
                exit(0);
            }
            while let Some((word, rest)) = words.split_once('\n') {
                match self.group {
                    None => self.group = Some(parse_pid(Some(word.into()))),
                    Some(_) => self.safe_until = word.parse().map_or(self.safe_until, Instant::from_nanos),
                }
                words = rest.to_owned();
            }
        }
    }

    /// SIGKILL to everybody below the parent, which lives. Says whether there was anybody.
    fn kill_all(&mut self, group: Pid) -> bool {
        let _ = kill_process_group(group, Signal::KILL);
        let mut any = false;
        self.each(|_, stat, handle| {
            any = true;
            if stat.group != group {
                handle.signal(Signal::KILL);
            }
        });
        any
    }

    /// Keeps a handle on everybody who has left the group, and none on the dead.
    fn remember(&mut self, group: Pid) {
        self.known.retain(|_, handle| !handle.has_ended());
        let mut known = std::mem::take(&mut self.known);
        self.each(|pid, stat, handle| {
            if stat.group != group {
                known.entry(pid).or_insert(handle);
            }
        });
        self.known = known;
    }

    /// Everybody below the parent, if that lives.
    fn each(&self, mut act: impl FnMut(Pid, Stat, Handle)) {
        let Some(parent) = &self.parent_handle else { return };
        tree::each_below(self.parent, &self.except, |pid, stat, handle| {
            // Its number means nobody else now; so it did when its children were listed.
            if !parent.has_ended() {
                act(pid, stat, handle);
            }
        });
    }

    /// The parent is dead: stops, then kills, those we know, the group, and all that descends from either.
    fn kill_orphans(mut self, group: Pid) {
        signal_group(group, Signal::STOP);
        self.known.values().for_each(|handle| handle.signal(Signal::STOP));
        let mut without_news = 0;
        // Twice, because a thread may still fork while its process is being stopped.
        while without_news < 2 {
            without_news += 1;
            for (pid, stat) in tree::everybody() {
                let known = &self.known;
                let is_meant = |stat: Stat| stat.group == group || known.contains_key(&stat.parent);
                if known.contains_key(&pid) || self.except.contains(&pid) || !is_meant(stat) {
                    continue;
                }
                if let Some(handle) = tree::open_if(pid, is_meant) {
                    handle.signal(Signal::STOP);
                    self.known.insert(pid, handle);
                    without_news = 0;
                }
            }
        }
        self.known.values().for_each(|handle| handle.signal(Signal::KILL));
        signal_group(group, Signal::KILL);
    }
}

/// How often it looks who has left the group.
const LOOK: Duration = Duration::from_millis(500);

/// How long SIGKILL is given to work before it is sent again.
const ROUND: Duration = Duration::from_millis(20);
