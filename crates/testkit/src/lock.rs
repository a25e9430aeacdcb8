//! Every kind as a mutex, so that the mutex cases run on all of them.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::{
    Backoff, Client, Election, FairMutex, Guard, Instant, Kind, Multi, MultiGuard, Mutex, Owner, ReentrantMutex, Result,
    RwLock, Semaphore, Token,
};

/// A way to have a mutex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// A mutex.
    Mutex,
    /// A fair mutex.
    FairMutex,
    /// A re-entrant mutex, each time with a new owner.
    ReentrantMutex,
    /// A read-write lock that is only written.
    RwLock,
    /// A semaphore with one permit.
    Semaphore,
    /// A multi-lock of one name.
    Multi,
    /// An election.
    Election,
}

/// A lock of some shape.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // see `Shape`
pub enum Lock {
    Mutex(Mutex),
    FairMutex(FairMutex),
    ReentrantMutex(ReentrantMutex, Client),
    RwLock(RwLock),
    Semaphore(Semaphore),
    Multi(Multi),
    Election(Election),
}

/// The guard of a [`Lock`].
#[derive(Debug)]
#[must_use = "a guard that is dropped at once releases its lock at once"]
#[allow(missing_docs)]
pub enum Held {
    One(Guard),
    Multi(MultiGuard),
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 7] = [
        Shape::Mutex,
        Shape::FairMutex,
        Shape::ReentrantMutex,
        Shape::RwLock,
        Shape::Semaphore,
        Shape::Multi,
        Shape::Election,
    ];

    /// The kind that the store must offer for it.
    pub fn kind(self) -> Kind {
        match self {
            Shape::Mutex | Shape::ReentrantMutex | Shape::Multi => Kind::Mutex,
            Shape::FairMutex => Kind::FairMutex,
            Shape::RwLock => Kind::RwLock,
            Shape::Semaphore => Kind::Semaphore,
            Shape::Election => Kind::Election,
        }
    }

    /// A lock of this shape with the options of a [`Lock`] left as they are.
    pub fn make(self, client: &Client, name: &str) -> Result<Lock> {
        Ok(match self {
            Shape::Mutex => Lock::Mutex(client.mutex(name)?),
            Shape::FairMutex => Lock::FairMutex(client.fair_mutex(name)?),
            Shape::ReentrantMutex => Lock::ReentrantMutex(client.reentrant_mutex(name)?, client.clone()),
            Shape::RwLock => Lock::RwLock(client.rw_lock(name)?),
            Shape::Semaphore => Lock::Semaphore(client.semaphore(name, 1)?),
            Shape::Multi => Lock::Multi(client.multi([name])?),
            Shape::Election => Lock::Election(client.election(name)?),
        })
    }
}

/// Applies one method to whatever the lock is.
macro_rules! each {
    ($lock:expr, $inner:ident => $done:expr) => {
        match $lock {
            Lock::Mutex($inner) => Lock::Mutex($done),
            Lock::FairMutex($inner) => Lock::FairMutex($done),
            Lock::ReentrantMutex($inner, client) => Lock::ReentrantMutex($done, client),
            Lock::RwLock($inner) => Lock::RwLock($done),
            Lock::Semaphore($inner) => Lock::Semaphore($done),
            Lock::Multi($inner) => Lock::Multi($done),
            Lock::Election($inner) => Lock::Election($done),
        }
    };
}

/// The options that every kind has.
pub trait Options: Sized {
    /// As on every kind.
    fn ttl(self, ttl: Duration) -> Result<Self>;
    /// As on every kind.
    fn keep(self, keep: bool) -> Self;
    /// As on every kind.
    fn min_hold(self, min_hold: Duration) -> Result<Self>;
    /// As on every kind.
    fn max_hold(self, max_hold: Duration) -> Result<Self>;
    /// As on every kind.
    fn lock_delay(self, lock_delay: Duration) -> Result<Self>;
    /// As on every kind.
    fn note(self, note: &str) -> Result<Self>;
    /// As on every kind.
    fn spin(self, backoff: Backoff) -> Self;
}

impl Options for Lock {
    fn ttl(self, ttl: Duration) -> Result<Self> {
        Ok(each!(self, lock => lock.ttl(ttl)?))
    }

