//! The client: the cheap clone that users hold, and the way from an ask to a guard.

use std::collections::HashMap;
use std::future::Future;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::backend::{Abilities, Backend, Finding};
use crate::environment::Environment;
use crate::guard::{Guard, Lease};
use crate::keeper::{Keeper, Shared};
use crate::kinds::reentrant::Slots;
use crate::loss;
use crate::options::Options;
use crate::{
    Ask, Cell, Claim, Election, Error, ErrorKind, FairMutex, Grant, HANDOVER_TTL, Keys, Kind, LockName, Mode, Multi, Note,
    Origin, ReentrantMutex, Result, RwLock, Semaphore, Sequencer, Standing, Token, View, Wait,
};

/// A connection to a store, to make locks from. Clones are cheap and share everything; one per process is enough.
///
/// Making a lock asks the store nothing; only locking does.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// use tenure_core::{Client, memory::Memory};
/// let client = Client::new(Memory::new().backend())?;
/// let guard = client.mutex("invoices")?.lock().await?;
/// // … only one of us is here …
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    /// What the sequencers of its guards are signed with.
    keys: Option<Keys>,
}

/// What all clones and guards of a client share.
pub(crate) struct Inner {
    keeper: Keeper,
    pub(crate) abilities: Abilities,
    origin: Origin,
    pub(crate) slots: Mutex<Slots>,
}

impl Inner {
    pub(crate) fn keeper(&self) -> &Arc<Shared> {
        self.keeper.shared()
    }

    pub(crate) fn environment(&self) -> &Environment {
        &self.keeper().environment
    }

    /// A fork copies a client but not its keeper's thread: what the child took with it nobody would renew.
    pub(crate) fn is_forked(&self) -> bool {
        self.origin.pid != std::process::id()
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({})", self.describe())
    }
}

impl Client {
    /// A client of this backend, with a keeper of its own.
    pub fn new(backend: impl Backend) -> Result<Self> {
        Self::with_environment(Arc::new(backend), Environment::real())
    }

    /// A client of this backend in other surroundings: for simulations.
    pub fn with_environment(backend: Arc<dyn Backend>, environment: Environment) -> Result<Self> {
        let abilities = backend.abilities();
        let host = (&*rustix::system::uname().nodename().to_string_lossy()).into();
        let origin = Origin { host, pid: std::process::id() };
        let keeper = Keeper::start(backend, environment)?;
        let inner = Inner { keeper, abilities, origin, slots: Mutex::new(HashMap::new()) };
        Ok(Client { inner: Arc::new(inner), keys: None })
    }

    /// The same client, with keys: the guards of locks that are made from it sign their sequencers. The client it was made from
    /// and locks that are there already sign as before.
    pub fn signed_with(&self, keys: Keys) -> Self {
        Client { inner: Arc::clone(&self.inner), keys: Some(keys) }
    }

    /// A lock with one holder at a time. Not in strict order: a newcomer may get in ahead of a waiter on its way.
    pub fn mutex(&self, name: impl AsRef<str>) -> Result<crate::Mutex> {
        Ok(crate::Mutex { ask: self.asker(name, Kind::Mutex)? })
    }

    /// A lock with one holder at a time, given strictly in the order of asking.
    pub fn fair_mutex(&self, name: impl AsRef<str>) -> Result<FairMutex> {
        Ok(FairMutex { ask: self.asker(name, Kind::FairMutex)? })
    }

    /// A mutex that an explicit [`Owner`](crate::Owner) may enter again while it is inside.
    pub fn reentrant_mutex(&self, name: impl AsRef<str>) -> Result<ReentrantMutex> {
        Ok(ReentrantMutex { ask: self.asker(name, Kind::Mutex)? })
    }

    /// Many readers or one writer.
    pub fn rw_lock(&self, name: impl AsRef<str>) -> Result<RwLock> {
        Ok(RwLock { ask: self.asker(name, Kind::RwLock)? })
    }

