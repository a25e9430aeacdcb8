//! Runs the workspace's test programs side by side, since most of them wait for servers and clocks.
//!
//! `cargo test --no-run` names the programs. Those whose cases count requests or measure stalls run alone, after all
//! others. [`Schedule`] says which these are and how long each program takes, so that the longest start first.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

/// After this long a program hangs, and is killed. The longest takes two to three minutes.
const PROGRAM_LIMIT: Duration = Duration::from_secs(15 * 60);

/// How many cases of one program run at the same time, unless the environment says otherwise: they mostly wait.
const CASES_AT_ONCE: &str = "4";

/// How a run is carried out.
#[derive(Debug)]
pub struct Options {
    /// How many programs run at the same time.
    pub width: usize,
    /// Leave out the programs that the schedule calls slow.
    pub fast: bool,
    /// Only programs whose label contains one of these; all of them where it is empty.
    pub only: Vec<String>,
}

/// What is known of the programs before they run, from `xtask/schedule.txt`.
#[derive(Debug, Default)]
pub struct Schedule {
    entries: HashMap<String, Entry>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Entry {
    seconds: u64,
    alone: bool,
    slow: bool,
}

impl Schedule {
    /// Reads lines of the form `SECONDS LABEL [alone] [slow]`; `#` begins a comment.
    ///
    /// # Panics
    ///
    /// On a line of another form: the file is part of the sources.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let entries = lines.map(|line| {
            let mut words = line.split_whitespace();
            let seconds = words.next().and_then(|word| word.parse().ok());
            let (Some(seconds), Some(label)) = (seconds, words.next()) else {
                panic!("schedule.txt: `{line}` is not `SECONDS LABEL [alone] [slow]`");
            };
            let mut entry = Entry { seconds, ..Entry::default() };
            for word in words {
                match word {
                    "alone" => entry.alone = true,
                    "slow" => entry.slow = true,
                    _ => panic!("schedule.txt: `{line}`: `{word}` is neither `alone` nor `slow`"),
                }
            }
            (label.to_owned(), entry)
        });
        Schedule { entries: entries.collect() }
    }

    fn of(&self, program: &Program) -> Entry {
        self.entries.get(&program.label).copied().unwrap_or_default()
    }

    /// Splits the programs into those that run side by side and those that run alone, the longest first.
    fn order(&self, mut programs: Vec<Program>) -> (Vec<Program>, Vec<Program>) {
        programs.sort_by_key(|program| std::cmp::Reverse(self.of(program).seconds));
        programs.into_iter().partition(|program| !self.of(program).alone)
    }

    /// Labels that no program has: what was renamed or removed must leave the file.
    fn unknown<'a>(&'a self, programs: &[Program]) -> Vec<&'a str> {
        let known = |label: &str| programs.iter().any(|program| program.label == label);
        let mut unknown: Vec<_> = self.entries.keys().map(String::as_str).filter(|label| !known(label)).collect();
        unknown.sort_unstable();
        unknown
    }
}

/// One test program that cargo has built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    /// `PACKAGE/TARGET`; the unit tests of a library are `PACKAGE/lib`.
    pub(crate) label: String,
    path: PathBuf,
    /// The package's directory, in which cargo runs its tests.
    dir: PathBuf,
}

/// Builds every test program and runs them. Returns whether all cases passed.
pub fn run(root: &Path, schedule: &Schedule, options: &Options) -> io::Result<bool> {
    let programs = built(&mut cargo_test(root, &["--workspace"]))?;
    let unknown = schedule.unknown(&programs);
    if !unknown.is_empty() {
        return Err(io::Error::other(format!("xtask/schedule.txt names programs that do not exist: {unknown:?}")));
    }
    let wanted = |program: &Program| {
        (options.only.is_empty() || options.only.iter().any(|part| program.label.contains(part.as_str())))
            && !(options.fast && schedule.of(program).slow)
    };
    let (wanted, left_out): (Vec<_>, Vec<_>) = programs.into_iter().partition(wanted);
    if wanted.is_empty() {
        return Err(io::Error::other("no test program matches"));
    }
    let (together, alone) = schedule.order(wanted);
    let report = Report::default();
    run_all(together, options.width, &report);
    run_all(alone, 1, &report);
    if options.fast {
        report.print(&format!("left out ({}): {}", left_out.len(), labels(&left_out)));
    }
    Ok(report.close())
}

fn labels(programs: &[Program]) -> String {
    programs.iter().map(|program| program.label.as_str()).collect::<Vec<_>>().join(", ")
}

