//! What is in etcd, and under which keys.
//!
//! ```text
//! {prefix}/lock/{name} {kind}/{mode}/{seat}       one claim: x alone, r a reader, 3 so many permits
//! {prefix}/ended/{claim}                          a claim that was ended while its ask may still be on its way
//! {prefix}/cell/{name}                            a cell
//! ```
//!
//! A name is written as it is, but for two signs: a space is `!0` and a `!` is `!1`. So the space that follows a name is
//! smaller than anything in one, no name's keys are among another's, and keys sort as names do. Kinds stand in the key, a semaphore
//! with its number: a claim compares that there is no key of the name outside its own kind's range.
//!
//! With `layout=concurrency` a claim's key is `{name}/{its lease in hex}`, as etcd's own recipe has it, and every key that begins with
//! `{name}/` is in the line: that `a/b` then stands in the line of `a` is that recipe's way.
//!
//! A seat is a client and a number: the smallest that no other claim of this client on this name has. Keys are used again, since etcd
//! remembers every key that there ever was until it is compacted, and looks at all of them when it reads a range: a key for
//! every claim would make a name slower with every lock. Which claim it is at a time says its create revision, which everything that
//! touches a claim compares; and its value, by half of the SHA-256 of the claim's id: whoever lists keys learns no secret.

use sha2::{Digest as _, Sha256};
use tenure_core::{Claim, ClaimId, Kind, LockName, Mode};

use crate::config::Layout;

/// Keys from one, up to but not including another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) from: Vec<u8>,
    pub(crate) to: Vec<u8>,
}

impl Range {
    /// Everything that begins with these bytes, which are never all `0xff`.
    pub(crate) fn under(prefix: impl Into<Vec<u8>>) -> Self {
        let from = prefix.into();
        let mut to = from.clone();
        while let Some(last) = to.pop() {
            if last < u8::MAX {
                to.push(last + 1);
                break;
            }
        }
        Range { from, to }
    }
}

/// Where everything is.
#[derive(Clone, Debug)]
pub(crate) struct Schema {
    prefix: String,
    pub(crate) layout: Layout,
}

/// Whose key it is: a client, and which of its claims on a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Seat {
    pub(crate) client: u64,
    pub(crate) number: u32,
}

impl std::fmt::Display for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}{:08x}", self.client, self.number)
    }
}

/// What a key of a claim says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    pub(crate) mode: Mode,
    /// Whose seat it is, as the key shows it.
    pub(crate) seat: String,
}

/// Where the claims of one name are, for one kind of lock.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Everything about the name, of whatever kind.
    pub(crate) name: Range,
    /// The claims of this kind.
    pub(crate) kind: Range,
    /// Those of them that are alone.
    pub(crate) writers: Range,
}

impl Place {
    /// What is of the name and not of the kind: before it, and after it.
    pub(crate) fn others(&self) -> impl Iterator<Item = Range> {
        let Place { name, kind, .. } = self;
        let before = Range { from: name.from.clone(), to: kind.from.clone() };
        let after = Range { from: kind.to.clone(), to: name.to.clone() };
        [before, after].into_iter().filter(|range| range.from < range.to)
    }
}

impl Schema {
    pub(crate) fn new(prefix: &str, layout: Layout) -> Self {
        Schema { prefix: prefix.to_owned(), layout }
    }

    /// What every key of a name begins with.
    fn of(&self, name: &LockName) -> String {
        match self.layout {
            Layout::Tenure => format!("{}/lock/{} ", self.prefix, escape(name.as_str())),
            Layout::Concurrency => format!("{name}/"),
        }
    }

    /// Where the claims of a name are.
    pub(crate) fn place(&self, name: &LockName, kind: Kind, mode: Mode) -> Place {
        let name = self.of(name);
        if self.layout == Layout::Concurrency {
            let all = Range::under(name);
            return Place { name: all.clone(), kind: all.clone(), writers: all };
        }
        let kind = format!("{name}{}/", tag(kind, mode));
        let writers = Range::under(format!("{kind}x/"));
        Place { name: Range::under(name), kind: Range::under(kind), writers }
    }

    /// Everything about a name.
    pub(crate) fn name(&self, name: &LockName) -> Range {
        Range::under(self.of(name))
    }