    /// So many permits. Everybody must say the same number; another one is a [`Mismatch`](ErrorKind::Mismatch).
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Result<Semaphore> {
        let ask = self.asker(name, Kind::Semaphore)?;
        let of = NonZeroU32::new(permits)
            .ok_or_else(|| Error::new(ErrorKind::BadOption, "a semaphore has at least one permit").with_name(&ask.name))?;
        Ok(Semaphore { ask, of })
    }

    /// Several names as one lock: all or none, in an order that cannot deadlock.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Result<Multi> {
        Multi::new(self, names)
    }

    /// One leader at a time; terms rise.
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election> {
        Ok(Election { ask: self.asker(name, Kind::Election)?, client: self.clone() })
    }

    /// The optimistic lock: a value that is only written if nobody wrote it since it was read.
    pub fn cell(&self, name: impl AsRef<str>) -> Result<Cell> {
        if !self.inner.abilities.cells {
            return Err(Error::new(ErrorKind::Unsupported, "this store has no cells").with_store(self.describe()));
        }
        Ok(Cell { name: LockName::new(name)?, client: self.clone() })
    }

    /// What this store really does.
    pub fn abilities(&self) -> &Abilities {
        &self.inner.abilities
    }

    /// The store in words, without secrets.
    pub fn describe(&self) -> String {
        self.backend().describe()
    }

    /// Who holds a name and who waits for it.
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn view(&self, name: impl AsRef<str>) -> Result<View> {
        self.backend().view(&LockName::new(name)?).await
    }

    /// How a sequencer stands with this store, in one round trip that changes nothing and needs no right to lock: what a
    /// resource asks that can reach the store. Whether its signature is good is another question:
    /// [`Sequencer::verify`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
    /// # use tenure_core::{Client, Standing, memory::Memory};
    /// # let client = Client::new(Memory::new().backend())?;
    /// let guard = client.mutex("invoices")?.lock().await?;
    /// let sequencer = guard.sequencer();
    /// assert_eq!(client.check(&sequencer).await?, Standing::Current);
    /// guard.release().await?;
    /// assert_eq!(client.check(&sequencer).await?, Standing::Released);
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn check(&self, sequencer: &Sequencer) -> Result<Standing> {
        self.backend().check(sequencer).await
    }

    /// Names in use that begin with `prefix`, in order, after `after`; at most `limit`.
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        self.backend().list(prefix, after, limit).await
    }

    /// Tells whenever a name's holders or its line change.
    pub fn watch(&self, name: impl AsRef<str>) -> Result<Watch> {
        Ok(Watch { client: self.clone(), name: LockName::new(name)?, seen: None })
    }

    /// Asks whoever holds a name to let go; they learn it through [`Guard::asked`]. How many were asked.
    ///
    /// # Cancel safety
    /// Dropped before it completes, the holders may or may not have been asked.
    pub async fn ask(&self, name: impl AsRef<str>, reason: impl AsRef<str>) -> Result<usize> {
        let ask = Ask { reason: Note::new(reason)?, by: self.inner.origin.clone() };
        self.backend().ask(&LockName::new(name)?, &ask).await
    }

    /// Tells the holders of a name that their holds are about to be broken, and why, so that their [loss](crate::LossReason) says
    /// so. Call it before [`break_holds`](Client::break_holds), when that ends all of them. Completes when the message has had a
    /// moment to arrive. How many were told.
    ///
    /// # Cancel safety
    /// Dropped before it completes, the holders may or may not have been told.
    pub async fn announce_break(&self, name: impl AsRef<str>, reason: impl AsRef<str>) -> Result<usize> {
        let coming = loss::announcement(reason.as_ref(), self.inner.origin.clone())?;
        let told = self.backend().ask(&LockName::new(name)?, &coming).await?;
        if told > 0 {
            self.environment().clock.pause(ARRIVAL).await;
        }
        Ok(told)
    }

    /// Ends holds by force, all or the one with this token. Their holders learn it as a loss, and whoever comes next has a
    /// higher token. How many were ended.
    ///
    /// # Cancel safety
    /// Dropped before it completes, they may or may not have been ended.
    pub async fn break_holds(&self, name: impl AsRef<str>, only: Option<Token>) -> Result<usize> {
        self.backend().break_holds(&LockName::new(name)?, only).await
    }

    /// Looks at the store and says what could hurt.
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn examine(&self) -> Result<Vec<Finding>> {
        self.backend().examine().await
    }

    /// The smallest request that a grant on this store could cost, for measuring.
    ///
    /// # Cancel safety
    /// It changes nothing that matters.
    pub async fn probe(&self) -> Result<()> {
        self.backend().probe().await
    }

    /// How many grants this client's waiters found by looking for themselves, though the store should have told them. Each of them waited
    /// longer than it had to: messages of the store's get lost, or somebody in between swallows them. A grant whose message comes
    /// after all is not counted any more. Where a store has no messages (MariaDB and MySQL, PostgreSQL behind a pooler that lends
    /// connections), looking is how waiters learn of a grant, and nothing is counted.
    pub fn grants_by_poll(&self) -> u64 {
        self.inner.keeper().by_poll.count()
    }

    /// The same for whoever asks when the client is gone: for tests.
    #[doc(hidden)]
    pub fn grants_by_poll_later(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let by_poll = Arc::clone(&self.inner.keeper().by_poll);
        move || by_poll.count()
    }

    /// Completes when everything that was dropped so far has been released in the store. Call it before a program ends,
    /// or what was dropped last is freed only after its ttl.
    ///
    /// # Cancel safety
    /// Dropping it stops waiting; the endings go on.
    pub async fn close(&self) -> Result<()> {
        if self.inner.is_forked() {
            return Err(forked());
        }
        self.inner.keeper.drain().await;
        self.backend().close().await
    }

    /// Runs a future to its end on the calling thread, with the keeper's timers: what the blocking API is made of.
    ///
    /// # Panics
    /// Inside an async task, since it would block the executor.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.inner.keeper.runtime().block_on(future)
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.inner.keeper().backend
    }

    pub(crate) fn environment(&self) -> &Environment {
        self.inner.environment()
    }

    pub(crate) fn asker(&self, name: impl AsRef<str>, kind: Kind) -> Result<Asker> {
        let name = LockName::new(name)?;
        self.inner.abilities.require(kind).map_err(|error| error.with_name(&name))?;
        let (client, keys) = (Arc::clone(&self.inner), self.keys.clone());
        Ok(Asker { client, name, kind, options: Options::default(), keys })
    }
}

