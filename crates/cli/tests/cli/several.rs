//! Several holds of one command: `--and`, and the numbers of permits.

use std::time::{Duration, Instant};

use serde_json::Value;
use tenure_testkit::in_bound;

use crate::support::{Running, STAY, Store, eventually};

fn in_line(store: &Store, name: &str) -> usize {
    store.view(name)["line"].as_array().unwrap().len()
}

#[test]
fn all_names_are_held_and_told() {
    let store = Store::new();
    let script = r#"echo "$TENURE_NAME $TENURE_NAME_2 $TENURE_NAME_3"; echo "$TENURE_TOKEN $TENURE_TOKEN_2 $TENURE_TOKEN_3"
        echo "$TENURE_SEQUENCER $TENURE_SEQUENCER_2 $TENURE_SEQUENCER_3"; cat >/dev/null"#;
    let holder = store.start_run(&["--and", "z", "--and", "a", "m"], script);
    holder.expect_line("m z a");
    let (tokens, sequencers) = (holder.line(), holder.line());
    for (name, token, sequencer) in ["m", "z", "a"]
        .iter()
        .zip(tokens.split(' '))
        .zip(sequencers.split(' '))
        .map(|((name, token), sequencer)| (name, token, sequencer))
    {
        assert_eq!(store.view(name)["holders"][0]["token"].to_string(), token, "{name}");
        assert_eq!(store.tenure(["sequencer", "verify", sequencer]).code(), 0, "{name}");
        let busy = store.tenure(["run", "-n", "--and", name, "another", "--", "true"]);
        assert_eq!(busy.code(), 1);
        assert!(busy.stderr.contains(&format!("{name} could not be had")), "{busy:?}");
        assert_eq!(store.holders("another"), 0, "all or nothing");
    }
    assert_eq!(holder.end().code(), 0);
    let twice = store.tenure(["run", "--and", "x", "x", "-c", "echo $TENURE_NAME $TENURE_NAME_2"]);
    assert_eq!((twice.code(), twice.stdout.as_str()), (0, "x x\n"), "a name that is given twice is held once");
    store.assert_empty();
}

/// In the order of the command line each of the two would hold what the other one waits for.
#[test]
fn opposite_orders_never_deadlock() {
    let store = Store::new();
    let (first, second) = (store.hold(&["gate1"]), store.hold(&["gate2"]));
    let one = store.start(["run", "--and", "gate1", "--and", "z", "y", "--", "true"]);
    eventually("the one waits", || in_line(&store, "gate1") == 1);
    let other = store.start(["run", "--and", "gate2", "--and", "y", "z", "--", "true"]);
    eventually("the other one waits", || in_line(&store, "gate2") == 1);
    for running in [first.end(), second.end(), one.end(), other.end()] {
        assert_eq!(running.code(), 0, "{running:?}");
    }
    for _ in 0..10 {
        // Nobody else is in while one of them is.
        let alone = "mkdir in && rmdir in";
        let started = [store.start_run(&["--and", "b", "a"], alone), store.start_run(&["--and", "a", "b"], alone)];
        for ended in started.map(Running::end) {
            assert_eq!(ended.code(), 0, "{ended:?}");
        }
    }
    store.assert_empty();
}

#[test]
fn the_loss_of_any_stops_the_command() {
    let store = Store::new();
    for name in ["a", "b"] {
        let holder = store.hold(&["-s", "--and", "b", "a"]);
        assert_eq!(store.view("b")["holders"][0]["mode"], "shared");
        assert_eq!(store.tenure(["break", "--yes", name]).code(), 0);
        let ended = holder.wait();
        assert_eq!(ended.code(), 124, "{ended:?}");
        assert!(ended.stderr.contains(&format!("{name}: the lock was lost")), "{ended:?}");
        store.assert_empty();
    }
    let holder = store.hold(&["--permits", "2", "p"]);
    assert_eq!(store.tenure(["break", "--yes", "p/permit/0"]).code(), 0);
    assert_eq!(holder.wait().code(), 124, "without its number it would share one");
    store.assert_empty();
}

#[tokio::test]
async fn waiting_ends_for_all_together() {
    let wait = Duration::from_secs(4);
    in_bound("-w 4s, of which the first name takes three", wait + wait / 4, async || {
        let store = Store::new();
        let (first, second) = (store.hold(&["a"]), store.hold(&["b"]));
        let started = Instant::now();
        let waiter = store.start_run(&["-w", "4s", "--and", "b", "a"], STAY);
        eventually("it waits for the first", || in_line(&store, "a") == 1);
        std::thread::sleep((wait / 4 * 3).saturating_sub(started.elapsed()));
        first.end();
        let ended = waiter.wait();
        let took = started.elapsed();
        assert_eq!(ended.code(), 1, "{ended:?}");
        assert!(took >= wait, "{took:?}");
        assert_eq!(store.holders("a"), 0);
        second.end();
        store.assert_empty();
        took
    })
    .await;
}

/// Each of them makes a directory of its number: two with the same one at a time would fail.
#[test]
fn a_permit_s_number_is_nobody_else_s() {
    let store = Store::new();
    let alone = r#"mkdir "slot$TENURE_PERMIT" && sleep 0.05 && rmdir "slot$TENURE_PERMIT" && echo "$TENURE_PERMIT""#;
    let started: Vec<_> = (0..12).map(|_| store.start_run(&["--permits", "3", "p"], alone)).collect();
    for ended in started.into_iter().map(Running::end) {
        assert_eq!(ended.code(), 0, "{ended:?}");
        assert!(["0\n", "1\n", "2\n"].contains(&ended.stdout.as_str()), "{ended:?}");
    }
    store.assert_empty();
}

#[test]
fn numbers_are_the_lowest_that_are_free() {
    let store = Store::new();
    let number = |flags: &[&str]| {
        let running = store.start_run(flags, r#"echo "$TENURE_PERMIT"; cat >/dev/null"#);
        (running.line(), running)
    };
    let (first, one) = number(&["--permits", "4", "p"]);
    let (second, two) = number(&["--permits", "4", "--take", "2", "p"]);
    let (third, three) = number(&["--permits", "4", "p"]);
    assert_eq!([first, second, third], ["0", "1,2", "3"]);
    let listed = store.tenure(["ls", "--json"]).stdout;
    let names: Vec<Value> = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["name"].take()).collect();
    assert_eq!(names, ["p", "p/permit/0", "p/permit/1", "p/permit/2", "p/permit/3"]);
    one.end();
    let (again, four) = number(&["--permits", "4", "--min-hold", "1h", "p"]);
    assert_eq!(again, "0");
    four.end();
    three.end();
    assert_eq!(number(&["-n", "--permits", "4", "p"]).0, "0", "a number is not kept closed, its permit is");
    assert_eq!(two.end().code(), 0);
    let plain = store.tenure(["run", "x", "-c", "echo ${TENURE_PERMIT-none}"]);
    assert_eq!(plain.stdout, "none\n");
}
