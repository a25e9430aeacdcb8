//! fence: what comes too late is refused, in a script, with nothing but exit codes to go by.

use std::process::Command;

use serde_json::Value;
use tenure_testkit::servers::redis::{Redis, RedisOptions};

use crate::sequencer::key;
use crate::support::{Ended, Running, Store, TENURE};

/// `tenure fence ARGS` on a fence beside the store, with nothing in the environment but that.
fn fence(store: &Store, args: &[&str]) -> Ended {
    fence_with(store, args, &[("TENURE_FENCE", &url(store))])
}

fn fence_with(store: &Store, args: &[&str], env: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(TENURE);
    for name in ["FENCE", "FENCE_FILE", "TOKEN", "SEQUENCER", "STORE", "KEYS", "KEYS_FILE"] {
        command.env_remove(format!("TENURE_{name}"));
    }
    command.arg("fence").args(args).envs(env.iter().copied()).current_dir(store.path(""));
    Running::start(command).end()
}

fn url(store: &Store) -> String {
    format!("sqlite://{}", store.path("fence.db").display())
}

#[test]
fn what_comes_too_late_has_an_exit_code_of_its_own() {
    let store = Store::new();
    let accepted = fence(&store, &["advance", "db", "17"]);
    assert_eq!((accepted.code(), accepted.stdout.as_str()), (0, "accepted: 17 for db\n"), "{accepted:?}");
    assert_eq!(fence(&store, &["advance", "db", "17"]).code(), 0, "a holder writes many times");
    let stale = fence(&store, &["advance", "db", "16"]);
    let says = "stale: 16 for db comes too late, 17 was shown before: do not write\n";
    assert_eq!((stale.code(), stale.stdout.as_str()), (124, says), "{stale:?}");
    assert_eq!(fence(&store, &["advance", "other", "1"]).code(), 0, "another name");
    let quiet = fence(&store, &["advance", "-q", "db", "16"]);
    assert_eq!((quiet.code(), quiet.stdout.as_str(), quiet.stderr.as_str()), (124, "", ""));
}

#[test]
fn check_changes_nothing() {
    let store = Store::new();
    assert_eq!(fence(&store, &["check", "db", "17"]).code(), 0);
    assert_eq!(fence(&store, &["check", "db", "3"]).code(), 0, "17 was never shown");
    assert_eq!(fence(&store, &["advance", "db", "10"]).code(), 0);
    assert_eq!(fence(&store, &["check", "db", "9"]).code(), 124);
    assert_eq!(fence(&store, &["check", "db", "10"]).code(), 0);
    assert_eq!(fence(&store, &["check", "db", "99"]).code(), 0);
    for (args, highest) in [
        (&["check", "--json", "db", "99"][..], 10.into()),
        (&["check", "--json", "db", "9"], 10.into()),
        (&["check", "--json", "db", "tenure1:mutex:exclusive:99:0:db"], 10.into()),
        (&["check", "--json", "never", "99"], Value::Null),
    ] {
        let said: Value = serde_json::from_str(&fence(&store, args).stdout).unwrap();
        assert_eq!(said["highest"], highest, "{args:?}: {said}");
    }
    assert_eq!(fence(&store, &["advance", "db", "11"]).code(), 0, "99 was never shown");
}

#[test]
fn a_token_that_is_too_high_to_be_true_is_refused_when_asked_to() {
    let store = Store::new();
    let first = fence(&store, &["advance", "--max-step", "100", "db", "101"]);
    assert_eq!(first.code(), 1, "{first:?}");
    assert!(first.stdout.starts_with("implausible: 101 is too high to be the first for db"), "{first:?}");
    assert_eq!(fence(&store, &["advance", "--max-step", "100", "db", "50"]).code(), 0);
    let forged = fence(&store, &["advance", "--max-step", "100", "db", "9223372036854775807"]);
    assert_eq!(forged.code(), 1);
    assert!(forged.stdout.contains("too far above 50"), "{forged:?}");
    assert_eq!(fence(&store, &["advance", "db", "51"]).code(), 0, "nobody is locked out");
    assert_eq!(fence(&store, &["check", "--max-ahead", "10m", "db", "9223372036854775807"]).code(), 1);
    assert_eq!(fence(&store, &["check", "--max-ahead", "10m", "--max-step", "5", "db", "52"]).code(), 125, "one of them");
}

