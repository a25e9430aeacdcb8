//! Which processes are alive.
//!
//! A killed process cannot say so, and its ttl may be long; the kernel knows at once. Every client leaves its process's
//! identity in the file: pid, start time (pids are used again), and pid namespace (pids mean nothing in another one).
//!
//! Being wrong in one direction is a waiter that waits for a ttl; being wrong in the other is two holders. So whatever is
//! not known counts as alive: another namespace, a kernel without pidfds, a `/proc` that hides other people's processes.
//! A process is dead only if the kernel knows no such pid, or knows it with another start time, or its pidfd says that it
//! has ended. A zombie has ended, but one thread-group leader in state `Z` whose other threads still run has not: the
//! pidfd tells those apart, `/proc` does not.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tenure_core::record::ClientKey;

/// A process, told apart from every other that ever was on this host since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    /// In clock ticks since the machine started; 0 if it could not be read.
    pub(crate) start: u64,
    /// The inode of its pid namespace; 0 if it could not be read.
    pub(crate) namespace: u64,
}

impl Process {
    /// This one.
    pub(crate) fn current() -> Self {
        let pid = std::process::id() as i32;
        // A `/proc` of another pid namespace (a container that brought its own pids but not its own `/proc`) knows us by
        // another number, and our number is somebody else's there: nothing can be known about anybody.
        let is_ours = std::fs::read_link("/proc/self").is_ok_and(|own| own.to_str() == Some(&pid.to_string()));
        let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino());
        Process { pid, start: start_of(pid).unwrap_or(0), namespace: if is_ours { namespace } else { 0 } }
    }
}

/// What is known of one client's process.
#[derive(Clone, Debug)]
pub(crate) enum Pulse {
    /// Its pidfd; readable once it has ended.
    Watched(Arc<OwnedFd>),
    /// It has ended.
    Dead,
    /// Nothing can be known: only its ttl ends it.
    Unknown,
}

/// The pulses of other clients, remembered so that looking again costs one system call.
pub(crate) struct Deaths {
    here: Process,
    known: Mutex<HashMap<ClientKey, Pulse>>,
}

/// Enough for everybody who stands in somebody's way at once; beyond, old ones are forgotten and looked up again.
const MOST_KNOWN: usize = 256;

impl Deaths {
    pub(crate) fn new(here: Process) -> Self {
        Deaths { here, known: Mutex::default() }
    }

    /// How a client does; `lookup` finds its process, if it is not known yet.
    pub(crate) fn pulse<E>(
        &self,
        client: ClientKey,
        lookup: impl FnOnce() -> Result<Option<Process>, E>,
    ) -> Result<Pulse, E> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let pulse = match known.get(&client) {
            Some(pulse) => pulse.clone(),
            // A client without a row cannot be found; it is not remembered, for the row may come.
            None => match lookup()? {
                None => return Ok(Pulse::Unknown),
                Some(process) => {
                    if known.len() >= MOST_KNOWN {
                        known.clear();
                    }
                    let pulse = self.first_look(process);
                    // What is not known now (too many open files) may be known next time.
                    if !matches!(pulse, Pulse::Unknown) {
                        known.insert(client, pulse.clone());
                    }
                    pulse
                }
            },
        };
        match pulse {
            Pulse::Watched(fd) if has_ended(&fd) => {
                known.insert(client, Pulse::Dead);
                Ok(Pulse::Dead)
            }
            pulse => Ok(pulse),
        }
    }

    fn first_look(&self, process: Process) -> Pulse {
        let Process { pid, start, namespace } = process;
        if start == 0 || namespace == 0 || namespace != self.here.namespace {
            return Pulse::Unknown;
        }
        let Some(raw) = Pid::from_raw(pid) else { return Pulse::Unknown };
        let opened = pidfd_open(raw, PidfdFlags::empty());
        // Read after opening: if the start time is still the recorded one, then it is that process which the pidfd is of.
        match (opened, start_of(pid)) {
            (Err(Errno::SRCH), _) => Pulse::Dead,
            (_, Some(found)) if found != start => Pulse::Dead,
            (Ok(fd), Some(_)) if has_ended(&fd) => Pulse::Dead,
            (Ok(fd), Some(_)) => Pulse::Watched(Arc::new(fd)),
            _ => Pulse::Unknown,
        }
    }
}

/// Whether a pidfd's process has ended.
pub(crate) fn has_ended(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// A process's start time; `None` if it is gone, or hidden from us.
fn start_of(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may contain anything, parentheses too.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn pulse_of(deaths: &Deaths, client: ClientKey, process: Process) -> Pulse {
        deaths.pulse::<()>(client, || Ok(Some(process))).unwrap()
    }

    #[test]
    fn a_killed_process_is_dead_also_before_its_parent_has_noticed() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let here = Process::current();
        let pid = child.id() as i32;
        let process = Process { pid, start: start_of(pid).unwrap(), ..here };
        let deaths = Deaths::new(here);
        let Pulse::Watched(fd) = pulse_of(&deaths, 1, process) else { panic!("it lives") };
        child.kill().unwrap();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap(); // the kernel says so; it is a zombie now
        assert!(matches!(pulse_of(&deaths, 1, process), Pulse::Dead));
        assert!(matches!(pulse_of(&deaths, 2, process), Pulse::Dead), "a zombie found only now");
        child.wait().unwrap();
        assert!(matches!(pulse_of(&deaths, 3, process), Pulse::Dead), "no such pid");
    }

    #[test]
    fn a_pid_that_was_used_again_is_another_process() {
        let here = Process::current();
        let deaths = Deaths::new(here);
        assert!(matches!(pulse_of(&deaths, 1, Process { start: here.start + 1, ..here }), Pulse::Dead));
        assert!(matches!(pulse_of(&deaths, 2, here), Pulse::Watched(_)));
    }

    #[test]
    fn what_is_not_known_counts_as_alive() {
        let here = Process::current();
        let deaths = Deaths::new(here);
        assert!(matches!(
            pulse_of(&deaths, 1, Process { namespace: here.namespace + 1, pid: i32::MAX, ..here }),
            Pulse::Unknown
        ));
        assert!(matches!(pulse_of(&deaths, 2, Process { start: 0, ..here }), Pulse::Unknown));
        assert!(matches!(deaths.pulse::<()>(3, || Ok(None)), Ok(Pulse::Unknown)));
    }
}
