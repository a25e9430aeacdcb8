//! A lock that is held in the background for as long as another process lives: `tenure hold`.
//!
//! `tenure hold` starts itself once more, with [`KEEPER`] in the environment. The second process, the *keeper*, acquires the lock,
//! writes the hold as one line of JSON to the first, and waits for a byte in return: only then does the first one still live, and
//! has somebody learned the token. After that the keeper leaves the terminal's session and all of its streams, so that neither a
//! closed terminal nor a pipe that is read to its end has to do with it.
//!
//! The keeper releases the lock when the process ends (a pidfd says so, which no reuse of the number can deceive) and when it is
//! told to by SIGTERM (`tenure release`). When the lock is lost, it stops the process by the rules of `tenure run`, with signals
//! to that one process; what the process started is not found. What it has to say goes to the stderr of the process.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, setsid};
use serde::Serialize;
use tenure::{Client, Clock, Event, Guard, Instant, LockName, Wait};
use tokio::sync::{oneshot, watch};

use super::events::{self, Teller};
use super::lease::{Cause, Lease};
use super::lock::{self, Lock, Shape};
use super::wait::{self, Waited};
use super::{HoldArgs, PATIENCE, close};
use crate::child::{OnLost, Signals, kill_time};
use crate::failure::Failure;
use crate::limits;
use crate::print::{self, Printer, clean, origin, wall_ms};
use crate::quit;
use crate::store::{Opened, StoreArgs};

/// Set for the process that keeps the lock.
pub(crate) const KEEPER: &str = "TENURE_HOLD_KEEPER";

/// What to hold, and for which process.
pub(crate) struct Keeper<'a> {
    pub(crate) name: &'a str,
    pub(crate) shape: Shape,
    pub(crate) hold: &'a HoldArgs,
    pub(crate) pid: Pid,
}

/// The hold, as the first process prints it.
#[derive(Serialize)]
struct Held<'a> {
    name: &'a str,
    kind: String,
    mode: String,
    token: u64,
    sequencer: String,
    valid_until_ms: u64,
    keeper: u32,
}

impl Keeper<'_> {
    /// Acquires the lock and keeps it. Gives the exit code where there is nothing to keep.
    pub(crate) async fn run(self, store: &StoreArgs, printer: &Printer) -> Result<u8, Failure> {
        let mut signals = Signals::new()?;
        let process = Process::open(self.pid)?;
        let (name, keys) = (LockName::new(self.name)?, self.hold.keys.read()?);
        limits::check(self.hold)?;
        let (mut client, wait) = match store.open(self.hold.patience(), self.hold.quiet, &mut signals, printer).await? {
            Opened::Client(_, client, wait) => (client, wait),
            Opened::Quit(signal) => return Ok(quit::outcome(signal).code() as u8),
        };
        if let Some(keys) = keys {
            client = client.signed_with(keys);
        }
        let code = self.run_on(&client, &name, &process, wait, &mut signals, printer).await;
        close(&client).await;
        code
    }

    async fn run_on(
        &self,
        client: &Client,
        name: &LockName,
        process: &Process,
        wait: Wait,
        signals: &mut Signals,
        printer: &Printer,
    ) -> Result<u8, Failure> {
        let note = self.hold.note_or(&process.name())?;
        let lock = Lock::new(client, name, self.shape, self.hold, &note)?;
        let teller = Teller::new(name.clone(), printer, self.hold.quiet);
        let mut first = first_process();
        let waited = tokio::select! {
            biased;
            _ = &mut first => return Ok(0),
            () = process.ended() => return Err(Failure::new(format!("process {} ended while waiting for the lock", self.pid))),
            waited = wait::wait(client, &lock, wait, self.hold.ttl(), signals, &teller) => waited,
        };
        let guard = match waited {
            Ok(Waited::Held(guard)) => guard,
            Ok(Waited::Busy) => {
                let view = client.view(name.as_str()).await.ok();
                teller.tell(events::Event::Busy { wait_ms: self.hold.wait_ms(), view: view.as_ref() });
                return Ok(self.hold.conflict_exit_code);
            }
            Ok(Waited::Nested(outer)) => return Err(wait::held_by_outer(name, outer)),
            Ok(Waited::Quit(signal)) => return Ok(quit::outcome(signal).code() as u8),
            Err(error) => return Err(lock::explain(client, error).await),
        };
        let line = serde_json::to_string(&Held {
            name: self.name,
            kind: guard.kind().as_str().replace(' ', "-"),
            mode: guard.mode().to_string(),
            token: guard.token().get(),
            sequencer: guard.sequencer().to_string(),
            valid_until_ms: wall_ms() + guard.remaining().as_millis() as u64,
            keeper: std::process::id(),
        });
        let is_known =
            writeln!(io::stdout().lock(), "{}", line.map_err(io::Error::from)?).is_ok() && matches!(first.await, Ok(true));
        if is_known && leave_the_session().is_ok() {
            self.keep(&guard, process, signals).await;
        }
        let _ = tokio::time::timeout(PATIENCE, guard.release()).await;
        Ok(0)
    }

    /// Holds the lock until the process has ended, or until a signal comes.
    async fn keep(&self, guard: &Guard, process: &Process, signals: &mut Signals) {
        let lease = Lease::new(guard, self.hold);
        tokio::select! {
            biased;
            () = process.ended() => {}
            _ = signals.quit() => {}
            () = self.stop_in_time(guard, &lease, process) => {}
            () = self.tell(guard, process) => {}
        }
    }

    /// Stops the process when the lock is lost. Completes when it has been killed.
    async fn stop_in_time(&self, guard: &Guard, lease: &Lease<'_>, process: &Process) {
        let (stop, cause) = lease.end().await;
        let kill_at = kill_time(Instant::now(), self.hold.grace, stop.deadline);
        if stop.policy == OnLost::Term && kill_at > Instant::now() {
            let why = events::why(cause, guard);
            process.hear(&format!("{}: {why}: stopping this process ({})", clean(self.name), self.pid)).await;
            process.signal(Signal::TERM);
            process.signal(Signal::CONT);
            Clock::Boot.sleep_until(kill_at).await;
        }
        process.signal(Signal::KILL);
        process.ended().await;
    }

    /// Says what the process should know; completes when the lock is lost and the process may go on without it.
    async fn tell(&self, guard: &Guard, process: &Process) {
        let mut events = guard.events();
        let name = clean(self.name);
        while let Some(event) = events.next().await {
            match event {
                Event::Asked(ask) => {
                    let reason = clean(ask.reason.as_str());
                    process.hear(&format!("{name}: {} asks to release the lock: {reason}", origin(&ask.by))).await;
                }
                Event::Lost(_) => break,
                _ => {}
            }
        }
        if OnLost::from(self.hold.on_lost) != OnLost::Ignore {
            return std::future::pending().await;
        }
        process.hear(&format!("{name}: {}", events::why(Cause::Lost, guard))).await;
    }
}