    /// Every name that begins so.
    pub(crate) fn names(&self, prefix: &str) -> Range {
        match self.layout {
            Layout::Tenure => Range::under(format!("{}/lock/{}", self.prefix, escape(prefix))),
            // A zero byte to a zero byte is everything there is.
            Layout::Concurrency if prefix.is_empty() => Range { from: vec![0], to: vec![0] },
            Layout::Concurrency => Range::under(prefix),
        }
    }

    /// The key of a claim in this seat, or on this lease.
    pub(crate) fn key(&self, claim: &Claim, seat: Seat, lease: i64) -> Vec<u8> {
        if self.layout == Layout::Concurrency {
            return format!("{}{lease:x}", self.of(&claim.name)).into_bytes();
        }
        let mode = match claim.mode {
            Mode::Exclusive => "x".to_owned(),
            Mode::Shared => "r".to_owned(),
            Mode::Permits { take, .. } => take.to_string(),
        };
        format!("{}{}/{mode}/{seat}", self.of(&claim.name), tag(claim.kind, claim.mode)).into_bytes()
    }

    /// The mark that a claim was ended.
    pub(crate) fn ended(&self, id: ClaimId) -> Vec<u8> {
        format!("{}/ended/{}", self.prefix, shown(id)).into_bytes()
    }

    /// A cell. Removed, its version is remembered by nobody: it is the revision, which never goes back.
    pub(crate) fn cell(&self, name: &LockName) -> Vec<u8> {
        format!("{}/cell/{} ", self.prefix, escape(name.as_str())).into_bytes()
    }

    /// A key that nothing is ever written to, for requests that only want to know whether there is an answer.
    pub(crate) fn nothing(&self) -> Vec<u8> {
        format!("{}/nothing", self.prefix).into_bytes()
    }

    /// A key for a raw write, which is what a grant is measured against.
    pub(crate) fn probe(&self, number: u64) -> Vec<u8> {
        format!("{}/probe/{number:016x}", self.prefix).into_bytes()
    }

    /// Reads a claim's key; `None` for what is not one of ours.
    pub(crate) fn parse(&self, key: &[u8]) -> Option<Parsed> {
        let text = std::str::from_utf8(key).ok()?;
        if self.layout == Layout::Concurrency {
            let (name, seat) = text.rsplit_once('/')?;
            i64::from_str_radix(seat, 16).ok()?;
            let (name, seat) = (LockName::new(name).ok()?, seat.to_owned());
            return Some(Parsed { name, kind: Kind::Mutex, mode: Mode::Exclusive, seat });
        }
        let rest = text.strip_prefix(&self.prefix)?.strip_prefix("/lock/")?;
        let (name, rest) = rest.split_once(' ')?;
        let mut parts = rest.splitn(3, '/');
        let (tag, mode, seat) = (parts.next()?, parts.next()?, parts.next()?);
        let (kind, of) = match tag {
            "mutex" => (Kind::Mutex, None),
            "fair-mutex" => (Kind::FairMutex, None),
            "rw-lock" => (Kind::RwLock, None),
            "election" => (Kind::Election, None),
            _ => (Kind::Semaphore, Some(tag.strip_prefix("semaphore-")?.parse().ok()?)),
        };
        let mode = match (mode, of) {
            ("x", None) => Mode::Exclusive,
            ("r", None) => Mode::Shared,
            (take, Some(of)) => Mode::Permits { take: take.parse().ok()?, of },
            _ => return None,
        };
        let name = LockName::new(unescape(name)?).ok()?;
        Some(Parsed { name, kind, mode, seat: seat.to_owned() })
    }
}

/// A kind, as keys name it.
fn tag(kind: Kind, mode: Mode) -> String {
    match (kind, mode) {
        (Kind::Semaphore, Mode::Permits { of, .. }) => format!("semaphore-{of}"),
        (kind, _) => kind.as_str().replace(' ', "-"),
    }
}

/// A name so that a space can follow it and sort before everything.
fn escape(name: &str) -> String {
    name.replace('!', "!1").replace(' ', "!0")
}

fn unescape(text: &str) -> Option<String> {
    let mut name = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        name.push(match letter {
            '!' => match letters.next()? {
                '0' => ' ',
                '1' => '!',
                _ => return None,
            },
            letter => letter,
        });
    }
    Some(name)
}

/// What the store is shown of a claim.
pub(crate) fn shown(id: ClaimId) -> String {
    hex(&Sha256::digest(id.as_bytes())[..16])
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        for digit in [byte >> 4, byte & 15] {
            text.push(char::from_digit(digit.into(), 16).expect("a digit"));
        }
        text
    })
}

#[cfg(test)]
mod tests;
