//! A disk that is small enough to be filled: memory, mounted where nobody sees it but one server.
//!
//! The mount lives in a namespace that a shell holds open, so that nothing stays mounted whoever is killed. Root may make
//! one; others may where the kernel lets everybody have user namespaces, as Debian's does.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{getgid, getuid};

use super::account::Account;
use super::process::demand;

/// It ends when dropped; drop the server first.
pub(crate) struct Disk {
    shell: Child,
    mounted: PathBuf,
}

impl Disk {
    /// Makes one of so many bytes, whose place in the server's eyes is this directory; there is nothing there yet.
    pub(crate) fn make(bytes: u64, account: Account, mounted: PathBuf) -> Self {
        for program in ["unshare", "nsenter"] {
            demand(program, "util-linux");
        }
        demand("mount", "mount");
        std::fs::create_dir(&mounted).expect("the directory is ours");
        let mut unshare = Command::new("unshare");
        if !is_root() {
            unshare.args(["--user", "--map-root-user"]);
        }
        let mut shell = unshare
            .args([
                "--mount",
                "sh",
                "-c",
                r#"trap : HUP INT TERM; mount -t tmpfs -o "$1" tenure "$0" && echo; read -r line"#,
            ])
            .arg(&mounted)
            .arg(format!("size={bytes},mode=0700"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it is installed");
        let mut line = String::new();
        let read = BufReader::new(shell.stdout.take().expect("piped")).read_line(&mut line);
        if !matches!(read, Ok(1..)) {
            drop(shell.stdin.take());
            let said = shell.wait_with_output().map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
            panic!(
                "a small disk cannot be mounted, and this test needs one: run it as root with CAP_SYS_ADMIN, or where \
                 unprivileged user namespaces are allowed (sysctl kernel.unprivileged_userns_clone=1)\n{}",
                said.unwrap_or_default()
            );
        }
        let disk = Disk { shell, mounted };
        account.own(&disk.root());
        disk
    }

    /// What runs before a program so that it sees the disk; it keeps its process id.
    pub(crate) fn wrapper(&self) -> Vec<OsString> {
        let target = format!("--target={}", self.shell.id());
        let words = if is_root() {
            vec!["nsenter".into(), target, "--mount".into()]
        } else {
            // Whoever mounted it had to seem root; a server must not, and gets its own number back.
            let (user, group) = (getuid().as_raw(), getgid().as_raw());
            let enter = ["nsenter".into(), target, "--user".into(), "--mount".into(), "--preserve-credentials".into()];
            let again = ["unshare".into(), format!("--map-user={user}"), format!("--map-group={group}")];
            enter.into_iter().chain(again).collect()
        };
        words.into_iter().map(OsString::from).collect()
    }

    /// Where we see what is on it.
    pub(crate) fn root(&self) -> PathBuf {
        let mounted = self.mounted.strip_prefix("/").unwrap_or(&self.mounted);
        Path::new("/proc").join(self.shell.id().to_string()).join("root").join(mounted)
    }

    /// Leaves no byte free.
    pub(crate) fn fill(&self) {
        let mut file = File::options().append(true).create(true).open(self.filler()).expect("we can write there");
        for chunk in [1 << 20, 1 << 12, 1] {
            let full = loop {
                if let Err(error) = file.write_all(&vec![0; chunk]) {
                    break error;
                }
            };
            assert_eq!(full.kind(), io::ErrorKind::StorageFull, "{full}");
        }
    }

    /// Takes back what [`fill`](Disk::fill) has taken.
    pub(crate) fn free(&self) {
        std::fs::remove_file(self.filler()).expect("the disk was filled");
    }

    fn filler(&self) -> PathBuf {
        self.root().join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
