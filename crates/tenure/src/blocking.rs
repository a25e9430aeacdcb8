//! The same locks for programs without async: the same kinds, guards and words, each call blocking its thread.
//!
//! Renewal goes on in the background all the same, so a thread may compute for as long as it likes while it holds a lock;
//! it only has to [`check`](Guard::check) before it does what may not be done twice.
//!
//! ```
//! use tenure::blocking;
//! # fn main() -> tenure::Result<()> {
//! let client = blocking::connect("memory://")?;
//! let guard = client.mutex("invoices")?.lock()?;
//! guard.check()?;
//! guard.release()?;
//! # Ok(()) }
//! ```
//!
//! # Panics
//! Every call that blocks panics inside an async task, since it would stop the executor; use the async API there.

use std::time::Duration;

use tenure_core::backend::{Abilities, Finding};
use tenure_core::{
    Ask, Backoff, Error, ErrorKind, Instant, Keys, Kind, LockName, LossReason, Mode, Owner, Phase, Result, Sequencer,
    Standing, Token, Versioned, View,
};

/// Connects to a store. See [`tenure::connect`](crate::connect).
pub fn connect(url: impl AsRef<str>) -> Result<Client> {
    Ok(Client(connecting(crate::connect(url))?))
}

/// Connects to the embedded default. See [`tenure::connect_default`](crate::connect_default).
pub fn connect_default() -> Result<Client> {
    Ok(Client(connecting(crate::connect_default())?))
}

/// A connection to a store. See [`tenure::Client`](crate::Client).
#[derive(Clone, Debug)]
pub struct Client(tenure_core::Client);

impl From<tenure_core::Client> for Client {
    /// The same client, for the part of a program that blocks.
    fn from(client: tenure_core::Client) -> Self {
        Client(client)
    }
}

impl Client {
    /// See [`tenure::Client::mutex`](crate::Client::mutex).
    pub fn mutex(&self, name: impl AsRef<str>) -> Result<Mutex> {
        Ok(Mutex(self.0.mutex(name)?, self.0.clone()))
    }

    /// See [`tenure::Client::fair_mutex`](crate::Client::fair_mutex).
    pub fn fair_mutex(&self, name: impl AsRef<str>) -> Result<FairMutex> {
        Ok(FairMutex(self.0.fair_mutex(name)?, self.0.clone()))
    }

    /// See [`tenure::Client::reentrant_mutex`](crate::Client::reentrant_mutex).
    pub fn reentrant_mutex(&self, name: impl AsRef<str>) -> Result<ReentrantMutex> {
        Ok(ReentrantMutex(self.0.reentrant_mutex(name)?, self.0.clone()))
    }

    /// A new owner for [`ReentrantMutex`].
    pub fn owner(&self) -> Owner {
        Owner::new(&self.0)
    }

    /// See [`tenure::Client::rw_lock`](crate::Client::rw_lock).
    pub fn rw_lock(&self, name: impl AsRef<str>) -> Result<RwLock> {
        Ok(RwLock(self.0.rw_lock(name)?, self.0.clone()))
    }

    /// See [`tenure::Client::semaphore`](crate::Client::semaphore).
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Result<Semaphore> {
        Ok(Semaphore(self.0.semaphore(name, permits)?, self.0.clone()))
    }

    /// See [`tenure::Client::multi`](crate::Client::multi).
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Result<Multi> {
        Ok(Multi(self.0.multi(names)?, self.0.clone()))
    }

    /// See [`tenure::Client::election`](crate::Client::election).
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election> {
        Ok(Election(self.0.election(name)?, self.0.clone()))
    }

    /// See [`tenure::Client::cell`](crate::Client::cell).
    pub fn cell(&self, name: impl AsRef<str>) -> Result<Cell> {
        Ok(Cell(self.0.cell(name)?, self.0.clone()))
    }

    /// See [`tenure::Client::abilities`](crate::Client::abilities).
    pub fn abilities(&self) -> &Abilities {
        self.0.abilities()
    }

    /// See [`tenure::Client::view`](crate::Client::view).
    pub fn view(&self, name: impl AsRef<str>) -> Result<View> {
        self.0.block_on(self.0.view(name))
    }

