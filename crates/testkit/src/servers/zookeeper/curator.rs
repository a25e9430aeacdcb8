//! The real Curator in a process of its own, for tests of who excludes whom.
//!
//! `Curator.java` reads commands and answers them in order. It is compiled once for a test binary, and its classes are
//! kept in memory: a directory of a `static` would outlive the process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use super::config::class_path;
use crate::LIMIT;
use crate::servers::process::{demand, run};

/// One Java program with one session, whose locks belong to its one thread. Ends when dropped, in an orderly way.
pub struct Curator {
    talk: Mutex<Talk>,
    dir: TempDir,
}

struct Talk {
    java: Child,
    answers: Receiver<String>,
}

/// Which of Curator's recipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// `InterProcessMutex`.
    Mutex,
    /// `InterProcessReadWriteLock.readLock()`.
    Read,
    /// `InterProcessReadWriteLock.writeLock()`.
    Write,
    /// One lease of an `InterProcessSemaphoreV2` with so many.
    Permit(u32),
}

const SOURCE: &str = include_str!("Curator.java");
const PACKAGE: &str = "openjdk-17-jdk-headless";
const JARS: [(&str, &str); 2] = [("curator-recipes.jar", "libcurator-recipes-java"), ("slf4j-simple.jar", "libslf4j-java")];

impl Curator {
    /// Starts one that is connected to these servers, as [`Ensemble::hosts`](super::Ensemble::hosts) lists them, perhaps
    /// with a chroot behind them.
    pub fn start(servers: &str, session: Duration) -> Self {
        let dir = tempfile::Builder::new().prefix("tenure-curator-").tempdir().expect("there is a temporary directory");
        for (name, class) in classes() {
            std::fs::write(dir.path().join(name), class).expect("the directory is ours");
        }
        let log = std::fs::File::create(dir.path().join("log")).expect("the directory is ours");
        let mut java = Command::new("java")
            .args(["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"])
            .arg(format!("{}:{}", dir.path().display(), class_path(&JARS)))
            .args(["Curator", servers, &session.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("whoever has a compiler has this");
        let (sender, answers) = channel();
        let lines = BufReader::new(java.stdout.take().expect("piped")).lines().map_while(Result::ok);
        // It ends with the program.
        std::thread::spawn(move || lines.map(|line| sender.send(line)).find(Result::is_err));
        let curator = Curator { talk: Mutex::new(Talk { java, answers }), dir };
        assert_eq!(curator.answer(LIMIT).as_deref(), Some("connected"), "{}", curator.log());
        curator
    }

    /// Takes a lock; panics if it does not get it.
    #[track_caller]
    pub fn lock(&self, recipe: Recipe, path: &str) {
        assert!(self.try_lock(recipe, path, LIMIT), "Curator does not get {path}:\n{}", self.log());
    }

    /// Takes a lock if it gets it in this time.
    #[track_caller]
    pub fn try_lock(&self, recipe: Recipe, path: &str, patience: Duration) -> bool {
        self.begin(recipe, path, patience);
        self.has_locked(LIMIT + patience).expect("it answers")
    }

    /// Begins to wait for a lock; [`has_locked`](Curator::has_locked) tells what becomes of it.
    pub fn begin(&self, recipe: Recipe, path: &str, patience: Duration) {
        let permits = if let Recipe::Permit(permits) = recipe { format!(" {permits}") } else { String::new() };
        self.say(&format!("lock {} {path} {}{permits}", recipe.word(), patience.as_millis()));
    }

    /// Whether what [`begin`](Curator::begin) began has ended with the lock; nothing if it has not ended in this time.
    #[track_caller]
    pub fn has_locked(&self, within: Duration) -> Option<bool> {
        match self.answer(within)?.as_str() {
            "locked" => Some(true),
            "late" => Some(false),
            other => panic!("Curator said {other}:\n{}", self.log()),
        }
    }

    /// Releases a lock; panics if it does not have it.
    #[track_caller]
    pub fn release(&self, recipe: Recipe, path: &str) {
        self.say(&format!("release {} {path}", recipe.word()));
        let answer = self.answer(LIMIT);
        assert_eq!(answer.as_deref(), Some("released"), "{path}:\n{}", self.log());
    }

    /// SIGKILL; its session is left to expire.
    pub fn kill(&self) {
        let java = &mut self.talk().java;
        let _ = java.kill();
        let _ = java.wait();
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn say(&self, line: &str) {
        let mut talk = self.talk();
        let said = writeln!(talk.java.stdin.as_mut().expect("piped"), "{line}");
        said.unwrap_or_else(|error| panic!("Curator does not listen: {error}\n{}", self.log()));
    }

    fn answer(&self, within: Duration) -> Option<String> {
        self.talk().answers.recv_timeout(within).ok()
    }

    fn talk(&self) -> MutexGuard<'_, Talk> {
        self.talk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Curator {
    fn drop(&mut self) {
        let java = &mut self.talk().java;
        // It gives its session back; were it stuck, it would not hear a closed pipe either.
        if let Some(mut pipe) = java.stdin.take() {
            let _ = writeln!(pipe, "quit");
        }
        if !crate::servers::wait_until_within(Duration::from_secs(5), || !matches!(java.try_wait(), Ok(None))) {
            let _ = java.kill();
        }
        let _ = java.wait();
    }
}

impl Recipe {
    fn word(self) -> &'static str {
        match self {
            Recipe::Mutex => "mutex",
            Recipe::Read => "read",
            Recipe::Write => "write",
            Recipe::Permit(_) => "permit",
        }
    }
}

/// The compiled program, by file.
fn classes() -> &'static [(String, Vec<u8>)] {
    static CLASSES: OnceLock<Vec<(String, Vec<u8>)>> = OnceLock::new();
    CLASSES.get_or_init(|| {
        demand("javac", PACKAGE);
        let dir = tempfile::tempdir().expect("there is a temporary directory");
        std::fs::write(dir.path().join("Curator.java"), SOURCE).expect("the directory is ours");
        run("javac", PACKAGE, |javac| javac.current_dir(dir.path()).args(["-cp", &class_path(&JARS), "Curator.java"]));
        let files = std::fs::read_dir(dir.path()).expect("it was just made").flatten();
        let class = |file: std::fs::DirEntry| {
            let name = file.file_name().into_string().ok().filter(|name| name.ends_with(".class"))?;
            Some((name, std::fs::read(file.path()).ok()?))
        };
        files.filter_map(class).collect()
    })
}
