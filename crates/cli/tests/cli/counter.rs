//! Many processes, one file, and no update lost.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use tenure_testkit::unless_stalled_blocking;

use crate::support::{STANDS_STILL, Store, TENURE};

const PROCESSES: usize = 20;

/// 200 unless told otherwise, for slower machines or longer hunts.
fn rounds() -> usize {
    std::env::var("TENURE_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(200)
}

/// A machine that stands still for longer than a hand-over costs somebody its lock, who is told so. That run proves nothing, ends,
/// and there is another.
#[test]
fn a_counter_loses_no_update_and_tokens_rise() {
    unless_stalled_blocking("nobody loses its lock", STANDS_STILL, || every_update_counts().then_some(()));
}

/// Counts, and looks at what was counted; `false` if somebody was told that it had lost its lock.
fn every_update_counts() -> bool {
    let store = Store::new();
    let rounds = rounds();
    fs::write(store.path("counter"), "0\n").unwrap();
    // Without the lock this loses updates at once: two shells read the same number.
    let add = r#"read n <counter; echo $((n + 1)) >counter; echo "$TENURE_TOKEN" >>tokens"#;
    let script = r#"
        i=0
        while [ $i -lt "$ROUNDS" ] && [ ! -e over ]; do
            "$TENURE" run counter -- sh -c "$ADD" || { code=$?; : >over; exit $code; }
            i=$((i + 1))
        done
    "#;
    let started = Instant::now();
    let workers: Vec<_> = (0..PROCESSES)
        .map(|_| {
            Command::new("sh")
                .args(["-c", script])
                .env("TENURE", TENURE)
                .env("ADD", add)
                .env("ROUNDS", rounds.to_string())
                .env("TENURE_STORE", store.url())
                .current_dir(store.path("."))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut lost = false;
    for worker in workers {
        let ended = worker.wait_with_output().unwrap();
        let says = String::from_utf8_lossy(&ended.stderr);
        // Also of a command that was over before its tenure knew.
        let is_told = ended.status.code() == Some(124) || says.contains("the lock was lost");
        assert!(ended.status.success() || is_told, "{}: {says}", ended.status);
        lost |= is_told;
    }
    eprintln!("{PROCESSES} processes × {rounds} rounds in {:?}", started.elapsed());
    if lost {
        return false;
    }
    assert_eq!(fs::read_to_string(store.path("counter")).unwrap().trim(), (PROCESSES * rounds).to_string());
    let tokens: Vec<u64> =
        fs::read_to_string(store.path("tokens")).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(tokens.len(), PROCESSES * rounds);
    assert!(tokens.is_sorted_by(|a, b| a < b), "tokens rise strictly, in the order of the holds");
    store.assert_empty();
    true
}
