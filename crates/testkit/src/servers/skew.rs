//! A server whose wall clock can be set while it runs, through a small library that is preloaded into it.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::process::run;

/// How a clock is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To later.
    Forward(Duration),
    /// To earlier.
    Back(Duration),
}

/// What a server's wall clock shows beyond the true time.
pub(crate) struct Skew {
    offset: Mutex<i64>,
    file: File,
    env: Vec<(&'static str, OsString)>,
}

impl Skew {
    /// Compiles the library into a server's directory; the clock is true until it is stepped.
    pub(crate) fn prepare(dir: &Path) -> Self {
        let (source, library, offset) = (dir.join("skew.c"), dir.join("skew.so"), dir.join("skew"));
        std::fs::write(&source, include_str!("skew.c")).expect("the directory is ours");
        run("cc", "gcc", |cc| cc.args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source));
        let file = File::create(&offset).expect("the directory is ours");
        let env = vec![("LD_PRELOAD", library.into()), ("TENURE_SKEW", offset.into())];
        let skew = Skew { offset: Mutex::new(0), file, env };
        skew.show(0);
        skew
    }

    /// What the server needs in its environment.
    pub(crate) fn env(&self) -> Vec<(&'static str, OsString)> {
        self.env.clone()
    }

    /// Sets the clock, from what it shows now.
    pub(crate) fn step(&self, step: Step) {
        let micros = |by: Duration| i64::try_from(by.as_micros()).expect("a step of less than an age of the world");
        let mut offset = self.offset.lock().unwrap_or_else(PoisonError::into_inner);
        *offset += match step {
            Step::Forward(by) => micros(by),
            Step::Back(by) => -micros(by),
        };
        self.show(*offset);
    }

    fn show(&self, offset: i64) {
        self.file.write_all_at(&offset.to_ne_bytes(), 0).expect("the directory is ours");
    }
}
