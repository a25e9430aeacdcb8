//! The late writer, on every store that reaches across processes: without a fence it overwrites, with one it is refused; both when its
//! lease ended while it was stopped, and when an operator broke its lock. So the fence never goes back (GUARANTEES, "Fences").

use std::process::Command;

use tenure_testkit::servers::etcd::EtcdCluster;
use tenure_testkit::servers::mariadb::MariaDb;
use tenure_testkit::servers::postgres::Postgres;
use tenure_testkit::servers::redis::{Redis, shared_independent, url_of};
use tenure_testkit::servers::zookeeper::Ensemble;

/// Runs it on a store (none: a temporary SQLite file) and looks at what it says.
fn late_writer(store: Option<String>, more: &[&str]) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let svg = dir.path().join("late-writer.svg");
    let mut command = Command::new(env!("CARGO_BIN_EXE_late-writer"));
    command.arg("--svg").arg(&svg).args(more);
    if let Some(store) = &store {
        command.args(["--store", store]);
    }
    let ended = command.output().expect("it starts");
    let (printed, errors) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{}\n{printed}{errors}", ended.status);

    let (without, with) = printed.split_once("With the fence").expect(&printed);
    assert!(without.contains("wrote \"report of worker 1\": 200") && without.contains("OVERWRITTEN"), "{printed}");
    assert!(with.contains("was refused to write \"report of worker 1\": 412"), "{printed}");
    assert!(with.contains("in the store: \"report of worker 2\"") && !with.contains("OVERWRITTEN"), "{printed}");
    for (first, then) in
        [("(SIGSTOP)", "worker 2  holds"), ("worker 2  wrote", "(SIGCONT)"), ("(SIGCONT)", "report of worker 1")]
    {
        for run in [without, with] {
            assert!(run.find(first).expect(run) < run.find(then).expect(run), "{first} before {then}: {printed}");
        }
    }
    let picture = std::fs::read_to_string(&svg).expect("there is a picture");
    assert!(picture.contains("late write: 412") && picture.contains("late write: 200"), "{picture}");
    assert!(!picture.contains("NaN") && picture.matches("<text").count() == picture.matches("</text>").count(), "{picture}");
}

/// A test for each way to lose the lock, on one store.
macro_rules! on {
    ($store:ident = $url:expr) => {
        mod $store {
            use super::*;

            #[test]
            fn stopped_past_its_lease() {
                late_writer($url, &[]);
            }

            #[test]
            fn broken_by_an_operator() {
                late_writer($url, &["--break"]);
            }
        }
    };
}

on!(sqlite = None);
on!(redis = Some(Redis::shared().url()));
on!(redlock_fenced = Some(url_of("redlock", shared_independent()) + "?durable=yes&node_limit=5s&fencing=majority"));
on!(postgres = Some(with(Postgres::shared().url(), "prefix=late_")));
on!(postgres_session = Some(with(Postgres::shared().url(), "prefix=late_s_&liveness=session")));
on!(mariadb = Some(with(MariaDb::shared().url(), "prefix=late_")));
on!(zookeeper = Some(Ensemble::shared().url()));
on!(etcd = Some(EtcdCluster::shared().url()));

/// A URL with more parameters.
fn with(url: String, parameters: &str) -> String {
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}{parameters}")
}

/// Memory does not reach across processes, and says so instead of pretending.
#[test]
fn memory_cannot_show_it() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_late-writer"));
    let ended = command.args(["--store", "memory://late"]).output().expect("it starts");
    assert!(!ended.status.success());
    assert!(String::from_utf8_lossy(&ended.stderr).contains("do not reach from one to the other"));
}
