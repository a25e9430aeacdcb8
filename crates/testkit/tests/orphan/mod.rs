//! What a server leaves when the test that started it is killed. Nothing runs at the end of such a process, so something
//! outside must notice.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use tenure_testkit::eventually;

/// Set for the process that is to be killed.
const ORPHAN: &str = "TENURE_TEST_ORPHAN";

/// Starts the test of this name in a process of its own, which calls [`live`], kills that process, and waits until nothing
/// is left of the server and its directory.
pub(crate) async fn leaves_nothing(test: &str) {
    let mut orphan = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ORPHAN, "yes")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(orphan.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = said.filter_map(|line| Some(line.split_once("@server ")?.1.to_owned())).next().unwrap();
    let (dir, pids) = line.split_once(' ').unwrap();
    let pids: Vec<u32> = pids.split(' ').map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.iter().all(|pid| is_running(*pid)));
    orphan.kill().unwrap();
    orphan.wait().unwrap();
    eventually("the server ends too", || !pids.iter().any(|pid| is_running(*pid))).await;
    eventually("and nothing is left of it", || !Path::new(dir).exists()).await;
}

/// Whether this process is the one that is to be killed.
pub(crate) fn is_one() -> bool {
    std::env::var_os(ORPHAN).is_some()
}

/// Says which server there is, and lives until it is killed.
pub(crate) fn live(pid: u32, dir: &Path) -> ! {
    let pids: Vec<String> = std::iter::once(pid).chain(children(pid)).map(|pid| pid.to_string()).collect();
    let line = format!("@server {} {}\n", dir.display(), pids.join(" "));
    std::io::stdout().write_all(line.as_bytes()).unwrap(); // `println!` would go to the test's own output
    loop {
        std::thread::park();
    }
}

/// What a process has started.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// A zombie runs no more.
pub(crate) fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
