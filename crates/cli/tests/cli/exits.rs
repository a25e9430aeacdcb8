//! Exit codes, and what the command is told.

use std::time::{Duration, Instant};

use crate::support::{STANDS_STILL, Store, unless_stalled};

fn code(store: &Store, script: &str) -> i32 {
    let ended = store.tenure(["run", "x", "--", "sh", "-c", script]);
    assert_eq!(ended.stderr, "", "tenure itself says nothing");
    store.assert_empty();
    ended.code()
}

#[test]
fn the_command_s_code_is_handed_on() {
    let store = Store::new();
    for expected in [0, 1, 3, 124, 125, 255] {
        assert_eq!(code(&store, &format!("exit {expected}")), expected);
    }
    assert_eq!(code(&store, "kill -9 $$"), 128 + 9);
    assert_eq!(code(&store, "kill -TERM $$"), 128 + 15);
    assert_eq!(code(&store, "kill -INT $$"), 128 + 2);
}

#[test]
fn a_command_that_cannot_be_run_is_127_or_126() {
    let store = Store::new();
    let missing = store.tenure(["run", "x", "--", "./no-such-command"]);
    assert_eq!(missing.code(), 127);
    assert!(missing.stderr.contains("no-such-command: No such file"), "{missing:?}");
    std::fs::write(store.path("data"), "not a program").unwrap();
    assert_eq!(store.tenure(["run", "x", "--", "./data"]).code(), 126);
    store.assert_empty();
}

#[test]
fn the_double_dash_is_optional_and_the_command_keeps_its_flags() {
    let store = Store::new();
    let ended = store.tenure(["run", "x", "sh", "-c", "printf '%s ' \"$@\"", "sh", "-n", "--", "--json"]);
    assert_eq!((ended.code(), ended.stdout.as_str()), (0, "-n -- --json "));
}

#[test]
fn a_line_for_the_shell() {
    let store = Store::new();
    let ended = store.tenure(["run", "x", "-c", "echo $TENURE_NAME; exit 7"]);
    assert_eq!((ended.code(), ended.stdout.as_str()), (7, "x\n"), "{ended:?}");
    assert_eq!(store.tenure(["run", "-c", "exit 3", "--timeout", "5s", "x"]).code(), 3);
    let holder = store.hold(&["x"]);
    assert_eq!(store.tenure(["run", "x", "--timeout", "10ms", "-c", "echo ran"]).code(), 1);
    assert_eq!(holder.end().code(), 0);
    store.assert_empty();
}

#[test]
fn a_conflict_has_a_code_of_its_own_choosing() {
    let store = Store::new();
    let holder = store.hold(&["--note", "the nightly one", "x"]);
    let busy = store.tenure(["run", "-n", "x", "--", "echo", "ran"]);
    assert_eq!((busy.code(), busy.stdout.as_str()), (1, ""));
    assert!(busy.stderr.contains("x could not be had: held by the nightly one ("), "{busy:?}");
    assert!(busy.stderr.contains(&format!(":{})", holder.pid().as_raw_nonzero())), "{busy:?}");
    assert_eq!(store.tenure(["run", "-n", "-E", "75", "x", "--", "true"]).code(), 75);
    assert_eq!(store.tenure(["run", "-n", "-E", "0", "x", "--", "true"]).code(), 0);
    assert_eq!(store.tenure(["run", "-q", "-n", "x", "--", "true"]).stderr, "");
    assert_eq!(store.tenure(["run", "-w", "0", "x", "--", "true"]).code(), 1);
    assert_eq!(holder.end().code(), 0);
    store.assert_empty();
}

#[test]
fn waiting_ends_when_it_was_said_to() {
    let store = Store::new();
    let holder = store.hold(&["x"]);
    let started = Instant::now();
    let busy = store.tenure(["run", "-w", "300ms", "-E", "9", "x", "--", "echo", "ran"]);
    let waited = started.elapsed();
    assert_eq!((busy.code(), busy.stdout.as_str()), (9, ""));
    assert!(busy.stderr.contains("within 0.3s"), "{busy:?}");
    assert!((Duration::from_millis(300)..Duration::from_secs(60)).contains(&waited), "{waited:?}");
    assert_eq!(store.view("x")["line"].as_array().unwrap().len(), 0, "nothing is left in line");
    // In time, it runs.
    let waiter = store.queue(&["-w", "60s", "x"], "x");
    holder.end();
    waiter.expect_line("in");
    assert_eq!(waiter.end().code(), 0);
    store.assert_empty();
}

