//! A server's process: it can be killed, stopped and started again, and it never outlives the test.
//!
//! Between the test and the server stands a small shell that reads from the test's pipe. When the handle is dropped, and
//! also when the test process is gone without a word (`kill -9`), the pipe closes and the shell kills the server.
//! Nothing here depends on the thread that started it, as a parent-death signal would: a test's threads are short-lived.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, pidfd_send_signal};
use tempfile::TempDir;

use super::account::Account;
use super::{wait_until, wait_until_within};
use crate::LIMIT;

/// What to start, and in which directory. Whoever starts it again gets the same program with the same data.
#[derive(Debug)]
pub(crate) struct Program {
    /// What runs before it and becomes it, as `setpriv` does for a server that refuses to be root.
    pub(crate) wrapper: Vec<OsString>,
    /// The program, looked for in PATH unless it is a whole path: `/usr/sbin` is in root's PATH only.
    pub(crate) name: &'static str,
    /// The Debian package it comes in.
    pub(crate) package: &'static str,
    /// Its arguments.
    pub(crate) args: Vec<OsString>,
    /// Its environment, beyond ours.
    pub(crate) env: Vec<(&'static str, OsString)>,
    /// Its data; removed with the handle, or by the shell if the test was killed.
    pub(crate) dir: TempDir,
}

/// A server that was started, and perhaps killed since.
pub(crate) struct Server {
    // First, so that it has ended when its directory goes.
    process: Mutex<Process>,
    program: Program,
    ready: Box<dyn Fn(u32) -> bool + Send + Sync>,
}

impl Server {
    /// Starts it and waits until `ready` holds, which is told the server's process id: on the port there may be a
    /// stranger. The error is what a server that ended instead had to say.
    pub(crate) fn start(program: Program, ready: impl Fn(u32) -> bool + Send + Sync + 'static) -> Result<Self, String> {
        demand(program.name, program.package);
        demand("setsid", "util-linux");
        let process = Process::spawn(&program);
        let server = Server { program, process: Mutex::new(process), ready: Box::new(ready) };
        server.wait_ready(LIMIT).map(|()| server)
    }

    /// The server's own process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process().pid.as_raw_pid() as u32
    }

    /// SIGKILL to it and to all it has started; returns when they are dead. What they had written to files stays.
    pub(crate) fn kill(&self) {
        self.process().kill();
    }

    /// The signal by which it ends in an orderly way; returns when it has ended.
    pub(crate) fn stop(&self, signal: Signal) {
        let process = self.process();
        process.signal(signal);
        assert!(wait_until(|| process.is_dead()), "{} does not end:\n{}", self.program.name, self.log());
    }

    /// SIGSTOP to it and to all it has started; returns when they stand still.
    pub(crate) fn pause(&self) {
        assert!(self.process().pause(), "{} does not stop", self.program.name);
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) {
        self.process().resume();
    }

    /// Kills it if it lives, and starts it again with the same arguments, port and data; returns when it is ready.
    pub(crate) fn restart(&self) {
        {
            let mut process = self.process();
            process.kill();
            // A server that finds its predecessor's process id in a file asks whether that lives, and zombies seem to.
            process.reap();
            *process = Process::spawn(&self.program);
        }
        // Whoever starts one can start another; here there is no second try.
        self.wait_ready(LIMIT * 2).unwrap_or_else(|said| panic!("{} does not come back:\n{said}", self.program.name));
    }

    /// Whether it is still there.
    pub(crate) fn is_alive(&self) -> bool {
        !self.process().is_dead()
    }

    /// Its directory.
    pub(crate) fn dir(&self) -> &Path {
        self.program.dir.path()
    }

