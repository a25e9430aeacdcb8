//! What a lock protects, done right: a file that refuses writes with a lower token than the highest it has seen.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use crate::history::{Event, Kind, Op, Phase, Recorder};

/// A fenced file, shared by processes. Its own consistency comes from the kernel's file lock, not from the lock under
/// test: the resource must be right whatever the lock does.
#[derive(Clone, Debug)]
pub struct FencedFile {
    path: PathBuf,
    recorder: Option<(Recorder, String)>,
}

impl FencedFile {
    /// The resource at this path; made if it is not there.
    pub fn at(path: impl AsRef<Path>) -> Self {
        FencedFile { path: path.as_ref().to_owned(), recorder: None }
    }

    /// Records every write, as writes under the lock of this name.
    pub fn recorded(self, recorder: &Recorder, lock: &str) -> Self {
        FencedFile { recorder: Some((recorder.clone(), lock.to_owned())), ..self }
    }

    /// Writes with this token: whether it was accepted.
    pub fn write(&self, token: u64) -> std::io::Result<bool> {
        let mut file = File::options().create(true).truncate(false).read(true).write(true).open(&self.path)?;
        file.lock()?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let highest: u64 = text.trim().parse().unwrap_or(0);
        let accepted = token >= highest;
        if accepted {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(format!("{token:020}").as_bytes())?;
        }
        if let Some((recorder, lock)) = &self.recorder {
            let phase = if accepted { Phase::Ok } else { Phase::Fail };
            let t = tenure_core::Instant::now().as_nanos(); // still under the file's lock: in the resource's own order
            recorder.write(Event::new(t, lock, Kind::Mutex, Op::Write, phase).token(token).by(std::process::id(), 0));
        }
        Ok(accepted)
    }
}
