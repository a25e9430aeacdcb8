//! A store, a started `tenure`, and ways to wait.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

/// How long anything may take before a test gives up; nothing waits that long when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A store file of one test's own.
pub(crate) struct Store {
    dir: TempDir,
}

impl Store {
    pub(crate) fn new() -> Self {
        Store { dir: tempfile::tempdir().unwrap() }
    }

    /// A path beside the store.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite://{}", self.path("locks.db").display())
    }

    /// `tenure ARGS`, not started yet.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(TENURE);
        command.args(args).env("TENURE_STORE", self.url()).env_remove("TENURE_STORE_FILE").current_dir(self.dir.path());
        command
    }

    /// Runs `tenure ARGS` to its end.
    pub(crate) fn tenure<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ended {
        self.start(args).end()
    }

    /// Starts `tenure ARGS` with all its streams in our hands.
    pub(crate) fn start<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Running {
        Running::start(self.command(args))
    }

    /// Starts `tenure run FLAGS… -- COMMAND` whose command says `in` and stays until its input ends.
    pub(crate) fn hold(&self, flags: &[&str]) -> Running {
        let held = self.start_run(flags, STAY);
        held.expect_line("in");
        held
    }

    /// Starts `tenure run FLAGS… -- sh -c SCRIPT`.
    pub(crate) fn start_run(&self, flags: &[&str], script: &str) -> Running {
        let mut args = vec!["run"];
        args.extend(flags);
        args.extend(["--", "sh", "-c", script]);
        self.start(args)
    }

    /// Starts one that will have to wait, and waits until it stands in line. A machine that stands still for longer than its ttl
    /// costs it the lock, which is no reason to stop it here.
    pub(crate) fn queue(&self, flags: &[&str], name: &str) -> Running {
        let before = self.view(name)["line"].as_array().unwrap().len();
        let running = self.start_run(&[&["--on-lost", "ignore"][..], flags].concat(), STAY);
        eventually("it stands in line", || self.view(name)["line"].as_array().unwrap().len() > before);
        running
    }

    pub(crate) fn view(&self, name: &str) -> Value {
        let shown = self.tenure(["show", "--json", name]);
        assert!(shown.status.success(), "{shown:?}");
        serde_json::from_str(&shown.stdout).unwrap()
    }

    pub(crate) fn holders(&self, name: &str) -> usize {
        self.view(name)["holders"].as_array().unwrap().len()
    }

    /// Nobody holds anything, and nobody waits for anything.
    pub(crate) fn assert_empty(&self) {
        let listed = self.tenure(["ls", "--json"]);
        assert_eq!((listed.status.code(), listed.stdout.as_str()), (Some(0), ""), "{listed:?}");
    }
}

/// Says that it is in, and stays until its input ends.
pub(crate) const STAY: &str = "echo in; cat >/dev/null";

