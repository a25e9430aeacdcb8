//! What is in the servers, and under which names.
//!
//! ```text
//! /tenure                                  root, a container: it goes when it is empty
//! /tenure/invoices%2F2026                  a name, a container too
//! /tenure/invoices%2F2026/mutex-5f1c…-0000000007     a claim: kind and mode, a hash of its id, place in line
//! /tenure-cells/stock                      a cell
//! ```
//!
//! The claim's id is its owner's secret, so only 64 bits that are made of its 128 are in the name: enough to find one's own node
//! after a lost answer, and to show people a fingerprint. Names are escaped so that zkCli shows them readably; the escaping can be
//! undone, so no two names meet, and a slash is escaped too, so no name is inside another.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::num::NonZeroU32;

use tenure_core::{Claim, ClaimId, Error, ErrorKind, Fingerprint, Kind, LockName, Mode, Result};

use crate::config::Settings;

/// How locks are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Our own: every kind, no two kinds on one name.
    Tenure,
    /// Curator's: its mutex and its rw lock, at the path that Curator would use.
    Curator,
}

/// A hash of a claim's id, which names its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key(u64);

impl Key {
    /// The fingerprint that people see, and 32 bits more.
    pub(crate) fn of(id: ClaimId) -> Key {
        let mut hasher = DefaultHasher::new();
        (id.as_bytes(), "node").hash(&mut hasher);
        Key(u64::from(id.fingerprint().0) << 32 | hasher.finish() & 0xffff_ffff)
    }

