//! hold and release: a lock for a running script.

use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Running, Store, TENURE, eventually, lives, pid};

/// A script that can say `tenure`, and is in the store's directory.
fn script(store: &Store, text: &str) -> Running {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("tenure() {{ '{TENURE}' \"$@\"; }}\n{text}")]).current_dir(store.path(""));
    shell.env("TENURE_STORE", store.url()).env_remove("TENURE_STORE_FILE");
    Running::start(shell)
}

fn keeper(store: &Store, name: &str) -> rustix::process::Pid {
    pid(&store.view(name)["holders"][0]["pid"].to_string())
}

#[test]
fn a_script_holds_and_releases() {
    let store = Store::new();
    let text = r#"token=$(tenure hold x --pid $$) || exit 99
        echo "$token"; read -r go
        tenure release x; echo "released $?"
        tenure release x; echo "again $?"; read -r end"#;
    let mut script = script(&store, text);
    let token: u64 = script.line().parse().unwrap();
    let view = store.view("x");
    assert_eq!((view["holders"][0]["token"].as_u64(), view["holders"][0]["note"].as_str()), (Some(token), Some("sh")));
    assert_eq!((view["kind"].as_str(), store.tenure(["run", "-n", "x", "--", "true"]).code()), (Some("mutex"), 1));
    let keeper = keeper(&store, "x");
    script.write(b"go\n");
    script.expect_line("released 0");
    store.assert_empty();
    script.expect_line("again 1");
    eventually("nothing of it is left", || !lives(keeper));
    let ended = script.end();
    assert!(ended.stderr.contains("no `tenure hold` of this host holds x"), "{ended:?}");
}

/// However the script ends, the lock goes with it; and a pipe to the script's output ends, though the keeper was started by it.
#[test]
fn the_lock_goes_with_its_process() {
    let store = Store::new();
    let ended = script(&store, "tenure hold x --pid $$ 2>&1; echo done").end();
    assert!(ended.code() == 0 && ended.stdout.ends_with("done\n"), "{ended:?}");
    eventually("the lock is released", || store.holders("x") == 0);
    let killed = script(&store, "tenure hold x --pid $$; read -r go");
    killed.line();
    let keeper = keeper(&store, "x");
    assert!(lives(keeper));
    killed.signal(Signal::KILL);
    eventually("the lock is released", || store.holders("x") == 0);
    eventually("nothing of it is left", || !lives(keeper));
    store.assert_empty();
}

/// A holder that loses its lock is stopped before the next one is in.
#[test]
fn a_script_that_loses_its_lock_is_stopped() {
    let store = Store::new();
    let script = script(&store, "trap 'echo told; exit 7' TERM; tenure hold x --pid $$; while :; do sleep 0.05; done");
    script.line();
    assert_eq!(store.tenure(["break", "x", "--yes"]).code(), 0);
    script.expect_line("told");
    let ended = script.wait();
    assert_eq!(ended.code(), 7);
    let why = "x: the lock was lost; another process may hold it now (";
    assert!(ended.stderr.contains(why) && ended.stderr.contains("): stopping this process ("), "{ended:?}");
    store.assert_empty();
}

#[test]
fn what_cannot_be_held_leaves_nothing_behind() {
    let store = Store::new();
    let me = std::process::id().to_string();
    let holder = store.hold(&["x"]);
    let busy = store.tenure(["hold", "-n", "-E", "9", "x", "--pid", &me]);
    assert_eq!((busy.code(), busy.stdout.as_str()), (9, ""), "{busy:?}");
    assert!(busy.stderr.contains("held by sh ("), "{busy:?}");
    // Whoever starts it may give up: then it does not stay in line.
    let waiting = store.start(["hold", "x", "--pid", &me]);
    eventually("it stands in line", || store.view("x")["line"].as_array().unwrap().len() == 1);
    waiting.signal(Signal::KILL);
    eventually("it gave up", || store.view("x")["line"].as_array().unwrap().is_empty());
    holder.end();
    for refused in [vec!["hold", "x", "--pid", "0"], vec!["hold", "x"], vec!["hold", "x", "--pid", "4194305"]] {
        let ended = store.tenure(&refused);
        assert_eq!((ended.code(), ended.stdout.as_str()), (125, ""), "{ended:?}");
    }
    store.assert_empty();
}

#[test]
fn readers_are_released_one_by_one() {
    let store = Store::new();
    let (one, other) = (
        script(&store, "tenure hold -s x --pid $$ --json; read -r go"),
        script(&store, "tenure hold -s x --pid $$; read -r go"),
    );
    let held: Value = serde_json::from_str(&one.line()).unwrap();
    assert_eq!((held["name"].as_str(), held["mode"].as_str()), (Some("x"), Some("shared")));
    other.line();
    let which = store.tenure(["release", "x"]);
    assert!(which.code() == 125 && which.stderr.contains("--pid"), "{which:?}");
    let pid = one.pid().as_raw_nonzero().to_string();
    assert_eq!(store.tenure(["release", "x", "--pid", &pid, "--json"]).stdout, "{\"name\":\"x\",\"released\":true}\n");
    assert_eq!(store.holders("x"), 1);
    assert_eq!(store.tenure(["release", "x"]).code(), 0);
    store.assert_empty();
    one.end();
    other.end();
}