/// The process that the lock is held for.
struct Process {
    pid: Pid,
    handle: Arc<OwnedFd>,
    has_ended: watch::Receiver<bool>,
}

impl Process {
    fn open(pid: Pid) -> Result<Self, Failure> {
        let no_such = |error: rustix::io::Errno| {
            Failure::new(format!("--pid {pid}: {}", io::Error::from(error))).with_hint("In a script, the process is `$$`")
        };
        let handle = Arc::new(pidfd_open(pid, PidfdFlags::empty()).map_err(no_such)?);
        let (ended, has_ended) = watch::channel(false);
        let watched = Arc::clone(&handle);
        std::thread::spawn(move || {
            let _ = retry_on_intr(|| poll(&mut [PollFd::new(&*watched, PollFlags::IN)], None));
            let _ = ended.send(true);
        });
        Ok(Process { pid, handle, has_ended })
    }

    /// What it is called.
    fn name(&self) -> String {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        name.trim_end().to_owned()
    }

    /// Completes when it has ended.
    async fn ended(&self) {
        let _ = self.has_ended.clone().wait_for(|ended| *ended).await;
    }

    fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&*self.handle, signal);
    }

    /// Writes to its stderr, where that is possible soon.
    async fn hear(&self, text: &str) {
        let (path, text) = (format!("/proc/{}/fd/2", self.pid), format!("tenure: {text}\n"));
        let write = move || std::fs::OpenOptions::new().append(true).open(path)?.write_all(text.as_bytes());
        let _ = tokio::time::timeout(SOON, tokio::task::spawn_blocking(write)).await;
    }
}

/// Completes when the first process has answered: whether it has the hold, or has gone.
fn first_process() -> oneshot::Receiver<bool> {
    let (answer, first) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = answer.send(io::stdin().lock().read_exact(&mut [0]).is_ok());
    });
    first
}

/// From here on no terminal and no pipe has to do with this process.
fn leave_the_session() -> io::Result<()> {
    print::flush(print::PATIENCE);
    setsid()?;
    let nothing = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    Ok(())
}

/// How long the process may take to read what it is told.
const SOON: Duration = Duration::from_millis(200);