/// A script under a lock needs no more than the name.
#[test]
fn inside_run_the_token_is_the_holders() {
    let store = Store::new();
    let run = |name: &str, script: &str| {
        let mut command = store.command(["run", name, "--", "sh", "-c", script]);
        command.env("TENURE_FENCE", url(&store)).env("TENURE", TENURE);
        Running::start(command).end()
    };
    let first = run("db", "echo $TENURE_TOKEN > token; \"$TENURE\" fence advance db && \"$TENURE\" fence check db");
    assert_eq!(first.code(), 0, "{first:?}");
    let second = run("db", "\"$TENURE\" fence advance db && \"$TENURE\" fence advance db \"$(cat token)\"");
    assert_eq!(second.code(), 124, "the second holder passes, and the first one's token after it does not: {second:?}");
    assert!(second.stdout.contains("accepted") && second.stdout.contains("stale"), "{second:?}");
    let plausible = run("db", "\"$TENURE\" fence advance --max-ahead 10m db");
    assert_eq!(plausible.code(), 0, "{plausible:?}");
    let elsewhere = run("db", "\"$TENURE\" fence advance table/accounts");
    assert_eq!(elsewhere.code(), 125, "another lock's sequencer is no key: {elsewhere:?}");
    assert!(elsewhere.stderr.contains("$TENURE_TOKEN"), "{elsewhere:?}");
    let meant = run("db", "\"$TENURE\" fence advance table/accounts \"$TENURE_TOKEN\"");
    assert_eq!(meant.code(), 0, "{meant:?}");
}

/// With keys nothing passes but what was signed: a number that anybody can write would lock everybody out.
#[test]
fn with_keys_only_what_was_signed_passes() {
    let store = Store::new();
    let ours = key(&store, "keys", "ours");
    key(&store, "others", "others");
    let run = |keys: &str, script: &str| {
        let mut command = store.command(["run", "--keys", keys, "db", "--", "sh", "-c", script]);
        command.env("TENURE_FENCE", url(&store)).env("TENURE", TENURE);
        Running::start(command).end()
    };
    let inside = run("keys", "\"$TENURE\" fence advance db && echo $TENURE_SEQUENCER > signed");
    assert_eq!(inside.code(), 0, "its keys are those of the run: {inside:?}");
    let signed = std::fs::read_to_string(store.path("signed")).unwrap().trim().to_owned();
    assert_eq!(fence(&store, &["check", "--keys", "keys", "db", &signed]).code(), 0);

    let token = signed.split(':').nth(3).unwrap();
    let forged = signed.replace(token, &i64::MAX.to_string());
    let unsigned = format!("tenure1:mutex:exclusive:{}:0:db", i64::MAX);
    for bad in [&forged, &unsigned, &i64::MAX.to_string()] {
        for verb in ["advance", "check"] {
            let refused = fence(&store, &[verb, "--keys", "keys", "db", bad]);
            assert_eq!((refused.code(), refused.stdout.as_str()), (125, ""), "{bad}: {refused:?}");
            assert!(refused.stderr.contains("signed") || refused.stderr.contains("signature"), "{bad}: {refused:?}");
        }
    }
    let others = run("others", "\"$TENURE\" fence advance --keys keys db");
    assert!(others.code() == 125 && others.stderr.contains("not known here"), "{others:?}");
    let environment = [("TENURE_FENCE", url(&store)), ("TENURE_KEYS", ours.trim().to_owned())];
    let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
    assert_eq!(fence_with(&store, &["advance", "db", &forged], &environment).code(), 125);
    assert_eq!(fence_with(&store, &["advance", "db", &signed], &environment).code(), 0, "none of them has moved the fence");
}

/// Readers are refused after a later writer, and do not shut each other out.
#[test]
fn sequencers_are_judged_by_their_mode() {
    let store = Store::new();
    let advance = |sequencer: &str| fence(&store, &["advance", "db", sequencer]).code();
    assert_eq!(advance("tenure1:rw-lock:shared:20:0:db"), 0);
    assert_eq!(advance("tenure1:rw-lock:shared:19:0:db"), 0);
    assert_eq!(advance("tenure1:rw-lock:exclusive:21:0:db"), 0);
    assert_eq!(advance("tenure1:rw-lock:shared:20:0:db"), 124);
    assert_eq!(advance("tenure1:semaphore:1/3:30:0:db"), 125);
}

#[test]
fn json_for_programs() {
    let store = Store::new();
    let line = |args: &[&str]| -> (i32, Value) {
        let ended = fence(&store, args);
        (ended.code(), serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}")))
    };
    let (code, accepted) = line(&["advance", "--json", "db", "17"]);
    assert_eq!((code, &accepted["verdict"], &accepted["token"]), (0, &Value::from("accepted"), &Value::from(17)));
    let (code, stale) = line(&["advance", "--json", "db", "16"]);
    assert_eq!((code, &stale["verdict"], &stale["highest"]), (124, &Value::from("stale"), &Value::from(17)));
    let (code, check) = line(&["check", "--json", "--max-step", "1", "new", "16"]);
    assert_eq!((code, &check["verdict"], &check["highest"]), (1, &Value::from("implausible"), &Value::Null));
    assert!(check["fence"].as_str().unwrap().starts_with("sqlite:/"), "{check}");
}

