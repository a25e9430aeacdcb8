//! What `docs/fencing.md` shows in a shell, run as it stands there, in a new directory with nothing but `tenure` in its path.

use std::path::Path;
use std::process::Command;

use crate::support::{Running, Store, TENURE};

const GUIDE: &str = include_str!("../../../../docs/fencing.md");

#[test]
fn every_shell_block_of_the_guide_runs() {
    let blocks: Vec<&str> =
        GUIDE.split("```sh\n").skip(1).map(|rest| rest.split("```").next().expect("a block ends")).collect();
    assert_eq!(blocks.len(), 3, "the script, the late one, the signed one");
    let store = Store::new();
    let bin = Path::new(TENURE).parent().expect("it is in a folder").display();
    let path = format!("{bin}:{}", std::env::var("PATH").expect("there is one"));
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", &blocks.join("echo '--'\n")]).current_dir(store.path(""));
    command.env("PATH", path).env("TENURE_STORE", store.url());
    for name in ["TENURE_STORE_FILE", "TENURE_FENCE", "TENURE_FENCE_FILE", "TENURE_SEQUENCER", "TENURE_TOKEN"] {
        command.env_remove(name);
    }
    let ended = Running::start(command).end();
    assert_eq!(ended.code(), 0, "{ended:?}");
    let said: Vec<&str> = ended.stdout.split("--\n").collect();
    assert!(said[0].starts_with("accepted: "), "{ended:?}");
    assert!(said[1].contains("stale: ") && said[1].trim_end().ends_with("refused, exit 124"), "{ended:?}");
    assert!(said[2].contains("its signature is good"), "{ended:?}");
    assert!(store.path("report").exists(), "and the report of the one who was in time is in place");
}
