//! What the command started outlives it.

use std::process::Command;

use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{Running, Store, TENURE, eventually, lives, pid};

/// Ends at once with 3, and leaves one behind that says its pid, and `done` when there is a file `go`.
const LEAVES_ONE: &str = "sh -c 'echo $$; while ! test -e go; do sleep 0.01; done; echo done' & exit 3";

/// The same, and it leaves with 0, and says so when it is asked to end.
const LEAVES_A_LISTENER: &str = r#"sh -c 'trap "echo term; exit" TERM; echo $$; while :; do sleep 0.01; done' &"#;

#[test]
fn what_a_shell_pipes_its_output_into_is_complete() {
    let store = Store::new();
    for script in [
        "exec > >(gzip > out.gz); seq 200000",
        "exec > >(cat > out); seq 200000; exec > /dev/null; wait",
        "exec > >(tee out > /dev/null); seq 200000",
    ] {
        let ended = store.tenure(["run", "x", "--", "bash", "-c", script]);
        assert_eq!(ended.code(), 0, "{ended:?}");
        let read = "if test -e out.gz; then gunzip out.gz; fi; wc -l < out; rm out";
        let lines = Command::new("sh").args(["-c", read]).current_dir(store.path("")).output().unwrap();
        assert_eq!(crate::support::text(&lines).trim(), "200000", "{script}");
    }
    store.assert_empty();
}

#[test]
fn the_lock_is_held_until_all_have_ended() {
    let store = Store::new();
    let mut held = store.start_run(&["x"], LEAVES_ONE);
    let left = held.line();
    held.expect_on_stderr(&format!("x: the command ended (3); waiting for what it started: sh ({left})"));
    assert!(held.is_running() && lives(pid(&left)));
    assert_eq!(store.tenure(["run", "-n", "x", "--", "true"]).code(), 1, "it is still held");
    std::fs::write(store.path("go"), "").unwrap();
    held.expect_line("done");
    assert_eq!(held.wait().code(), 3);
    store.assert_empty();
}

#[test]
fn json_says_who_is_left_and_what_becomes_of_them() {
    let store = Store::new();
    let leftovers = |policy: &str, left: &str, events: &[(String, Value)]| {
        let at = events.iter().position(|(name, _)| name == "leftovers").unwrap_or_else(|| panic!("{events:?}"));
        let event = &events[at].1;
        assert_eq!((&event["policy"], &event["code"]), (&json!(policy), &json!(3)));
        let pids = event["pids"].as_array().unwrap();
        assert_eq!(event["count"], pids.len());
        assert!(pids.contains(&json!(left.parse::<i32>().unwrap())), "{event:?}");
        assert_eq!(events[at + 1].0, "exited");
    };
    for policy in ["wait", "term", "keep"] {
        let held = store.start(["run", "--json", "--leftovers", policy, "x", "--", "sh", "-c", &started_first(LEAVES_ONE)]);
        let left = held.line();
        if policy != "term" {
            held.expect_on_stderr("\"leftovers\"");
            std::fs::write(store.path("go"), "").unwrap();
        }
        let ended = held.wait();
        leftovers(policy, &left, &ended.events());
        assert_eq!(ended.code(), 3);
        eventually("it ends", || !lives(pid(&left)));
        let _ = std::fs::remove_file(store.path("go"));
        std::fs::remove_file(store.path("started")).unwrap();
    }
    let none = store.tenure(["run", "--json", "x", "--", "true"]);
    assert!(none.events().iter().all(|(name, _)| name != "leftovers"), "{none:?}");
}

/// The script, ending not before what it leaves has said its pid: asked to end, it might not come to that.
fn started_first(script: &str) -> String {
    script.replace("echo $$;", "echo $$; : > started;").replace("exit", "while ! test -e started; do sleep 0.01; done; exit")
}

#[test]
fn keep_leaves_them_without_the_lock() {
    let store = Store::new();
    let held = store.start_run(&["--leftovers", "keep", "x"], &format!("exec </dev/null; {}", started_first(LEAVES_ONE)));
    let left = pid(&held.line());
    let next = store.start_run(&["x"], "echo in");
    next.expect_line("in");
    assert!(lives(left), "it runs on");
    kill_process(left, Signal::KILL).unwrap();
    assert_eq!((held.wait().code(), next.wait().code()), (3, 0));
    store.assert_empty();
}

#[test]
fn signals_go_to_what_is_waited_for() {
    let store = Store::new();
    let held = store.start_run(&["--grace", "1h", "x"], LEAVES_A_LISTENER);
    let left = pid(&held.line());
    held.expect_on_stderr("waiting for what it started");
    held.signal(Signal::TERM);
    held.expect_line("term");
    assert_eq!(held.wait().code(), 143, "what was cut off is no success");
    assert!(!lives(left));
    store.assert_empty();
    // A shell's background jobs ignore SIGINT; they get the grace, and no more.
    let held = store.start_run(&["--grace", "100ms", "x"], &LEAVES_A_LISTENER.replace("TERM", "USR1"));
    let left = pid(&held.line());
    held.expect_on_stderr("waiting for what it started");
    held.signal(Signal::INT);
    assert_eq!(held.wait().code(), 130);
    assert!(!lives(left));
}

#[test]
fn they_end_when_the_lock_is_lost() {
    let store = Store::new();
    let held = store.start_run(&["--grace", "1h", "x"], LEAVES_A_LISTENER);
    let left = pid(&held.line());
    held.expect_on_stderr("waiting for what it started");
    assert_eq!(store.tenure(["break", "x", "--yes"]).code(), 0);
    held.expect_line("term");
    assert_eq!(held.wait().code(), 124);
    assert!(!lives(left));
    store.assert_empty();
}

/// A shell that becomes tenure had children before.
#[test]
fn what_tenure_did_not_start_is_left_alone() {
    let store = Store::new();
    let mut script = Command::new("sh");
    script.args(["-c", r#"sleep 1000 </dev/null >/dev/null 2>&1 & echo $!; exec "$0" run x -- true"#, TENURE]);
    let held = Running::start({
        script.env("TENURE_STORE", store.url());
        script
    });
    let stranger = pid(&held.line());
    assert_eq!(held.wait().code(), 0);
    assert!(lives(stranger));
    kill_process(stranger, Signal::KILL).unwrap();
}