    /// See [`tenure::Client::signed_with`](crate::Client::signed_with).
    pub fn signed_with(&self, keys: Keys) -> Self {
        Client(self.0.signed_with(keys))
    }

    /// See [`tenure::Client::check`](crate::Client::check).
    pub fn check(&self, sequencer: &Sequencer) -> Result<Standing> {
        self.0.block_on(self.0.check(sequencer))
    }

    /// See [`tenure::Client::list`](crate::Client::list).
    pub fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        self.0.block_on(self.0.list(prefix, after, limit))
    }

    /// See [`tenure::Client::ask`](crate::Client::ask).
    pub fn ask(&self, name: impl AsRef<str>, reason: impl AsRef<str>) -> Result<usize> {
        self.0.block_on(self.0.ask(name, reason))
    }

    /// See [`tenure::Client::announce_break`](crate::Client::announce_break).
    pub fn announce_break(&self, name: impl AsRef<str>, reason: impl AsRef<str>) -> Result<usize> {
        self.0.block_on(self.0.announce_break(name, reason))
    }

    /// See [`tenure::Client::break_holds`](crate::Client::break_holds).
    pub fn break_holds(&self, name: impl AsRef<str>, only: Option<Token>) -> Result<usize> {
        self.0.block_on(self.0.break_holds(name, only))
    }

    /// See [`tenure::Client::examine`](crate::Client::examine).
    pub fn examine(&self) -> Result<Vec<Finding>> {
        self.0.block_on(self.0.examine())
    }

    /// See [`tenure::Client::close`](crate::Client::close).
    pub fn close(&self) -> Result<()> {
        self.0.block_on(self.0.close())
    }
}

