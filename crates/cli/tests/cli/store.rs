//! Which store is used and who may read it; how long connecting takes; what is careless about passwords.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Ended, Running, Store, TENURE};

/// `tenure ARGS` with no store named.
fn plain(args: &[&str]) -> Command {
    let mut command = Command::new(TENURE);
    command.args(args);
    for name in ["TENURE_STORE", "TENURE_STORE_FILE", "TENURE_FENCE", "TENURE_FENCE_FILE"] {
        command.env_remove(name);
    }
    command
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// The default file, as `doctor` says it.
fn default_file(change: impl FnOnce(&mut Command) -> &mut Command) -> String {
    let mut command = plain(&["doctor", "--json"]);
    change(&mut command);
    let ended = Running::start(command).end();
    let lines = ended.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut says = lines.filter(|line| line["what"] == "store").map(|line| line["says"].as_str().unwrap().to_owned());
    says.next_back().unwrap_or_else(|| panic!("{ended:?}"))
}

#[test]
fn the_default_file_is_the_users_whatever_the_environment_says() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let usual = default_file(|command| command);
    assert!(usual.starts_with("sqlite:/") && usual.contains("/.local/state/tenure/locks.db, the default"), "{usual}");
    assert_eq!(default_file(|command| command.env_remove("HOME").env_remove("XDG_STATE_HOME")), usual);
    assert_eq!(default_file(|command| command.env("HOME", one.path()).env("XDG_STATE_HOME", two.path())), usual);
}

#[test]
fn verbose_says_which_store_is_used() {
    let store = Store::new();
    let file = format!("sqlite:{}", store.path("locks.db").display());
    let ran = store.tenure(["run", "-v", "x", "--", "true"]);
    assert_eq!((ran.code(), ran.stderr.as_str()), (0, &*format!("tenure: the store is {file}\n")));
    let listed = store.tenure(["ls", "--verbose", "--json"]);
    assert_eq!(listed.events()[0].1["message"], format!("the store is {file}"));
    assert_eq!(store.tenure(["run", "x", "--", "true"]).stderr, "");
}

/// `ls` and `show` as a user who may read the file and nothing more.
#[test]
fn who_may_only_read_sees_who_holds_what() {
    let store = Store::new();
    let url = format!("{}?mode=0644", store.url());
    let mut holder = store.command(["run", "--store", &url, "x", "--", "sh", "-c", "echo in; cat >/dev/null"]);
    holder.env_remove("TENURE_STORE");
    let holder = Running::start(holder);
    holder.expect_line("in");
    let directory = store.path("");
    set_mode(&directory, 0o755);
    // Root may write everything: then it is another user who looks.
    let is_root = rustix::process::geteuid().is_root();
    let ours = [store.path("locks.db"), store.path("locks.db-wal"), store.path("locks.db-shm")];
    // That user may not pass through the directories above the program.
    let program = store.path("tenure");
    std::fs::copy(TENURE, &program).unwrap();
    let look = |args: &[&str]| -> Ended {
        let mut command = if is_root {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
            command
        } else {
            Command::new(&program)
        };
        command.args(args).env("TENURE_STORE", &url).env_remove("TENURE_STORE_FILE").current_dir("/");
        Running::start(command).end()
    };
    let as_reader = |args: &[&str]| {
        if !is_root {
            ours.iter().for_each(|path| set_mode(path, 0o444));
        }
        let ended = look(args);
        if !is_root {
            ours.iter().for_each(|path| set_mode(path, 0o644));
        }
        ended
    };
    for args in [&["ls"][..], &["show", "x"], &["wait", "-n", "y"]] {
        let looked = as_reader(args);
        assert_eq!(looked.code(), 0, "{args:?}: {looked:?}");
        assert!(args[0] == "wait" || looked.stdout.contains("mutex"), "{args:?}: {looked:?}");
    }
    let refused = as_reader(&["run", "-n", "y", "--", "echo", "ran"]);
    assert_eq!((refused.code(), refused.stdout.as_str()), (125, ""), "{refused:?}");
    assert!(refused.stderr.contains("read-only") && refused.stderr.contains("hint:"), "{refused:?}");
    assert_eq!(holder.end().code(), 0);
    // Also when nobody has it open.
    let looked = as_reader(&["show", "--json", "x"]);
    assert!(looked.code() == 0 && looked.stdout.contains("\"free\":true"), "{looked:?}");
}

#[test]
fn the_memory_of_one_process_excludes_no_other() {
    let store = Store::new();
    for args in [
        &["run", "x", "--", "echo", "ran"][..],
        &["elect", "x", "--", "echo", "ran"],
        &["hold", "x", "--pid", "1"],
        &["wait", "x"],
        &["ls"],
    ] {
        let refused = store.tenure([&["--store", "memory://x"], args].concat());
        assert_eq!((refused.code(), refused.stdout.as_str()), (125, ""), "{args:?}: {refused:?}");
        assert!(refused.stderr.contains("no other process") && refused.stderr.contains("sqlite:///"), "{refused:?}");
    }
    let refused = store.tenure(["fence", "advance", "x", "1", "--fence", "memory://x"]);
    assert!(refused.code() == 125 && refused.stderr.contains("no other process"), "{refused:?}");
}