/// `cargo test --no-run` for the chosen packages and targets.
pub(crate) fn cargo_test(root: &Path, chosen: &[&str]) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.arg("test").args(chosen).args(["--locked", "--no-run", "--quiet", "--message-format=json-render-diagnostics"]);
    cargo.current_dir(root);
    cargo
}

/// Has cargo build test programs, and says which they are.
pub(crate) fn built(cargo: &mut Command) -> io::Result<Vec<Program>> {
    let mut cargo = cargo.stdout(Stdio::piped()).spawn()?;
    let lines = BufReader::new(cargo.stdout.take().expect("it is piped")).lines();
    let programs = lines.filter_map(|line| line.map(|line| Program::parse(&line)).transpose()).collect::<io::Result<_>>()?;
    if cargo.wait()?.success() { Ok(programs) } else { Err(io::Error::other("cargo could not build the tests")) }
}

/// What is read of cargo's messages.
#[derive(Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    executable: Option<PathBuf>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl Program {
    fn parse(line: &str) -> Option<Self> {
        let message: Message = serde_json::from_str(line).ok()?;
        let (target, path, manifest) = (message.target?, message.executable?, message.manifest_path?);
        if !message.profile?.test {
            return None;
        }
        let dir = manifest.parent()?.to_owned();
        let package = dir.file_name()?.to_str()?;
        let unit_tests = target.kind.iter().any(|kind| kind == "lib");
        let label = format!("{package}/{}", if unit_tests { "lib" } else { &target.name });
        Some(Program { label, path, dir })
    }

    /// Runs the cases whose names contain one of these, or all of them, and kills it after `limit`.
    ///
    /// Its output goes to a file, so that it never waits for a reader.
    pub(crate) fn run(&self, cases: &[String], limit: Duration) -> io::Result<Outcome> {
        let begun = Instant::now();
        let mut output = tempfile::tempfile()?;
        let threads = std::env::var_os("RUST_TEST_THREADS").unwrap_or_else(|| CASES_AT_ONCE.into());
        let mut child = Command::new(&self.path)
            .args(cases)
            .current_dir(&self.dir)
            .env("RUST_TEST_THREADS", threads)
            .env("CARGO_MANIFEST_DIR", &self.dir)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            .spawn()?;
        let mut hung = false;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if begun.elapsed() > limit && !hung {
                hung = true;
                child.kill()?;
            }
            thread::sleep(Duration::from_millis(20));
        };
        let text = read_whole(&mut output)?;
        Ok(Outcome::judge(status, hung.then_some(limit), text, begun.elapsed()))
    }
}

fn read_whole(file: &mut File) -> io::Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// How one program ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) took: Duration,
    /// What it printed, and what is wrong with it as a whole; empty if all is well.
    pub(crate) complaint: String,
    /// The first case that failed, if it could still name one.
    pub(crate) first_failed: Option<String>,
}

impl Outcome {
    /// `hung`: after how long it was killed.
    fn judge(status: ExitStatus, hung: Option<Duration>, text: String, took: Duration) -> Self {
        let (passed, mut failed) = counts(&text).unwrap_or_default();
        let mut complaint = String::new();
        if !status.success() {
            // A program that died before it could count its cases failed as one.
            failed = failed.max(1);
            complaint = failures(&text).to_owned();
            let why = hung.map_or_else(|| status.to_string(), |limit| format!("killed after {} s", limit.as_secs()));
            complaint.push_str(&format!("\n{why}\n"));
        } else if passed == 0 && counts(&text).is_none() {
            failed = 1;
            complaint = format!("{text}\nit ended well and said nothing of its cases\n");
        }
        let first_failed = text.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        Outcome { passed, failed, took, first_failed: first_failed.map(str::to_owned), complaint }
    }
}

/// What the program printed from its first failure on: each failing case's output, whole. All of it if it died before.
fn failures(text: &str) -> &str {
    text.find("\nfailures:\n").map_or(text, |at| &text[at..])
}

/// Reads `test result: ok. 12 passed; 0 failed; …`.
fn counts(text: &str) -> Option<(usize, usize)> {
    let line = text.lines().rev().find(|line| line.starts_with("test result: "))?;
    let number = |word: &str| {
        let (before, _) = line.split_once(word)?;
        before.split_whitespace().next_back()?.parse().ok()
    };
    Some((number(" passed")?, number(" failed")?))
}

/// What is printed, one program at a time, and counted.
#[derive(Debug, Default)]
struct Report {
    passed: AtomicUsize,
    failed: AtomicUsize,
    failures: Mutex<Vec<String>>,
    printing: Mutex<()>,
}