    fn keep(self, keep: bool) -> Self {
        each!(self, lock => lock.keep(keep))
    }

    fn min_hold(self, min_hold: Duration) -> Result<Self> {
        Ok(each!(self, lock => lock.min_hold(min_hold)?))
    }

    fn max_hold(self, max_hold: Duration) -> Result<Self> {
        Ok(each!(self, lock => lock.max_hold(max_hold)?))
    }

    fn lock_delay(self, lock_delay: Duration) -> Result<Self> {
        Ok(each!(self, lock => lock.lock_delay(lock_delay)?))
    }

    fn note(self, note: &str) -> Result<Self> {
        Ok(each!(self, lock => lock.note(note)?))
    }

    fn spin(self, backoff: Backoff) -> Self {
        each!(self, lock => lock.spin(backoff))
    }
}

impl Lock {
    /// Locks, waiting for as long as it takes.
    pub async fn lock(&self) -> Result<Held> {
        Ok(match self {
            Lock::Mutex(lock) => Held::One(lock.lock().await?),
            Lock::FairMutex(lock) => Held::One(lock.lock().await?),
            Lock::ReentrantMutex(lock, client) => Held::One(lock.lock(&Owner::new(client)).await?),
            Lock::RwLock(lock) => Held::One(lock.write().await?),
            Lock::Semaphore(lock) => Held::One(lock.acquire(1).await?),
            Lock::Multi(lock) => Held::Multi(lock.lock().await?),
            Lock::Election(lock) => Held::One(lock.campaign().await?),
        })
    }

    /// Locks if it is free.
    pub async fn try_lock(&self) -> Result<Option<Held>> {
        Ok(match self {
            Lock::Mutex(lock) => lock.try_lock().await?.map(Held::One),
            Lock::FairMutex(lock) => lock.try_lock().await?.map(Held::One),
            Lock::ReentrantMutex(lock, client) => lock.try_lock(&Owner::new(client)).await?.map(Held::One),
            Lock::RwLock(lock) => lock.try_write().await?.map(Held::One),
            Lock::Semaphore(lock) => lock.try_acquire(1).await?.map(Held::One),
            Lock::Multi(lock) => lock.try_lock().await?.map(Held::Multi),
            Lock::Election(lock) => lock.try_campaign().await?.map(Held::One),
        })
    }

    /// Locks if that is possible within `wait`.
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<Held>> {
        Ok(match self {
            Lock::Mutex(lock) => lock.try_lock_for(wait).await?.map(Held::One),
            Lock::FairMutex(lock) => lock.try_lock_for(wait).await?.map(Held::One),
            Lock::ReentrantMutex(lock, client) => lock.try_lock_for(&Owner::new(client), wait).await?.map(Held::One),
            Lock::RwLock(lock) => lock.try_write_for(wait).await?.map(Held::One),
            Lock::Semaphore(lock) => lock.try_acquire_for(1, wait).await?.map(Held::One),
            Lock::Multi(lock) => lock.try_lock_for(wait).await?.map(Held::Multi),
            Lock::Election(lock) => lock.try_campaign_for(wait).await?.map(Held::One),
        })
    }
}

impl Held {
    /// The guard itself; that of the one name for a multi-lock.
    pub fn guard(&self) -> &Guard {
        match self {
            Held::One(guard) => guard,
            Held::Multi(guard) => &guard.guards()[0],
        }
    }

    /// The fencing number.
    pub fn token(&self) -> Token {
        self.guard().token()
    }

    /// The end of the window.
    pub fn valid_until(&self) -> Instant {
        self.guard().valid_until()
    }

    /// `Ok` while it may be trusted.
    pub fn check(&self) -> Result<()> {
        match self {
            Held::One(guard) => guard.check(),
            Held::Multi(guard) => guard.check(),
        }
    }

    /// Completes when it may no longer be trusted.
    pub async fn lost(&self) {
        match self {
            Held::One(guard) => guard.lost().await,
            Held::Multi(guard) => guard.lost().await,
        }
    }

    /// Lets go.
    pub async fn release(self) -> Result<()> {
        match self {
            Held::One(guard) => guard.release().await,
            Held::Multi(guard) => guard.release().await,
        }
    }
}
