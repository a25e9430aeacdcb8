//! What every source file keeps to: a purpose, a size, one clock, nothing unfinished, nobody's machine.

use crate::tree::{Tree, code};

/// A file that is longer than this is more than one idea.
const LONGEST_FILE: usize = 700;
/// An example that is longer than this is not read.
const LONGEST_EXAMPLE: usize = 60;

/// Every Rust file opens with its purpose and stays short enough to be one idea.
pub(super) fn shape(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in tree.rust("") {
        // A store's page is its crate's documentation: written once, shown in both places.
        if !text.starts_with("//! ") && !text.starts_with("#![doc = include_str!(") {
            complaints.push(format!("{path}:1: begin with a `//!` line that says what the file is for"));
        }
        let (lines, longest) = (text.lines().count(), longest(path));
        if lines > longest {
            complaints.push(format!("{path}: {lines} lines, at most {longest}: split it where a second idea begins"));
        }
    }
    complaints
}

fn longest(path: &str) -> usize {
    if path.starts_with("examples/src/bin/") { LONGEST_EXAMPLE } else { LONGEST_FILE }
}

/// Where a clock other than [`tenure::Instant`] may be read, and why.
const OWN_CLOCKS: &[(&str, &str)] = &[
    ("crates/core/src/clock.rs", "the one place"),
    ("crates/testkit/", "measures the stores from outside"),
    ("crates/sim/", "lives on a simulated clock"),
    ("crates/cli/src/bench", "measures; nothing is trusted by it"),
    ("crates/cli/src/print/", "shows the wall clock to people; nothing is compared with it"),
    ("examples/", "a reader's program"),
    ("xtask/", "chores hold no locks"),
];
/// Clocks that stop while the machine sleeps, or that go backwards when somebody sets them.
const CLOCKS: &[&str] =
    &["SystemTime::now", "UNIX_EPOCH.elapsed", "std::time::Instant", "tokio::time::Instant", "clock_gettime"];

/// Trust is counted on one clock, read in one place.
pub(super) fn clocks(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in tree.rust("") {
        if path.contains("/tests/") || OWN_CLOCKS.iter().any(|(place, _)| path.starts_with(place)) {
            continue;
        }
        for (number, statement) in statements(text) {
            let imported = ["std", "tokio"].iter().any(|from| imports(&statement, from, "Instant"));
            if imported || CLOCKS.iter().any(|clock| statement.contains(clock)) {
                complaints
                    .push(format!("{path}:{number}: reads a clock of its own; tenure_core::Instant is the one to trust"));
            }
        }
    }
    complaints
}

/// Lines of code, those of one `use` joined into one.
fn statements(text: &str) -> Vec<(usize, String)> {
    let mut statements: Vec<(usize, String)> = Vec::new();
    let mut in_use = false;
    for (number, line) in code(text) {
        match statements.last_mut() {
            Some((_, last)) if in_use => last.push_str(line.trim()),
            _ => statements.push((number, line.trim().to_owned())),
        }
        let begins_use = line.trim_start().starts_with("use ") || line.trim_start().starts_with("pub use ");
        in_use = (in_use || begins_use) && !line.contains(';');
    }
    statements
}

/// Whether `use FROM::time::{…}` brings `name` in.
fn imports(statement: &str, from: &str, name: &str) -> bool {
    statement.split_once(&format!("use {from}::")).is_some_and(|(_, rest)| {
        rest.contains("time::") && rest.split(|char: char| !char.is_alphanumeric() && char != '_').any(|word| word == name)
    })
}

/// Nothing is left for later in a place that looks finished. The words are put together here, or this file would be the
/// first to be found.
pub(super) fn unfinished(tree: &Tree) -> Vec<String> {
    let words =
        [["TO", "DO"], ["FIX", "ME"], ["to", "do!("], ["unimpl", "emented!("], ["#[ign", "ore"]].map(|word| word.concat());
    let scripts = tree.files().filter(|(path, _)| *path == "test" || path.ends_with(".sh"));
    let mut complaints = Vec::new();
    for (path, text) in tree.rust("").chain(scripts) {
        for (index, line) in text.lines().enumerate() {
            for word in words.iter().filter(|word| line.contains(*word)) {
                complaints.push(format!("{path}:{}: {word}: do it, or write an issue", index + 1));
            }
        }
    }
    complaints
}

