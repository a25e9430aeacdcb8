//! ls, show, watch, ask, break, elect, doctor, completions, man: what people and scripts read.

use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Running, STANDS_STILL, STAY, Store, TENURE, eventually, unless_stalled};

#[test]
fn ls_tells_who_holds_what() {
    let store = Store::new();
    assert_eq!(store.tenure(["ls"]).stdout, "");
    let holder = store.hold(&["--note", "the nightly one", "jobs/a"]);
    let readers = (store.hold(&["-s", "jobs/b"]), store.hold(&["-s", "jobs/b"]));
    let waiter = store.queue(&["jobs/a"], "jobs/a");
    let permit = store.hold(&["--permits", "3", "other"]);

    let listed = store.tenure(["ls"]).stdout;
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows[0], ["NAME", "KIND", "MODE", "HOLDER", "HELD", "EXPIRES", "WAITING", "NOTE"]);
    let names: Vec<&str> = rows[1..].iter().map(|row| row[0]).collect();
    assert_eq!(names, ["jobs/a", "jobs/b", "jobs/b", "other", "other/permit/0"]);
    assert_eq!((rows[1][1], rows[1][2], rows[1][6], rows[1][7]), ("mutex", "exclusive", "1", "the nightly one"));
    assert!(rows[1][3].ends_with(&format!(":{}", holder.pid().as_raw_nonzero())));
    assert_eq!((rows[2][2], rows[2][7]), ("shared", "sh"));
    assert_eq!((rows[4][1], rows[4][2]), ("semaphore", "1 of 3"));
    assert!(!listed.contains('\u{1b}'), "no colours in a pipe");

    let json: Vec<Value> =
        store.tenure(["ls", "--json", "jobs/"]).stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(json.len(), 2);
    assert_eq!((json[0]["name"].as_str(), json[0]["line"].as_array().unwrap().len()), (Some("jobs/a"), 1));
    assert_eq!(json[1]["holders"].as_array().unwrap().len(), 2);
    assert_eq!(store.tenure(["ls", "nothing/"]).stdout, "");

    let shown = store.tenure(["show", "jobs/a"]).stdout;
    for part in ["jobs/a  mutex, 1 holder", "the nightly one", "token", "unless renewed", "1 in line"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(store.tenure(["show", "nobody"]).stdout, "nobody  free\n");
    assert_eq!(store.view("nobody")["free"], true);
    holder.end();
    waiter.expect_line("in");
    for running in [readers.0, readers.1, waiter, permit] {
        assert_eq!(running.end().code(), 0);
    }
    store.assert_empty();
}

#[test]
fn a_listing_cut_short_is_no_error() {
    let store = Store::new();
    let _held: Vec<_> = (0..3).map(|n| store.hold(&[&format!("name{n}")])).collect();
    let script = format!("'{TENURE}' ls | true; exec '{TENURE}' ls | head -n 1");
    let ended =
        Command::new("sh").args(["-c", &script]).env("TENURE_STORE", store.url()).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    assert!(crate::support::text(&ended).starts_with("NAME"));
}

#[test]
fn watch_tells_every_change() {
    unless_stalled(STANDS_STILL, || {
        let store = Store::new();
        let watch = store.start(["watch", "x", "--json"]);
        let next = |watch: &crate::support::Running| serde_json::from_str::<Value>(&watch.line()).unwrap();
        assert_eq!(next(&watch)["free"], true);
        let holder = store.hold(&["x"]);
        let seen = next(&watch);
        assert_eq!(seen["holders"][0]["pid"], holder.pid().as_raw_nonzero().get());
        let waiter = store.queue(&["x"], "x");
        assert_eq!(next(&watch)["line"][0]["pid"], waiter.pid().as_raw_nonzero().get());
        holder.end();
        waiter.expect_line("in");
        let mut last = next(&watch);
        while last["holders"][0]["pid"] != waiter.pid().as_raw_nonzero().get() {
            if last["free"] == true {
                let ended = waiter.end();
                assert!(ended.was_lost(), "{ended:?}");
                return Err(ended);
            }
            last = next(&watch);
        }
        assert!(last["holders"][0]["token"].as_u64() > seen["holders"][0]["token"].as_u64());
        waiter.end();
        while next(&watch)["free"] != true {}
        let plain = store.start(["watch", "x"]);
        assert!(plain.line().ends_with("x  free"));
        watch.signal(Signal::TERM);
        plain.signal(Signal::INT);
        assert_eq!((watch.wait().code(), plain.wait().code()), (143, 130));
        Ok(())
    });
}

