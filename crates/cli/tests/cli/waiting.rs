//! Waiting until holders are gone, without taking their lock.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{STAY, Store, eventually};

#[test]
fn wait_ends_when_the_holder_does_and_takes_nothing() {
    let store = Store::new();
    assert_eq!(store.tenure(["wait", "x"]).code(), 0);
    let (one, other) = (store.hold(&["-s", "x"]), store.hold(&["-s", "x"]));
    let busy = store.tenure(["wait", "-n", "x"]);
    assert_eq!((busy.code(), busy.stdout.as_str()), (1, ""));
    assert!(busy.stderr.contains("x is still held by sh ("), "{busy:?}");
    assert_eq!(store.tenure(["wait", "--timeout", "50ms", "-E", "9", "-q", "x"]).code(), 9);
    let mut waiter = store.start(["wait", "--json", "x"]);
    one.end();
    assert_eq!(store.tenure(["wait", "-w", "50ms", "x"]).code(), 1, "one of two is still there");
    assert!(waiter.is_running());
    assert_eq!(store.view("x")["line"].as_array().unwrap().len(), 0, "it stands in no queue");
    other.end();
    let ended = waiter.wait();
    assert_eq!((ended.code(), ended.stdout.as_str()), (0, "{\"name\":\"x\",\"held\":false}\n"));
    store.assert_empty();
}

#[test]
fn a_name_that_is_only_closed_has_no_holder() {
    let store = Store::new();
    assert_eq!(store.tenure(["run", "--min-hold", "1h", "x", "--", "true"]).code(), 0);
    assert_eq!(store.tenure(["wait", "-n", "x"]).code(), 0);
}

#[test]
fn a_signal_ends_waiting() {
    let store = Store::new();
    let holder = store.hold(&["x"]);
    let waiter = store.start(["wait", "x"]);
    let status = format!("/proc/{}/status", waiter.pid().as_raw_nonzero());
    let caught = || {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).map(str::trim).unwrap_or("0");
        u64::from_str_radix(mask, 16).unwrap() & (1 << (Signal::TERM.as_raw() - 1)) != 0
    };
    eventually("it listens to signals", caught);
    waiter.signal(Signal::TERM);
    assert_eq!(waiter.wait().code(), 143);
    holder.end();
}

#[test]
fn ask_waits_until_the_holder_has_let_go() {
    let store = Store::new();
    let holder = store.start(["run", "--json", "x", "--", "sh", "-c", STAY]);
    holder.expect_line("in");
    let stays = store.tenure(["ask", "x", "--reason", "deploy", "--wait", "100ms"]);
    assert_eq!(stays.code(), 1, "{stays:?}");
    assert!(stays.stderr.contains("x is still held by sh ("), "{stays:?}");
    let asks = store.start(["ask", "x", "--reason", "deploy now", "--wait", "60s", "--json"]);
    holder.expect_on_stderr("deploy now");
    assert_eq!(holder.end().code(), 0);
    let ended = asks.wait();
    assert_eq!(ended.code(), 0, "{ended:?}");
    let line: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((line["asked"].as_u64(), line["released"].as_bool()), (Some(1), Some(true)));
    assert_eq!(store.tenure(["ask", "x", "--reason", "again", "--wait", "1s"]).code(), 1, "there is no holder to ask");
    store.assert_empty();
}

/// A graceful hand-over: the operator asks, the command hears a signal and ends, the lock is free.
#[test]
fn the_command_hears_that_it_is_asked() {
    let store = Store::new();
    // The group gets it: what the command waits for as well.
    let script = "trap 'echo asked; exit 5' USR1; sleep 1000 & echo in; wait; echo on";
    for (signal, asked) in [("SIGUSR1", "x"), ("usr1", "y"), ("10", "x")] {
        let holder = store.start_run(&["--on-ask", signal, "--and", "y", "x"], script);
        holder.expect_line("in");
        let asks = store.tenure(["ask", asked, "--reason", "deploy", "--wait", "60s"]);
        assert_eq!(asks.code(), 0, "{asks:?}");
        let ended = holder.wait();
        assert_eq!((ended.code(), ended.stdout.as_str()), (5, "asked\n"), "{ended:?}");
        assert!(
            ended.stderr.contains(&format!("{asked}: ")) && ended.stderr.contains("asks us to let go: deploy"),
            "{ended:?}"
        );
        store.assert_empty();
    }
    // It is the command's choice: this one stays, and is asked again.
    let stays = store.start_run(&["--on-ask", "hup", "x"], "trap 'echo no' HUP; echo in; while ! read line; do :; done");
    stays.expect_line("in");
    for reason in ["one", "two"] {
        assert_eq!(store.tenure(["ask", "x", "--reason", reason]).code(), 0);
        stays.expect_line("no");
    }
    let mut stays = stays;
    stays.write(b"end\n");
    assert_eq!(stays.end().code(), 0);
    let refused = store.tenure(["run", "--on-ask", "nope", "x", "--", "true"]);
    assert_eq!(refused.code(), 125);
    assert!(refused.stderr.contains("TERM, INT, HUP"), "{refused:?}");
}