/// Servers that take a connection and say nothing. Their own limits are ten minutes for etcd and 5 s for ZooKeeper.
fn silent() -> [(TcpListener, String); 2] {
    ["etcd://ADDRESS?answer_limit=10m", "zk://ADDRESS?answer_limit=10m"].map(|url| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = url.replace("ADDRESS", &listener.local_addr().unwrap().to_string());
        (listener, url)
    })
}

/// A bound in time that no machine misses, and that etcd's own limit of ten minutes does.
const SOON: Duration = Duration::from_secs(60);

#[test]
fn a_limit_bounds_connecting_too() {
    let store = Store::new();
    for (_listener, url) in silent() {
        for (limit, says) in [(&["-n"][..], "within 2.0s"), (&["-w", "300ms"], "within 0.3s")] {
            for (verb, command) in [("run", &["--", "echo", "ran"][..]), ("elect", &["--", "echo", "ran"]), ("wait", &[])] {
                let started = Instant::now();
                let args = [&[verb, "--store", &url], limit, &["x"], command].concat();
                let ended = store.tenure(args);
                assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
                assert_eq!((ended.code(), ended.stdout.as_str()), (125, ""), "{ended:?}");
                assert!(ended.stderr.contains(says) && ended.stderr.contains("tenure doctor"), "{ended:?}");
            }
        }
    }
}

#[test]
fn a_signal_ends_connecting() {
    let store = Store::new();
    for (listener, url) in silent() {
        let running = store.start(["run", "--store", &url, "x", "--", "echo", "ran"]);
        let _connection = listener.accept().unwrap();
        let told = Instant::now();
        running.signal(Signal::TERM);
        let ended = running.wait();
        assert!(told.elapsed() < SOON, "{:?}", told.elapsed());
        assert_eq!((ended.code_or_signal(), ended.stdout.as_str()), (143, ""), "{ended:?}");
    }
}

#[test]
fn a_password_that_others_can_read_is_warned_of_by_every_command() {
    let store = Store::new();
    let sentinel = "redis+sentinel://127.0.0.1:1/main?sentinel_password=hunter2&connect_limit=100ms";
    for url in ["redis://:hunter2@127.0.0.1:1/0?connect_limit=100ms", sentinel] {
        for args in [&["ls"][..], &["show", "x"], &["doctor"], &["ask", "x", "--reason", "y"], &["run", "-n", "x", "true"]] {
            let ended = store.tenure([&["--store", url], args].concat());
            assert!(ended.stderr.contains("password is in the command line"), "{args:?}: {ended:?}");
            assert!(!format!("{ended:?}").contains("hunter2"), "{ended:?}");
        }
    }
    let quiet = store.tenure(["ls", "--json", "--store", "redis://:hunter2@127.0.0.1:1/0?connect_limit=100ms"]);
    assert!(quiet.events().iter().any(|(event, _)| event == "warning"), "pure JSON: {quiet:?}");
    let file = store.path("where");
    for (mode, url, is_careless) in [
        (0o644, "redis://:hunter2@127.0.0.1:1/0?connect_limit=100ms", true),
        (0o600, "redis://:hunter2@127.0.0.1:1/0?connect_limit=100ms", false),
        (0o640, "redis://:hunter2@127.0.0.1:1/0?connect_limit=100ms", false),
        (0o644, "redis://127.0.0.1:1/0?connect_limit=100ms", false),
    ] {
        std::fs::write(&file, url).unwrap();
        set_mode(&file, mode);
        for args in [
            ["ls", "--store-file", "where"].as_slice(),
            &["fence", "check", "x", "1", "--fence-file", "where"],
            &["run", "-n", "--store-file", "where", "x", "--", "true"],
        ] {
            let ended = store.tenure(args);
            assert_eq!(ended.code(), 125, "{ended:?}");
            assert_eq!(ended.stderr.contains("chmod 600"), is_careless, "{mode:o}, {args:?}: {ended:?}");
        }
    }
}

/// What is stored is from other programs and other people: a host's name is shown, and steers no terminal.
#[test]
fn a_host_name_steers_no_terminal() {
    let store = Store::new();
    let holder = store.hold(&["x"]);
    let host = store.view("x")["holders"][0]["host"].as_str().unwrap().to_owned();
    let file = rusqlite::Connection::open(store.path("locks.db")).unwrap();
    file.busy_timeout(Duration::from_secs(30)).unwrap();
    let record: Vec<u8> = file.query_row("SELECT record FROM lock WHERE name = 'x'", [], |row| row.get(0)).unwrap();
    let at = record.windows(host.len()).position(|window| window == host.as_bytes()).unwrap();
    let mut forged = record.clone();
    forged[at..at + host.len()].fill(0x1b);
    file.execute("UPDATE lock SET record = ?1 WHERE name = 'x'", [&forged]).unwrap();
    let watch = store.start(["watch", "x"]);
    let seen = watch.line();
    for said in [
        seen,
        store.tenure(["run", "-n", "x", "--", "true"]).stderr,
        store.tenure(["ls"]).stdout,
        store.tenure(["show", "x"]).stdout,
        store.tenure(["wait", "-n", "x"]).stderr,
    ] {
        assert!(said.contains('\u{fffd}') && !said.contains('\u{1b}'), "{said:?}");
    }
    file.execute("UPDATE lock SET record = ?1 WHERE name = 'x'", [&record]).unwrap();
    holder.end();
}
