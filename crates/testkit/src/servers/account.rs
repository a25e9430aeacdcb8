//! Under which account a server runs. PostgreSQL and PgBouncer refuse to be root, and MariaDB warns of it, so that root
//! starts them as the user that their Debian package has made; anybody else starts them as oneself.

use std::ffi::OsString;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::process::demand;

/// A user and a group, or ourselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    other: Option<(u32, u32)>,
}

impl Account {
    /// Whoever we are.
    pub(crate) const OURS: Account = Account { other: None };

    /// Of the user with this name if we are root; else ours.
    pub(crate) fn of(user: &str, package: &str) -> Self {
        if !rustix::process::geteuid().is_root() {
            return Account::OURS;
        }
        demand("setpriv", "util-linux");
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let ids = |line: &str| {
            let mut fields = line.strip_prefix(user)?.strip_prefix(":")?.split(':').skip(1);
            Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
        };
        let other = users.lines().find_map(ids);
        assert!(other.is_some(), "there is no user {user}, and root cannot be one here: apt-get install {package}");
        Account { other }
    }

    /// What runs before a program so that it runs under this account; it keeps its process id.
    pub(crate) fn wrapper(self) -> Vec<OsString> {
        let Some((user, group)) = self.other else { return vec![] };
        ["setpriv".into(), format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".into()]
            .map(OsString::from)
            .into()
    }

    /// A program that is to run under this account.
    pub(crate) fn command(self, program: impl Into<OsString>) -> Command {
        let mut words = self.wrapper();
        words.push(program.into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    }

    /// A temporary directory of this account's.
    pub(crate) fn tempdir(self, prefix: &str) -> TempDir {
        let dir = tempfile::Builder::new().prefix(prefix).tempdir().expect("there is a temporary directory");
        self.own(dir.path());
        if self.other.is_some() {
            for parent in dir.path().ancestors().skip(1) {
                let mode = parent.metadata().expect("it was just made there").permissions().mode();
                assert!(
                    mode & 0o001 != 0,
                    "a server that does not run as root must be able to pass through {}: set TMPDIR to another place",
                    parent.display()
                );
            }
        }
        dir
    }

    /// Gives it a file or a directory.
    pub(crate) fn own(self, path: &Path) {
        if let Some((user, group)) = self.other {
            chown(path, Some(user), Some(group)).expect("root may give away what it has");
        }
    }
}
