//! The command on etcd: a real server, from the first run to what an operator does.

use std::process::Command;

use serde_json::Value;
use tenure_testkit::servers::etcd::{Etcd, EtcdOptions};

use crate::support::{Ended, Running, STAY, TENURE};

/// Starts `tenure ARGS` with this server. A busy machine may take longer over an answer than a network would.
fn start(server: &Etcd, args: &[&str]) -> Running {
    let mut command = Command::new(TENURE);
    command.args(args).env("TENURE_STORE", format!("{}?answer_limit=20s", server.url())).env_remove("TENURE_STORE_FILE");
    Running::start(command)
}

fn tenure(server: &Etcd, args: &[&str]) -> Ended {
    start(server, args).end()
}

fn view(server: &Etcd, name: &str) -> Value {
    let shown = tenure(server, &["show", "--json", name]);
    assert_eq!(shown.code(), 0, "{shown:?}");
    serde_json::from_str(&shown.stdout).unwrap()
}

#[test]
fn run_ls_show_ask_and_break() {
    let server = Etcd::start(EtcdOptions::new());
    let ran = tenure(&server, &["run", "jobs/a", "--", "sh", "-c", "test -n \"$TENURE_TOKEN\" && exit 7"]);
    assert_eq!(ran.code(), 7, "{ran:?}");
    assert_eq!(view(&server, "jobs/a")["free"], true);

    let args = ["run", "--json", "--ttl", "10m", "--note", "the nightly one", "jobs/a", "--", "sh", "-c", STAY];
    let held = start(&server, &args);
    held.expect_line("in");
    let listed = tenure(&server, &["ls", "jobs/"]);
    let rows: Vec<Vec<&str>> = listed.stdout.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!((rows.len(), rows[1][0], rows[1][7]), (2, "jobs/a", "the nightly one"), "{listed:?}");
    let shown = view(&server, "jobs/a");
    let holder = &shown["holders"][0];
    assert_eq!(holder["pid"], held.pid().as_raw_nonzero().get());
    let token = holder["token"].as_u64().unwrap();

    let asked = tenure(&server, &["ask", "jobs/a", "--reason", "deploy at noon"]);
    assert_eq!((asked.code(), asked.stdout.as_str()), (0, "asked the holder of jobs/a\n"), "{asked:?}");
    held.expect_on_stderr("deploy at noon");
    assert_eq!(view(&server, "jobs/a")["holders"][0]["asked"]["reason"], "deploy at noon");

    let other = tenure(&server, &["break", "jobs/a", "--yes", "--token", &(token - 1).to_string()]);
    assert_eq!(other.code(), 1, "{other:?}");
    let broken = tenure(&server, &["break", "jobs/a", "--yes", "--token", &token.to_string()]);
    assert_eq!(broken.code(), 0, "{broken:?}");
    assert_eq!(held.wait().code(), 124, "it has lost its lock");
    let numbers = tenure(&server, &["run", "--permits", "3", "--take", "2", "gpu", "-c", "echo $TENURE_PERMIT"]);
    assert_eq!(numbers.stdout, "0,1\n", "{numbers:?}");
    for says in ["ran\n", ""] {
        let daily = tenure(&server, &["run", "--once-per", "23h", "--and", "jobs/b", "jobs/a", "-c", "echo ran"]);
        assert_eq!((daily.code(), &*daily.stdout), (0, says), "{daily:?}");
    }
    assert_eq!(tenure(&server, &["ls"]).stdout, "");
    let examined = tenure(&server, &["doctor"]);
    assert!(examined.stdout.contains("etcd version"), "{examined:?}");
}
