//! The lock goes, and the command with it, in time.

use std::time::Duration;

use rustix::process::Signal;
use tenure_testkit::stop_between_writes;

use crate::support::{STANDS_STILL, STAY, Store, eventually, is_stopped, lives, pid, signal_group, unless_stalled};

/// Says its pid, then appends to `beats` for as long as it runs; asked to end, it says so.
const BEAT: &str =
    r#"exec 2>/dev/null; trap 'echo term; exit 0' TERM; echo $$; while :; do echo . >>beats; sleep 0.01; done"#;

#[test]
fn a_broken_lock_stops_the_command() {
    let store = Store::new();
    let held = store.start_run(&["x"], BEAT);
    let command = pid(&held.line());
    let waiter = store.queue(&["x"], "x");
    assert_eq!(store.tenure(["break", "x", "--yes"]).code(), 0);
    waiter.expect_line("in");
    held.expect_line("term");
    let ended = held.wait();
    assert_eq!(ended.code(), 124, "{ended:?}");
    assert!(ended.stderr.contains("x: the lock was lost; another process may hold it now ("), "{ended:?}");
    assert!(ended.stderr.contains("stopping the command"), "{ended:?}");
    assert!(!lives(command));
    waiter.end();
    store.assert_empty();
}

#[test]
fn on_lost_kill_and_on_lost_ignore() {
    let store = Store::new();
    let held = store.start_run(&["--on-lost", "kill", "x"], BEAT);
    held.line();
    store.tenure(["break", "x", "--yes"]);
    let ended = held.wait();
    assert_eq!((ended.code(), ended.stdout.as_str()), (124, ""), "{ended:?}");

    let mut held = store.start_run(&["--on-lost", "ignore", "x"], &format!("{STAY}; echo done; exit 7"));
    held.expect_line("in");
    store.tenure(["break", "x", "--yes"]);
    assert_eq!(store.tenure(["run", "-n", "x", "--", "true"]).code(), 0, "it is anybody's");
    assert!(held.is_running());
    let ended = held.end();
    assert_eq!((ended.code(), ended.stdout.as_str()), (7, "done\n"));
    assert!(ended.stderr.contains("the lock was lost"), "{ended:?}");
    store.assert_empty();
}

#[test]
fn a_command_that_ignores_term_is_killed_at_loss_too() {
    let store = Store::new();
    let held = store.start_run(&["--grace", "200ms", "x"], "trap '' TERM; echo in; while :; do sleep 0.01; done");
    held.expect_line("in");
    store.tenure(["break", "x", "--yes"]);
    assert_eq!(held.wait().code(), 124);
    store.assert_empty();
}

/// The command has until the cap, and then its grace, in which the lock is still its own.
#[test]
fn max_hold_stops_the_command_at_the_cap_and_holds_on_through_the_grace() {
    // Ends within the cap: never touched.
    let store = Store::new();
    let short = store.tenure(["run", "--max-hold", "4s", "--grace", "1h", "x", "--", "sh", "-c", "sleep 3; echo done"]);
    assert_eq!((short.code(), short.stdout.as_str()), (0, "done\n"), "{short:?}");
    unless_stalled(STANDS_STILL, || {
        let store = Store::new();
        let script =
            "exec 2>/dev/null; trap 'echo term; sleep 2; echo end; exit 0' TERM; echo in; while :; do sleep 0.01; done";
        let held = store.start(["run", "--json", "--max-hold", "3s", "--ttl", "9s", "x", "--", "sh", "-c", script]);
        held.expect_line("in");
        let next = store.queue(&["x"], "x");
        held.expect_line("term");
        held.expect_line("end");
        assert!(!next.has_line(), "nobody is let in during the grace");
        let ended = held.wait();
        assert_eq!(ended.code(), 124, "{ended:?}");
        let events = ended.events();
        let at =
            |wanted: &str| events.iter().find(|(name, _)| name == wanted).and_then(|(_, event)| event["at_ms"].as_u64());
        let (Some(held), Some(stopping), Some(exited)) = (at("held"), at("stopping"), at("exited")) else {
            return Err(ended);
        };
        next.expect_line("in");
        next.end();
        assert!(stopping - held >= 2_900, "not before the cap: {ended:?}");
        let reason = events.iter().find(|(name, _)| name == "stopping").map(|(_, event)| event["reason"].clone());
        assert_eq!(reason.unwrap(), "max_hold");
        if stopping - held > 4_000 || exited - held < 4_900 || at("lost").is_some() {
            return Err(ended);
        }
        store.assert_empty();
        Ok(())
    });
}

#[test]
fn killed_in_time_when_it_ignores_term() {
    let script = "trap '' TERM; echo in; while :; do echo . >>beats; sleep 0.005; done";
    unless_stalled(STANDS_STILL, || {
        let store = Store::new();
        let held = store.start(["run", "--json", "--max-hold", "3s", "--grace", "1s", "x", "--", "sh", "-c", script]);
        held.expect_line("in");
        let waiter = store.queue(&["x"], "x");
        let ended = held.wait();
        let beats = std::fs::metadata(store.path("beats")).unwrap().len();
        waiter.expect_line("in");
        assert_eq!(ended.code(), 124);
        assert_eq!(std::fs::metadata(store.path("beats")).unwrap().len(), beats);
        waiter.end();
        // Dead inside the lease.
        if ended.events().iter().all(|(name, _)| name != "lost") { Ok(()) } else { Err(ended) }
    });
}

