//! Who does what when: the workers are started, one of them is let lie and goes on, and what they say is written down.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::Result;
use crate::history::{Event, Run, What};
use crate::store::Store;
use crate::worker::{LOCK, LOCKS, NUMBER, STORE};

/// So that things that follow each other can be told apart in the picture.
const FOR_THE_EYE: Duration = Duration::from_millis(600);

/// Where it takes place.
pub struct Scene {
    pub url: String,
    pub takeover: Takeover,
    fence: PathBuf,
    lock: String,
}

/// How the second worker gets the lock.
pub enum Takeover {
    /// The lease of the first one ends.
    Wait,
    /// An operator breaks it.
    Break,
}

impl Scene {
    pub fn new(dir: &Path) -> Self {
        let url = format!("sqlite://{}/locks.db", dir.display());
        let lock = format!("late-writer/{}", std::process::id()); // other runs may use the same server
        Scene { url, takeover: Takeover::Wait, fence: dir.join("fence.db"), lock }
    }

    /// Once through all of it.
    pub async fn run(&self, is_fenced: bool) -> Result<Run> {
        let client = tenure::connect(&self.url).await?;
        let store = Store::start(is_fenced.then_some((&*self.fence, &*self.lock))).await?;

        let mut first = self.start(1, &store)?;
        let mut events = first.until(|what| matches!(what, What::Checked { .. })).await?;
        first.stop().await?;
        events.push(Event::now(1, What::Stopped));
        if let Takeover::Break = self.takeover {
            client.break_holds(&self.lock, None).await?;
            events.push(Event::now(1, What::Broken));
        }

        let mut second = self.start(2, &store)?;
        events.extend(second.until(|what| matches!(what, What::Wrote { .. })).await?);
        tokio::time::sleep(FOR_THE_EYE).await;

        events.push(Event::now(1, What::GoesOn));
        first.goes_on().await?;
        events.extend(first.until(|what| matches!(what, What::Lost)).await?);
        tokio::time::sleep(FOR_THE_EYE).await;
        drop(second.child.stdin.take());
        events.extend(second.until(|what| matches!(what, What::Released)).await?);
        for worker in [&mut first, &mut second] {
            worker.child.wait().await?;
        }
        events.sort_by_key(|event| event.at);
        let run = Run { store: client.describe(), is_fenced, events, text: store.text() };
        client.close().await?;
        Ok(run)
    }

    fn start(&self, number: u8, store: &Store) -> Result<Worker> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("worker")
            .env(NUMBER, number.to_string())
            .env(LOCKS, &self.url)
            .env(LOCK, &self.lock)
            .env(STORE, store.address.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let says = BufReader::new(child.stdout.take().ok_or("its output is piped")?).lines();
        Ok(Worker { child, says })
    }
}

struct Worker {
    child: Child,
    says: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// What it says until it has said this.
    async fn until(&mut self, is_last: impl Fn(&What) -> bool) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        while !events.last().is_some_and(|event: &Event| is_last(&event.what)) {
            let line = self.says.next_line().await?.ok_or("a worker has ended before its time: its error is above")?;
            events.push(serde_json::from_str(&line)?);
        }
        Ok(events)
    }

    /// Stops it, outside of a transaction: in the middle of one it would keep a file from everybody, which is another story.
    async fn stop(&self) -> Result<()> {
        loop {
            kill_process(self.pid()?, Signal::STOP)?;
            self.is_stopped().await?;
            if !self.has_locked_a_file()? {
                return Ok(());
            }
            kill_process(self.pid()?, Signal::CONT)?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Completes when it stands still.
    async fn is_stopped(&self) -> Result<()> {
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        while waitid(WaitId::Pid(self.pid()?), stopped)?.is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Whether it keeps others from a file, as SQLite does while it writes. A line: `1: POSIX  ADVISORY  WRITE 4321 08:01:77 120 120`.
    fn has_locked_a_file(&self) -> Result<bool> {
        let pid = self.pid()?.to_string();
        let locks = std::fs::read_to_string("/proc/locks")?;
        Ok(locks
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .any(|words| words.contains(&"WRITE") && words.contains(&&*pid)))
    }

    async fn goes_on(&mut self) -> Result<()> {
        kill_process(self.pid()?, Signal::CONT)?;
        Ok(self.child.stdin.as_mut().ok_or("its input is piped")?.write_all(b"\n").await?)
    }

    fn pid(&self) -> Result<Pid> {
        let id = self.child.id().ok_or("a worker has ended before its time")?;
        Ok(Pid::from_raw(id as i32).ok_or("a process has a number above 0")?)
    }
}