#[test]
fn what_is_missing_is_asked_for() {
    let store = Store::new();
    let no_fence = fence_with(&store, &["advance", "db", "1"], &[]);
    assert_eq!(no_fence.code(), 125);
    assert!(no_fence.stderr.contains("--fence sqlite:///"), "{no_fence:?}");
    let no_token = fence(&store, &["advance", "db"]);
    assert_eq!(no_token.code(), 125);
    assert!(no_token.stderr.contains("tenure run"), "{no_token:?}");
    for (args, word) in [
        (["advance", "db", "abc"], "neither a token nor a sequencer"),
        (["advance", "db", "tenure1:mutex:exclusive:17:0"], "not a sequencer"),
        (["advance", "db", "9223372036854775808"], "is no token"),
        (["advance", "", "1"], "must not be empty"),
    ] {
        let refused = fence(&store, &args);
        assert_eq!(refused.code(), 125, "{args:?}");
        assert!(refused.stderr.contains(word), "{args:?}: {refused:?}");
    }
    for args in [&["--fence", "/var/lib/x.db"][..], &["--fence", "x.db", "--json"]] {
        let bare = fence_with(&store, &[&["advance", "db", "1"], args].concat(), &[]);
        assert!(bare.code() == 125 && bare.stderr.contains("the fence's URL has no scheme"), "{bare:?}");
        assert!(bare.stderr.contains("A file is sqlite:///path/to/fence.db"), "{bare:?}");
    }
    let unknown = fence_with(&store, &["advance", "db", "1", "--fence", "paper://x"], &[]);
    assert!(unknown.stderr.contains("sqlite") && unknown.stderr.contains("redis+cluster"), "{unknown:?}");
    assert_eq!(unknown.code(), 125);
}

/// A damaged fence refuses everybody, and is never taken for an empty one.
#[test]
fn a_damaged_fence_refuses_everybody() {
    let store = Store::new();
    assert_eq!(fence(&store, &["advance", "db", "17"]).code(), 0);
    for part in ["fence.db", "fence.db-wal"] {
        // What was committed may be in either.
        std::fs::write(store.path(part), "no database, but long enough to be taken for one".repeat(30)).unwrap();
    }
    let refused = fence(&store, &["advance", "db", "18"]);
    assert_eq!(refused.code(), 125);
    assert!(refused.stderr.contains("fence.db"), "{refused:?}");
}

#[test]
fn a_password_is_in_no_output() {
    let server = Redis::start(RedisOptions::new().password("hunter2"));
    let (store, url) = (Store::new(), server.url());
    assert!(url.contains("hunter2"));
    std::fs::write(store.path("url"), format!("{url}\n")).unwrap();
    let path = store.path("url");
    let path = path.to_str().unwrap();
    type Way<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], bool);
    let ways: [Way<'_>; 4] = [
        (&["advance", "db", "17", "--fence", &url], &[], true),
        (&["advance", "db", "17", "--fence-file", path], &[], false),
        (&["advance", "db", "17", "--json"], &[("TENURE_FENCE", &url)], false),
        (&["advance", "db", "16"], &[("TENURE_FENCE_FILE", path)], false),
    ];
    for (args, env, is_seen) in ways {
        let ended = fence_with(&store, args, env);
        assert!([0, 124].contains(&ended.code()), "{ended:?}");
        assert!(!format!("{ended:?}").contains("hunter2"), "{ended:?}");
        assert_eq!(ended.stderr.contains("everybody on this host can read it"), is_seen, "{ended:?}");
    }
    server.kill();
    let gone = fence_with(&store, &["advance", "db", "17"], &[("TENURE_FENCE", &format!("{url}?connect_limit=1s"))]);
    assert_eq!(gone.code(), 125, "{gone:?}");
    assert!(!format!("{gone:?}").contains("hunter2") && gone.stderr.contains("redis://"), "{gone:?}");
}

/// What a fence costs, in raw writes of its store.
#[test]
fn bench_measures_a_fence() {
    let store = Store::new();
    let mut command = Command::new(TENURE);
    command.args(["bench", "--quick", "--repeat", "1", "--json", "--fence", &url(&store)]).env_remove("TENURE_STORE");
    let ended = Running::start(command).end();
    assert_eq!(ended.code(), 0, "{ended:?}");
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let lines = document["lines"].as_array().unwrap();
    let names: Vec<&str> = lines.iter().map(|line| line["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["raw_write", "fence_rise", "fence_again", "fence_late"]);
    assert!(lines.iter().all(|line| line["summary"]["median"].as_f64().unwrap() > 0.0), "{document}");
    assert_eq!(lines[1]["ratio_to"], "raw_write");
    let refused = store.tenure(["bench", "--fence", &url(&store), "--only", "pair"]);
    assert_eq!(refused.code(), 125);
}
