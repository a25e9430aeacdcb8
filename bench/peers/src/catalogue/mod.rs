//! Who takes part: what each one is, what it does and does not do, and how it is told to wait. A file for each server.

mod etcd;
mod mariadb;
mod postgres;
mod redis;
mod zookeeper;

use crate::lines::Line;
use crate::store::Store;

/// A contender.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its name; another server may have one of the same name.
    pub(crate) key: &'static str,
    pub(crate) side: Side,
    pub(crate) program: Program,
    /// What it is, with its version.
    pub(crate) what: &'static str,
    /// How one waits, by the library's own defaults.
    pub(crate) waits: &'static str,
    /// What it leaves out of what tenure does on every grant: the reason, where it is ahead.
    pub(crate) leaves_out: &'static str,
    /// The lines it can take part in; where it cannot, `cannot` says why.
    pub(crate) lines: &'static [Line],
    pub(crate) cannot: &'static str,
    /// The longest pause between two questions of a waiter, if it polls. A hand-over is then measured from a random moment
    /// of that pause, and not always from its beginning.
    pub(crate) polls_ms: Option<u64>,
    /// The commands it sends itself, where the server counts others as well; empty where it counts only what was sent.
    pub(crate) sends: &'static [&'static str],
    /// Whose figures its own are multiples of: what the server does without a lock, in the way that this one works.
    pub(crate) base: fn(Line) -> &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The server itself, without a lock.
    Raw,
    Tenure,
    Peer,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Program {
    /// This binary.
    Rust,
    /// A script of `scripts/`.
    Python(&'static str),
    /// `scripts/redlock.js` with this argument.
    Node(&'static str),
    /// `scripts/CuratorPeer.java` with this argument.
    Java(&'static str),
    /// What `run` has compiled under this name.
    Go(&'static str),
}

pub(crate) fn of(store: Store) -> &'static [Entry] {
    match store {
        Store::Redis => redis::CONTENDERS,
        Store::Postgres => postgres::CONTENDERS,
        Store::MariaDb => mariadb::CONTENDERS,
        Store::Etcd => etcd::CONTENDERS,
        Store::ZooKeeper => zookeeper::CONTENDERS,
    }
}

/// Whether somebody's figures are multiples of this one's: then it is always measured.
pub(crate) fn is_base(store: Store, key: &str) -> bool {
    of(store).iter().any(|entry| entry.lines.iter().any(|line| (entry.base)(*line) == key))
}

const WAITING: &[Line] = &[Line::Solo, Line::Many, Line::Handover, Line::Contended, Line::Crowd];

const NOTHING: &str = "nothing: fencing token, renewal and loss signal are always on";

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = (Store, &'static Entry)> {
        Store::ALL.iter().flat_map(|store| of(*store).iter().map(|entry| (*store, entry)))
    }

    #[test]
    fn whoever_is_missing_somewhere_says_why() {
        for (store, entry) in all() {
            assert!(entry.lines.len() == WAITING.len() || !entry.cannot.is_empty(), "{} on {store:?}", entry.key);
        }
    }

    #[test]
    fn every_base_takes_part() {
        for (store, entry) in all() {
            for line in entry.lines {
                let base = of(store).iter().find(|other| other.key == (entry.base)(*line)).expect("it takes part");
                assert!(base.lines.contains(line) && base.side != Side::Tenure, "{} on {store:?}: {line:?}", entry.key);
            }
        }
    }

    #[test]
    fn nobody_is_there_twice() {
        for store in Store::ALL {
            let mut keys: Vec<_> = of(*store).iter().map(|entry| entry.key).collect();
            keys.sort_unstable();
            assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "{store:?}");
        }
    }
}