/// No path of the machine somebody happened to write this on.
pub(super) fn machines(tree: &Tree) -> Vec<String> {
    let homes = ["work", "root", "home"].map(|home| format!("/{home}/"));
    let mut complaints = Vec::new();
    for (path, text) in tree.files() {
        for (index, line) in text.lines().enumerate() {
            for home in homes.iter().filter(|home| line.match_indices(*home).any(|(at, _)| begins_a_path(&line[..at]))) {
                complaints.push(format!("{path}:{}: {home}… is a path of one machine", index + 1));
            }
        }
    }
    complaints
}

/// Whether a `/` after this text is the root, and not a folder within something.
fn begins_a_path(before: &str) -> bool {
    !before.ends_with(|char: char| char.is_alphanumeric() || "._-~}>)".contains(char))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(check: fn(&Tree) -> Vec<String>, path: &str, text: &str) -> usize {
        check(&Tree::of(&[(path, text)])).len()
    }

    #[test]
    fn a_file_without_a_purpose_or_with_two_is_found() {
        assert_eq!(found(shape, "a.rs", "//! Does a.\n"), 0);
        assert_eq!(found(shape, "lib.rs", "#![doc = include_str!(\"docs.md\")]\n"), 0);
        assert_eq!(found(shape, "a.rs", "use b;\n"), 1);
        assert_eq!(found(shape, "a.rs", &format!("//! Does a.\n{}", "\n".repeat(699))), 0);
        assert_eq!(found(shape, "a.rs", &format!("//! Does a.\n{}", "\n".repeat(700))), 1);
        assert_eq!(found(shape, "examples/src/bin/a.rs", &format!("//! Shows a.\n{}", "\n".repeat(60))), 1);
    }

    #[test]
    fn a_second_clock_is_found() {
        let bad = [
            "let now = std::time::SystemTime::now();",
            "let now = std::time::Instant::now();",
            "use std::time::{Duration, Instant};",
            "use std::time::{\n    Duration,\n    Instant,\n};",
            "use std::{io, time::Instant};",
            "use tokio::time::Instant;",
        ];
        for text in bad {
            assert_eq!(found(clocks, "crates/core/src/keeper.rs", text), 1, "{text}");
            assert_eq!(found(clocks, "crates/core/src/clock.rs", text), 0, "{text}");
            assert_eq!(found(clocks, "crates/core/tests/smoke.rs", text), 0, "{text}");
        }
        let good = ["use std::time::Duration;\nuse crate::Instant;", "let now = Instant::now();", "// std::time::Instant"];
        good.iter().for_each(|text| assert_eq!(found(clocks, "crates/core/src/keeper.rs", text), 0, "{text}"));
    }

    #[test]
    fn what_is_left_for_later_is_found() {
        for word in [["TO", "DO: x"], ["FIX", "ME"], ["to", "do!()"], ["unimpl", "emented!()"], ["#[ign", "ore = \"slow\"]"]]
        {
            assert_eq!(found(unfinished, "a.rs", &format!("//! A.\n{}\n", word.concat())), 1, "{word:?}");
        }
        assert_eq!(found(unfinished, "test", &["# TO", "DO"].concat()), 1);
        assert_eq!(found(unfinished, "a.rs", "// this is ignored, and to be done twice"), 0);
    }

    #[test]
    fn a_path_of_a_machine_is_found() {
        for bad in ["\"/{}/x\"", "sqlite:///{}/locks.db", "see /{}/notes", "=/{}/x"] {
            assert_eq!(found(machines, "README.md", &bad.replace("{}", "home")), 1, "{bad}");
        }
        for good in ["crates/work/x", "$dir/root/x", "~/home/x", "/homework/x", "{dir}/work/x"] {
            assert_eq!(found(machines, "README.md", good), 0, "{good}");
        }
    }
}
