//! --once-per, and --min-hold-on success: what cron starts on several hosts.

use serde_json::Value;

use crate::support::{Ended, Running, Store};

fn host() -> String {
    rustix::system::uname().nodename().to_str().unwrap().to_owned()
}

#[test]
fn of_two_that_start_together_one_runs() {
    let store = Store::new();
    for round in 0..10 {
        let name = format!("nightly/{round}");
        let started = [(); 2].map(|()| store.start(["run", "--once-per", "23h", &name, "-c", "echo ran; exit 3"]));
        let mut ended = started.map(Running::end);
        ended.sort_by_key(Ended::code);
        let [skipped, ran] = ended;
        assert_eq!((ran.code(), ran.stdout.as_str(), ran.stderr.as_str()), (3, "ran\n", ""));
        assert_eq!((skipped.code(), skipped.stdout.as_str()), (0, ""), "{skipped:?}");
        let says = format!(" ago on {}, took ", host());
        assert!(skipped.stderr.starts_with(&format!("tenure: {name}: ran ")), "{skipped:?}");
        assert!(skipped.stderr.contains(&says) && skipped.stderr.contains("exit code 3; not again for "), "{skipped:?}");
    }
    store.assert_empty();
}
#[test]
fn the_last_run_is_shown() {
    let store = Store::new();
    assert_eq!(store.view("x")["last_run"], Value::Null);
    assert_eq!(store.tenure(["run", "x", "--", "true"]).code(), 0);
    assert_eq!(store.view("x")["last_run"], Value::Null, "only --once-per keeps it");
    assert_eq!(store.tenure(["run", "--once-per", "1h", "x", "-c", "exit 7"]).code(), 7);
    let last = &store.view("x")["last_run"];
    assert_eq!((last["code"].as_i64(), last["host"].as_str()), (Some(7), Some(&*host())));
    assert!(last["started_ms"].as_u64().unwrap() <= last["ended_ms"].as_u64().unwrap());
    let shown = store.tenure(["show", "x"]).stdout;
    assert!(shown.contains("\n  last run ") && shown.contains(&format!(" ago on {}, took ", host())), "{shown}");
    assert!(shown.contains(", exit code 7\n"), "{shown}");
    let skipped = store.tenure(["run", "--json", "--once-per", "1h", "x", "--", "false"]);
    let events = skipped.events();
    assert_eq!(events.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["held", "released", "skipped"]);
    assert_eq!((skipped.code(), &events[2].1["last_run"]), (0, last));
    let together = store.tenure(["run", "--json", "--once-per", "1h", "--and", "a", "y", "--", "true"]);
    let started = together.events().into_iter().find(|(name, _)| name == "started").unwrap();
    assert_eq!(started.1["name"], "y", "the command runs under NAME, whatever was acquired first");
}

#[test]
fn what_is_no_run() {
    let store = Store::new();
    let run = |period: &str, script: &str| store.tenure(["run", "--once-per", period, "x", "-c", script]);
    assert_eq!(store.tenure(["run", "--once-per", "1h", "x", "--", "./missing"]).code(), 127);
    let broken = store.start(["run", "--once-per", "1h", "x", "-c", "echo in; cat >/dev/null"]);
    broken.expect_line("in");
    assert_eq!(store.tenure(["break", "--yes", "x"]).code(), 0);
    assert_eq!(broken.wait().code(), 124);
    assert_eq!(store.view("x")["last_run"], Value::Null, "neither what could not start, nor what lost its lock");
    assert_eq!(run("1h", "kill -9 $$").code(), 137, "but any end of its own");
    assert_eq!(run("1h", "echo ran").stdout, "");
    assert_eq!(run("0", "echo ran").stdout, "ran\n", "the period is over");
    assert_eq!(store.tenure(["run", "--once-per", "1h", "--min-hold", "1h", "x", "--", "true"]).code(), 0);
    assert_eq!(store.tenure(["run", "-n", "x", "--", "true"]).code(), 0, "what was skipped owes no minimum hold");
    for flags in [["-s"], ["--permits=2"]] {
        let together = store.tenure([&["run", "--once-per", "1h"][..], &flags, &["x", "--", "true"]].concat());
        assert_eq!(together.code(), 125, "there, two could run at the same time");
    }
    store.assert_empty();
}

#[test]
fn a_failure_owes_no_minimum_hold() {
    let store = Store::new();
    let run = |flags: &[&str], script| store.tenure([&["run", "-n"], flags, &["x", "-c", script]].concat()).code();
    let on_success = ["--min-hold", "1h", "--min-hold-on", "success"];
    assert_eq!(run(&on_success, "exit 3"), 3);
    assert_eq!(run(&on_success, "kill -9 $$"), 137);
    assert_eq!(run(&on_success, "exit 0"), 0, "it can be retried at once");
    assert_eq!(run(&on_success, "exit 0"), 1, "and no more after a success");
    assert_eq!(store.tenure(["run", "--min-hold", "1h", "y", "--", "false"]).code(), 1);
    assert_eq!(store.tenure(["run", "-n", "y", "--", "true"]).code(), 1, "any end, if nothing else is said");
    assert_eq!(store.tenure(["run", "--min-hold-on", "success", "z", "--", "true"]).code(), 125);
}
