//! Where the file is and how it is used: settings, URLs, the default path.

use std::path::{Path, PathBuf};

use nix::unistd::{Uid, User};
use rustix::process::geteuid;
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
///   holds what. Where a group shares it, give the directory that group and the setgid bit: see "Several users".
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
    open_in_home(&home_of(geteuid().as_raw())?, settings)
}

fn open_in_home(home: &Path, settings: Settings) -> Result<Sqlite> {
    make_directory(&home.join(DIRECTORY))?;
    Sqlite::open(home.join(DIRECTORY).join(FILE), settings)
}

/// Makes a directory for this user alone, unless it is there and belongs to this user.
fn make_directory(directory: &Path) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};

    let refuse = |what: &str| {
        Error::new(ErrorKind::Backend, format!("the directory {} {what}", directory.display())).with_hint(NAME_A_FILE)
    };
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| refuse("cannot be made").with_source(error))?;
    let meta = directory.metadata().map_err(|error| refuse("cannot be used").with_source(error))?;
    if meta.uid() != geteuid().as_raw() {
        return Err(refuse("belongs to another user"));
    }
    Ok(())
}

const DIRECTORY: &str = ".local/state/tenure";
const FILE: &str = "locks.db";
const NAME_A_FILE: &str = "Name a file, the same one for all who are to exclude each other: sqlite:///path/to/locks.db";

/// The file that is used where none is named: `.local/state/tenure/locks.db` in the home directory that the user database
/// (`/etc/passwd`, LDAP, …) has for the effective user.
///
/// `HOME` and `XDG_STATE_HOME` do not count. They differ between a user's shell, cron jobs, `sudo` and systemd units, and
/// two processes with two files do not exclude each other.
pub fn default_path() -> Result<PathBuf> {
    Ok(home_of(geteuid().as_raw())?.join(DIRECTORY).join(FILE))
}

fn home_of(user: u32) -> Result<PathBuf> {
    let refuse = |what: String| Error::new(ErrorKind::Backend, what).with_hint(NAME_A_FILE);
    match User::from_uid(Uid::from_raw(user)) {
        Ok(Some(user)) if user.dir.is_absolute() => Ok(user.dir),
        Ok(Some(user)) => Err(refuse(format!("the user {} has no home directory for the default file", user.name))),
        Ok(None) => {
            Err(refuse(format!("the user database does not know the user {user}, so there is no home for the default file")))
        }
        Err(error) => Err(refuse(format!("the user {user} cannot be looked up in the user database"))
            .with_source(std::io::Error::from(error))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_default_file_is_made_for_this_user_alone() {
        let home = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            drop(open_in_home(home.path(), Settings::default()).unwrap());
        }
        let mode = |path: &str| std::fs::metadata(home.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(DIRECTORY), mode(".local/state/tenure/locks.db")), (0o700, 0o600));
        if !geteuid().is_root() {
            assert!(make_directory(Path::new("/usr")).unwrap_err().to_string().contains("another user"));
        }
    }

    #[test]
    fn a_user_without_a_home_is_told_to_name_a_file() {
        let unknown = 0x7fff_fff3;
        let refused = home_of(unknown).unwrap_err();
        assert!(refused.to_string().contains("2147483635") && refused.hint().unwrap().contains("sqlite:///"), "{refused}");
        assert!(home_of(0).unwrap().is_absolute());
    }
}
