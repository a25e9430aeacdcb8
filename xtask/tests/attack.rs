//! A few histories of the stores that need no server, and one that is known to be bad.

use std::time::Duration;

use tenure_testkit::attack::{Conditions, Fault, Options, Store, judge, run, serve};
use tenure_testkit::history::History;

/// Not a test: what a second process of an attack does. Does nothing by itself.
#[test]
fn attack() {
    serve(|url| Box::pin(tenure::connect(url)));
}

#[test]
fn a_handful_of_histories_keeps_what_is_promised() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..16 {
        let left = dir.path().join(format!("memory-none-1-{number}.fenced")); // by a run that was ended
        std::fs::write(left, u64::MAX.to_string()).unwrap();
    }
    let options = Options {
        stores: vec![Store::Memory, Store::Sqlite],
        faults: vec![Fault::None, Fault::ClientKilled],
        lasts: Duration::ZERO,
        enough: usize::MAX,
        seed: 1,
        dir: dir.path().to_owned(),
        width: 4,
        taker: "attack",
    };
    let attack = |options: &Options| {
        run(options, |url| Box::pin(tenure::connect(url)), |violation| eprintln!("{violation}")).unwrap()
    };
    let total = attack(&options).total();
    assert!(total.broken == 0, "{} violations", total.broken);
    assert!(total.histories >= 48 && total.grants > total.histories, "{total:?}");
    let written = || std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(written() - 1, total.histories, "a file for each history and one for the rounds, and nothing else");

    // Another run adds to it, and only to what has not enough.
    let run = |options| attack(options).total().histories;
    let more = Options { stores: vec![Store::Memory], enough: 1, ..options.clone() };
    assert_eq!(run(&more), total.histories, "they had enough");
    let lasts = Duration::from_secs(60);
    let more = Options { stores: vec![Store::Memory], faults: vec![Fault::None], enough: 17, lasts, ..options };
    assert_eq!(run(&more), total.histories + 16);
    assert_eq!(written() - 1, total.histories + 16, "the second run has other seeds");
}

/// Two overlap, the second has the lower token, and so it is refused while it holds; and an ask fails though nothing is wrong.
#[test]
fn a_bad_history_is_called_bad() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let line = |t: u64, op: &str, phase: &str, claim: u64, rest: &str| {
        format!(
            r#"{{"t":{t},"process":1,"task":{claim},"lock":"x","kind":"mutex","op":"{op}","phase":"{phase}","claim":{claim}{rest}}}"#
        )
    };
    let lines = [
        line(1, "acquire", "invoke", 1, ""),
        line(2, "acquire", "ok", 1, r#","token":7,"until":900"#),
        line(3, "write", "ok", 1, r#","token":7"#),
        line(4, "acquire", "invoke", 2, ""),
        line(5, "acquire", "ok", 2, r#","token":6,"until":900"#),
        line(6, "write", "fail", 2, r#","token":6"#),
        line(7, "acquire", "invoke", 3, ""),
        line(8, "acquire", "unknown", 3, r#","error":"Unavailable""#),
        line(9, "release", "invoke", 1, r#","token":7"#),
        line(10, "release", "ok", 1, r#","token":7"#),
        line(11, "check", "ok", 2, r#","token":6,"until":900"#),
    ];
    std::fs::write(file.path(), lines.join("\n") + "\n").unwrap();
    let conditions =
        Conditions { store: Store::Sqlite, fault: Fault::None, stall: Duration::ZERO, ttl: Duration::from_millis(400) };
    let verdict = judge(History::read([file.path()]).unwrap(), &conditions);
    let mut found: Vec<&str> = verdict.broken.iter().map(|violation| violation.property).collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, ["P1", "P2", "errors", "fence"], "{:?}", verdict.broken);
}