/// How long an announcement may take to arrive.
const ARRIVAL: Duration = Duration::from_millis(250);

/// Tells whenever a name's holders or its line change. From [`Client::watch`].
#[derive(Debug)]
pub struct Watch {
    client: Client,
    name: LockName,
    seen: Option<View>,
}

impl Watch {
    /// The name's view: at once the first time, then whenever it says something new.
    ///
    /// # Cancel safety
    /// Dropping it loses nothing: the next call gives what changed meanwhile.
    pub async fn next(&mut self) -> Result<View> {
        let view = match &self.seen {
            None => self.client.backend().view(&self.name).await?,
            Some(seen) => self.client.backend().watch(&self.name, seen).await?,
        };
        self.seen = Some(view.clone());
        Ok(view)
    }
}

/// What every kind is made of: a name, a kind, and how to ask for it.
#[derive(Clone)]
pub(crate) struct Asker {
    pub(crate) client: Arc<Inner>,
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    pub(crate) options: Options,
    pub(crate) keys: Option<Keys>,
}

impl std::fmt::Debug for Asker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asker").field("name", &self.name).field("kind", &self.kind).field("options", &self.options).finish()
    }
}

impl Asker {
    /// Asks, in the caller's way of waiting.
    pub(crate) async fn ask(&self, mode: Mode, wait: Wait) -> Result<Option<Guard>> {
        Ok(self.ask_for_lease(mode, wait).await?.map(|lease| Guard::new(Arc::new(lease), mode, self.keys.clone())))
    }

    pub(crate) async fn ask_for_ever(&self, mode: Mode) -> Result<Guard> {
        loop {
            // A backend that waits for ever gives `None` only when it was told something impossible; ask again.
            if let Some(guard) = self.ask(mode, Wait::Forever).await? {
                return Ok(guard);
            }
        }
    }

