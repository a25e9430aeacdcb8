//! A second process, to be killed and stopped.
//!
//! It is the test binary itself: [`conformance!`](crate::conformance) also makes a test called `taker`, which does
//! nothing unless [`TAKER`] is in its environment, and the suite starts the binary again with only that test to run. Orders and
//! replies go over stdin and stdout, a line of JSON each; replies begin with `MARK`, since the test runner prints there too.

mod serve;

pub(crate) use serve::{serve, serve_client};

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::attack::Plan;
use crate::{LIMIT, Shape, in_time};

/// The variable that makes the `taker` test a taker; its value is the store's URL.
pub const TAKER: &str = "TENURE_TAKER";

/// What a reply's line begins with.
const MARK: &str = "@taker ";

/// What a taker is told to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Take a lock into this slot, waiting for as long as it takes.
    Lock(Slot, Wanted),
    /// Take it if it is free.
    Try(Slot, Wanted),
    /// Begin to wait for it, and reply at once.
    Begin(Slot, Wanted),
    /// Wait for what was begun.
    Await(Slot),
    /// Begin to wait for it, reply at once, and let go as soon as it is had.
    Pass(Slot, Wanted),
    /// Wait until that was done; says when it was had.
    Passed(Slot),
    /// Take so many permits of so many, waiting for as long as it takes.
    Permits(Slot, Wanted, u32, u32),
    /// Say whether the hold may be trusted.
    Check(Slot),
    /// Let go.
    Release(Slot),
    /// Write to a fenced file with the hold's token.
    Write(Slot, PathBuf),
    /// Lock, read a number from a file, write one more, let go: so many times. Then nobody may have found by itself that it was let in;
    /// nor after a stress.
    Count(Wanted, PathBuf, u32),
    /// Take part in a stress, and leave its history in a file.
    Stress {
        /// What is locked, and as what.
        wanted: Wanted,
        /// How many tasks.
        tasks: usize,
        /// How many rounds each.
        rounds: u32,
        /// Where the history goes.
        history: PathBuf,
    },
    /// Take part in these histories of an attack, whose files are in this directory.
    Attack(Vec<Plan>, PathBuf),
    /// End, letting go of nothing.
    Exit,
}

/// A number for a guard in a taker.
pub type Slot = u32;

/// What lock, and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// The name.
    pub name: String,
    /// The kind.
    pub shape: Shape,
    /// The ttl.
    pub ttl: Duration,
    /// Whether it is renewed.
    pub keep: bool,
}

impl Wanted {
    /// A lock of this name and shape, renewed, with a ttl that no test outlives.
    pub fn new(name: &str, shape: Shape) -> Self {
        Wanted { name: name.to_owned(), shape, ttl: Duration::from_secs(600), keep: true }
    }

    /// With this ttl.
    pub fn ttl(self, ttl: Duration) -> Self {
        Wanted { ttl, ..self }
    }
}

/// What it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Connected to the store.
    Ready,
    /// Holds it, with this token, since at the latest this instant.
    Granted {
        /// The fencing number.
        token: u64,
        /// When the taker had it, on the clock that all processes of a host share.
        at: u64,
    },
    /// Does not hold it.
    Busy,
    /// May trust its hold.
    Held,
    /// May not.
    Lost,
    /// The fenced file took the write.
    Accepted,
    /// It did not.
    Refused,
    /// Did it.
    Done,
    /// Something failed.
    Error(String),
}

/// A second process. Killed when dropped.
pub struct Taker {
    child: Child,
    orders: ChildStdin,
    replies: mpsc::UnboundedReceiver<Reply>,
    /// Set by whatever may lose a message.
    harmed: Arc<AtomicBool>,
}

impl Taker {
    /// Starts one and waits until it is connected.
    pub async fn start(test: &str, url: &str) -> Self {
        Self::spawn(test, url).until_ready().await
    }

    /// Starts one; [`ready`](Taker::ready) comes before the first order.
    pub fn spawn(test: &str, url: &str) -> Self {
        // `conformance::sqlite::taker` is `sqlite::taker` to the test runner.
        let test = test.split_once("::").map_or(test, |(_, test)| test);
        let mut child = Command::new(std::env::current_exe().expect("the test binary knows where it is"))
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(TAKER, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test binary can be started again");
        let orders = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (heard, replies) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The runner's own "test taker ... " may stand before the mark on the same line.
                if let Some((_, reply)) = line.split_once(MARK) {
                    let reply = serde_json::from_str(reply).unwrap_or_else(|error| Reply::Error(format!("{error}: {line}")));
                    let _ = heard.send(reply);
                }
            }
        });
        Taker { child, orders, replies, harmed: Arc::default() }
    }

    /// Says there when it was killed, stopped or told to end without a good-bye.
    pub(crate) fn harming(mut self, harmed: &Arc<AtomicBool>) -> Self {
        self.harmed = Arc::clone(harmed);
        self
    }

    /// Itself, once it is connected.
    pub(crate) async fn until_ready(mut self) -> Self {
        self.ready().await;
        self
    }

    /// Waits until it is connected.
    pub async fn ready(&mut self) {
        assert_eq!(self.reply().await, Reply::Ready);
    }

    /// Gives an order and waits for the reply.
    pub async fn tell(&mut self, order: Order) -> Reply {
        self.send(order);
        self.reply().await
    }

    /// Gives an order; its reply must be waited for before the next one.
    pub fn send(&mut self, order: Order) {
        if matches!(order, Order::Exit) {
            self.harmed.store(true, Ordering::Relaxed);
        }
        let line = serde_json::to_string(&order).expect("orders are plain") + "\n";
        self.orders.write_all(line.as_bytes()).expect("the taker listens");
    }

    /// Waits for a reply.
    pub async fn reply(&mut self) -> Reply {
        in_time("a taker's reply", self.replies.recv()).await.expect("the taker lives")
    }

    /// Waits for the reply to an order of many steps, each of which has its time.
    pub async fn finished(&mut self) -> Reply {
        let reply = timeout(LIMIT * 4, self.replies.recv()).await.expect("a taker comes to an end");
        reply.expect("the taker lives")
    }

    /// Takes a lock: its token, and when the taker had it at the latest.
    pub async fn lock(&mut self, slot: Slot, wanted: &Wanted) -> (u64, u64) {
        self.send(Order::Lock(slot, wanted.clone()));
        self.granted().await
    }

    /// Waits for the reply that it holds what it asked for.
    pub async fn granted(&mut self) -> (u64, u64) {
        match self.reply().await {
            Reply::Granted { token, at } => (token, at),
            other => panic!("not granted but {other:?}"),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, and waits until it is dead.
    pub fn kill(&mut self) {
        self.harmed.store(true, Ordering::Relaxed);
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    /// SIGSTOP: stands still, keeper and all.
    pub fn stop(&self) {
        self.harmed.store(true, Ordering::Relaxed);
        crate::stop_between_writes(self.process());
    }

    /// SIGCONT: goes on.
    pub fn resume(&self) {
        kill_process(self.process(), Signal::CONT).expect("it is ours and lives");
    }

    fn process(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32).expect("a child has a process id")
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