/// A started program. Dropping it kills it.
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    out: Receiver<Vec<u8>>,
    /// What came and was not asked for yet.
    unread: RefCell<Vec<u8>>,
    err: Arc<Mutex<Vec<u8>>>,
    err_reader: Option<thread::JoinHandle<()>>,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("it has no exit code: {self:?}"))
    }

    /// Whether it was told that it had lost its lock, as a machine that stands still may bring about after a wait.
    pub(crate) fn was_lost(&self) -> bool {
        says_lost(&self.stderr)
    }

    /// Its code, as a shell has it.
    pub(crate) fn code_or_signal(&self) -> i32 {
        use std::os::unix::process::ExitStatusExt as _;
        self.status.code().or(self.status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
    }

    /// The JSON events on stderr, by their names.
    pub(crate) fn events(&self) -> Vec<(String, Value)> {
        let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.stderr.lines().map(parse).map(|event| (event["event"].as_str().unwrap().to_owned(), event)).collect()
    }
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let (sender, out) = channel();
        let mut stdout = child.stdout.take().unwrap();
        thread::spawn(move || {
            // As it comes, whole lines or not: a prompt has no newline.
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = stdout.read(&mut buffer) {
                let _ = sender.send(buffer[..read].to_vec());
            }
        });
        let mut stderr = child.stderr.take().unwrap();
        let err = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&err);
        let err_reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = stderr.read(&mut buffer) {
                sink.lock().unwrap().extend(&buffer[..read]);
            }
        });
        let stdin = child.stdin.take();
        Running { child, stdin, out, unread: RefCell::default(), err, err_reader: Some(err_reader) }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Its next line of output, without the newline.
    pub(crate) fn line(&self) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut unread = self.unread.borrow_mut();
        loop {
            if let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = unread.drain(..=end).collect();
                return String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
            }
            match self.out.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => unread.extend(bytes),
                Err(error) => panic!("no line came, but {:?}: {error}", String::from_utf8_lossy(&unread)),
            }
        }
    }

    /// What it said since the last time, after a little while.
    pub(crate) fn chunks(&self) -> String {
        let mut said = std::mem::take(&mut *self.unread.borrow_mut());
        said.extend(self.out.recv_timeout(Duration::from_millis(20)).unwrap_or_default());
        said.extend(self.out.try_iter().flatten());
        // A character cut in half waits for its other half.
        let whole = match std::str::from_utf8(&said) {
            Ok(_) => said.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => said.len(),
        };
        *self.unread.borrow_mut() = said.split_off(whole);
        String::from_utf8_lossy(&said).into_owned()
    }

    /// Whether it has said a line that was not asked for yet.
    pub(crate) fn has_line(&self) -> bool {
        let mut unread = self.unread.borrow_mut();
        unread.extend(self.out.try_iter().flatten());
        unread.contains(&b'\n')
    }

    /// Whether it has said so far that it had lost its lock.
    pub(crate) fn is_lost(&self) -> bool {
        says_lost(&self.said_on_stderr())
    }

    pub(crate) fn expect_line(&self, expected: &str) {
        assert_eq!(self.line(), expected);
    }

    /// Whether it is silent for so long.
    pub(crate) fn says_nothing_for(&self, patience: Duration) -> bool {
        self.unread.borrow().is_empty() && matches!(self.out.recv_timeout(patience), Err(RecvTimeoutError::Timeout))
    }

    fn said_on_stderr(&self) -> String {
        String::from_utf8_lossy(&self.err.lock().unwrap()).into_owned()
    }

    /// Waits until it has said this on stderr.
    pub(crate) fn expect_on_stderr(&self, text: &str) {
        eventually(&format!("it says {text}"), || self.said_on_stderr().contains(text));
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(bytes).unwrap();
        stdin.flush().unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Ends its input, and waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        self.stdin = None;
        self.wait()
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Ended {
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        self.err_reader.take().unwrap().join().unwrap();
        let stderr = self.said_on_stderr();
        let mut stdout = std::mem::take(&mut *self.unread.borrow_mut());
        stdout.extend(self.out.iter().flatten());
        let stdout = String::from_utf8_lossy(&stdout).into_owned();
        Ended { status: status.unwrap(), stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = kill_process(self.pid(), Signal::CONT);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs what asserts all that does not depend on time, and gives how it ended where it missed its time. Only a machine that was measured
/// to stand still for `excuse` excuses that; see [`tenure_testkit::unless_stalled_blocking`].
#[track_caller]
pub(crate) fn unless_stalled(excuse: Duration, mut run: impl FnMut() -> Result<(), Ended>) {
    tenure_testkit::unless_stalled_blocking("it goes as it should", excuse, || {
        run().inspect_err(|ended| eprintln!("{ended:?}")).ok()
    });
}

/// What a renewal may be late by before a lock is lost.
pub(crate) const STANDS_STILL: Duration = Duration::from_millis(500);

/// Waits until something is true.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn says_lost(stderr: &str) -> bool {
    stderr.contains("the lock was lost") || stderr.contains("\"event\":\"lost\"")
}

/// Parses a pid that a script printed.
pub(crate) fn pid(text: &str) -> Pid {
    Pid::from_raw(text.trim().parse().unwrap_or_else(|_| panic!("{text:?} is no pid"))).unwrap()
}

/// Whether a process exists and is no zombie.
pub(crate) fn lives(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start().chars().next());
    test_kill_process(pid).is_ok() && !matches!(state, Some(Some('Z' | 'X')))
}

/// Whether a process stands still after a SIGSTOP to its group: stopped, or waiting in `vfork` for a child that is.
pub(crate) fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['T', 'D']))
}

pub(crate) fn signal_group(group: Pid, signal: Signal) {
    kill_process_group(group, signal).unwrap();
}

/// The last word of something that printed.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
