//! etcd's own command, and the users that are made with it.

use std::process::Command;

use super::super::process::demand;
use super::super::wait_until;
use super::{Certificates, Etcd, EtcdOptions};

/// `etcd://` or `etcds://`, root's password if there is one, and where they listen.
pub(super) fn url_of(options: &EtcdOptions, members: &[Etcd]) -> String {
    let who = options.password.as_ref().map(|password| format!("root:{password}@")).unwrap_or_default();
    url_as(options, &who, members)
}

/// The same with another user: `alice:secret@`.
pub(super) fn url_as(options: &EtcdOptions, who: &str, members: &[Etcd]) -> String {
    format!("{}://{who}{}", if options.tls.is_some() { "etcds" } else { "etcd" }, hosts_of(members))
}

/// `etcdctl` with all it must know.
pub(super) fn command(options: &EtcdOptions, pem: Option<&Certificates>, members: &[Etcd], args: &[&str]) -> Command {
    demand("etcdctl", "etcd-client");
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", hosts_of(members)));
    // A busy machine may need more than its five seconds, and more than two to say who we are.
    command.args(["--command-timeout=60s", "--dial-timeout=60s"]);
    if let Some(pem) = pem {
        command.arg("--cacert").arg(&pem.ca).arg("--cert").arg(&pem.client).arg("--key").arg(&pem.client_key);
    }
    if let Some(password) = &options.password {
        // Root is made while nobody has to say who he is, and to say it then is harmless.
        command.env("ETCDCTL_USER", format!("root:{password}"));
    }
    command.args(args);
    command
}

/// Runs it to its end and returns what it printed; panics if it failed. What came between two leaders is tried again: a machine
/// that stands still for half a second costs an election.
#[track_caller]
pub(super) fn run(command: Command) -> String {
    run_until(command, |_| false)
}

/// The same, and what it says when it fails may mean that it is done.
#[track_caller]
fn run_until(mut command: Command, is_done: fn(&str) -> bool) -> String {
    let mut output = None;
    wait_until(|| {
        let ended = output.insert(command.output().expect("it is installed"));
        ended.status.success() || !came_between_leaders(&String::from_utf8_lossy(&ended.stderr))
    });
    let output = output.expect("it was run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || is_done(&said), "{:?}: {}\n{said}", command.get_args(), output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether that is why it failed, in etcd's words; it does not send a write again by itself.
fn came_between_leaders(said: &str) -> bool {
    ["leader changed", "no leader", "not leader", "request timed out"].iter().any(|why| said.contains(why))
}

/// Whether what was to be made is there: then the first try has made it, and its answer came between two leaders.
fn is_there_already(said: &str) -> bool {
    said.contains("already exists")
}

/// Makes the users, and has everybody say who he is from then on.
pub(super) fn authenticate(options: &EtcdOptions, etcdctl: impl Fn(&[&str]) -> Command) {
    let Some(password) = &options.password else {
        assert!(options.users.is_empty(), "etcd wants a root before it knows others: give a `password` too");
        return;
    };
    let nobody = |args: &[&str]| {
        let mut command = etcdctl(args);
        command.env_remove("ETCDCTL_USER");
        run_until(command, is_there_already);
    };
    nobody(&["user", "add", &format!("root:{password}")]);
    nobody(&["user", "grant-role", "root", "root"]);
    for user in &options.users {
        nobody(&["user", "add", &format!("{}:{}", user.name, user.password)]);
        nobody(&["role", "add", &user.name]);
        nobody(&["role", "grant-permission", &user.name, "readwrite", "--prefix=true", &user.prefix]);
        nobody(&["user", "grant-role", &user.name, &user.name]);
    }
    // As root, who may say it twice: nobody may not, once it is done.
    run(etcdctl(&["auth", "enable"]));
}

fn hosts_of(members: &[Etcd]) -> String {
    let hosts: Vec<String> = members.iter().map(|member| member.address().to_string()).collect();
    hosts.join(",")
}
