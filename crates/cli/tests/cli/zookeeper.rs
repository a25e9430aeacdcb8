//! The commands on a real ZooKeeper: run, ls, show, ask, break, doctor.

use std::process::Command;

use serde_json::Value;
use tenure_testkit::servers::zookeeper::ZooKeeper;

use crate::support::{Ended, Running, STAY, TENURE};

/// `tenure ARGS` with this store.
fn start(url: &str, args: &[&str]) -> Running {
    let mut command = Command::new(TENURE);
    command.args(args).env("TENURE_STORE", url).env_remove("TENURE_STORE_FILE");
    Running::start(command)
}

/// The same, to its end.
fn tenure(url: &str, args: &[&str]) -> Ended {
    start(url, args).end()
}

#[test]
fn a_holder_is_seen_asked_and_broken() {
    // A busy machine may take longer over an answer than a network would.
    let url = format!("{}?connect_limit=20s&answer_limit=20s", ZooKeeper::shared().url());
    let mut held = start(&url, &["run", "--json", "--note", "the nightly one", "jobs/a", "--", "sh", "-c", STAY]);
    held.expect_line("in");
    let listed = tenure(&url, &["ls"]);
    assert_eq!(listed.code(), 0, "{}", listed.stderr);
    assert!(listed.stdout.contains("jobs/a") && listed.stdout.contains("the nightly one"), "{}", listed.stdout);
    let shown: Value = serde_json::from_str(&tenure(&url, &["show", "--json", "jobs/a"]).stdout).unwrap();
    assert_eq!(shown["holders"][0]["pid"], held.pid().as_raw_nonzero().get());
    assert_eq!(tenure(&url, &["run", "-w", "0", "jobs/a", "--", "true"]).code(), 1, "it is held");
    assert_eq!(tenure(&url, &["ask", "jobs/a", "--reason", "deploy at noon"]).code(), 0);
    held.expect_on_stderr("deploy at noon");
    assert!(held.is_running(), "letting go is its own choice");
    let broken = tenure(&url, &["break", "jobs/a", "--yes", "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&broken.stdout).unwrap()["broken"], 1, "{}", broken.stderr);
    assert_eq!(held.wait().code(), 124);
    let next = tenure(&url, &["run", "jobs/a", "--", "sh", "-c", "test -n \"$TENURE_TOKEN\""]);
    assert_eq!(next.code(), 0, "{}", next.stderr);
    let numbers = tenure(&url, &["run", "--permits", "3", "--take", "2", "gpu", "-c", "echo $TENURE_PERMIT"]);
    assert_eq!(numbers.stdout, "0,1\n", "{numbers:?}");
    for says in ["ran\n", ""] {
        let daily = tenure(&url, &["run", "--once-per", "23h", "--and", "jobs/b", "jobs/a", "-c", "echo ran"]);
        assert_eq!((daily.code(), &*daily.stdout), (0, says), "{daily:?}");
    }
    assert_eq!(tenure(&url, &["ls"]).stdout, "");
    let examined = tenure(&url, &["doctor"]);
    assert!(examined.stdout.lines().any(|line| line.starts_with("good\tversion")), "{}", examined.stdout);
}
