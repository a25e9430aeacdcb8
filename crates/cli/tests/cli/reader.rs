//! A reader that has seen enough ends what prints for it.

use std::process::Command;

use crate::support::{Running, Store, TENURE};

/// Runs a pipeline to its end; gives what it printed.
fn pipeline(store: &Store, line: &str) -> (i32, String) {
    let mut command = Command::new("bash");
    command.args(["-c", &format!("{line}; echo \"${{PIPESTATUS[@]}}\"")]);
    command.env("TENURE", TENURE).env("TENURE_STORE", store.url()).env_remove("TENURE_STORE_FILE");
    let ended = Running::start(command).end();
    (ended.code(), ended.stdout)
}

/// Nothing changes, so nothing more is written: the pipe's end alone must be noticed.
#[test]
fn a_closed_pipe_ends_watching() {
    let store = Store::new();
    for (line, codes) in [
        ("$TENURE watch x | head -1 | wc -l", "141 0 0"),
        ("$TENURE watch x | grep -q free", "141 0"),
        ("$TENURE watch --json x | head -1 | wc -l", "141 0 0"),
        ("$TENURE elect --observe x | head -1 | wc -l", "141 0 0"),
        ("$TENURE elect --observe --json x | grep -q '\"term\":null'", "141 0"),
    ] {
        let (code, said) = pipeline(&store, line);
        assert_eq!((code, said.lines().last()), (0, Some(codes)), "{line}: {said}");
    }
}
