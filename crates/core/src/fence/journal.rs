//! The file of a fence: a journal that all processes of a host append to under the kernel's file lock.
//!
//! ```text
//! tenure-fence 1
//! 3f2a9c1b 0001731664000000001 invoices/2026
//! ```
//!
//! One line for every token that was accepted and was higher than the last: a checksum of what follows, the token, the name, which
//! has no line breaks. Accepted is said after the line is on the disk. What counts is the highest line of a name.
//!
//! Who can interleave: processes, and several fences of one process. Whoever has the kernel's lock on the file is alone; it reads
//! what others have appended since, decides, appends, and waits for the disk before it lets go. When most lines are overtaken, the
//! file is written anew under another name and put in its place: the new one is locked before it can be found, until the directory is on
//! the disk too. Whoever waited for the lock of the old one sees that the path leads elsewhere, and begins again there.
//!
//! What a crash leaves: a last line that is not whole. Nobody was told that its token was accepted, so it is cut off. A line that is whole
//! and wrong, or wrong and followed by others, is damage of another sort, and an error from then on: nothing is guessed.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::crc::crc32;
use super::{Rule, Verdict};
use crate::{Error, ErrorKind, LockName, Result, Token};

/// What every file of ours begins with.
const HEADER: &[u8] = b"tenure-fence 1\n";
/// A shorter file is not worth writing anew.
const WORTH_IT: u64 = 64 * 1024;
/// A file is written anew when it is so many times longer than what counts in it.
const OVERTAKEN: u64 = 4;

/// The file, and what was read of it so far.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    marks: HashMap<String, u64>,
    /// How far the file was understood.
    read: u64,
    /// How many bytes of it count.
    live: u64,
    /// What was known before the path led to another file, until that was compared.
    known: HashMap<String, u64>,
    /// Somebody else's lines were read, which may not be on the disk: they died before they could say that they were.
    unsynced: bool,
    /// The file was put in its place, and its directory may not be on the disk.
    misplaced: bool,
}

