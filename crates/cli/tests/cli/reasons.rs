//! What is said, and where: why a lock was lost, what has started, and events beside the text.

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::support::{Ended, Running, STANDS_STILL, STAY, Store, TENURE, eventually, unless_stalled};

fn event<'a>(events: &'a [(String, Value)], wanted: &str) -> &'a Value {
    &events.iter().find(|(name, _)| name == wanted).unwrap_or_else(|| panic!("no {wanted} in {events:?}")).1
}

#[test]
fn a_broken_lock_says_who_broke_it_and_why() {
    unless_stalled(STANDS_STILL, || {
        let store = Store::new();
        let text = store.start_run(&["x"], STAY);
        let json = store.start(["run", "--json", "y", "--", "sh", "-c", STAY]);
        text.expect_line("in");
        json.expect_line("in");
        let breaks = |name: &str| store.tenure(["break", name, "--yes", "--reason", "it hangs since noon"]).code();
        assert_eq!((breaks("x"), breaks("y")), (0, 0));
        let (text, json) = (text.wait(), json.wait());
        assert_eq!((text.code(), json.code()), (124, 124), "{text:?} {json:?}");
        assert!(!text.stderr.contains("asks us"), "it is no ask: {text:?}");
        let events = json.events();
        let lost = event(&events, "lost");
        assert!(event(&events, "stopping")["reason"] == "lost", "{json:?}");
        if !text.stderr.contains("broke it: it hangs since noon)") {
            return Err(text); // the announcement was late
        }
        if lost["reason"] != "broken" {
            return Err(json);
        }
        assert!(lost["by"]["pid"].is_u64() && lost["message"].as_str().unwrap().ends_with("broke it: it hangs since noon"));
        Ok(())
    });
}

#[test]
fn a_replaced_file_and_a_forgotten_hold_are_told_apart() {
    let store = Store::new();
    let held = store.hold(&["x"]);
    std::fs::remove_file(store.path("locks.db")).unwrap();
    let ended = held.wait();
    assert_eq!(ended.code(), 124, "{ended:?}");
    assert!(ended.stderr.contains("(the file was removed or replaced while it was in use)"), "{ended:?}");

    let store = Store::new();
    let held = store.hold(&["--ttl", "3s", "x"]);
    rusqlite::Connection::open(store.path("locks.db")).unwrap().execute("DELETE FROM lock", []).unwrap();
    let ended = held.wait();
    assert!(ended.stderr.contains("(it was broken, or the store has forgotten it)"), "{ended:?}");
}

#[test]
fn json_is_json_when_the_command_cannot_start() {
    let store = Store::new();
    std::fs::write(store.path("data"), "not a program").unwrap();
    for (program, code, message) in [("./no-such", 127, "No such file or directory"), ("./data", 126, "Permission denied")] {
        let ended = store.tenure(["run", "--json", "x", "--", program]);
        assert_eq!(ended.code(), code, "{ended:?}");
        let events = ended.events();
        let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["held", "not_started", "released"]);
        let failed = event(&events, "not_started");
        assert_eq!((failed["program"].as_str(), failed["message"].as_str()), (Some(program), Some(message)));
        assert_eq!(failed["code"], code);
        // As text, also for who wants no other text.
        let ended = store.tenure(["run", "-q", "x", "--", program]);
        assert_eq!((ended.code(), ended.stderr), (code, format!("tenure: {program}: {message}\n")));
    }
    let ended = store.tenure(["run", "--json", "x", "--", "sh", "-c", "exit 127"]);
    let names: Vec<String> = ended.events().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["held", "started", "exited", "released"], "its own 127");
}

