//! Any kind of lock as one type, and the word for the flags that meet it.

use std::num::NonZeroU32;

use clap::Args;
use tenure::{
    Client, Election, Error, ErrorKind, FairMutex, Guard, Kind, LockName, Mode, Mutex, Note, Result, RwLock, Semaphore,
    View, Wait,
};

use super::args::HoldArgs;
use super::lease::longest_hold;
use crate::failure::Failure;
use crate::limits;

/// The flags that choose a kind.
#[derive(Args, Clone, Debug)]
pub(crate) struct KindArgs {
    /// Hold an rw lock together with other --shared holders
    #[arg(short, long, help_heading = "Kind", conflicts_with_all = ["exclusive", "fair", "permits"])]
    shared: bool,

    /// Hold an rw lock alone, as its writer
    #[arg(short = 'x', long, help_heading = "Kind", conflicts_with_all = ["fair", "permits"])]
    exclusive: bool,

    /// Take one of N permits; all callers give the same N
    #[arg(long, value_name = "N", value_parser = limits::permits, help_heading = "Kind", conflicts_with = "fair")]
    permits: Option<NonZeroU32>,

    /// Take M of the permits
    #[arg(long, value_name = "M", value_parser = limits::permits, help_heading = "Kind", requires = "permits", default_value = "1")]
    take: NonZeroU32,

    /// Grant it strictly in the order of the requests
    #[arg(long, help_heading = "Kind")]
    fair: bool,
}

impl KindArgs {
    /// Which kind all the flags together mean.
    pub(crate) fn shape(&self) -> Shape {
        match self.permits {
            Some(of) => Shape::Permits { take: self.take.get(), of: of.get() },
            None if self.shared => Shape::Read,
            None if self.exclusive => Shape::Write,
            None if self.fair => Shape::Fair,
            None => Shape::Mutex,
        }
    }
}

/// Which kind, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Mutex,
    Fair,
    Write,
    Read,
    Permits { take: u32, of: u32 },
    Election,
}

/// A lock of some kind, with all of its options.
pub(super) enum Lock {
    Mutex(Mutex),
    Fair(FairMutex),
    Write(RwLock),
    Read(RwLock),
    Permits(Semaphore, u32),
    Election(Election),
}

/// Gives any kind the options; they are methods of the same names on every one.
macro_rules! with_options {
    ($lock:expr, $hold:expr, $note:expr) => {{
        let mut lock = $lock.ttl($hold.ttl())?.note($note.as_str())?;
        if let Some(min_hold) = $hold.min_hold {
            lock = lock.min_hold(min_hold)?;
        }
        if let Some(max_hold) = $hold.max_hold {
            lock = lock.max_hold(max_hold)?; // the user's own must be one, too
            lock = lock.max_hold(longest_hold(max_hold, $hold.grace, $hold.on_lost.into()))?;
        }
        if let Some(lock_delay) = $hold.lock_delay {
            lock = lock.lock_delay(lock_delay)?;
        }
        lock
    }};
}

impl Lock {
    pub(super) fn new(client: &Client, name: &LockName, shape: Shape, hold: &HoldArgs, note: &Note) -> Result<Self> {
        let name = name.as_str();
        Ok(match shape {
            Shape::Mutex => Lock::Mutex(with_options!(client.mutex(name)?, hold, note)),
            Shape::Fair => Lock::Fair(with_options!(client.fair_mutex(name)?, hold, note)),
            Shape::Write => Lock::Write(with_options!(client.rw_lock(name)?, hold, note)),
            Shape::Read => Lock::Read(with_options!(client.rw_lock(name)?, hold, note)),
            Shape::Permits { take, of } => Lock::Permits(with_options!(client.semaphore(name, of)?, hold, note), take),
            Shape::Election => Lock::Election(with_options!(client.election(name)?, hold, note)),
        })
    }

    pub(super) fn name(&self) -> &LockName {
        match self {
            Lock::Mutex(lock) => lock.name(),
            Lock::Fair(lock) => lock.name(),
            Lock::Write(lock) | Lock::Read(lock) => lock.name(),
            Lock::Permits(lock, _) => lock.name(),
            Lock::Election(lock) => lock.name(),
        }
    }