#[test]
fn ask_reaches_the_holder() {
    let store = Store::new();
    assert_eq!(store.tenure(["ask", "x", "--reason", "deploy"]).code(), 1);
    let held = store.start(["run", "--json", "--ttl", "10m", "x", "--", "sh", "-c", STAY]);
    held.expect_line("in");
    let asked = store.tenure(["ask", "x", "--reason", "deploy at noon"]);
    assert_eq!((asked.code(), asked.stdout.as_str()), (0, "asked the holder of x\n"));
    assert_eq!(store.view("x")["holders"][0]["asked"]["reason"], "deploy at noon");
    let json = store.tenure(["ask", "x", "--reason", "deploy at noon", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&json.stdout).unwrap()["asked"], 1);
    // It is told, and does not have to wait for a renewal.
    let mut held = held;
    held.expect_on_stderr("\"asked\"");
    assert!(held.is_running(), "letting go is its own choice");
    let ended = held.end();
    let asked = ended.events().into_iter().find(|(name, _)| name == "asked").expect("it was told").1;
    assert_eq!(asked["reason"], "deploy at noon");
    assert_eq!(ended.code(), 0);
}

#[test]
fn break_needs_a_yes() {
    let store = Store::new();
    assert_eq!(store.tenure(["break", "x", "--yes"]).code(), 1);
    let mut holder = store.hold(&["x"]);
    let refused = store.tenure(["break", "x"]);
    assert_eq!(refused.code(), 125);
    assert!(refused.stderr.contains("--yes"), "{refused:?}");
    let token = store.view("x")["holders"][0]["token"].as_u64().unwrap();
    let other = store.tenure(["break", "x", "--yes", "--token", &(token - 1).to_string()]);
    assert_eq!(other.code(), 1, "{other:?}");
    assert!(holder.is_running());
    let broken = store.tenure(["break", "x", "--yes", "--token", &token.to_string(), "--json"]);
    assert_eq!(broken.code(), 0);
    assert_eq!(serde_json::from_str::<Value>(&broken.stdout).unwrap()["broken"], 1);
    assert_eq!(holder.wait().code(), 124);
    store.assert_empty();
}

#[test]
fn elections_have_terms_that_rise() {
    unless_stalled(STANDS_STILL, || {
        let store = Store::new();
        let observer = store.start(["elect", "boss", "--observe", "--json"]);
        let script = "echo $TENURE_TOKEN; cat >/dev/null";
        // Who is let in after a wait may lose it to a machine that stands still, and is not stopped for that.
        let stand =
            |note: &str| store.start(["elect", "boss", "--on-lost", "ignore", "--note", note, "--", "sh", "-c", script]);
        let one = stand("10.0.0.1");
        let first: u64 = one.line().parse().unwrap();
        // A moment without a leader may be told in between.
        let next = |two: Option<&Running>| loop {
            eventually("the observer tells of it", || observer.has_line() || two.is_some_and(Running::is_lost));
            if !observer.has_line() {
                return None; // it came and went between two looks
            }
            let seen: Value = serde_json::from_str(&observer.line()).unwrap();
            if !seen["term"].is_null() {
                return Some(seen);
            }
        };
        let seen = next(None).unwrap();
        assert_eq!((seen["term"].as_u64(), seen["note"].as_str()), (Some(first), Some("10.0.0.1")));
        let two = stand("10.0.0.2");
        eventually("the other stands by", || store.view("boss")["line"].as_array().unwrap().len() == 1);
        one.signal(Signal::KILL);
        let second: u64 = two.line().parse().unwrap();
        assert!(second > first);
        let Some(seen) = next(Some(&two)) else { return Err(two.end()) };
        assert_eq!((seen["term"].as_u64(), seen["note"].as_str()), (Some(second), Some("10.0.0.2")));
        assert_eq!(two.end().code(), 0);
        assert_eq!(store.tenure(["elect", "boss"]).code(), 125);
        store.assert_empty();
        Ok(())
    });
}