    /// What it has printed.
    pub(crate) fn log(&self) -> String {
        std::fs::read(log_of(&self.program)).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    fn wait_ready(&self, limit: Duration) -> Result<(), String> {
        let pid = self.pid();
        let mut ready = false;
        wait_until_within(limit, || {
            ready = (self.ready)(pid);
            ready || !self.is_alive()
        });
        if ready { Ok(()) } else { Err(self.log()) }
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Panics, naming the Debian package, if a program is not installed. A test that is skipped is a test that lies.
pub(crate) fn demand(program: &str, package: &str) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    assert!(found, "{program} is not installed, and this test needs it: apt-get install {package}");
}

/// Runs a program to its end; panics with what it said if that was not success.
pub(crate) fn run(program: &str, package: &str, arguments: impl FnOnce(&mut Command) -> &mut Command) {
    run_as(Account::OURS, program, package, arguments);
}

/// The same under an account.
pub(crate) fn run_as(account: Account, program: &str, package: &str, arguments: impl FnOnce(&mut Command) -> &mut Command) {
    demand(program, package);
    let mut command = account.command(program);
    let output = arguments(&mut command).output().expect("it is installed");
    assert!(output.status.success(), "{program}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
}

/// One run of the server, and the shell that watches over it.
struct Process {
    shell: Child,
    pid: Pid,
    // Unlike a number, it can never mean another process.
    handle: Option<OwnedFd>,
}

/// `$0` is the log, `$1` the directory, the rest the server. A line on the pipe means "kill it", the pipe's end means that
/// the test is gone and its directory is nobody's. Until the shell ends, a dead server is a zombie of the shell, so
/// that its process id is not given away.
///
/// What the server has started ends with it: most are in its process group, as the one that saves a Redis, and some have
/// left it, as every process of a PostgreSQL. Those are found as its children, while it stands still and makes no more.
///
/// When a test dies and its server is stopped, the kernel hangs up on both, as on forgotten jobs of a terminal: a shell
/// that died of that would leave the server behind.
const SHELL: &str = r#"
trap : HUP INT TERM
dir=$1; shift
below() { for child in $(cat /proc/"$1"/task/*/children); do echo "$child"; below "$child"; done; }
setsid "$@" </dev/null >>"$0" 2>&1 &
echo $!
exec >/dev/null
read -r line; gone=$?
kill -STOP $!
kill -9 $(below $!) $! -$!
wait $!
[ $gone = 0 ] || rm -rf "$dir"
"#;

impl Process {
    fn spawn(program: &Program) -> Self {
        let mut shell = Command::new("sh")
            .arg("-c")
            .arg(SHELL)
            .arg(log_of(program))
            .arg(program.dir.path())
            .args(&program.wrapper)
            .arg(program.name)
            .args(&program.args)
            .envs(program.env.iter().map(|(name, value)| (name, value)))
            .current_dir(program.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Ctrl-C is for the test; the pipe tells the shell. If both got it, the shell might end first.
            .process_group(0)
            .spawn()
            .expect("there is a shell");
        let mut line = String::new();
        BufReader::new(shell.stdout.take().expect("piped")).read_line(&mut line).expect("the shell speaks");
        let pid = line.trim().parse().ok().and_then(Pid::from_raw).expect("the shell says the server's process id");
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok(); // none if it has ended and the shell has noticed
        Process { shell, pid, handle }
    }

    fn kill(&self) {
        assert!(self.end(), "the kernel ends what is killed");
    }

    /// SIGKILL to it and to all it has started. False if one of them does not end.
    fn end(&self) -> bool {
        if self.handle.is_none() {
            return true; // its number may be somebody else's by now
        }
        self.signal(Signal::STOP); // and so it starts no more
        wait_until(|| self.stands_still());
        let all = below(self.pid);
        for pid in &all {
            let _ = kill_process(*pid, Signal::KILL);
        }
        self.signal(Signal::KILL);
        let _ = kill_process_group(self.pid, Signal::KILL);
        wait_until(|| self.is_dead() && all.iter().all(|pid| matches!(state(*pid), None | Some('Z' | 'X'))))
    }

    /// False if it does not come to a stand.
    fn pause(&self) -> bool {
        self.signal(Signal::STOP);
        wait_until(|| self.stands_still()) && {
            let all = below(self.pid);
            for pid in &all {
                let _ = kill_process(*pid, Signal::STOP);
            }
            wait_until(|| all.iter().all(|pid| stands_still(*pid)))
        }
    }

    fn resume(&self) {
        for pid in below(self.pid) {
            let _ = kill_process(pid, Signal::CONT);
        }
        self.signal(Signal::CONT);
    }

    /// Lets the shell end, and with it what it keeps of a dead server: the process id.
    fn reap(&mut self) {
        if let Some(mut pipe) = self.shell.stdin.take() {
            let _ = pipe.write_all(b"end\n");
        }
        let _ = self.shell.wait();
    }

    /// A server that is dead already hears nothing, and that is no error.
    fn signal(&self, signal: Signal) {
        if let Some(handle) = &self.handle {
            let _ = pidfd_send_signal(handle, signal);
        }
    }

    fn is_dead(&self) -> bool {
        let Some(handle) = &self.handle else { return true };
        let mut end = [PollFd::new(handle, PollFlags::IN)];
        matches!(poll(&mut end, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
    }

    fn stands_still(&self) -> bool {
        self.is_dead() || stands_still(self.pid)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The shell waits for the server alone. What that has started might live on for a moment, and write into a directory that is
        // being removed. (Once it is reaped, its number may be somebody else's.)
        if self.shell.stdin.is_some() {
            let _ = self.end();
        }
        self.reap();
    }
}

/// Its children and theirs. Complete only while it stands still; until it is reaped, a child's number is its own.
fn below(pid: Pid) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_pid())).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<Pid> = lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect::<Vec<_>>())
        .collect();
    children.into_iter().flat_map(|child| std::iter::once(child).chain(below(child))).collect()
}

/// Stopped, or no more.
fn stands_still(pid: Pid) -> bool {
    matches!(state(pid), None | Some('T' | 'Z' | 'X'))
}

/// `R`unning, `S`leeping, s`T`opped …
fn state(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// What a server prints, in its directory.
pub(crate) const LOG: &str = "log";

fn log_of(program: &Program) -> PathBuf {
    program.dir.path().join(LOG)
}

#[cfg(test)]
mod tests {
    #[test]
    #[should_panic(expected = "no-such-server is not installed, and this test needs it: apt-get install such-servers")]
    fn a_missing_program_is_a_failure_that_names_its_package() {
        super::demand("no-such-server", "such-servers");
    }
}