impl Journal {
    /// Opens the file, and makes it if it is not there.
    pub(super) fn open(path: &Path) -> Result<Journal> {
        let path = std::path::absolute(path)
            .map_err(|error| failed(path, "finding it", error).with_hint("Name a file: file:///var/lib/app/fence"))?;
        let file = match options().open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create(&path).map_err(|error| failed(&path, "making it", error).with_hint(DIRECTORY))?;
                options().open(&path)
            }
            opened => opened,
        };
        let file = file.map_err(|error| failed(&path, "opening it", error).with_hint(DIRECTORY))?;
        let (marks, known) = (HashMap::new(), HashMap::new());
        let mut journal = Journal { path, file, marks, read: 0, live: 0, known, unsynced: true, misplaced: true };
        journal.exclusively(|_| Ok(()))?;
        Ok(journal)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The highest token of a name.
    pub(super) fn highest(&mut self, name: &LockName) -> Result<Option<Token>> {
        self.exclusively(|journal| Ok(journal.mark(name)))
    }

    /// Shows a token.
    pub(super) fn advance(&mut self, name: &LockName, token: Token, rule: Rule) -> Result<Verdict> {
        self.exclusively(|journal| {
            let highest = journal.mark(name);
            let verdict = Verdict::of(highest, token, rule);
            if verdict.is_accepted() {
                match highest == Some(token) {
                    true => journal.settle(),
                    false => journal.append(name.as_str(), token.get()),
                }
                .map_err(|error| failed(&journal.path, "writing it", error).with_hint(DISK))?;
            }
            Ok(verdict)
        })
    }

    fn mark(&self, name: &LockName) -> Option<Token> {
        self.marks.get(name.as_str()).copied().map(Token::new)
    }

    /// Does something while nobody else uses the file, and after everything that others have done.
    fn exclusively<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.lock()?;
        let done = self.catch_up().and_then(|()| self.compare()).and_then(|()| work(self));
        let unlocked = self.file.unlock().map_err(|error| failed(&self.path, "unlocking it", error));
        done.and_then(|done| unlocked.map(|()| done))
    }

    /// Waits for the kernel's lock on the file that the path leads to.
    fn lock(&mut self) -> Result<()> {
        loop {
            self.file.lock().map_err(|error| failed(&self.path, "locking it", error))?;
            let found = std::fs::metadata(&self.path).and_then(|there| Ok((there, self.file.metadata()?)));
            let (there, ours) = found.map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => gone(&self.path),
                _ => failed(&self.path, "looking for it", error),
            })?;
            if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) {
                return Ok(());
            }
            self.file = options().open(&self.path).map_err(|error| failed(&self.path, "opening it again", error))?;
            self.known.extend(self.marks.drain());
            (self.read, self.live, self.unsynced, self.misplaced) = (0, 0, true, true);
        }
    }

    /// Reads what others have appended.
    fn catch_up(&mut self) -> Result<()> {
        let length = self.file.metadata().map_err(|error| failed(&self.path, "looking at it", error))?.len();
        if length == self.read && self.read > 0 {
            return Ok(());
        }
        if length < self.read {
            return Err(damaged(&self.path, "it is shorter than it was"));
        }
        let mut bytes = Vec::new();
        let mut from = &self.file;
        from.seek(SeekFrom::Start(self.read))
            .and_then(|_| from.read_to_end(&mut bytes))
            .map_err(|error| failed(&self.path, "reading it", error))?;
        let mut rest = bytes.as_slice();
        if self.read == 0 {
            rest = rest.strip_prefix(HEADER).ok_or_else(|| not_ours(&self.path, rest))?;
            self.read = HEADER.len() as u64;
        }
        while let Some(line) = rest.split_inclusive(|byte| *byte == b'\n').next() {
            let Some((name, token)) = parse(line) else {
                if is_torn(rest) {
                    break;
                }
                return Err(damaged(&self.path, &format!("the line at byte {} is not what was written there", self.read)));
            };
            self.remember(name, token);
            (self.read, self.unsynced) = (self.read + line.len() as u64, true);
            rest = &rest[line.len()..];
        }
        Ok(())
    }

    /// Somebody wrote the file anew, and then it knows all that we knew. One from a backup does not, and is told.
    fn compare(&mut self) -> Result<()> {
        let forgotten: Vec<(String, u64)> =
            self.known.drain().filter(|(name, token)| self.marks.get(name).is_none_or(|mark| mark < token)).collect();
        for (name, token) in forgotten {
            self.append(&name, token).map_err(|error| failed(&self.path, "writing it", error).with_hint(DISK))?;
        }
        Ok(())
    }

    fn remember(&mut self, name: &str, token: u64) {
        match self.marks.get_mut(name) {
            Some(mark) => *mark = token.max(*mark),
            None => {
                self.live += line(name, token).len() as u64;
                self.marks.insert(name.to_owned(), token);
            }
        }
    }

    fn append(&mut self, name: &str, token: u64) -> io::Result<()> {
        let line = line(name, token);
        // What stands behind what was understood is a line that somebody began, and died.
        let written = self.cut_off().and_then(|()| self.file.write_all_at(&line, self.read)).and_then(|()| {
            self.unsynced = true;
            self.settle()
        });
        if let Err(error) = written {
            let _ = self.cut_off(); // nobody is told of it; if it stays all the same, that refuses nobody but the late
            return Err(error);
        }
        self.read += line.len() as u64;
        self.remember(name, token);
        if self.read > WORTH_IT && self.read > OVERTAKEN * self.live {
            let _ = self.write_anew(); // the old one is as good, only longer
        }
        Ok(())
    }

    fn cut_off(&self) -> io::Result<()> {
        match self.file.metadata()?.len() > self.read {
            true => self.file.set_len(self.read),
            false => Ok(()),
        }
    }

    /// Sees to it that what was read and written is on the disk.
    fn settle(&mut self) -> io::Result<()> {
        if self.misplaced {
            sync_directory(&self.path)?;
            self.misplaced = false;
        }
        if self.unsynced {
            self.file.sync_data()?;
            self.unsynced = false;
        }
        Ok(())
    }

    /// Writes a file with one line a name, and puts it in the place of this one.
    fn write_anew(&mut self) -> io::Result<()> {
        let new = beside(&self.path, "new"); // only whoever has the lock writes it, so one name will do
        let done = self.fill(&new);
        if done.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        let (file, length) = done?;
        std::fs::rename(&new, &self.path)?;
        // Whoever finds the new file waits for its lock, which is ours until the directory is on the disk.
        (self.file, self.read, self.unsynced, self.misplaced) = (file, length, false, true);
        self.settle()
    }

    fn fill(&self, new: &Path) -> io::Result<(File, u64)> {
        let old = self.file.metadata()?;
        let mut file = options().create(true).truncate(true).mode(0o600).open(new)?;
        file.lock()?;
        std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()))?;
        file.set_permissions(std::fs::Permissions::from_mode(old.mode() & 0o7777))?;
        let lines = self.marks.iter().flat_map(|(name, token)| line(name, *token));
        let bytes: Vec<u8> = HEADER.iter().copied().chain(lines).collect();
        file.write_all(&bytes)?;
        file.sync_all()?;
        Ok((file, bytes.len() as u64))
    }
}