    /// What people see of it.
    pub(crate) fn fingerprint(self) -> Fingerprint {
        Fingerprint((self.0 >> 32) as u32)
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// One node of a name: a claim, ours or anybody's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The node's name within its parent.
    pub(crate) node: String,
    /// Whose it is; of a foreign node, a hash of its name.
    pub(crate) key: Key,
    pub(crate) kind: Kind,
    pub(crate) mode: Mode,
    /// Its place in line: drawn by the server, and wraps.
    pub(crate) sequence: i32,
}

/// Where a name's nodes are.
pub(crate) fn parent(settings: &Settings, name: &LockName) -> Result<String> {
    let Settings { chroot, root, .. } = settings;
    match settings.layout {
        Layout::Tenure => Ok(format!("{chroot}{root}/{}", escape(name.as_str()))),
        Layout::Curator => {
            let path = format!("{root}/{}", name.as_str().trim_start_matches('/'));
            check_path(&path).map_err(|why| {
                Error::new(ErrorKind::BadName, format!("this name is no path of ZooKeeper's: it {why}"))
                    .with_name(name)
                    .with_hint("With layout=curator a name is the path that Curator locks, such as locks/orders")
            })?;
            Ok(format!("{chroot}{path}"))
        }
    }
}

/// Where a cell is.
pub(crate) fn cell(settings: &Settings, name: &LockName) -> String {
    format!("{}{}-cells/{}", settings.chroot, settings.root, escape(name.as_str()))
}

/// What the name of a claim's node begins with; the server adds its place in line.
pub(crate) fn node_prefix(layout: Layout, claim: &Claim, mode: Mode) -> String {
    let key = Key::of(claim.id);
    match layout {
        Layout::Tenure => format!("{}-{key}-", tag(claim.kind, mode)),
        Layout::Curator => {
            let digits = key.to_string();
            let uuid = format!("{}-{}-{}{OURS}", &digits[..8], &digits[8..12], &digits[12..]);
            let what = match (claim.kind, mode) {
                (Kind::RwLock, Mode::Shared) => "__READ__",
                (Kind::RwLock, _) => "__WRIT__",
                _ => "lock-",
            };
            format!("_c_{uuid}-{what}")
        }
    }
}

/// The whole name of a node whose place in line is known.
pub(crate) fn node(layout: Layout, claim: &Claim, mode: Mode, sequence: i32) -> String {
    format!("{}{sequence:010}", node_prefix(layout, claim, mode))
}

fn tag(kind: Kind, mode: Mode) -> String {
    match (kind, mode) {
        (Kind::Mutex, _) => "mutex".to_owned(),
        (Kind::FairMutex, _) => "fair".to_owned(),
        (Kind::RwLock, Mode::Shared) => "rw.r".to_owned(),
        (Kind::RwLock, _) => "rw.w".to_owned(),
        (Kind::Semaphore, Mode::Permits { take, of }) => format!("sem.{take}.{of}"),
        (Kind::Election, _) => "election".to_owned(),
        (kind, _) => unreachable!("no claim is a {kind} in this mode"),
    }
}

/// Reads the name of a node; `None` if it is no claim.
pub(crate) fn place(layout: Layout, node: &str) -> Option<Place> {
    match layout {
        Layout::Tenure => {
            let mut parts = node.splitn(3, '-');
            let (kind, mode) = untag(parts.next()?)?;
            let key = Key(u64::from_str_radix(parts.next().filter(|key| key.len() == 16)?, 16).ok()?);
            let sequence = parts.next()?.parse().ok()?;
            Some(Place { node: node.to_owned(), key, kind, mode, sequence })
        }
        Layout::Curator => {
            let marks = [
                ("lock-", Kind::Mutex, Mode::Exclusive),
                ("__READ__", Kind::RwLock, Mode::Shared),
                ("__WRIT__", Kind::RwLock, Mode::Exclusive),
            ];
            let (at, mark, kind, mode) = marks
                .iter()
                .filter_map(|(mark, kind, mode)| Some((node.rfind(mark)?, mark, *kind, *mode)))
                .max_by_key(|found| found.0)?;
            let sequence = node[at + mark.len()..].parse().ok()?;
            let key = curator_key(&node[..at]);
            Some(Place { node: node.to_owned(), key, kind, mode, sequence })
        }
    }
}

/// How the UUID of a node of ours ends in Curator's layout, after the key.
const OURS: &str = "-0000-7e7e7e000000";

/// Whose a node of Curator's is: ours carry the key, of others a hash is as good.
fn curator_key(prefix: &str) -> Key {
    let ours = || {
        let key = prefix.strip_prefix("_c_")?.strip_suffix('-')?.strip_suffix(OURS)?;
        Some(Key(u64::from_str_radix(&key.replace('-', ""), 16).ok()?))
    };
    ours().unwrap_or_else(|| {
        let mut hasher = DefaultHasher::new();
        prefix.hash(&mut hasher);
        Key(hasher.finish())
    })
}

fn untag(tag: &str) -> Option<(Kind, Mode)> {
    Some(match tag {
        "mutex" => (Kind::Mutex, Mode::Exclusive),
        "fair" => (Kind::FairMutex, Mode::Exclusive),
        "election" => (Kind::Election, Mode::Exclusive),
        "rw.r" => (Kind::RwLock, Mode::Shared),
        "rw.w" => (Kind::RwLock, Mode::Exclusive),
        tag => {
            let (take, of) = tag.strip_prefix("sem.")?.split_once('.')?;
            let number = |text: &str| text.parse::<NonZeroU32>().ok();
            (Kind::Semaphore, Mode::Permits { take: number(take)?, of: number(of)? })
        }
    })
}

/// A name as one part of a path. Readable where it can be: only what a path cannot have, `%` and `/` are escaped.
pub(crate) fn escape(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for (at, c) in name.char_indices() {
        if is_plain(c) && !(at == 0 && c == '.') {
            escaped.push(c);
        } else {
            let mut bytes = [0; 4];
            c.encode_utf8(&mut bytes).bytes().for_each(|byte| escaped.push_str(&format!("%{byte:02X}")));
        }
    }
    escaped
}

/// The name that was escaped like this; `None` if none was.
pub(crate) fn unescape(escaped: &str) -> Option<LockName> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let [high, low, tail @ ..] = rest else { return None };
        let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
        bytes.push(digit(*high)? << 4 | digit(*low)?);
        rest = tail;
    }
    let name = LockName::new(String::from_utf8(bytes).ok()?).ok()?;
    (escape(name.as_str()) == escaped).then_some(name) // somebody else's node that only looks like one of ours
}

fn is_plain(c: char) -> bool {
    c != '%' && c != '/' && is_legal(c)
}

/// What a server takes in a path: it looks at UTF-16, so nothing beyond 16 bits, and no private or special characters.
fn is_legal(c: char) -> bool {
    matches!(c, '\u{20}'..='\u{7e}' | '\u{a0}'..='\u{d7ff}' | '\u{f900}'..='\u{ffef}')
}

