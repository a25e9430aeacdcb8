//! Bugs planted on purpose, each with the test that must fail: what shows that the suite would notice them.
//!
//! `xtask/mutants/*.txt` keeps them, in this form:
//!
//! ```text
//! mutant redis-grant-not-published
//! breaks: A waiter is told of its grant at once.
//! file: crates/redis/src/lua/sweep.lua
//! test: redis/conformance grants_by_poll
//! -redis.call('PUBLISH', channel, message)
//! +-- nothing is published
//! ```
//!
//! `test` names a program as `xtask/schedule.txt` does, and the cases to run: those whose names contain one of the words.
//! `-` lines are whole lines that stand in the file exactly once, `+` lines replace them; white space at their ends does not
//! count. A mutant may have several such pairs. Empty lines and lines that begin with `#` are comments.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::manifest::Manifest;
use crate::runner::{self, Outcome, Program};
use crate::tree::Tree;

/// After this long a program whose cases take seconds hangs, and is killed.
const CASES_LIMIT: Duration = Duration::from_secs(180);

/// One planted bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// Its name, which no other mutant has.
    pub name: String,
    /// The promise that it breaks, in one sentence.
    pub breaks: String,
    /// The file it is planted in.
    pub file: String,
    /// `PACKAGE/TARGET` of the program that must notice it.
    pub program: String,
    /// Parts of the names of the cases that are run.
    pub cases: Vec<String>,
    edits: Vec<Edit>,
}

/// Some lines and what takes their place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Edit {
    original: Vec<String>,
    replacement: Vec<String>,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({} {})", self.name, self.breaks, self.program, self.cases.join(" "))
    }
}

/// The mutants that the tree keeps in `xtask/mutants/`.
pub fn all(tree: &Tree) -> io::Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for (path, text) in tree.files().filter(|(path, _)| path.starts_with("xtask/mutants/")) {
        mutants.extend(parse(text).map_err(|error| io::Error::other(format!("{path}:{error}")))?);
    }
    Ok(mutants)
}

/// Reads one file; an error begins with the number of the line.
fn parse(text: &str) -> Result<Vec<Mutant>, String> {
    let mut mutants: Vec<Mutant> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let wrong = |what: &str| format!("{}: {what}: `{line}`", index + 1);
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix("mutant ") {
            mutants.push(Mutant::named(name));
            continue;
        }
        let mutant = mutants.last_mut().ok_or_else(|| wrong("the first line is not `mutant NAME`"))?;
        if let Some(original) = line.strip_prefix('-') {
            let edit = match mutant.edits.last_mut() {
                Some(edit) if edit.replacement.is_empty() => edit,
                _ => mutant.edits.push_mut(Edit::default()),
            };
            edit.original.push(original.trim().to_owned());
        } else if let Some(replacement) = line.strip_prefix('+') {
            let edit = mutant.edits.last_mut().ok_or_else(|| wrong("no `-` line stands before it"))?;
            edit.replacement.push(replacement.trim().to_owned());
        } else if let Some(breaks) = line.strip_prefix("breaks: ") {
            mutant.breaks = breaks.to_owned();
        } else if let Some(file) = line.strip_prefix("file: ") {
            mutant.file = file.to_owned();
        } else if let Some(test) = line.strip_prefix("test: ") {
            let mut words = test.split_whitespace().map(str::to_owned);
            mutant.program = words.next().unwrap_or_default();
            mutant.cases = words.collect();
        } else {
            return Err(wrong("neither `mutant`, `breaks:`, `file:`, `test:`, `-` nor `+`"));
        }
    }
    Ok(mutants)
}

impl Mutant {
    fn named(name: &str) -> Self {
        Mutant {
            name: name.to_owned(),
            breaks: String::new(),
            file: String::new(),
            program: String::new(),
            cases: Vec::new(),
            edits: Vec::new(),
        }
    }