/// Declares a kind of the blocking API with the options every kind has.
macro_rules! kind {
    ($(#[$doc:meta])* $kind:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $kind(tenure_core::$kind, tenure_core::Client);

        impl $kind {
            /// See [`tenure::Mutex::ttl`](crate::Mutex::ttl).
            pub fn ttl(self, ttl: Duration) -> Result<Self> {
                Ok($kind(self.0.ttl(ttl)?, self.1))
            }

            /// See [`tenure::Mutex::keep`](crate::Mutex::keep).
            pub fn keep(self, keep: bool) -> Self {
                $kind(self.0.keep(keep), self.1)
            }

            /// See [`tenure::Mutex::min_hold`](crate::Mutex::min_hold).
            pub fn min_hold(self, min_hold: Duration) -> Result<Self> {
                Ok($kind(self.0.min_hold(min_hold)?, self.1))
            }

            /// See [`tenure::Mutex::max_hold`](crate::Mutex::max_hold).
            pub fn max_hold(self, max_hold: Duration) -> Result<Self> {
                Ok($kind(self.0.max_hold(max_hold)?, self.1))
            }

            /// See [`tenure::Mutex::lock_delay`](crate::Mutex::lock_delay).
            pub fn lock_delay(self, lock_delay: Duration) -> Result<Self> {
                Ok($kind(self.0.lock_delay(lock_delay)?, self.1))
            }

            /// See [`tenure::Mutex::note`](crate::Mutex::note).
            pub fn note(self, note: impl AsRef<str>) -> Result<Self> {
                Ok($kind(self.0.note(note)?, self.1))
            }

            /// See [`tenure::Mutex::spin`](crate::Mutex::spin).
            pub fn spin(self, backoff: Backoff) -> Self {
                $kind(self.0.spin(backoff), self.1)
            }
        }
    };
}

/// Declares the calls of a kind that give a guard: `name(arguments)` waits for ever, the others may give `None`.
macro_rules! calls {
    ($kind:ident: $($call:ident($($argument:ident: $type:ty),*) -> $guard:ident,)* ; $($try:ident($($try_argument:ident: $try_type:ty),*) -> $try_guard:ident,)*) => {
        impl $kind {
            $(
                /// As its namesake in the async API, blocking this thread.
                pub fn $call(&self $(, $argument: $type)*) -> Result<$guard> {
                    Ok($guard(self.1.block_on(self.0.$call($($argument),*))?, self.1.clone()))
                }
            )*
            $(
                /// As its namesake in the async API, blocking this thread; `None` if it could not be had in time.
                pub fn $try(&self $(, $try_argument: $try_type)*) -> Result<Option<$try_guard>> {
                    let guard = self.1.block_on(self.0.$try($($try_argument),*))?;
                    Ok(guard.map(|guard| $try_guard(guard, self.1.clone())))
                }
            )*
        }
    };
}

kind!(
    /// One holder at a time. See [`tenure::Mutex`](crate::Mutex).
    Mutex
);
kind!(
    /// One holder at a time, first come, first served. See [`tenure::FairMutex`](crate::FairMutex).
    FairMutex
);
kind!(
    /// A mutex its owner may enter again. See [`tenure::ReentrantMutex`](crate::ReentrantMutex).
    ReentrantMutex
);
kind!(
    /// Many readers or one writer. See [`tenure::RwLock`](crate::RwLock).
    RwLock
);
kind!(
    /// A number of permits. See [`tenure::Semaphore`](crate::Semaphore).
    Semaphore
);
kind!(
    /// Several names as one lock. See [`tenure::Multi`](crate::Multi).
    Multi
);
kind!(
    /// One leader at a time. See [`tenure::Election`](crate::Election).
    Election
);

calls!(Mutex: lock() -> Guard, ; try_lock() -> Guard, try_lock_for(wait: Duration) -> Guard,);
calls!(FairMutex: lock() -> Guard, ; try_lock() -> Guard, try_lock_for(wait: Duration) -> Guard,);
calls!(ReentrantMutex: lock(owner: &Owner) -> Guard, ; try_lock(owner: &Owner) -> Guard, try_lock_for(owner: &Owner, wait: Duration) -> Guard,);
calls!(RwLock: read() -> Guard, write() -> Guard, ; try_read() -> Guard, try_read_for(wait: Duration) -> Guard, try_write() -> Guard, try_write_for(wait: Duration) -> Guard,);
calls!(Semaphore: acquire(permits: u32) -> Guard, ; try_acquire(permits: u32) -> Guard, try_acquire_for(permits: u32, wait: Duration) -> Guard,);
calls!(Multi: lock() -> MultiGuard, ; try_lock() -> MultiGuard, try_lock_for(wait: Duration) -> MultiGuard,);
calls!(Election: campaign() -> Guard, ; try_campaign() -> Guard, try_campaign_for(wait: Duration) -> Guard,);

impl Election {
    /// See [`tenure::Election::leader`](crate::Election::leader).
    pub fn leader(&self) -> Result<Option<tenure_core::Leader>> {
        self.1.block_on(self.0.leader())
    }

    /// See [`tenure::Election::resign`](crate::Election::resign).
    pub fn resign(&self, leadership: Guard) -> Result<()> {
        leadership.release()
    }

    /// See [`tenure::Election::observe`](crate::Election::observe).
    pub fn observe(&self) -> Result<Observer> {
        Ok(Observer(self.0.observe()?, self.1.clone()))
    }
}

/// Tells of every change of the leader; an endless iterator. See [`tenure::Observer`](crate::Observer).
#[derive(Debug)]
pub struct Observer(tenure_core::Observer, tenure_core::Client);

impl Iterator for Observer {
    type Item = Result<Option<tenure_core::Leader>>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.1.block_on(self.0.next()))
    }
}

/// A held lock. See [`tenure::Guard`](crate::Guard).
#[must_use = "a guard that is dropped at once releases its lock at once"]
#[derive(Debug)]
pub struct Guard(tenure_core::Guard, tenure_core::Client);

impl Guard {
    /// What is locked.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// The kind of lock.
    pub fn kind(&self) -> Kind {
        self.0.kind()
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.0.mode()
    }

    /// The fencing number.
    pub fn token(&self) -> Token {
        self.0.token()
    }

    /// The hold as one printable string.
    pub fn sequencer(&self) -> Sequencer {
        self.0.sequencer()
    }

    /// The local instant from which the hold may not be trusted, unless it is renewed before.
    pub fn valid_until(&self) -> Instant {
        self.0.valid_until()
    }

    /// How long the hold may be trusted from now on.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Where the hold stands now.
    pub fn phase(&self) -> Phase {
        self.0.phase()
    }