    /// How it is held.
    pub(super) fn mode(&self) -> Mode {
        match self {
            Lock::Read(_) => Mode::Shared,
            Lock::Permits(lock, take) => match (NonZeroU32::new(*take), NonZeroU32::new(lock.permits())) {
                (Some(take), Some(of)) => Mode::Permits { take, of },
                _ => Mode::Exclusive,
            },
            _ => Mode::Exclusive,
        }
    }

    /// Asks for it. Dropping this gives up the place in line.
    pub(super) async fn acquire(&self, wait: Wait) -> Result<Option<Guard>> {
        match (self, wait) {
            (Lock::Mutex(lock), Wait::No) => lock.try_lock().await,
            (Lock::Mutex(lock), Wait::For(wait)) => lock.try_lock_for(wait).await,
            (Lock::Mutex(lock), Wait::Forever) => lock.lock().await.map(Some),
            (Lock::Fair(lock), Wait::No) => lock.try_lock().await,
            (Lock::Fair(lock), Wait::For(wait)) => lock.try_lock_for(wait).await,
            (Lock::Fair(lock), Wait::Forever) => lock.lock().await.map(Some),
            (Lock::Write(lock), Wait::No) => lock.try_write().await,
            (Lock::Write(lock), Wait::For(wait)) => lock.try_write_for(wait).await,
            (Lock::Write(lock), Wait::Forever) => lock.write().await.map(Some),
            (Lock::Read(lock), Wait::No) => lock.try_read().await,
            (Lock::Read(lock), Wait::For(wait)) => lock.try_read_for(wait).await,
            (Lock::Read(lock), Wait::Forever) => lock.read().await.map(Some),
            (Lock::Permits(lock, take), Wait::No) => lock.try_acquire(*take).await,
            (Lock::Permits(lock, take), Wait::For(wait)) => lock.try_acquire_for(*take, wait).await,
            (Lock::Permits(lock, take), Wait::Forever) => lock.acquire(*take).await.map(Some),
            (Lock::Election(lock), Wait::No) => lock.try_campaign().await,
            (Lock::Election(lock), Wait::For(wait)) => lock.try_campaign_for(wait).await,
            (Lock::Election(lock), Wait::Forever) => lock.campaign().await.map(Some),
        }
    }
}

/// A failure to acquire, with a way out where there is one: a name in use as another kind says which flags meet it.
pub(super) async fn explain(client: &Client, error: Error) -> Failure {
    let mismatch = error.kind() == ErrorKind::Mismatch;
    let name = error.name().cloned();
    let failure = Failure::from(error);
    let Some(name) = name.filter(|_| mismatch) else { return failure };
    match client.view(name.as_str()).await.ok().as_ref().and_then(meeting) {
        Some(meeting) => {
            failure.with_hint(format!("Use {meeting} to meet its holder, or another name: all kinds share the names"))
        }
        None => failure,
    }
}

/// The command line that meets whoever holds or waits.
fn meeting(view: &View) -> Option<String> {
    let name = quoted(view.name.as_str());
    let modes = view.holders.iter().map(|holder| holder.mode).chain(view.line.iter().map(|waiter| waiter.mode));
    let of = modes.filter_map(|mode| if let Mode::Permits { of, .. } = mode { Some(of) } else { None }).next();
    Some(match view.kind? {
        Kind::Mutex => format!("`tenure run {name}`"),
        Kind::FairMutex => format!("`tenure run --fair {name}`"),
        Kind::RwLock => format!("`tenure run -x {name}` or `tenure run -s {name}`"),
        Kind::Semaphore => format!("`tenure run --permits {} {name}`", of?),
        Kind::Election => format!("`tenure elect {name}`"),
        _ => return None,
    })
}

/// A name as one would type it into a shell.
fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:@%+,=".contains(c);
    if name.chars().all(plain) { name.to_owned() } else { format!("'{}'", name.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_pasted() {
        assert_eq!(quoted("a/b-c.1"), "a/b-c.1");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }
}
