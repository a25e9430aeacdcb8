//! A data directory that is made once in a test binary, and copied for every server: a copy takes a tenth of the time.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::account::Account;
use super::process::run;

/// It stays until the process ends; then the pipe to a shell closes, and the shell removes it.
pub(crate) struct Template {
    dir: PathBuf,
    _shell: Child,
}

impl Template {
    /// Has `fill` make the data in a directory that is not there yet, with this account's rights.
    pub(crate) fn make(account: Account, prefix: &str, fill: impl FnOnce(&Path)) -> Self {
        let dir = account.tempdir(prefix);
        fill(&dir.path().join("data"));
        let dir = dir.keep();
        let shell = Command::new("sh")
            .args(["-c", "trap : HUP INT TERM; read -r line; rm -rf \"$0\""])
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("there is a shell");
        Template { dir, _shell: shell }
    }

    /// Makes a copy; nothing may be there yet but an empty directory.
    pub(crate) fn copy_to(&self, target: &Path) {
        let data = self.dir.join("data");
        run("cp", "coreutils", |cp| cp.args(["-aT", "--reflink=auto", "--sparse=always"]).arg(&data).arg(target));
    }
}
