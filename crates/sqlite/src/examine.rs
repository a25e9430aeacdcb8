//! What `tenure doctor` sees.

use std::os::unix::fs::PermissionsExt;

use tenure_core::Result;
use tenure_core::backend::Finding;

use crate::error::explained;
use crate::schema::network_file_system;
use crate::store::Store;

pub(crate) fn examine(store: &Store) -> Result<Vec<Finding>> {
    Ok(vec![version(), file_system(store), permissions(store), journal(store)?, listening(store), integrity(store)?])
}

fn version() -> Finding {
    let says =
        format!("{}, which writes a file from several processes without fault (3.51.3 or newer does)", rusqlite::version());
    Finding::good("SQLite version", says)
}

fn file_system(store: &Store) -> Finding {
    let what = "file system";
    let directory = store.file.path.parent().unwrap_or(std::path::Path::new("/"));
    match rustix::fs::statfs(directory) {
        Err(error) => Finding::warning(what, format!("{} cannot be looked at: {error}", directory.display())),
        Ok(system) => match network_file_system(system.f_type as u32) {
            Some(name) => Finding::bad(
                what,
                format!("{name}: if another host uses this file too, both may hold one lock. Use a local disk"),
            ),
            None if system.f_bavail * (system.f_bsize as u64) < LITTLE_SPACE => {
                Finding::warning(what, "less than 16 MiB are free: when the disk is full no lock can be taken or released")
            }
            None => Finding::good(what, "local; all processes of this host share the file"),
        },
    }
}

fn permissions(store: &Store) -> Finding {
    let what = "permissions";
    match std::fs::metadata(&store.file.path).map(|meta| meta.permissions().mode() & 0o777) {
        Err(error) => Finding::warning(what, format!("the file cannot be looked at: {error}")),
        Ok(mode) if !store.file.is_writable => {
            Finding::warning(what, format!("{mode:04o}; this user may only read: it sees locks and takes none"))
        }
        Ok(mode) if mode & 0o002 == 0 => {
            Finding::good(what, format!("{mode:04o}; who can write the file can take and end locks"))
        }
        Ok(mode) => Finding::warning(
            what,
            format!("{mode:04o}: every user of this host can end locks and make them up. If that is not meant: chmod o-rw"),
        ),
    }
}

fn journal(store: &Store) -> Result<Finding> {
    let mode: String = store.read(|connection| {
        let mode = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0));
        mode.map_err(|error| explained(error, &store.file.path, "reading its settings"))
    })?;
    Ok(match mode.as_str() {
        "wal" => Finding::good("journal", "WAL; commits are not synced, and a restart of the machine voids all holds"),
        other => Finding::bad("journal", format!("{other}: somebody changed it. Connect again to have WAL back")),
    })
}

fn listening(store: &Store) -> Finding {
    if store.can_listen() {
        return Finding::good("waking", "waiters are woken by a message, a killed holder is noticed at once");
    }
    Finding::warning("waking", "this process cannot listen for messages: its waiters look about once a second")
}

fn integrity(store: &Store) -> Result<Finding> {
    let answer: String = store.read(|connection| {
        let answer = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
        answer.map_err(|error| explained(error, &store.file.path, "checking it"))
    })?;
    Ok(match answer.as_str() {
        "ok" => Finding::good("file", format!("{} is sound", store.file.path.display())),
        fault => {
            Finding::bad("file", format!("{fault}. End everything that uses it and move it away, with its -wal and -shm"))
        }
    })
}

const LITTLE_SPACE: u64 = 16 << 20;
