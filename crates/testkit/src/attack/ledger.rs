//! What was run of each pair, kept from run to run: one line for each round, in a file beside the histories.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::fault::Fault;
use super::site::Store;
use super::summary::{Summary, Tally};

/// The file's name.
pub(super) const FILE: &str = "rounds.jsonl";

#[derive(Serialize, Deserialize)]
struct Line {
    store: Store,
    fault: Fault,
    #[serde(flatten)]
    tally: Tally,
}

/// Adds what came of a round. Several processes may add lines at the same time: each is one write.
pub(super) fn add(dir: &Path, store: Store, fault: Fault, tally: &Tally) -> io::Result<()> {
    let line = serde_json::to_string(&Line { store, fault, tally: tally.clone() })? + "\n";
    OpenOptions::new().append(true).create(true).open(dir.join(FILE))?.write_all(line.as_bytes())
}

/// All rounds so far, of this run and of earlier ones.
pub(super) fn read(dir: &Path) -> io::Result<Summary> {
    let text = match fs::read_to_string(dir.join(FILE)) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        text => text?,
    };
    let mut summary = Summary::default();
    for line in text.lines() {
        let Line { store, fault, tally } = serde_json::from_str(line)?;
        summary.add(store, fault, &tally);
    }
    Ok(summary)
}
