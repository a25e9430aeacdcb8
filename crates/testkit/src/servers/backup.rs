//! What a server had on its disk, to be put back later.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A copy of a directory, made while nobody writes to it.
#[derive(Debug)]
pub struct Backup {
    of: PathBuf,
    copy: TempDir,
}

impl Backup {
    /// Copies the directory, with whoever owns what in it.
    pub fn of(directory: &Path) -> Self {
        let copy = tempfile::tempdir().expect("there is room for a copy");
        cp(directory, &copy.path().join("copy"));
        Backup { of: directory.to_owned(), copy }
    }

    /// Puts it back in the place of what is there now.
    pub fn put_back(&self) {
        std::fs::remove_dir_all(&self.of).expect("nobody has it open");
        cp(&self.copy.path().join("copy"), &self.of);
    }
}

fn cp(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp can be run");
    assert!(done.success(), "{} can be copied", from.display());
}