/// Tenure and its command stand still, as under a debugger or on a paused machine: the lease ends, another gets the lock,
/// and when they go on, the old command never runs again.
#[test]
fn stopped_past_its_ttl_the_command_never_runs_again() {
    unless_stalled(STANDS_STILL, || {
        let store = Store::new();
        let held = store.start_run(&["--ttl", "6s", "x"], BEAT);
        let command = pid(&held.line());
        let waiter = store.queue(&["x"], "x");
        // The supervisor first: it would take the command's stop for an ordinary one.
        stop_between_writes(held.pid());
        signal_group(command, Signal::STOP);
        eventually("the command stands", || is_stopped(command));
        let beats = std::fs::metadata(store.path("beats")).unwrap().len();
        waiter.expect_line("in");
        held.signal(Signal::CONT);
        let ended = held.wait();
        assert_eq!(ended.code(), 124, "{ended:?}");
        assert!(!lives(command));
        assert_eq!(std::fs::metadata(store.path("beats")).unwrap().len(), beats, "not one step after the loss");
        assert!(!ended.stdout.contains("term"), "there was no time left to ask");
        let holders = store.holders("x");
        let waited = waiter.end();
        if waited.was_lost() {
            return Err(waited);
        }
        assert_eq!(holders, 1, "the new holder's lock was not touched");
        store.assert_empty();
        Ok(())
    });
}

/// How long before the store lets another holder in the command is killed, at the least: a watchdog that stands still for as long is late.
const MARGIN: Duration = Duration::from_millis(40);

/// Only tenure stands still, and its command would run on: the watchdog ends it before the store lets another holder in.
#[test]
fn a_command_whose_tenure_is_stopped_ends_with_the_lease() {
    unless_stalled(MARGIN, || {
        let store = Store::new();
        let held = store.start_run(&["--ttl", "4s", "x"], BEAT);
        held.line();
        stop_between_writes(held.pid());
        let next = store.start_run(&["--on-lost", "ignore", "x"], STAY);
        next.expect_line("in");
        let beats = || std::fs::metadata(store.path("beats")).unwrap().len();
        let when_the_next_came_in = beats();
        held.signal(Signal::CONT);
        let ended = held.wait();
        assert_eq!(ended.code(), 124, "{ended:?}");
        next.end();
        if beats() != when_the_next_came_in {
            return Err(ended); // it should have ended before
        }
        store.assert_empty();
        Ok(())
    });
}

/// Nobody can write to the store: renewals fail. The command is told, then stopped, while the lock is still its own.
#[test]
fn a_store_that_does_not_answer_is_jeopardy_then_an_orderly_end() {
    unless_stalled(STANDS_STILL, || {
        let store = Store::new();
        let held = store.start(["run", "--json", "--ttl", "12s", "--grace", "3s", "x", "--", "sh", "-c", BEAT]);
        held.line();
        let blocker = rusqlite::Connection::open(store.path("locks.db")).unwrap();
        blocker.busy_timeout(Duration::from_secs(10)).unwrap();
        blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
        eventually("it is gone", || !held_is_alive(&held));
        blocker.execute_batch("ROLLBACK").unwrap();
        let ended = held.wait();
        assert_eq!(ended.code(), 124, "{ended:?}");
        let events = ended.events();
        let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
        let is_orderly =
            names.starts_with(&["held", "started", "jeopardy", "stopping", "exited"]) && ended.stdout == "term\n";
        if !is_orderly || events[3].1["remaining_ms"].as_u64() <= Some(300) {
            return Err(ended);
        }
        eventually("nothing is left", || store.tenure(["ls", "--json"]).stdout.is_empty());
        Ok(())
    });
}

fn held_is_alive(held: &crate::support::Running) -> bool {
    std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", held.pid().as_raw_nonzero()))
        .is_ok_and(|children| !children.trim().is_empty())
}

#[test]
fn a_store_that_comes_back_in_time_is_only_a_fright() {
    let store = Store::new();
    let held = store.start(["run", "--json", "--ttl", "9s", "--grace", "200ms", "x", "--", "sh", "-c", STAY]);
    held.expect_line("in");
    let blocker = rusqlite::Connection::open(store.path("locks.db")).unwrap();
    blocker.busy_timeout(Duration::from_secs(10)).unwrap();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    held.expect_on_stderr("\"jeopardy\"");
    blocker.execute_batch("ROLLBACK").unwrap();
    held.expect_on_stderr("\"safe\"");
    let ended = held.end();
    assert_eq!(ended.code(), 0, "{ended:?}");
    let names: Vec<String> = ended.events().into_iter().map(|(name, _)| name).collect();
    assert!(names.contains(&"jeopardy".to_owned()) && names.contains(&"safe".to_owned()), "{names:?}");
}