#[test]
fn the_command_knows_its_hold() {
    let store = Store::new();
    let script = r#"printf '%s\n' "$TENURE_NAME" "$TENURE_TOKEN" "$TENURE_SEQUENCER" "$TENURE_VALID_UNTIL" "$TENURE_STORE""#;
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let ended = store.tenure(["run", "--ttl", "20s", "jobs/a b", "--", "sh", "-c", script]);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let [name, token, sequencer, until, url] = lines[..] else { panic!("{ended:?}") };
    assert_eq!((name, url), ("jobs/a b", store.url().as_str()));
    assert!(token.parse::<u64>().unwrap() > 0);
    let parts: Vec<&str> = sequencer.split(':').collect();
    assert_eq!((parts[1], parts[2], parts[3], parts[5]), ("mutex", "exclusive", token, "jobs/a%20b"));
    let until: u64 = until.parse().unwrap();
    assert!((before + 15_000..before + 40_000).contains(&until), "{until} is about 20 s from {before}");
}

#[test]
fn nested_calls_meet_in_the_same_store() {
    let store = Store::new();
    std::fs::create_dir(store.path("elsewhere")).unwrap();
    let tenure = crate::support::TENURE;
    let script =
        format!("cd elsewhere && '{tenure}' run -n outer -- true; echo $?; '{tenure}' run -n inner -- true; echo $?");
    // A relative path means the outer call's directory, wherever the command goes.
    let mut command = store.command(["run", "outer", "--store", "sqlite://rel.db", "--", "sh", "-c", &script]);
    command.env_remove("TENURE_STORE");
    let ended = crate::support::Running::start(command).end();
    assert_eq!(ended.stdout, "1\n0\n", "{ended:?}");
    assert!(store.path("rel.db").exists() && !store.path("elsewhere/rel.db").exists());
}

#[test]
fn a_store_from_a_file_stays_in_its_file() {
    let store = Store::new();
    std::fs::write(store.path("where"), format!("{}\n", store.url())).unwrap();
    let tenure = crate::support::TENURE;
    let script = format!("echo \"store=$TENURE_STORE\"; cd / && '{tenure}' run -n x -- true; echo $?");
    let mut command = store.command(["run", "--store-file", "where", "x", "--", "sh", "-c", &script]);
    command.env("TENURE_STORE", "sqlite:///nowhere/else.db");
    let ended = crate::support::Running::start(command).end();
    assert_eq!(ended.stdout, "store=\n1\n", "{ended:?}");
}

#[test]
fn streams_are_the_command_s_own() {
    let store = Store::new();
    let mut echo = store.start_run(&["x"], "cat; echo err >&2");
    echo.write(b"through\n");
    echo.expect_line("through");
    let ended = echo.end();
    assert_eq!((ended.code(), ended.stderr.as_str()), (0, "err\n"));
}

#[test]
fn events_are_json_one_a_line() {
    unless_stalled(STANDS_STILL, || {
        let store = Store::new();
        let holder = store.hold(&["x"]);
        // Whatever a slow machine does to its lock, the command ends by itself.
        let script = "echo in; cat >/dev/null; exit 3";
        let mut waiter = store.start(["run", "--json", "--on-lost", "ignore", "x", "--", "sh", "-c", script]);
        crate::support::eventually("it stands in line", || store.view("x")["line"].as_array().unwrap().len() == 1);
        waiter.expect_on_stderr("\"waiting\"");
        holder.end();
        waiter.expect_line("in");
        assert!(waiter.is_running());
        let ended = waiter.end();
        if ended.was_lost() {
            return Err(ended);
        }
        assert_eq!(ended.code(), 3);
        let mut events = ended.events();
        events.retain(|(name, _)| !["jeopardy", "safe"].contains(&name.as_str())); // a renewal may be late
        let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["waiting", "held", "started", "exited", "released"]);
        assert!(events.iter().all(|(_, event)| event["name"] == "x" && event["at_ms"].is_u64()));
        assert_eq!(events[0].1["ahead"], 0);
        assert_eq!(events[0].1["view"]["holders"].as_array().unwrap().len(), 1);
        assert!(events[1].1["token"].is_u64() && events[1].1["waited_ms"].as_u64() > Some(0));
        assert_eq!(events[3].1["code"], 3);
        let quit = store.tenure(["run", "--json", "-n", "--on-lost", "nonsense", "x", "--", "true"]);
        assert_eq!((quit.code(), quit.events()[0].0.as_str()), (125, "error"));
        Ok(())
    });
}

#[test]
fn a_minimum_hold_keeps_the_name_closed() {
    let store = Store::new();
    assert_eq!(store.tenure(["run", "--min-hold", "1h", "minutely", "--", "true"]).code(), 0);
    let again = store.tenure(["run", "-n", "minutely", "--", "true"]);
    assert_eq!(again.code(), 1);
    assert!(again.stderr.contains("closed for another 59m"), "{again:?}");
    let listed = store.tenure(["ls"]);
    assert!(listed.stdout.contains("released, closed for its minimum hold"), "{listed:?}");
}