/// Whether a server takes this path; what it does wrong if not.
pub(crate) fn check_path(path: &str) -> std::result::Result<(), &'static str> {
    let Some(parts) = path.strip_prefix('/') else { return Err("does not begin with a /") };
    if path.len() > 1024 {
        return Err("has more than 1024 bytes");
    }
    for part in parts.split('/') {
        match part {
            "" => return Err("has an empty part"),
            "." | ".." => return Err("has a part that is . or .."),
            part if !part.chars().all(is_legal) => return Err("has characters that ZooKeeper does not allow"),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tenure_core::{Note, Origin};

    use super::*;

    fn claim(kind: Kind, mode: Mode) -> Claim {
        Claim {
            name: LockName::new("x").unwrap(),
            kind,
            mode,
            id: ClaimId::from_bytes(*b"sixteen  secrets"),
            ttl: Duration::from_secs(1),
            handover_ttl: Duration::from_secs(1),
            lock_delay: Duration::ZERO,
            min_hold: Duration::ZERO,
            note: Note::none(),
            origin: Origin { host: "h".into(), pid: 1 },
        }
    }

    #[test]
    fn every_kind_comes_back_from_its_node() {
        let permits = Mode::Permits { take: NonZeroU32::new(2).unwrap(), of: NonZeroU32::new(5).unwrap() };
        for (kind, mode) in [
            (Kind::Mutex, Mode::Exclusive),
            (Kind::FairMutex, Mode::Exclusive),
            (Kind::Election, Mode::Exclusive),
            (Kind::RwLock, Mode::Shared),
            (Kind::RwLock, Mode::Exclusive),
            (Kind::Semaphore, permits),
        ] {
            let claim = claim(kind, mode);
            for sequence in [0, 7, i32::MAX, i32::MIN, -5] {
                let name = node(Layout::Tenure, &claim, mode, sequence);
                let read = place(Layout::Tenure, &name).unwrap_or_else(|| panic!("{name}"));
                assert_eq!((read.kind, read.mode, read.sequence), (kind, mode, sequence));
                assert_eq!((read.key, read.key.fingerprint()), (Key::of(claim.id), claim.id.fingerprint()));
            }
        }
        assert!(!node(Layout::Tenure, &claim(Kind::Mutex, Mode::Exclusive), Mode::Exclusive, 1).contains("secret"));
    }

    #[test]
    fn curators_nodes_are_read_and_ours_look_like_them() {
        let theirs = place(Layout::Curator, "_c_8a7f9e1c-2b7e-4b0c-9a55-d7c1f0aa11bb-lock-0000000012").unwrap();
        assert_eq!((theirs.kind, theirs.sequence), (Kind::Mutex, 12));
        let reader = place(Layout::Curator, "_c_8a7f9e1c-2b7e-4b0c-9a55-d7c1f0aa11bb-__READ__0000000013").unwrap();
        assert_eq!((reader.kind, reader.mode), (Kind::RwLock, Mode::Shared));
        let claim = claim(Kind::RwLock, Mode::Exclusive);
        let name = node(Layout::Curator, &claim, Mode::Exclusive, 14);
        assert_eq!(name.len(), "_c_8a7f9e1c-2b7e-4b0c-9a55-d7c1f0aa11bb-__WRIT__0000000014".len());
        let ours = place(Layout::Curator, &name).unwrap();
        assert_eq!((ours.key, ours.sequence), (Key::of(claim.id), 14));
        assert!(place(Layout::Curator, "a-child-of-somebody").is_none());
    }

    #[test]
    fn zkcli_shows_names_readably() {
        for (name, escaped) in [
            ("invoices/2026", "invoices%2F2026"),
            ("..", "%2E."),
            (".", "%2E"),
            ("a.b", "a.b"),
            ("é ü", "é ü"),
            ("100%", "100%25"),
            ("🔒", "%F0%9F%94%92"),
            ("\u{e000}", "%EE%80%80"),
            ("zookeeper", "zookeeper"),
        ] {
            assert_eq!(escape(name), escaped);
        }
        assert_eq!(unescape("%proof"), None, "the node that never exists is no name's");
        assert_eq!(unescape("a%2fb"), None, "written otherwise, it is somebody else's");
    }

    proptest! {
        #[test]
        fn escaping_can_be_undone_and_is_legal(name in "\\PC{1,60}") {
            prop_assume!(LockName::new(&name).is_ok());
            let escaped = escape(&name);
            prop_assert_eq!(unescape(&escaped).map(|name| name.to_string()), Some(name));
            prop_assert!(check_path(&format!("/{escaped}")).is_ok(), "{}", escaped);
        }

        #[test]
        fn foreign_nodes_never_panic(node in "\\PC{0,60}") {
            place(Layout::Tenure, &node);
            place(Layout::Curator, &node);
            unescape(&node);
        }
    }
}
