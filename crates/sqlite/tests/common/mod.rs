//! What the store's own tests share: a file of its own for each, and second processes.
#![allow(dead_code, reason = "not every test binary uses all of it")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tempfile::TempDir;
use tenure_core::Client;
use tenure_sqlite::{Settings, Sqlite};

/// A directory with a file of locks in it, both gone with the test.
pub(crate) struct Place {
    directory: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Place { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("locks.db")
    }

    pub(crate) fn sqlite(&self) -> Sqlite {
        Sqlite::open(self.path(), Settings::default()).unwrap()
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.sqlite()).unwrap()
    }

    /// The file as any other program sees it.
    pub(crate) fn raw(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.path()).unwrap()
    }
}

/// The variable that makes a test binary's `child` test do something: what, and with which file.
const CHILD: &str = "TENURE_SQLITE_CHILD";

/// What a test binary was started to do, if it was started by another one.
pub(crate) fn order() -> Option<(String, PathBuf)> {
    let order = std::env::var(CHILD).ok()?;
    let (what, path) = order.split_once(' ')?;
    Some((what.to_owned(), PathBuf::from(path)))
}

/// Says something to the process that started this one.
pub(crate) fn say(what: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "@{what}").and_then(|()| out.flush()).unwrap();
}

/// Waits for a line from the process that started this one.
pub(crate) fn listen() -> Option<String> {
    std::io::stdin().lock().lines().next()?.ok()
}

/// A second process: this binary again, with only its `child` test.
pub(crate) struct Second {
    pub(crate) process: Child,
    out: BufReader<ChildStdout>,
    orders: Option<ChildStdin>,
}

impl Second {
    pub(crate) fn start(what: &str, path: &Path) -> Self {
        Self::start_with(what, path, |command| command)
    }

    pub(crate) fn start_with(what: &str, path: &Path, how: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture"]).env(CHILD, format!("{what} {}", path.display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = how(&mut command).spawn().unwrap();
        let out = BufReader::new(process.stdout.take().unwrap());
        let orders = process.stdin.take();
        Second { process, out, orders }
    }

    /// What it says next.
    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "it ended without a word");
            // The test runner's own words may stand before it on the line.
            if let Some((_, said)) = line.split_once('@') {
                return said.trim_end().to_owned();
            }
        }
    }

    pub(crate) fn tell(&mut self, what: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{what}").unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