    /// Whether somebody who says this wants to see it run.
    pub fn is_meant_by(&self, part: &str) -> bool {
        self.name.contains(part) || self.program.contains(part)
    }

    /// The text of its file with the bug in it.
    pub fn plant(&self, text: &str) -> Result<String, String> {
        if self.edits.is_empty() {
            return Err("it changes nothing".to_owned());
        }
        self.edits.iter().try_fold(text.to_owned(), |text, edit| edit.apply(&text))
    }

    /// Why it cannot be run on this tree; empty if it can.
    pub fn complaints(&self, tree: &Tree) -> Vec<String> {
        let mut complaints = Vec::new();
        let mut complain = |what: String| complaints.push(format!("{}: {what}", self.name));
        if !self.file.starts_with("crates/") || !self.file.contains("/src/") {
            complain(format!("{:?} is not production code", self.file));
        }
        if let Err(why) = self.plant(tree.text(&self.file)) {
            complain(why);
        }
        if self.breaks.is_empty() {
            complain("it does not say what it breaks".to_owned());
        }
        if !has_program(tree, &self.program) {
            complain(format!("there is no test program {:?}", self.program));
        }
        if self.cases.is_empty() {
            complain("it names no case".to_owned());
        }
        for case in &self.cases {
            // The cases of the suite are made by macros from words, so nothing more can be read without building.
            let word = case.rsplit("::").next().unwrap_or(case);
            if !tree.rust("").any(|(_, text)| text.contains(word)) {
                complain(format!("there is no case {case:?}"));
            }
        }
        complaints
    }
}

impl Edit {
    fn apply(&self, text: &str) -> Result<String, String> {
        if self.original == self.replacement {
            return Err(format!("the replacement is the original: {:?}", self.original));
        }
        let lines: Vec<_> = text.lines().collect();
        let matches = |window: &[&str]| window.iter().map(|line| line.trim()).eq(self.original.iter().map(String::as_str));
        let places: Vec<_> = lines.windows(self.original.len()).enumerate().filter(|(_, window)| matches(window)).collect();
        let [(place, _)] = places[..] else {
            return Err(format!("{} places instead of one have {:?}", places.len(), self.original));
        };
        let replacement = self.replacement.iter().map(String::as_str);
        let (before, after) = (&lines[..place], &lines[place + self.original.len()..]);
        let all: Vec<_> = before.iter().copied().chain(replacement).chain(after.iter().copied()).collect();
        Ok(all.join("\n") + "\n")
    }
}

fn has_program(tree: &Tree, label: &str) -> bool {
    let Some((package, target)) = label.split_once('/') else { return false };
    let exists = |path: &str| !tree.text(&format!("crates/{package}/{path}")).is_empty();
    if target == "lib" {
        exists("src/lib.rs")
    } else {
        exists(&format!("tests/{target}.rs")) || exists(&format!("tests/{target}/main.rs"))
    }
}

/// What became of one mutant.
enum Fate {
    Caught(Outcome),
    Survived,
    DoesNotBuild(String),
    DoesNotApply(String),
    /// The case fails without it too, or there is none, so it shows nothing.
    FailsAnyway(String),
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Caught(Outcome { first_failed: Some(case), took, .. }) => {
                write!(f, "caught by {case} in {:.1} s", took.as_secs_f64())
            }
            Fate::Caught(Outcome { took, .. }) => write!(f, "caught: the program died after {:.1} s", took.as_secs_f64()),
            Fate::Survived => f.write_str("SURVIVED"),
            Fate::DoesNotBuild(why) => write!(f, "does not build\n{why}"),
            Fate::DoesNotApply(why) => write!(f, "does not apply: {why}"),
            Fate::FailsAnyway(why) => write!(f, "its test is of no use: {why}"),
        }
    }
}

