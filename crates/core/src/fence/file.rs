//! A fence in a file, for all processes of one host; see `journal` for what is in it.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::journal::{Journal, describe, line};
use super::{Fence, Rule, Verdict, storable};
use crate::backend::BoxFuture;
use crate::{Error, ErrorKind, LockName, Result, StoreUrl, Token};

/// A fence in one file, shared by all processes of a host that open it, for as many names as there are.
///
/// What was accepted is on the disk before it is said, so it survives `kill -9` and a power cut. A file that was damaged is an
/// error, never an empty fence. It lies on a local file system, where the kernel's file locks work; whoever can write it can
/// lock everybody out, and it is made for this user alone (`chmod` changes that).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// use tenure_core::fence::{Fence as _, FileFence, Rule};
/// use tenure_core::{LockName, Token};
/// # let path = std::env::temp_dir().join(format!("tenure-doc-{}", std::process::id()));
/// let name = LockName::new("backups/db1")?;
/// let fence = FileFence::open(&path)?;
/// assert!(fence.advance(&name, Token::new(34), Rule::ANY).await?.is_accepted());
/// drop(fence);
/// let fence = FileFence::open(&path)?; // another process, another day
/// assert!(!fence.advance(&name, Token::new(33), Rule::ANY).await?.is_accepted());
/// # std::fs::remove_file(path).unwrap();
/// # Ok(()) }
/// ```
///
/// Its futures need a tokio runtime: the waiting for the disk is done on a thread for that.
#[derive(Clone)]
pub struct FileFence(Arc<Shared>);

struct Shared {
    path: PathBuf,
    journal: Mutex<Journal>,
    probe: Mutex<Option<(File, u64)>>,
}

impl FileFence {
    /// The scheme of its URLs.
    pub const SCHEME: &str = "file";

    /// Opens the fence at this path, and makes it if it is not there.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let journal = Journal::open(path.as_ref())?;
        let path = journal.path().to_owned();
        Ok(FileFence(Arc::new(Shared { path, journal: Mutex::new(journal), probe: Mutex::default() })))
    }

    /// Opens the fence that a URL names: `file:///absolute/path`, `file:relative/path`.
    pub fn connect(url: &StoreUrl) -> Result<Self> {
        url.refuse_login()?;
        url.allow_parameters(&[])?;
        let path = url.file_path();
        if path.is_empty() || path.ends_with('/') || path.contains('\0') {
            return Err(Error::new(ErrorKind::BadUrl, "the fence's URL names no file")
                .with_hint("It looks like file:///var/lib/app/fence"));
        }
        FileFence::open(path)
    }

    /// Does something with the journal, where waiting is in nobody's way.
    async fn work<T: Send + 'static>(&self, work: impl FnOnce(&Shared) -> Result<T> + Send + 'static) -> Result<T> {
        let shared = Arc::clone(&self.0);
        match tokio::task::spawn_blocking(move || work(&shared)).await {
            Ok(done) => done,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "the runtime has ended").with_store(self.describe())),
        }
    }
}

impl Shared {
    fn journal<T>(&self, work: impl FnOnce(&mut Journal) -> Result<T>) -> Result<T> {
        work(&mut self.journal.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Appends a line to a file beside ours and waits for the disk. Nobody else sees it: it has no name.
    fn probe(&self, number: u64) -> io::Result<()> {
        let mut probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        if probe.as_ref().is_none_or(|(_, length)| *length > 64 * 1024) {
            let file = self.path.file_name().unwrap_or_default().to_string_lossy();
            let path = self.path.with_file_name(format!(".{file}.probe-{}", std::process::id()));
            let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path)?;
            std::fs::remove_file(path)?;
            *probe = Some((file, 0));
        }
        let (file, length) = probe.as_mut().expect("it was just made");
        let line = line("probe", number);
        *length += line.len() as u64;
        file.write_all(&line)?;
        file.sync_data()
    }
}

impl Fence for FileFence {
    fn describe(&self) -> String {
        describe(&self.0.path)
    }

    fn advance<'a>(&'a self, name: &'a LockName, token: Token, rule: Rule) -> BoxFuture<'a, Result<Verdict>> {
        Box::pin(async move {
            storable(token)?;
            let own = name.clone();
            let shown = self.work(move |shared| shared.journal(|journal| journal.advance(&own, token, rule))).await;
            shown.map_err(|error| error.with_name(name))
        })
    }

    fn highest<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Option<Token>>> {
        Box::pin(async move {
            let own = name.clone();
            let seen = self.work(move |shared| shared.journal(|journal| journal.highest(&own))).await;
            seen.map_err(|error| error.with_name(name))
        })
    }

    fn probe(&self, number: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.work(move |shared| {
            shared.probe(number).map_err(|error| {
                let what = "writing a file beside the fence's failed";
                Error::new(ErrorKind::Backend, what).with_store(describe(&shared.path)).with_source(error)
            })
        }))
    }
}

impl fmt::Debug for FileFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FileFence").field(&self.0.path).finish()
    }
}