/// A new file with nothing in it but the header, so that an empty one is always somebody's mistake.
fn create(path: &Path) -> io::Result<()> {
    let mut number = [0; 8];
    getrandom::fill(&mut number).expect("the kernel has random numbers");
    let new = beside(path, &format!("{:016x}", u64::from_le_bytes(number)));
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).and_then(|mut file| {
        file.write_all(HEADER)?;
        file.sync_all()?;
        match std::fs::hard_link(&new, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()), // somebody was faster
            linked => linked,
        }
    });
    let _ = std::fs::remove_file(&new);
    made?;
    sync_directory(path)
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

/// A hidden neighbour of the file.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{file}.{suffix}"))
}

pub(super) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// One line. Tokens have their full width, so that a name's lines are all of one length.
pub(super) fn line(name: &str, token: u64) -> Vec<u8> {
    let text = format!("{token:019} {name}");
    format!("{:08x} {text}\n", crc32(text.as_bytes())).into_bytes()
}

fn parse(line: &[u8]) -> Option<(&str, u64)> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (sum, text) = (line.get(..8)?, line.get(9..)?);
    let (token, name) = (text.get(..19)?, text.get(20..)?);
    let (sum, token) = (u32::from_str_radix(sum, 16).ok()?, token.parse().ok()?);
    (self::line(name, token) == [line.as_bytes(), b"\n"].concat() && sum == crc32(text.as_bytes())).then_some((name, token))
}

/// Whether what cannot be read is the last line that somebody wrote, and not whole: cut short, or with the zeros of a block that
/// never came to the disk.
fn is_torn(rest: &[u8]) -> bool {
    let lines = || rest.split_inclusive(|byte| *byte == b'\n');
    let is_cut = !rest.contains(&b'\n') || rest.contains(&0);
    is_cut && lines().all(|line| parse(line).is_none())
}

fn failed(path: &Path, doing: &str, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => ErrorKind::Unavailable,
        _ => ErrorKind::Backend,
    };
    Error::new(kind, format!("the fence's file failed while {doing}")).with_store(describe(path)).with_source(error)
}

fn gone(path: &Path) -> Error {
    Error::new(ErrorKind::Backend, "the fence's file was removed while it was in use")
        .with_store(describe(path))
        .with_hint("What it remembered is gone. Put it back, or start again and know that late writers are not refused")
}

fn not_ours(path: &Path, bytes: &[u8]) -> Error {
    let (what, hint) = match bytes {
        [] => (
            "the file is empty, and a fence's file never is",
            "Was it cut to nothing? Put it back from a backup; or remove it, and know that late writers are not refused",
        ),
        _ => ("the file is not a fence's file", "Nothing was changed. Name another file, or move that one away"),
    };
    Error::new(ErrorKind::Backend, what).with_store(describe(path)).with_hint(hint)
}

fn damaged(path: &Path, how: &str) -> Error {
    Error::new(ErrorKind::Backend, format!("the fence's file is damaged: {how}")).with_store(describe(path)).with_hint(
        "Everything is refused, since what it remembered is not known. Put it back from a backup, or remove it and know that late \
         writers are not refused",
    )
}

/// The fence in words.
pub(super) fn describe(path: &Path) -> String {
    format!("file:{}", path.display())
}

const DIRECTORY: &str = "Does its directory exist, and may this user write there?";
const DISK: &str = "Is there room on its disk, and may this user write it? What was accepted before is unharmed";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        for (name, token) in [("a", 0), ("invoices/2026", 17), (" two  blanks ", i64::MAX as u64), ("🔒é", 1)] {
            assert_eq!(parse(&line(name, token)), Some((name, token)));
        }
        assert_eq!(line("a", 7).len(), line("a", i64::MAX as u64).len());
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let good = line("invoices/2026", 1_731_664_000_000_001);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(parse(&bad), None, "{}", String::from_utf8_lossy(&bad));
        }
    }

    #[test]
    fn a_line_that_is_not_whole_is_torn_and_another_is_damage() {
        let (one, two) = (line("a", 1), line("b", 2));
        for cut in 1..one.len() {
            assert!(is_torn(&one[..cut]), "{cut}");
        }
        let mut zeros = one.clone();
        zeros[..12].fill(0);
        assert!(is_torn(&zeros));
        assert!(!is_torn(&[zeros, two].concat()), "whoever wrote the second had read the first");
        let mut flipped = one;
        flipped[12] ^= 1;
        assert!(!is_torn(&flipped));
    }
}
