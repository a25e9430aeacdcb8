//! sequencer show, verify and key; and what `run` signs.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::support::{Running, Store};

/// Writes a fresh key to a file beside the store; gives its line.
pub(crate) fn key(store: &Store, file: &str, id: &str) -> String {
    let printed = store.tenure(["sequencer", "key", id]);
    assert_eq!((printed.code(), printed.stderr.as_str()), (0, ""), "{printed:?}");
    assert!(printed.stdout.starts_with(&format!("{id}:")) && printed.stdout.lines().count() == 1, "{printed:?}");
    write(store, file, &printed.stdout);
    printed.stdout
}

fn write(store: &Store, file: &str, text: &str) {
    std::fs::write(store.path(file), text).unwrap();
    std::fs::set_permissions(store.path(file), std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Holds a lock, and gives its sequencer.
fn hold(store: &Store, flags: &[&str]) -> (Running, String) {
    let held = store.start_run(flags, "echo $TENURE_SEQUENCER; cat >/dev/null");
    let sequencer = held.line();
    (held, sequencer)
}

#[test]
fn show_tells_the_parts() {
    let store = Store::new();
    let (_held, sequencer) = hold(&store, &["--permits", "3", "--take", "2", "gpu é"]);
    let shown = store.tenure(["sequencer", "show", &sequencer]);
    assert_eq!(shown.code(), 0, "{shown:?}");
    for part in ["gpu é", "semaphore", "2 of 3", "token", "ago", "no: anybody can write this"] {
        assert!(shown.stdout.contains(part), "{part}: {shown:?}");
    }
    let json: Value = serde_json::from_str(&store.tenure(["sequencer", "show", "--json", &sequencer]).stdout).unwrap();
    let token = store.view("gpu é")["holders"][0]["token"].clone();
    assert_eq!((&json["name"], &json["kind"], &json["token"]), (&"gpu é".into(), &"semaphore".into(), &token));
    assert_eq!((&json["take"], &json["of"], &json["signed_by"]), (&2.into(), &3.into(), &Value::Null));

    let mut piped = store.start(["sequencer", "show", "-"]);
    piped.write(format!("  {sequencer}\nmore\n").as_bytes());
    let without_age = |shown: &str| shown.lines().filter(|line| !line.contains("ago")).collect::<Vec<_>>().join("\n");
    assert_eq!(without_age(&piped.end().stdout), without_age(&shown.stdout));
    let mut unset = store.command(["sequencer", "show"]);
    unset.env_remove("TENURE_SEQUENCER");
    let unset = Running::start(unset).end();
    assert!(unset.code() == 125 && unset.stderr.contains("TENURE_SEQUENCER"), "{unset:?}");
    let rubbish = store.tenure(["sequencer", "show", "rubbish"]);
    assert!(rubbish.code() == 125 && rubbish.stderr.contains("not a sequencer"), "{rubbish:?}");
}

#[test]
fn verify_asks_the_store() {
    let store = Store::new();
    let (held, first) = hold(&store, &["x"]);
    let verify = |sequencer: &str| store.tenure(["sequencer", "verify", sequencer]);
    let good = verify(&first);
    assert_eq!((good.code(), good.stdout.as_str()), (0, "good: x: it is held now\n"), "{good:?}");
    held.end();
    let over = verify(&first);
    assert_eq!((over.code(), over.stdout.split(':').next()), (2, Some("released")), "{over:?}");
    let (_held, second) = hold(&store, &["x"]);
    let superseded = store.tenure(["sequencer", "verify", "--json", &first]);
    assert_eq!(superseded.code(), 1, "{superseded:?}");
    let json: Value = serde_json::from_str(&superseded.stdout).unwrap();
    assert_eq!(json["superseded_by"], store.view("x")["holders"][0]["token"]);
    assert_eq!((&json["verdict"], &json["sequencer"]["name"]), (&"superseded".into(), &"x".into()));
    assert_eq!(verify(&second).code(), 0);
    let never = verify(&second.replace(":x", ":y"));
    assert!(never.code() == 3 && never.stdout.starts_with("unknown: y: "), "{never:?}");
    let bad = verify(&second[1..]);
    assert!(bad.code() == 4 && bad.stdout.contains("not a sequencer"), "{bad:?}");
}

/// The command needs nothing but what it was given.
#[test]
fn verify_inside_run() {
    let store = Store::new();
    key(&store, "keys", "k");
    let tenure = crate::support::TENURE;
    let script = format!("'{tenure}' sequencer verify && '{tenure}' sequencer show");
    let ran = store.tenure(["run", "--keys", "keys", "x", "--", "sh", "-c", &script]);
    assert_eq!(ran.code(), 0, "{ran:?}");
    assert!(ran.stdout.contains("good: x: it is held now, and its signature is good\n"), "{ran:?}");
    assert!(ran.stdout.contains("with the key k"), "{ran:?}");
    let elected = store.tenure(["elect", "--keys", "keys", "y", "--", tenure, "sequencer", "verify", "--offline"]);
    assert_eq!((elected.code(), elected.stdout.as_str()), (0, "good: y: its signature is good\n"), "{elected:?}");
}

#[test]
fn keys_sign_and_verify_and_can_be_changed() {
    let store = Store::new();
    let old = key(&store, "old", "old");
    let new = key(&store, "new", "new");
    write(&store, "both", &format!("# the first one signs\n{new}{old}"));
    let (_held, unsigned) = hold(&store, &["a"]);
    let (_held, by_old) = hold(&store, &["--keys", "old", "x"]);
    let (_held, by_new) = hold(&store, &["--keys", "both", "y"]);
    let verify = |keys: &str, sequencer: &str| {
        let ended = store.tenure(["sequencer", "verify", "--offline", "--keys", keys, sequencer]);
        assert!(!format!("{ended:?}").contains(old.trim().split_once(':').unwrap().1), "{ended:?}");
        (ended.code(), ended.stdout)
    };
    for (keys, sequencer, is_good) in [
        ("old", &by_old, true),
        ("both", &by_old, true),
        ("both", &by_new, true),
        ("new", &by_new, true),
        ("new", &by_old, false),
        ("old", &by_new, false),
        ("both", &unsigned, false),
    ] {
        let (code, said) = verify(keys, sequencer);
        assert_eq!(code, if is_good { 0 } else { 4 }, "{keys}, {sequencer}: {said}");
        assert!(is_good || said.starts_with("bad signature: "), "{said}");
    }
    // A token that would lock everybody out.
    let token = by_new.split(':').nth(3).unwrap();
    let (code, said) = verify("both", &by_new.replace(token, &i64::MAX.to_string()));
    assert!(code == 4 && said.contains("is wrong"), "{said}");
    assert!(verify("both", &unsigned).1.contains("is not signed"));
    assert!(verify("new", &by_old).1.contains("\"old\", which is not known here"));
    let json = store.tenure(["sequencer", "verify", "--offline", "--json", "--keys", "both", &unsigned]);
    assert_eq!(serde_json::from_str::<Value>(&json.stdout).unwrap()["verdict"], "bad_signature");
    // A bad signature is enough: the store is not asked, though it would say that it is held.
    assert_eq!(store.tenure(["sequencer", "verify", "--keys", "new", &by_old]).code(), 4);
}

#[test]
fn keys_come_from_the_environment_too_and_are_never_shown() {
    let store = Store::new();
    let line = key(&store, "keys", "k");
    let secret = line.trim().split_once(':').unwrap().1;
    let run = |variable: &str, value: &str| {
        let mut command = store.command(["run", "x", "--", "sh", "-c", "echo $TENURE_SEQUENCER"]);
        command.env_remove("TENURE_KEYS").env_remove("TENURE_KEYS_FILE").env(variable, value);
        Running::start(command).end()
    };
    for ran in [run("TENURE_KEYS", &line), run("TENURE_KEYS_FILE", store.path("keys").to_str().unwrap())] {
        let verified = store.tenure(["sequencer", "verify", "--offline", "--keys", "keys", ran.stdout.trim()]);
        assert_eq!(verified.code(), 0, "{ran:?}, {verified:?}");
    }
    let mut command = store.command(["run", "x", "--", "env"]);
    command.env_remove("TENURE_KEYS_FILE").env("TENURE_KEYS", &line);
    let ran = Running::start(command).end();
    assert!(ran.code() == 0 && ran.stdout.contains("TENURE_TOKEN="), "{ran:?}");
    assert!(!ran.stdout.contains(secret) && !ran.stdout.contains("TENURE_KEYS"), "the command can sign: {ran:?}");
    let bad = run("TENURE_KEYS", &line.replace(':', "/"));
    assert!(bad.code() == 125 && bad.stderr.contains("TENURE_KEYS") && !bad.stderr.contains(secret), "{bad:?}");
    assert_eq!(bad.stdout, "", "the command was not started");
    std::fs::set_permissions(store.path("keys"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let open = store.tenure(["run", "--keys", "keys", "x", "--", "true"]);
    assert!(open.code() == 125 && open.stderr.contains("chmod 600") && !open.stderr.contains(secret), "{open:?}");
    let none = store.tenure(["sequencer", "verify", "--offline", "tenure1:mutex:exclusive:17:5:x"]);
    assert!(none.code() == 125 && none.stderr.contains("--keys"), "{none:?}");
    assert_eq!(store.tenure(["sequencer", "key", "a:b"]).code(), 125);
    let fresh: Value = serde_json::from_str(&store.tenure(["sequencer", "key", "--json"]).stdout).unwrap();
    assert!(fresh["key"].as_str().unwrap().starts_with(fresh["id"].as_str().unwrap()));
}