impl Report {
    fn add(&self, program: &Program, outcome: &Outcome) {
        self.passed.fetch_add(outcome.passed, Ordering::Relaxed);
        self.failed.fetch_add(outcome.failed, Ordering::Relaxed);
        let verdict = if outcome.failed == 0 { "ok" } else { "FAILED" };
        let line = format!("{:6.1} s {:5} cases  {}  {verdict}", outcome.took.as_secs_f64(), outcome.passed, program.label);
        if outcome.failed > 0 {
            self.failures.lock().expect("nobody panics with it").push(line.clone());
            self.print(&format!("{}{line}", outcome.complaint));
        } else {
            self.print(&line);
        }
    }

    fn print(&self, text: &str) {
        let _turn = self.printing.lock().expect("nobody panics with it");
        let _ = writeln!(io::stdout(), "{text}");
    }

    /// Repeats what failed, and says how many cases there were.
    fn close(&self) -> bool {
        let failures = self.failures.lock().expect("nobody panics with it");
        if !failures.is_empty() {
            self.print(&format!("\nfailed:\n{}", failures.join("\n")));
        }
        let (passed, failed) = (self.passed.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed));
        self.print(&format!("\n{passed} passed, {failed} failed"));
        failed == 0
    }
}

/// Runs the programs in the given order, `width` at a time.
fn run_all(programs: Vec<Program>, width: usize, report: &Report) {
    let queue = Mutex::new(programs.into_iter());
    thread::scope(|scope| {
        for _ in 0..width {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("nobody panics with it").next();
                    let Some(program) = next else { return };
                    let outcome = program.run(&[], PROGRAM_LIMIT).unwrap_or_else(|error| Outcome {
                        passed: 0,
                        failed: 1,
                        took: Duration::ZERO,
                        complaint: format!("{} could not be run: {error}\n", program.path.display()),
                        first_failed: None,
                    });
                    report.add(&program, &outcome);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn program(label: &str) -> Program {
        Program { label: label.to_owned(), path: PathBuf::new(), dir: PathBuf::new() }
    }

    #[test]
    fn the_longest_start_first_and_some_run_alone() {
        let schedule = Schedule::parse("# comment\n\n5 core/lib\n90 redis/conformance slow\n40 redis/economy alone\n");
        let programs = ["new/lib", "core/lib", "redis/economy", "redis/conformance"].map(program).to_vec();
        let (together, alone) = schedule.order(programs);
        assert_eq!(labels(&together), "redis/conformance, core/lib, new/lib");
        assert_eq!(labels(&alone), "redis/economy");
    }

    #[test]
    fn a_program_that_is_gone_must_leave_the_schedule() {
        let schedule = Schedule::parse("5 core/lib\n90 redis/gone\n");
        assert_eq!(schedule.unknown(&[program("core/lib")]), ["redis/gone"]);
    }

    #[test]
    fn cargo_names_the_programs() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/x/crates/core/Cargo.toml",
            "target":{"kind":["lib"],"name":"tenure_core"},"profile":{"test":true},"executable":"/x/target/core-1"}"#;
        let program = Program::parse(line).expect("it is a test program");
        assert_eq!((program.label.as_str(), program.dir), ("core/lib", PathBuf::from("/x/crates/core")));
        assert_eq!(Program::parse(&line.replace("true", "false")), None, "an example or the command itself");
        assert_eq!(Program::parse(r#"{"reason":"build-finished","success":true}"#), None);
    }

    #[test]
    fn cases_are_counted_from_the_last_result() {
        let text = "running 3 tests\ntest result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; finished in 1s\n";
        assert_eq!(counts(text), Some((2, 1)));
        assert_eq!(counts("Segmentation fault"), None);
    }

    #[test]
    fn a_program_that_dies_or_says_nothing_has_failed() {
        let judge = |code, text: &str| Outcome::judge(ExitStatus::from_raw(code), None, text.to_owned(), Duration::ZERO);
        assert_eq!(judge(9, "running 3 tests").failed, 1);
        assert_eq!(judge(0, "").failed, 1);
        let failing = "test a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\nwhy\n\ntest result: FAILED. 1 passed; 1 failed;";
        let outcome = judge(256, failing);
        assert_eq!((outcome.passed, outcome.failed, outcome.first_failed.as_deref()), (1, 1, Some("b")));
        assert!(outcome.complaint.contains("why") && !outcome.complaint.contains("test a"));
        assert_eq!(judge(0, "test result: ok. 0 passed; 0 failed; 0 ignored").failed, 0);
    }
}
