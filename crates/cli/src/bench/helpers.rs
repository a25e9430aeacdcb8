//! The bench's ends of its helper processes, which never outlive it.
//!
//! A [`Helper`] is killed and reaped when it is dropped, whichever way that happens. Should this process be killed itself,
//! the helper's standard input ends, and it goes by itself (see `child`). Helpers are in process groups of their own, so
//! that Ctrl-C reaches the bench alone, which then ends them in order.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use tenure::{Error, ErrorKind, Instant, Result};
use tokio::sync::mpsc;

use super::failed;
use super::orders::{Answer, Order};

/// The hidden subcommand that leads to [`child`](super::child()).
pub(crate) const ENTRY: &str = "__bench-child";

/// Longer than any answer takes beyond what was ordered, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// One helper process.
pub(super) struct Helper {
    process: Child,
    orders: ChildStdin,
    answers: mpsc::UnboundedReceiver<String>,
}

impl Helper {
    pub(super) fn start() -> Result<Self> {
        let no_helper = |error| failed("starting a second process", error);
        let mut process = Command::new(own_program().map_err(no_helper)?)
            .arg0("tenure")
            .arg(ENTRY)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(no_helper)?;
        let (orders, output) = (process.stdin.take().expect("piped"), process.stdout.take().expect("piped"));
        let (sender, answers) = mpsc::unbounded_channel();
        let helper = Helper { process, orders, answers }; // from here on it is reaped, whatever fails
        std::thread::Builder::new()
            .name("tenure-bench-ear".to_owned())
            .spawn(move || {
                // Ends when the helper does, or when nobody listens any more.
                BufReader::new(output).lines().map_while(|line| line.ok()).try_for_each(|line| sender.send(line)).ok();
            })
            .map_err(no_helper)?;
        Ok(helper)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn order(&mut self, order: &Order) -> Result<()> {
        let line = serde_json::to_string(order).expect("orders are plain data") + "\n";
        self.orders.write_all(line.as_bytes()).map_err(|error| failed("talking to a second process", error))
    }

    pub(super) async fn answer(&mut self) -> Result<Answer> {
        let says = |what: String| Error::new(ErrorKind::Backend, format!("bench: a second process {what}"));
        let line = match tokio::time::timeout(PATIENCE, self.answers.recv()).await {
            Ok(Some(line)) => line,
            Ok(None) => return Err(says("ended before it answered".to_owned())),
            Err(_) => return Err(says(format!("did not answer within {PATIENCE:?}"))),
        };
        match serde_json::from_str(&line) {
            Ok(Answer::Failed(why)) => Err(says(format!("failed: {why}"))),
            Ok(answer) => Ok(answer),
            Err(error) => Err(says(format!("answered {line:?}")).with_source(error)),
        }
    }

    /// An order and its answer.
    pub(super) async fn ask(&mut self, order: &Order) -> Result<Answer> {
        self.order(order)?;
        self.answer().await
    }

    /// When the helper had the lock, by its own word.
    pub(super) async fn got(&mut self) -> Result<Instant> {
        match self.answer().await? {
            Answer::Got { at_ns } => Ok(Instant::from_nanos(at_ns)),
            other => Err(Error::new(ErrorKind::Backend, format!("bench: a second process answered {other:?}"))),
        }
    }

    /// Kills it with SIGKILL; the moment just before. Reaped at once, or a store that looks for the process id would still
    /// find it.
    pub(super) fn kill(mut self) -> Result<Instant> {
        let before = Instant::now();
        self.process.kill().map_err(|error| failed("kill -9", error))?;
        self.process.wait().map_err(|error| failed("reaping", error))?;
        Ok(before)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Both fail only for a process that is gone and reaped already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The helpers of a run: started once, connected only while they are needed.
pub(super) struct Helpers {
    all: Vec<Helper>,
    opened: usize,
    url: String,
}

impl Helpers {
    pub(super) fn start(count: usize, url: &str) -> Result<Self> {
        let all = (0..count).map(|_| Helper::start()).collect::<Result<_>>()?;
        Ok(Helpers { all, opened: 0, url: url.to_owned() })
    }

    /// So many of them, connected to the store. Give them back with [`close`](Helpers::close).
    pub(super) async fn open(&mut self, count: usize) -> Result<&mut [Helper]> {
        let order = self.open_order();
        tell_all(&mut self.all[..count], &order).await?;
        self.opened = count;
        Ok(self.opened())
    }

    /// Those that are connected now.
    pub(super) fn opened(&mut self) -> &mut [Helper] {
        &mut self.all[..self.opened]
    }

    /// Disconnects them.
    pub(super) async fn close(&mut self) -> Result<()> {
        tell_all(self.opened(), &Order::Close).await?;
        self.opened = 0;
        Ok(())
    }

    /// One more, connected, to be killed.
    pub(super) async fn victim(&self) -> Result<Helper> {
        let mut victim = Helper::start()?;
        victim.ask(&self.open_order()).await?;
        Ok(victim)
    }

    fn open_order(&self) -> Order {
        Order::Open { store: self.url.clone() }
    }
}

/// Gives everybody an order before it waits for anybody's answer.
async fn tell_all(helpers: &mut [Helper], order: &Order) -> Result<()> {
    for helper in helpers.iter_mut() {
        helper.order(order)?;
    }
    for helper in helpers {
        helper.answer().await?;
    }
    Ok(())
}

/// This program, even if its file was replaced since it started.
fn own_program() -> std::io::Result<std::path::PathBuf> {
    let running = std::path::Path::new("/proc/self/exe");
    if running.exists() { Ok(running.to_owned()) } else { std::env::current_exe() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Helper {
        let mut process =
            Command::new("sleep").arg("600").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sleep exists");
        let orders = process.stdin.take().unwrap();
        Helper { process, orders, answers: mpsc::unbounded_channel().1 }
    }

    fn exists(pid: u32) -> bool {
        std::path::Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn a_dropped_helper_is_killed_and_reaped() {
        let helper = sleeper();
        let pid = helper.pid();
        assert!(exists(pid));
        drop(helper);
        assert!(!exists(pid), "neither running nor a zombie");
    }

    #[test]
    fn a_panic_leaves_none_behind() {
        let helper = sleeper();
        let pid = helper.pid();
        let panicked = std::thread::spawn(move || {
            let _mine = helper;
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(panicked.join().is_err());
        assert!(!exists(pid));
    }
}