/// Plants each mutant in a copy of the tree and runs its cases. Returns whether all were caught.
pub fn run(root: &Path, mutants: &[Mutant]) -> io::Result<bool> {
    if mutants.is_empty() {
        return Err(io::Error::other("no mutant matches"));
    }
    let bench = Bench::set_up(root)?;
    let useless = bench.without_mutants(mutants)?;
    let (mut caught, mut survived, mut others) = (0, 0, 0);
    for mutant in mutants {
        let fate = match useless.iter().find(|(program, cases, _)| (program, cases) == (&mutant.program, &mutant.cases)) {
            Some((_, _, why)) => Fate::FailsAnyway(why.clone()),
            None => bench.try_out(mutant)?,
        };
        say(&format!("{}: {fate}", mutant.name));
        match fate {
            Fate::Caught(_) => caught += 1,
            Fate::Survived => survived += 1,
            _ => others += 1,
        }
    }
    let others = if others == 0 { String::new() } else { format!(", {others} not run") };
    say(&format!("\n{caught} caught, {survived} survived{others}"));
    Ok(caught == mutants.len())
}

fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// A copy of the tree with a target directory of its own, both kept from run to run.
struct Bench {
    copy: Tree,
    dir: std::path::PathBuf,
}

impl Bench {
    fn set_up(root: &Path) -> io::Result<Self> {
        let dir = root.join("target/mutants");
        copy_tree(root, &dir.join("tree"))?;
        Ok(Bench { copy: Tree::read(&dir.join("tree"))?, dir })
    }

    /// Runs the cases of all mutants on the tree as it is. Returns those that cannot show anything, and why.
    fn without_mutants(&self, mutants: &[Mutant]) -> io::Result<Vec<(String, Vec<String>, String)>> {
        let mut useless = Vec::new();
        let all: BTreeSet<_> = mutants.iter().map(|mutant| (&mutant.program, &mutant.cases)).collect();
        for (label, cases) in all {
            let why = match self.build(label)? {
                Err(why) => why,
                Ok(program) => match program.run(cases, CASES_LIMIT)? {
                    Outcome { failed: 0, passed: 0, .. } => "there is no such case".to_owned(),
                    Outcome { failed: 0, .. } => continue,
                    Outcome { complaint, .. } => format!("it fails without the mutant:\n{complaint}"),
                },
            };
            useless.push((label.clone(), cases.clone(), why));
        }
        Ok(useless)
    }

    fn try_out(&self, mutant: &Mutant) -> io::Result<Fate> {
        let original = self.copy.text(&mutant.file);
        let path = self.dir.join("tree").join(&mutant.file);
        let planted = match mutant.plant(original) {
            Ok(planted) => planted,
            Err(why) => return Ok(Fate::DoesNotApply(why)),
        };
        fs::write(&path, planted)?;
        let fate = self.build(&mutant.program).and_then(|built| match built {
            Err(why) => Ok(Fate::DoesNotBuild(why)),
            Ok(program) => match program.run(&mutant.cases, CASES_LIMIT)? {
                Outcome { failed: 0, .. } => Ok(Fate::Survived),
                outcome => Ok(Fate::Caught(outcome)),
            },
        });
        fs::write(&path, original)?;
        fate
    }

    /// Builds one program; what the compiler says if it does not build.
    fn build(&self, label: &str) -> io::Result<Result<Program, String>> {
        let (package, target) = label.split_once('/').unwrap_or((label, "lib"));
        let manifest = Manifest::parse(self.copy.text(&format!("crates/{package}/Cargo.toml")));
        // All crates are chosen, so that their tests share one build of what they need. Not with those of core, though: everything
        // else is built on it, and would be built again only to be left out. Nor need its rules be fast here.
        let mut chosen = match package {
            "core" => vec!["-p", &manifest.name, "--config", "profile.dev.package.tenure-core.opt-level=0"],
            _ => vec!["--workspace"],
        };
        chosen.extend(if target == "lib" { vec!["--lib"] } else { vec!["--test", target] });
        let mut said = tempfile::tempfile()?;
        let mut cargo = runner::cargo_test(&self.dir.join("tree"), &chosen);
        cargo.env("CARGO_TARGET_DIR", self.dir.join("build")).stderr(said.try_clone()?);
        let Ok(programs) = runner::built(&mut cargo) else {
            let mut text = String::new();
            said.rewind()?;
            said.read_to_string(&mut text)?;
            return Ok(Err(text));
        };
        let program = programs.into_iter().find(|program| program.label == label);
        Ok(program.ok_or_else(|| format!("cargo built no {label}")))
    }
}