#[test]
fn the_signature_is_the_command_s_alone() {
    let store = Store::new();
    std::fs::write(store.path("keys"), store.tenure(["sequencer", "key", "k1"]).stdout).unwrap();
    std::fs::set_permissions(store.path("keys"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let ended = store.tenure(["run", "--json", "--keys", "keys", "x", "--", "sh", "-c", "echo $TENURE_SEQUENCER"]);
    let events = ended.events();
    let shown = event(&events, "held")["sequencer"].as_str().unwrap();
    let signed = ended.stdout.trim();
    assert!(signed.contains(":k1:"), "{ended:?}");
    assert_eq!((shown.split(':').count(), signed.split(':').count()), (6, 8), "{ended:?}");
}

/// `tenure ARGS` in a shell that opens descriptors.
fn with_shell(store: &Store, line: &str) -> Ended {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", line]).env("TENURE_STORE", store.url()).env("T", TENURE).current_dir(store.path("."));
    Running::start(command).end()
}

#[test]
fn events_go_to_a_descriptor_beside_the_text() {
    let store = Store::new();
    std::fs::write(store.path("events"), "kept\n").unwrap();
    let ended = with_shell(&store, r#""$T" run --events 3 x -- ./no-such 3>>events"#);
    assert_eq!((ended.code(), ended.stderr.as_str()), (127, "tenure: ./no-such: No such file or directory\n"));
    let ended = with_shell(&store, r#""$T" run --events 3 x -- true 3>&1 | cat"#);
    let text = std::fs::read_to_string(store.path("events")).unwrap();
    let names = |text: &str| -> Vec<String> {
        let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        text.lines().map(|line| parse(line)["event"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(text.strip_prefix("kept\n").unwrap()), ["held", "not_started", "released"]);
    assert_eq!(
        (names(&ended.stdout), ended.stderr.as_str()),
        (vec!["held".into(), "started".into(), "exited".into(), "released".into()], "")
    );
    // A failure of our own is an event too.
    let ended = with_shell(&store, r#""$T" run --events 4 --permits 2 --take 3 x -- true 4>failed"#);
    assert_eq!(ended.code(), 125);
    assert!(ended.stderr.starts_with("tenure: "), "{ended:?}");
    assert_eq!(names(&std::fs::read_to_string(store.path("failed")).unwrap()), ["error"]);
    for (redirect, why) in [("", "descriptor 7 is not open"), ("7</dev/null", "descriptor 7 is open only for reading")] {
        let ended = with_shell(&store, &format!(r#""$T" run --events 7 x -- echo ran {redirect}"#));
        assert_eq!((ended.code(), ended.stdout.as_str()), (125, ""));
        assert!(ended.stderr.contains(why), "{ended:?}");
    }
}

#[test]
fn nested_in_itself_it_ends_and_says_so() {
    let store = Store::new();
    let run = |flags: &str, inner: &str| {
        let script = format!(r#"'{TENURE}' run y -- '{TENURE}' run {inner} x -- echo in; echo $?"#);
        let mut args = vec!["run"];
        args.extend(flags.split_whitespace());
        args.extend(["x", "--", "sh", "-c", &script]);
        store.tenure(args)
    };
    for (outer, inner) in [("", ""), ("", "-w 60s"), ("-x", "-s"), ("-s", "-x"), ("--permits 2 --take 2", "--permits 2")] {
        let ended = run(outer, inner);
        assert_eq!(ended.stdout, "125\n", "{outer} {inner}: {ended:?}");
        assert!(ended.stderr.contains("you already hold x"), "{ended:?}");
        assert!(ended.stderr.contains("hint: Run the inner command without tenure"), "{ended:?}");
    }
    assert_eq!(run("", "-n").stdout, "1\n", "who does not wait is told that it is busy");
    for (outer, inner) in [("-s", "-s"), ("--permits 2", "--permits 2")] {
        assert_eq!(run(outer, inner).stdout, "in\n0\n", "{outer} {inner}");
    }
    // What another process may release is waited for.
    let other = store.hold(&["--permits", "2", "z"]);
    let script = format!(r#"echo out; '{TENURE}' run --permits 2 z -- echo in"#);
    let nested = store.start_run(&["--permits", "2", "z"], &script);
    nested.expect_line("out");
    eventually("it stands in line", || store.view("z")["line"].as_array().unwrap().len() == 1);
    assert!(nested.says_nothing_for(std::time::Duration::from_secs(1)));
    other.end();
    nested.expect_line("in");
    assert_eq!(nested.end().code(), 0);
    // An election too.
    let script = format!(r#"'{TENURE}' elect e -- true; echo $?"#);
    assert_eq!(store.tenure(["elect", "e", "--", "sh", "-c", &script]).stdout, "125\n");
    store.assert_empty();
}

/// A waiter's first window is two seconds; its command starts with all of its ttl.
#[test]
fn after_a_wait_the_command_has_its_whole_ttl() {
    let store = Store::new();
    let holder = store.hold(&["x"]);
    let waiter = store.start_run(&["--ttl", "1h", "x"], r#"echo "$(( TENURE_VALID_UNTIL / 1000 - $(date +%s) ))""#);
    eventually("it stands in line", || store.view("x")["line"].as_array().unwrap().len() == 1);
    holder.end();
    let seconds: u64 = waiter.line().parse().unwrap();
    assert!(seconds > 1_800, "{seconds} s");
    assert_eq!(waiter.end().code(), 0);
}

#[test]
fn the_command_meets_the_same_store() {
    let store = Store::new();
    // A name that no other test has in the user's default file.
    let name = format!("the-same-store-{}", std::process::id());
    let inner = format!(
        r#"echo "$TENURE_STORE|$TENURE_STORE_FILE|$TENURE_KEYS"; unset HOME XDG_STATE_HOME; '{TENURE}' VERB -n {name} -- true; echo $?"#
    );
    std::fs::write(store.path("elsewhere"), "sqlite:///nowhere/else.db\n").unwrap();
    let key = store.tenure(["sequencer", "key", "k1"]).stdout;
    for verb in ["run", "elect"] {
        let script = inner.replace("VERB", verb);
        // The default file: neither variable says anything.
        let mut command = store.command([verb, &name, "--", "sh", "-c", &script]);
        command.env_remove("TENURE_STORE").env("TENURE_KEYS", key.trim());
        let ended = Running::start(command).end();
        let (said, code) = ended.stdout.split_once('\n').unwrap();
        assert!(said.starts_with("sqlite:///") && said.ends_with("/.local/state/tenure/locks.db||"), "{ended:?}");
        assert_eq!(code, "1\n", "the inner one finds its own lock: {ended:?}");
        // A URL, though the variable for a file leads elsewhere.
        let url = store.url();
        let mut command = store.command([verb, "--store", &url, &name, "--", "sh", "-c", &script]);
        command.env_remove("TENURE_STORE").env("TENURE_STORE_FILE", store.path("elsewhere"));
        let ended = Running::start(command).end();
        assert_eq!(ended.stdout, format!("{url}||\n1\n"), "{ended:?}");
    }
}
