//! What is refused, and leaves nothing behind.

use crate::support::{Running, Store};

#[test]
fn bad_input_is_125_says_why_and_runs_nothing() {
    let store = Store::new();
    let long = "x".repeat(513);
    let long_note = "n".repeat(1025);
    for (flags, says) in [
        (vec!["--ttl", "1ms", "x"], "ttl"),
        (vec!["--ttl", "25h", "x"], "ttl"),
        (vec!["--ttl", "soon", "x"], "30s, 5m, 1h30m"),
        (vec!["-w", "-1", "x"], "tenure: --wait -1: a duration cannot be negative\n   hint: Write something like 30s"),
        (vec!["-w", "-5s", "x"], "a duration cannot be negative"),
        (vec!["--timeout", "soon", "x"], "tenure: --wait soon: that is no duration\n   hint: "),
        (vec!["--max-hold", "0", "x"], "tenure: --max-hold 0ms is too short: it is at least 0.1s\n   hint: Leave it out"),
        (vec!["--max-hold", "50ms", "x"], "--max-hold 50ms is too short"),
        (vec!["--max-hold", "25h", "x"], "a maximum hold must be between"),
        (
            vec!["--min-hold", "10s", "--max-hold", "5s", "x"],
            "tenure: --min-hold 10s is longer than --max-hold 5.0s\n   hint: ",
        ),
        (vec![""], "empty"),
        (vec![&long], "512"),
        (vec!["two\nlines"], "control"),
        (vec!["--note", "esc\u{1b}[2J", "x"], "control"),
        (vec!["--note", &long_note, "x"], "1024"),
        (vec!["--min-hold", "25h", "x"], "minimum hold"),
        (
            vec!["--permits", "0", "x"],
            "tenure: --permits 0: that is no number of permits\n   hint: It is a whole number, at least 1",
        ),
        (vec!["--permits", "two", "x"], "--permits two: that is no number"),
        (vec!["--on-lost", "panic", "x"], "term, kill, ignore"),
        (vec!["-n", "-w", "1s", "x"], "cannot be used with"),
        (vec!["-x", "-s", "x"], "cannot be used with"),
        (vec!["--no-such-flag", "x"], "--no-such-flag"),
    ] {
        let mut args = vec!["run"];
        args.extend(&flags);
        args.extend(["--", "echo", "ran"]);
        let refused = store.tenure(args);
        assert_eq!((refused.code(), refused.stdout.as_str()), (125, ""), "{flags:?}");
        assert!(refused.stderr.starts_with("tenure: ") && refused.stderr.contains(says), "{flags:?}: {refused:?}");
    }
    assert_eq!(store.tenure(["run", "x"]).code(), 125);
    assert_eq!(store.tenure(["nonsense"]).code(), 125);
    store.assert_empty();
}

#[test]
fn an_unknown_store_lists_the_known_ones() {
    let store = Store::new();
    let refused = store.tenure(["ls", "--store", "mysqlite:///x"]);
    assert_eq!(refused.code(), 125);
    assert!(refused.stderr.contains("mysqlite") && refused.stderr.contains("memory, sqlite"), "{refused:?}");
    let refused = store.tenure(["run", "--store", &format!("{}?colour=red", store.url()), "x", "--", "echo", "ran"]);
    assert_eq!((refused.code(), refused.stdout.as_str()), (125, ""));
    assert!(refused.stderr.contains("colour"), "{refused:?}");
    let nowhere = store.tenure(["run", "--store", "sqlite:///proc/nowhere/x.db", "x", "--", "echo", "ran"]);
    assert_eq!((nowhere.code(), nowhere.stdout.as_str()), (125, ""), "{nowhere:?}");
}

#[test]
fn a_password_is_never_printed() {
    let store = Store::new();
    let secret = "hunter2secret";
    let url = format!("redis://app:{secret}@cache:6379/0?api_key={secret}");
    std::fs::write(store.path("where"), &url).unwrap();
    for args in [
        vec!["ls", "--store", &url],
        vec!["run", "--store", &url, "x", "--", "true"],
        vec!["doctor", "--store", &url],
        vec!["doctor", "--json", "--store", &url],
        vec!["show", "--store-file", "where", "x"],
        vec!["run", "--help"],
        vec!["ls", "--nonsense"],
    ] {
        let mut command = store.command(&args);
        command.env("TENURE_STORE", &url);
        let ended = Running::start(command).end();
        assert!(!format!("{ended:?}").contains(secret), "{args:?}: {ended:?}");
    }
    let warned = store.tenure(["run", "--store", &url, "x", "--", "true"]);
    assert!(warned.stderr.contains("password is in the command line"), "{warned:?}");
    for missing in ["nowhere", "empty"] {
        std::fs::write(store.path("empty"), "\n").unwrap();
        let refused = store.tenure(["ls", "--store-file", missing]);
        assert!(refused.code() == 125 && refused.stderr.contains(missing), "{refused:?}");
    }
}
