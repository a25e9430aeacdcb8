//! What SQLite's errors mean for whoever must act on them.

use std::path::Path;

use rusqlite::ErrorCode;
use tenure_core::{Error, ErrorKind};

use crate::codec::Garbled;

/// Why a verb did not happen.
#[derive(Debug)]
pub(crate) enum Fault {
    /// SQLite failed; the transaction is over, and so is everybody else's share in it.
    Store(rusqlite::Error),
    /// This ask is refused; its neighbours in the transaction are not concerned.
    Verb(Error),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Fault::Store(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Verb(error)
    }
}

/// Whether somebody else has the lock that was wanted, so that trying again is all there is to do.
pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed)
    )
}

/// An error of SQLite's: `doing` completes "while …".
pub(crate) fn explained(error: rusqlite::Error, path: &Path, doing: &str) -> Error {
    let file = path.display();
    let code = error.sqlite_error_code();
    let (kind, what, hint) = match code {
        Some(ErrorCode::DiskFull) => (
            ErrorKind::Backend,
            "the disk is full",
            format!("Free some space on the file system of {file}; what was stored before is unharmed"),
        ),
        Some(ErrorCode::ReadOnly) => (
            ErrorKind::Backend,
            "the file or its directory is read-only",
            format!("Whoever takes locks must be able to write {file} and to create files beside it"),
        ),
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => (
            ErrorKind::Backend,
            "the file cannot be opened",
            format!("Does the directory of {file} exist, and may this user write there?"),
        ),
        Some(ErrorCode::NotADatabase) => (
            ErrorKind::Backend,
            "the file is not an SQLite database",
            format!("Nothing was changed. Choose another path than {file}, or move that file away"),
        ),
        Some(ErrorCode::DatabaseCorrupt) => (ErrorKind::Backend, "the file is corrupt", corrupt_hint(path)),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed) => (
            ErrorKind::Unavailable,
            "another process kept the file locked all the time",
            format!(
                "A process that was stopped inside a transaction does that: `fuser {file}` names those that have it open"
            ),
        ),
        // A short read of the file or its log: somebody removed one of them under a process that still has it open.
        Some(ErrorCode::SystemIoFailure) if is_short_read(&error) => (
            ErrorKind::Backend,
            "the file and its -wal do not belong together",
            format!("Was {file} removed or replaced while something had it open? End those processes, then try again"),
        ),
        Some(ErrorCode::SystemIoFailure) => (
            ErrorKind::Backend,
            "the disk failed",
            format!("Look at the kernel's log and at the disk of {file}; nothing half-done was stored"),
        ),
        _ => (ErrorKind::Backend, "SQLite refused", String::new()),
    };
    let error = Error::new(kind, format!("{what} while {doing}")).with_store(describe(path)).with_source(error);
    if hint.is_empty() { error } else { error.with_hint(hint) }
}

/// A row whose bytes are not ours.
pub(crate) fn garbled(garbled: Garbled, path: &Path) -> Error {
    Error::new(ErrorKind::Backend, "the file is corrupt: a record in it cannot be read")
        .with_store(describe(path))
        .with_source(garbled)
        .with_hint(corrupt_hint(path))
}

/// The store in words.
pub(crate) fn describe(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

fn corrupt_hint(path: &Path) -> String {
    let file = path.display();
    format!(
        "Nothing was changed. End everything that uses it, move {file}, {file}-wal and {file}-shm away together, and start \
         again: locks are not worth repairing, and tokens go on rising without the file"
    )
}

fn is_short_read(error: &rusqlite::Error) -> bool {
    const SQLITE_IOERR_SHORT_READ: i32 = 522;
    matches!(error.sqlite_error(), Some(error) if error.extended_code == SQLITE_IOERR_SHORT_READ)
}
