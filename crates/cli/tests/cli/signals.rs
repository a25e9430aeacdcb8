//! `kill`, while waiting and while holding; children that ignore, fork and hide.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{STAY, Store, eventually, lives, pid};

#[test]
fn a_signal_while_waiting_gives_up_at_once() {
    let store = Store::new();
    let holder = store.hold(&["x"]);
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let waiter = store.queue(&["x"], "x");
        waiter.signal(signal);
        let ended = waiter.wait();
        assert_eq!((ended.code(), ended.stdout.as_str()), (code, ""), "{ended:?}");
        assert_eq!(store.view("x")["line"].as_array().unwrap().len(), 0, "nothing is left in line");
    }
    assert_eq!(holder.end().code(), 0);
    store.assert_empty();
}

#[test]
fn signals_reach_the_command() {
    let store = Store::new();
    let script = r#"trap 'echo usr1' USR1; trap 'echo term; exit 5' TERM; echo in; while :; do sleep 0.01; done"#;
    let held = store.start_run(&["x"], script);
    held.expect_line("in");
    held.signal(Signal::USR1);
    held.expect_line("usr1");
    held.signal(Signal::TERM);
    held.expect_line("term");
    assert_eq!(held.wait().code(), 5);
    store.assert_empty();
}

#[test]
fn a_command_that_ignores_term_is_killed_after_the_grace() {
    let store = Store::new();
    let script = "trap '' TERM; echo in; while :; do sleep 0.01; done";
    let held = store.start_run(&["--grace", "300ms", "x"], script);
    held.expect_line("in");
    let started = Instant::now();
    held.signal(Signal::TERM);
    let ended = held.wait();
    assert_eq!(ended.code(), 128 + 9);
    assert!(started.elapsed() >= Duration::from_millis(300));
    store.assert_empty();
}

#[test]
fn with_leftovers_term_nothing_the_command_started_outlives_the_lock() {
    let store = Store::new();
    // One in the command's group, one that ignores TERM, one in a session of its own whose parent has gone.
    let script = r#"
        sleep 1000 & echo $!
        sh -c 'trap "" TERM; echo $$; while :; do sleep 0.01; done' &
        setsid sh -c 'echo $$; exec sleep 1000' &
        cat >/dev/null
        exit 4
    "#;
    let held = store.start_run(&["--leftovers", "term", "--grace", "200ms", "x"], script);
    let started: Vec<_> = (0..3).map(|_| pid(&held.line())).collect();
    let waiter = store.queue(&["x"], "x");
    let ended = held.end();
    assert_eq!(ended.code(), 4);
    assert!(started.iter().all(|pid| !lives(*pid)), "gone before the lock was");
    waiter.expect_line("in");
    waiter.end();
    store.assert_empty();
}

#[test]
fn a_killed_holder_is_noticed_at_once() {
    let store = Store::new();
    let held = store.start_run(&["--ttl", "1h", "x"], "echo $$; sleep 1000 & echo $!; wait");
    let (command, sleeper) = (pid(&held.line()), pid(&held.line()));
    let waiter = store.queue(&["x"], "x");
    let killed = Instant::now();
    held.signal(Signal::KILL);
    waiter.expect_line("in");
    let took = killed.elapsed();
    eprintln!("the waiter's command runs {took:?} after kill -9 of the holder");
    assert!(took < Duration::from_secs(60), "{took:?}, and not after a ttl of an hour");
    eventually("the command and all it started are gone", || !lives(command) && !lives(sleeper));
    assert_eq!(waiter.end().code(), 0);
    store.assert_empty();
}

#[test]
fn a_killed_waiter_leaves_no_ticket() {
    let store = Store::new();
    let holder = store.hold(&["--fair", "x"]);
    let dead = store.queue(&["--fair", "--ttl", "1h", "x"], "x");
    let next = store.queue(&["--fair", "x"], "x");
    dead.signal(Signal::KILL);
    dead.wait();
    let released = Instant::now();
    holder.end();
    next.expect_line("in");
    assert!(released.elapsed() < Duration::from_secs(60), "{:?}, and not after a ttl of an hour", released.elapsed());
    next.end();
    store.assert_empty();
}

#[test]
fn nohup_stays_nohup() {
    let store = Store::new();
    let mut command = std::process::Command::new("nohup");
    let script = "trap 'exit 6' TERM; echo in; while :; do sleep 0.01; done";
    command.args([crate::support::TENURE, "run", "x", "--", "sh", "-c", script]).env("TENURE_STORE", store.url());
    let mut held = crate::support::Running::start(command);
    held.expect_line("in");
    held.signal(Signal::HUP);
    assert!(held.says_nothing_for(Duration::from_millis(200)) && held.is_running());
    held.signal(Signal::TERM);
    assert_eq!(held.wait().code(), 6);
}

#[test]
fn a_stopped_command_is_still_held_for() {
    let store = Store::new();
    // With a short grace it is given up late, and a machine may stand still between two renewals.
    let held = store.start_run(&["--ttl", "9s", "--grace", "200ms", "x"], &format!("echo $$; {STAY}"));
    let command = pid(&held.line());
    held.expect_line("in");
    rustix::process::kill_process(command, Signal::STOP).unwrap();
    // It outlives its ttl: it is still renewed.
    while store.view("x")["holders"][0]["held_for_ms"].as_u64().expect("it is held") < 12_000 {
        assert!(held.says_nothing_for(Duration::from_millis(200)));
    }
    assert_eq!(store.tenure(["run", "-n", "x", "--", "true"]).code(), 1);
    rustix::process::kill_process(command, Signal::CONT).unwrap();
    assert_eq!(held.end().code(), 0);
}
