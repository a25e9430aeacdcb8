//! Claim → grant → guard: what is asked for, and what the store answers.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::{Error, ErrorKind, Instant, LockName, Result};

/// Which algorithm a name meets. Every claim on a name has the same kind while the name is in use.
///
/// Reentrant mutexes and multi-locks are made of [`Kind::Mutex`] on the client's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// One holder; a newcomer may be let in ahead of a waiter who was woken but is not there yet.
    Mutex = 0,
    /// One holder, strictly in the order of asking.
    FairMutex = 1,
    /// Many readers or one writer; readers who come after a waiting writer queue behind it.
    RwLock = 2,
    /// A number of permits, taken several at a time.
    Semaphore = 3,
    /// One leader; terms rise.
    Election = 4,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [Kind::Mutex, Kind::FairMutex, Kind::RwLock, Kind::Semaphore, Kind::Election];

    /// The word for it, as shown to people and written into stores.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Mutex => "mutex",
            Kind::FairMutex => "fair mutex",
            Kind::RwLock => "rw lock",
            Kind::Semaphore => "semaphore",
            Kind::Election => "election",
        }
    }

    /// The number that stores keep for it. It is in people's files and servers: it never changes, and new kinds get new ones.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The kind with this number.
    pub fn numbered(number: i64) -> Option<Kind> {
        Kind::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// How a claim wants its name: alone, with other readers, or so many of its permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Together with other readers.
    Shared,
    /// `take` of `of` permits.
    Permits {
        /// How many.
        take: NonZeroU32,
        /// Of how many the semaphore has.
        of: NonZeroU32,
    },
}

impl Mode {
    /// The mode that stores keep as these numbers: 0 for exclusive, 1 for shared, 2 for `take` of `of` permits.
    pub fn numbered(mode: i64, take: i64, of: i64) -> Option<Mode> {
        let count = |number: i64| NonZeroU32::new(u32::try_from(number).ok()?);
        match mode {
            0 => Some(Mode::Exclusive),
            1 => Some(Mode::Shared),
            2 => Some(Mode::Permits { take: count(take)?, of: count(of)? }),
            _ => None,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Exclusive => f.pad("exclusive"),
            Mode::Shared => f.pad("shared"),
            Mode::Permits { take, of } => f.pad(&format!("{take} of {of}")),
        }
    }
}

/// 128 random bits, drawn per acquisition before the first request: the name of one ask, and the owner's secret.
///
/// Whoever knows it may renew and release. It is never shown: `Debug` prints a hash, as views and logs do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId([u8; 16]);

impl ClaimId {
    /// From its bytes, as a store kept them.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        ClaimId(bytes)
    }

    /// Its bytes, for the store alone.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// 32 bits that name it in views and logs; 96 bits of the secret are not in them.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        Fingerprint(hasher.finish() as u32)
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimId(#{})", self.fingerprint())
    }
}

/// What may be shown of a [`ClaimId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub u32);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// The fencing number: strictly rising per name, never starting over.
///
/// Hand it to whatever the lock protects and let that refuse anything lower than the highest it has seen; then even a
/// holder that slept through its lease cannot do harm. Fits `i64`, for databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(u64);