#[test]
fn an_observer_tells_of_a_vacancy() {
    let store = Store::new();
    let (text, json) = (store.start(["elect", "boss", "--observe"]), store.start(["elect", "boss", "--observe", "--json"]));
    let vacant = || {
        assert!(text.line().ends_with("Z\t-\tno leader\t"));
        let seen: Value = serde_json::from_str(&json.line()).unwrap();
        assert_eq!(seen["event"], "leader");
        assert!(["term", "note", "host", "pid"].iter().all(|part| seen.get(part) == Some(&Value::Null)), "{seen}");
    };
    vacant();
    let leader = store.start(["elect", "boss", "--on-lost", "ignore", "--", "sh", "-c", STAY]);
    leader.expect_line("in");
    assert!(text.line().ends_with("\tsh"));
    assert!(serde_json::from_str::<Value>(&json.line()).unwrap()["term"].is_u64());
    assert_eq!(leader.end().code(), 0);
    vacant();
}

#[test]
fn doctor_looks_and_says() {
    let store = Store::new();
    let fine = store.tenure(["doctor"]);
    assert_eq!(fine.code(), 0, "{fine:?}");
    assert!(fine.stdout.contains("good\t"), "{fine:?}");
    let json = store.tenure(["doctor", "--json"]).stdout;
    assert!(json.lines().all(|line| serde_json::from_str::<Value>(line).unwrap()["level"].is_string()) && !json.is_empty());
    std::fs::write(store.path("foreign.db"), "this is a letter to my aunt, not a database\n".repeat(100)).unwrap();
    let foreign = format!("sqlite://{}", store.path("foreign.db").display());
    let bad = store.tenure(["doctor", "--store", &foreign]);
    assert_eq!(bad.code(), 1, "{bad:?}");
    assert!(bad.stdout.contains("bad\t"), "{bad:?}");
}

#[test]
fn help_completions_and_the_man_page() {
    let store = Store::new();
    let help = store.tenure(["--help"]).stdout;
    for part in ["Examples:", "run", "elect", "doctor", "TENURE_STORE"] {
        assert!(help.contains(part), "{part}");
    }
    let help = store.tenure(["run", "--help"]).stdout;
    for part in
        ["Exit codes:", "124", "125", "128+n", "TENURE_TOKEN", "TENURE_VALID_UNTIL", "TENURE_PERMIT", "--on-lost", "--keys"]
    {
        assert!(help.contains(part), "{part}");
    }
    // One screen, and two.
    assert!(help.lines().count() <= 100, "{help}");
    let summary = store.tenure(["run", "-h"]).stdout;
    assert!(summary.lines().count() <= 50 && !summary.contains("Exit codes:") && summary.contains("--help"), "{summary}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = store.tenure(["completions", shell]);
        assert!(script.code() == 0 && script.stdout.contains("tenure") && script.stdout.len() > 1000, "{shell}");
    }
    let man = store.tenure(["man"]).stdout;
    for part in
        [".TH tenure 1", ".TH tenure-run 1", ".TH tenure-doctor 1", ".TH tenure-sequencer-verify 1", "TENURE_SEQUENCER"]
    {
        assert!(man.contains(part), "{part}");
    }
    assert!(store.tenure(["man", "run"]).stdout.starts_with(".ie"));
    assert_eq!(store.tenure(["man", "nonsense"]).code(), 125);
    assert!(store.tenure(["--version"]).stdout.starts_with("tenure "));
}
