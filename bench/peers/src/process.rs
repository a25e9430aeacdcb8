//! A contender's process: started, ordered, listened to with a limit, and gone when dropped.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::catalogue::{Entry, Program};
use crate::orders::{Answer, Order};
use crate::store::Store;

/// How long anybody may take beyond what was asked of it. Long enough for a slow machine; a library that stands still is
/// reported as that.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Process {
    /// Starts it, and waits until it has connected.
    pub(crate) fn start(store: Store, entry: &Entry, url: &str, index: usize) -> Result<Self, String> {
        let mut command = command(store, entry, url, index)?;
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = started.map_err(|error| format!("starting {:?}: {error}", command.get_program()))?;
        let (orders, output) = (child.stdin.take(), child.stdout.take().expect("it is piped"));
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let process = Process { child, orders, answers };
        match process.answer(Duration::ZERO)? {
            Answer::Ready => Ok(process),
            other => Err(format!("it said {other:?} instead of ready")),
        }
    }

    pub(crate) fn order(&mut self, order: &Order) -> Result<(), String> {
        let orders = self.orders.as_mut().expect("open until dropped");
        let line = serde_json::to_string(order).expect("orders are plain data");
        writeln!(orders, "{line}").and_then(|()| orders.flush()).map_err(|error| format!("it takes no orders: {error}"))
    }

    /// Its next answer, due after this long.
    pub(crate) fn answer(&self, due: Duration) -> Result<Answer, String> {
        let line = self.answers.recv_timeout(due + PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!("no answer within {:?}", due + PATIENCE),
            RecvTimeoutError::Disconnected => "it ended without an answer".to_owned(),
        })?;
        match serde_json::from_str(&line) {
            Ok(Answer::Failed { why }) => Err(why),
            Ok(answer) => Ok(answer),
            Err(error) => Err(format!("it answered {line}: {error}")),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // What it still waits for does not matter, and the next one shall have the machine to itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(store: Store, entry: &Entry, url: &str, index: usize) -> Result<Command, String> {
    let script = |name: &str| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts").join(name);
    match entry.program {
        Program::Rust => {
            let own = std::env::current_exe().map_err(|error| format!("finding this binary: {error}"))?;
            let mut command = Command::new(own);
            command.args(["child", store.key(), entry.key, url, &index.to_string()]);
            Ok(command)
        }
        Program::Python(name) => {
            let mut command = Command::new(installed("PEERS_PYTHON")?);
            command.env("PYTHONDONTWRITEBYTECODE", "1").arg(script(name)).arg(url);
            Ok(command)
        }
        Program::Node(version) => {
            let mut command = Command::new("node");
            command.env("NODE_PATH", installed("PEERS_NODE_MODULES")?).arg(script("redlock.js")).args([version, url]);
            Ok(command)
        }
        Program::Java(kind) => {
            let mut command = Command::new("java");
            let class_path = format!("{}:{}", installed("PEERS_JAVA")?, JARS);
            command.args(["-Xmx256m", "-XX:+UseSerialGC", "-cp", &class_path, "CuratorPeer", kind, url]);
            Ok(command)
        }
        Program::Go(name) => {
            let mut command = Command::new(PathBuf::from(installed("PEERS_GO")?).join(name));
            command.arg(url);
            Ok(command)
        }
    }
}

/// Curator, what reads JSON, and what keeps both from logging; `run` compiles with the same.
const JARS: &str = "/usr/share/java/curator-recipes.jar:/usr/share/java/jackson-databind.jar:/usr/share/java/slf4j-nop.jar";

fn installed(variable: &str) -> Result<String, String> {
    std::env::var(variable).map_err(|_| format!("{variable} is not set: start bench/peers/run, which installs it"))
}