/// Makes `to` the same as what git would commit of `from`. Files that are the same already keep their times, so that cargo does not
/// build them again.
fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    let git = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(from)
        .output()?;
    if !git.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&git.stderr)));
    }
    let listed = String::from_utf8_lossy(&git.stdout).into_owned();
    let files: BTreeSet<_> = listed.split('\0').filter(|path| from.join(path).is_file()).collect();
    for path in &files {
        let (source, target) = (from.join(path), to.join(path));
        if fs::read(&target).ok() != Some(fs::read(&source)?) {
            fs::create_dir_all(target.parent().expect("it is a file in a directory"))?;
            fs::copy(source, target)?;
        }
    }
    for (path, _) in Tree::read(to)?.files().filter(|(path, _)| !files.contains(path)) {
        fs::remove_file(to.join(path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: &str = "# Redis\n\nmutant not-told\nbreaks: A waiter is told.\nfile: crates/x/src/a.rs\n\
                        test: x/cases told grants::at_once\n-tell(\n-  them);\n+forget();\n-a\n+\n";

    fn kept() -> Mutant {
        parse(KEPT).unwrap().remove(0)
    }

    fn tree(code: &str) -> Tree {
        Tree::of(&[("crates/x/src/a.rs", code), ("crates/x/tests/cases.rs", "fn told() {} fn at_once() {}")])
    }

    #[test]
    fn a_mutant_is_read_and_planted() {
        let mutant = kept();
        assert_eq!(mutant.to_string(), "not-told: A waiter is told. (x/cases told grants::at_once)");
        let code = "fn f() {\n    tell(\n        them);\n    a\n}\n";
        assert_eq!(mutant.plant(code).unwrap(), "fn f() {\nforget();\n\n}\n");
        assert_eq!(mutant.complaints(&tree(code)), [""; 0]);
        assert!(mutant.is_meant_by("told") && mutant.is_meant_by("x/") && !mutant.is_meant_by("crates/x"));
    }

    #[test]
    fn a_mutant_that_no_longer_fits_is_refused() {
        let complaint = |mutant: Mutant, code: &str| mutant.complaints(&tree(code)).join("\n");
        assert!(complaint(kept(), "a\n").contains("0 places"));
        assert!(complaint(kept(), "tell(\nthem);\na\ntell(\nthem);\n").contains("2 places"));
        let code = "tell(\nthem);\na\n";
        assert!(complaint(Mutant { program: "x/gone".into(), ..kept() }, code).contains("no test program"));
        assert!(complaint(Mutant { cases: vec!["gone".into()], ..kept() }, code).contains("no case \"gone\""));
        assert!(complaint(Mutant { cases: Vec::new(), ..kept() }, code).contains("names no case"));
        assert!(complaint(Mutant { edits: Vec::new(), ..kept() }, code).contains("changes nothing"));
        let same = parse("mutant m\nfile: f\ntest: x/cases told\n-a\n+ a\n").unwrap().remove(0);
        assert!(same.plant(code).unwrap_err().contains("is the original"));
    }

    #[test]
    fn a_line_of_no_meaning_is_refused_by_its_number() {
        assert!(parse("-a\n").unwrap_err().starts_with("1: "));
        assert!(parse("mutant m\nflie: a\n").unwrap_err().starts_with("2: "));
        assert!(parse("mutant m\n+a\n").unwrap_err().starts_with("2: "));
    }
}