    pub(crate) async fn ask_for_lease(&self, mode: Mode, wait: Wait) -> Result<Option<Lease>> {
        let clock = self.client.environment().clock;
        let deadline = wait.deadline(clock.now());
        let mut pause = self.options.spin.map(|backoff| backoff.min);
        loop {
            let left = if pause.is_some() { Wait::No } else { wait.left(deadline, clock.now()) };
            let asked = self.ask_once(mode, left).await?;
            let now = clock.now();
            match (asked, &mut pause) {
                (Asked::Granted(lease), _) => return Ok(Some(lease)),
                (Asked::TooLate, _) if wait != Wait::No && now < deadline => continue,
                (Asked::Busy, Some(bound)) if wait != Wait::No && now < deadline => {
                    let backoff = self.options.spin.unwrap_or_default();
                    let nap = self.client.environment().between(backoff.min, (*bound).max(backoff.min));
                    clock.pause(nap.min(deadline.since(now))).await;
                    *bound = (*bound * 2).min(backoff.max);
                }
                _ => return Ok(None),
            }
        }
    }

    /// One claim, one ask.
    async fn ask_once(&self, mode: Mode, wait: Wait) -> Result<Asked> {
        if self.client.is_forked() {
            return Err(forked().with_name(&self.name));
        }
        let keeper = self.client.keeper();
        // The clean-up is armed before the request is sent: dropped anywhere below, the claim is ended by its id.
        let asking = Asking { keeper, claim: Some(self.claim(mode)) };
        let claim = asking.claim.as_ref().expect("armed");
        let doubts = keeper.doubts();
        let answer = keeper.backend.acquire(claim, wait).await;
        match answer.map_err(|error| error.with_name(&self.name).with_store(keeper.backend.describe()))? {
            Some(Grant { until, .. }) if until <= keeper.now() => Ok(Asked::TooLate), // never a dead guard
            Some(Grant { token, until }) => {
                let claim = asking.disarm();
                let hold = keeper.hold(claim, token, until, &self.options, doubts);
                Ok(Asked::Granted(Lease::new(Arc::clone(&self.client), hold)))
            }
            None => {
                asking.disarm();
                Ok(Asked::Busy)
            }
        }
    }

    /// Checks how long a name shall stay closed that nobody holds.
    pub(crate) fn delay(&self, what: &str, given: Duration) -> Result<Duration> {
        self.client.abilities.require_delay(what, crate::options::up_to_a_day(what, given)?)
    }

    fn claim(&self, mode: Mode) -> Claim {
        let Asker { client, name, kind, options, .. } = self;
        let ttl = options.ttl.max(client.abilities.shortest_ttl);
        Claim {
            name: name.clone(),
            kind: *kind,
            mode,
            id: client.environment().claim_id(),
            ttl,
            // A hold that nobody renews must have its whole ttl from the start.
            handover_ttl: if options.keep { ttl.min(HANDOVER_TTL) } else { ttl },
            lock_delay: options.lock_delay,
            min_hold: options.min_hold,
            note: options.note.clone().unwrap_or_else(Note::none),
            origin: client.origin.clone(),
        }
    }
}

fn forked() -> Error {
    Error::new(ErrorKind::Unavailable, "this process was forked from the one that connected")
        .with_hint("Connect after the fork: a child has no keeper, and must not share its parent's connection")
}

/// What came of one ask.
enum Asked {
    Granted(Lease),
    Busy,
    /// Granted, but the answer took so long that its window is over. Ended; ask again.
    TooLate,
}

/// An ask under way; dropping it ends the claim in the background.
struct Asking<'a> {
    keeper: &'a Arc<Shared>,
    claim: Option<Claim>,
}

impl Asking<'_> {
    fn disarm(mut self) -> Claim {
        self.claim.take().expect("disarmed once")
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            // Nobody has used it: it owes nobody a minimum hold.
            self.keeper.end(Claim { min_hold: Duration::ZERO, ..claim });
        }
    }
}