impl Token {
    /// From its number.
    pub const fn new(number: u64) -> Self {
        Token(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The rule for stores without a number of their own that outlives everything: one more than the last, and never
    /// less than the store's clock in microseconds, so that a store which forgot everything still goes up.
    pub fn next(last: Token, wall_micros: u64) -> Token {
        Token((last.0 + 1).max(wall_micros).min(i64::MAX as u64))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Short text a holder shows: its purpose, a host, an election's value. At most 1 KiB, no control characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Note(Arc<str>);

impl Note {
    /// The longest note, in bytes.
    pub const MAX_BYTES: usize = 1024;

    /// Parses a note. Control characters are refused since notes are shown on other people's terminals.
    pub fn new(text: impl AsRef<str>) -> Result<Self> {
        let text = text.as_ref();
        let bad = |why: String| Err(Error::new(ErrorKind::BadOption, format!("a note {why}")));
        if text.len() > Self::MAX_BYTES {
            return bad(format!("may have at most {} bytes, this one has {}", Self::MAX_BYTES, text.len()));
        }
        if text.chars().any(char::is_control) {
            return bad("may not have control characters".into());
        }
        Ok(Note(text.into()))
    }

    /// No note: the empty text.
    pub fn none() -> Self {
        Note("".into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A host's name, as views show it: never with control characters, wherever it comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host(Arc<str>);

impl Host {
    /// The longest host, in bytes: as long as a name in DNS may be.
    pub const MAX_BYTES: usize = 255;
}

impl From<&str> for Host {
    /// A control character becomes `\u{fffd}`, and what is too long is cut: a name is only shown, and a claim with a bad one is
    /// a claim.
    fn from(text: &str) -> Self {
        let text = &text[..text.floor_char_boundary(Self::MAX_BYTES)];
        if !text.contains(char::is_control) {
            return Host(text.into());
        }
        let plain = text.replace(char::is_control, "\u{fffd}");
        Host(plain[..plain.floor_char_boundary(Self::MAX_BYTES)].into())
    }
}

impl std::ops::Deref for Host {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Who asks: shown beside the note in views.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The host's name.
    pub host: Host,
    /// The process id on that host.
    pub pid: u32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.pid)
    }
}

/// The shortest ttl anybody may ask for.
pub const MIN_TTL: Duration = Duration::from_millis(100);
/// The longest ttl, minimum hold or lock-delay.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// A grant made to a waiter stands for this long until the waiter's keeper renews it, so that a waiter who died or lost
/// interest at that very moment costs everybody behind it this, not a whole ttl.
pub const HANDOVER_TTL: Duration = Duration::from_secs(2);

/// One ask, whole: everything a store needs to know, drawn up before the first request is sent.
#[derive(Clone, Debug)]
pub struct Claim {
    /// What is locked.
    pub name: LockName,
    /// The algorithm its name meets.
    pub kind: Kind,
    /// How the name is wanted.
    pub mode: Mode,
    /// This ask and no other.
    pub id: ClaimId,
    /// How long a grant lasts if nobody renews it.
    pub ttl: Duration,
    /// How long a grant lasts that is made to a waiter while nobody is known to listen; at most `ttl`.
    pub handover_ttl: Duration,
    /// How long the name stays closed after this holder was lost.
    pub lock_delay: Duration,
    /// Released earlier than this after the grant, the name stays closed until then.
    pub min_hold: Duration,
    /// What the holder shows.
    pub note: Note,
    /// Who asks.
    pub origin: Origin,
}

impl Claim {
    /// Until when a grant or renewal asked for at `sent` may be trusted: counted from *sending*, since the store cannot
    /// have started its own count before that.
    pub fn window(&self, sent: Instant) -> Instant {
        sent + (self.ttl - margin(self.ttl))
    }

    /// The error for a claim on a name that is in use as `kind`, a semaphore with `of` permits: what its holder would have to be
    /// asked with.
    pub fn mismatch(&self, kind: Kind, of: u32) -> Error {
        let what = if kind == self.kind
            && let Mode::Permits { of: asked, .. } = self.mode
        {
            format!("it is in use as a semaphore with {of} permits, and was now asked for with {asked}")
        } else {
            format!("it is in use as {kind} and was now asked for as {}", self.kind)
        };
        let meets = match kind {
            Kind::Mutex => "`client.mutex(..)`".to_owned(),
            Kind::FairMutex => "`client.fair_mutex(..)`".to_owned(),
            Kind::RwLock => "`client.rw_lock(..).write()` or `.read()`".to_owned(),
            Kind::Semaphore => format!("`client.semaphore(.., {of})`"),
            Kind::Election => "`client.election(..)`".to_owned(),
        };
        let hint = format!("Use {meets} to meet its holder, or another name: all kinds share one space of names");
        Error::new(ErrorKind::Mismatch, what).with_name(&self.name).with_hint(hint)
    }
}

/// What is taken off a ttl before it is trusted: 1 % for clocks of different rates, and a twentieth (at most 50 ms) so
/// that the loss signal has fired and been heard before the store lets anybody else in.
///
/// 1 % is enough if neither the store's clock nor the holder's is slewed by more than 0.5 % (5,000 ppm): 1.005 / 0.995 is less
/// than 1 / 0.99. ntpd slews by 500 ppm at most; chronyd by 83,333 ppm unless it is configured with `maxslewrate 5000`.
pub fn margin(ttl: Duration) -> Duration {
    ttl / 100 + (ttl / 20).min(Duration::from_millis(50))
}

/// How long a caller is ready to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// So long.
    For(Duration),
    /// For ever.
    Forever,
}

impl Wait {
    /// When waiting ends that begins now.
    pub fn deadline(self, now: Instant) -> Instant {
        match self {
            Wait::For(wait) => now + wait,
            Wait::No | Wait::Forever => Instant::NEVER,
        }
    }

    /// What is left of it now.
    pub fn left(self, deadline: Instant, now: Instant) -> Wait {
        match self {
            Wait::For(_) => Wait::For(deadline.since(now)),
            Wait::No | Wait::Forever => self,
        }
    }
}

/// What the store gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The fencing number.
    pub token: Token,
    /// The local instant from which the grant may not be trusted.
    pub until: Instant,
}

/// The store's answer to one renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Still held, now until then.
    Held {
        /// The new local instant from which it may not be trusted.
        until: Instant,
        /// Somebody asked the holder to let go.
        asked: Option<Ask>,
    },
    /// Not held any more: it expired, was broken, or was never known.
    Lost,
}

/// Somebody's request that the holder let go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Why, in the asker's words.
    pub reason: Note,
    /// Who asked.
    pub by: Origin,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_outlive_a_store_that_forgets() {
        assert_eq!(Token::next(Token::new(7), 0).get(), 8);
        assert_eq!(Token::next(Token::new(0), 1_000).get(), 1_000);
        assert_eq!(Token::next(Token::new(1_000), 1_000).get(), 1_001);
        assert!(Token::next(Token::new(i64::MAX as u64), u64::MAX).get() <= i64::MAX as u64);
    }

    #[test]
    fn the_window_ends_before_the_ttl() {
        for ttl in [MIN_TTL, Duration::from_secs(1), Duration::from_secs(30), MAX_TTL] {
            assert!(margin(ttl) < ttl / 10, "{ttl:?}");
            assert!(margin(ttl) >= ttl / 100);
        }
    }

    #[test]
    fn a_window_leaves_the_margin() {
        let claim = Claim {
            name: LockName::new("x").unwrap(),
            kind: Kind::Mutex,
            mode: Mode::Exclusive,
            id: ClaimId::from_bytes([7; 16]),
            ttl: Duration::from_secs(30),
            handover_ttl: HANDOVER_TTL,
            lock_delay: Duration::ZERO,
            min_hold: Duration::ZERO,
            note: Note::none(),
            origin: Origin { host: "here".into(), pid: 1 },
        };
        let sent = Instant::from_nanos(7);
        assert_eq!(claim.window(sent) + margin(claim.ttl), sent + claim.ttl);
    }

    #[test]
    fn a_host_steers_no_terminal() {
        assert_eq!(&*Host::from("db-1.example é"), "db-1.example é");
        assert_eq!(&*Host::from("a\u{1b}[2J\nb"), "a\u{fffd}[2J\u{fffd}b");
        for long in ["é".repeat(200), "\u{1b}".repeat(255)] {
            let host = Host::from(&*long);
            assert!(host.len() <= Host::MAX_BYTES && host.len() > Host::MAX_BYTES - 4, "{}", host.len());
        }
    }

    #[test]
    fn debug_hides_the_secret() {
        let id = ClaimId::from_bytes(*b"sixteen  secrets");
        assert!(!format!("{id:?}").contains("secret"));
        assert_eq!(format!("{id:?}").len(), "ClaimId(#01234567)".len());
    }
}