    /// `Ok` while the hold may be trusted. Asks the local clock only.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Blocks until the hold may no longer be trusted: for a thread beside the one that works.
    pub fn lost(&self) {
        self.1.block_on(self.0.lost());
    }

    /// Why the hold was lost; `None` while it may be trusted.
    pub fn loss_reason(&self) -> Option<LossReason> {
        self.0.loss_reason()
    }

    /// Blocks until the next renewal. See [`tenure::Guard::renewed`](crate::Guard::renewed).
    pub fn renewed(&self) -> Result<()> {
        self.1.block_on(self.0.renewed())
    }

    /// Blocks until somebody has asked the holder to let go.
    pub fn asked(&self) -> Ask {
        self.1.block_on(self.0.asked())
    }

    /// Everything that happens to this hold, as an iterator that ends with the hold.
    pub fn events(&self) -> Events {
        Events(self.0.events(), self.1.clone())
    }

    /// Turns a held write lock into a read lock. See [`tenure::Guard::downgrade`](crate::Guard::downgrade).
    pub fn downgrade(&mut self) -> Result<()> {
        self.1.block_on(self.0.downgrade())
    }

    /// Lets go, and returns when the store has confirmed it. See [`tenure::Guard::release`](crate::Guard::release).
    pub fn release(self) -> Result<()> {
        self.1.block_on(self.0.release())
    }
}

impl From<&Guard> for Sequencer {
    fn from(guard: &Guard) -> Self {
        guard.sequencer()
    }
}

/// What happens to a hold, in order. See [`tenure::Events`](crate::Events).
pub struct Events(tenure_core::Events, tenure_core::Client);

impl Iterator for Events {
    type Item = tenure_core::Event;

    fn next(&mut self) -> Option<Self::Item> {
        self.1.block_on(self.0.next())
    }
}

/// A held multi-lock. See [`tenure::MultiGuard`](crate::MultiGuard).
#[must_use = "a guard that is dropped at once releases its locks at once"]
#[derive(Debug)]
pub struct MultiGuard(tenure_core::MultiGuard, tenure_core::Client);

impl MultiGuard {
    /// Each name's fencing number.
    pub fn tokens(&self) -> impl Iterator<Item = (&LockName, Token)> {
        self.0.tokens()
    }

    /// The smallest of the windows.
    pub fn valid_until(&self) -> Instant {
        self.0.valid_until()
    }

    /// `Ok` while every one of them may be trusted.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Blocks until the first of them may no longer be trusted.
    pub fn lost(&self) {
        self.1.block_on(self.0.lost());
    }

    /// Lets go of all of them.
    pub fn release(self) -> Result<()> {
        self.1.block_on(self.0.release())
    }
}

/// The optimistic lock. See [`tenure::Cell`](crate::Cell).
#[derive(Clone, Debug)]
pub struct Cell(tenure_core::Cell, tenure_core::Client);

impl Cell {
    /// The value and its version.
    pub fn get(&self) -> Result<Versioned> {
        self.1.block_on(self.0.get())
    }

    /// Writes if the version is still `version`. See [`tenure::Cell::set_if`](crate::Cell::set_if).
    pub fn set_if(&self, version: u64, value: impl AsRef<[u8]>) -> Result<Option<u64>> {
        self.1.block_on(self.0.set_if(version, value))
    }

    /// Removes the value if the version is still `version`.
    pub fn remove_if(&self, version: u64) -> Result<bool> {
        self.1.block_on(self.0.remove_if(version))
    }

    /// Reads, changes and writes, again if somebody was faster. See [`tenure::Cell::update`](crate::Cell::update).
    pub fn update(&self, change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>) -> Result<Option<Versioned>> {
        self.1.block_on(self.0.update(change))
    }
}

/// There is no client yet whose runtime could be borrowed, and a server's driver needs one to connect: one for just that. What
/// it leaves running ends with it, and is made anew on the keeper's runtime when it is needed.
fn connecting<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Error::new(ErrorKind::Backend, "a runtime to connect with could not be made")
            .with_source(error)
            .with_hint("Look at the process's limit on open files")
    })?;
    runtime.block_on(future)
}
