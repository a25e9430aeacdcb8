//! Where the file is and how it is used: settings, URLs, the default path.

use std::path::{Path, PathBuf};

use tenure_core::{Error, ErrorKind, Result, StoreUrl, bad_value};

use crate::Sqlite;

/// The URL schemes of this store.
pub const SCHEMES: &[&str] = &["sqlite"];

/// The parameters its URLs may have.
///
/// - `network=allow`: use a file system that may be shared with other hosts. Only right if all who use the file are on
///   one host, for instance on a FUSE file system that is a local disk.
/// - `mode=0660`: who may read and write the file, and its log and index beside it, if it is made now, in octal; without,
///   `0600`: this user alone. Whoever may write the file can take, end and make up locks in it, and whoever may read it sees who
///   holds what. Where a group shares it, give the directory that group and the setgid bit.
/// - `wake=poll`: do not listen for messages of other processes; waiters look about once a second.
pub const PARAMETERS: &[&str] = &["mode", "network", "wake"];

/// How to use the file. Start from [`Settings::default`], which is right for nearly everybody.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Do not refuse file systems that may be shared with other hosts. SQLite's log lives in shared memory: on two hosts
    /// that is two logs, two holders, and a broken file.
    pub allow_network: bool,
    /// Listen for other processes' messages. Without, a waiter looks about once a second.
    pub listen: bool,
    /// The permissions of the file, and of its log and index beside it, if it is made now.
    pub mode: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { allow_network: false, listen: true, mode: 0o600 }
    }
}

/// Opens the file that a URL names: `sqlite:///absolute/path`, `sqlite://relative/path`, `sqlite:path`; a URL without a
/// path is [`default_path`].
pub fn connect(url: &StoreUrl) -> Result<Sqlite> {
    let settings = Settings::from_url(url)?;
    let path = url.file_path();
    if path.is_empty() {
        return open_default(settings);
    }
    Sqlite::open(path, settings)
}

impl Settings {
    /// What a URL says about how to use its file.
    pub(crate) fn from_url(url: &StoreUrl) -> Result<Settings> {
        url.refuse_login()?;
        url.allow_parameters(PARAMETERS)?;
        let mut settings = Settings::default();
        if let Some(text) = url.parameter("mode") {
            let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o666 == 0 && mode & 0o600 == 0o600);
            settings.mode = mode.ok_or_else(|| bad_value("mode", text, "0600, 0640, 0660, 0644, 0664 or 0666"))?;
        }
        match url.parameter("network") {
            None | Some("refuse") => {}
            Some("allow") => settings.allow_network = true,
            Some(other) => return Err(bad_value("network", other, "allow or refuse")),
        }
        match url.parameter("wake") {
            None | Some("message") => {}
            Some("poll") => settings.listen = false,
            Some(other) => return Err(bad_value("wake", other, "message or poll")),
        }
        if url.file_path().contains('\0') {
            return Err(Error::new(ErrorKind::BadUrl, "a file's path has no NUL in it"));
        }
        Ok(settings)
    }
}

/// Opens the file of [`default_path`], and makes its directory, for this user alone, if it is not there.
pub fn open_default(settings: Settings) -> Result<Sqlite> {
    let (directory, is_shared) = default_directory();
    make_directory(&directory, is_shared)?;
    Sqlite::open(directory.join(FILE), settings)
}

/// Makes a directory for this user alone, unless it is there and belongs to this user. Where others may make things beside it,
/// as in `/tmp`, it must be no symbolic link either, which they could have put there and could turn elsewhere at any time.
fn make_directory(directory: &Path, is_shared: bool) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};

    let refuse = |what: &str| {
        Error::new(ErrorKind::Backend, format!("the directory {} {what}", directory.display()))
            .with_hint("Set XDG_STATE_HOME to a directory of yours, or name a file: sqlite:///path/to/locks.db")
    };
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| refuse("cannot be made").with_source(error))?;
    let looked = if is_shared { directory.symlink_metadata() } else { directory.metadata() };
    let meta = looked.map_err(|error| refuse("cannot be used").with_source(error))?;
    if meta.is_symlink() {
        return Err(refuse("is a symbolic link, which anybody may have made"));
    }
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(refuse("belongs to another user"));
    }
    Ok(())
}

const FILE: &str = "locks.db";

/// The file that is used where none is named: `$XDG_STATE_HOME/tenure/locks.db`, else `~/.local/state/tenure/locks.db`,
/// else `/tmp/tenure-UID/locks.db`.
pub fn default_path() -> PathBuf {
    default_directory().0.join(FILE)
}

/// Where the default file is, and whether others may make things beside that directory.
fn default_directory() -> (PathBuf, bool) {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")));
    match state {
        Some(state) => (state.join("tenure"), false),
        None => (PathBuf::from(format!("/tmp/tenure-{}", rustix::process::geteuid().as_raw())), true),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_is_followed_only_where_nobody_else_can_have_made_it() {
        let place = tempfile::tempdir().unwrap();
        let (aim, link) = (place.path().join("aim"), place.path().join("link"));
        make_directory(&aim, true).unwrap();
        make_directory(&aim, true).unwrap();
        symlink(&aim, &link).unwrap();
        make_directory(&link, false).unwrap();
        let refused = make_directory(&link, true).unwrap_err();
        assert!(refused.to_string().contains("symbolic link"), "{refused}");
        assert!(std::fs::read_dir(&aim).unwrap().next().is_none());
    }
}
