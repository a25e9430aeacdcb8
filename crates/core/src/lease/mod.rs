//! The client's side of a store whose server keeps the line: asking, doubting, waiting and being told, once for all of them.
//!
//! A store that can run the whole algorithm inside its server (a stored function, a procedure) has one verb per request and
//! nothing else: it is a [`Desk`]. Everything a client must do around those verbs is here, so that no store repeats it:
//!
//! - `batch`: requests that wait for the same connection travel, and are committed, together;
//! - `wait`: an ask is one ask however often it is sent, and whoever waits is never forgotten;
//! - `ear`: being told, and looking where nobody tells;
//! - `tries`: which failures are worth another try, and for how long;
//! - `unended`: ends that nobody confirmed are asked for again;
//! - `tidy`: names that nobody needs any more disappear.
//!
//! [`Lease`] puts them together as a [`Backend`](crate::Backend).

mod backend;
mod batch;
mod ear;
mod tidy;
pub(crate) mod tries;
mod unended;
mod wait;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::backend::{Abilities, Finding, async_trait};
use crate::record::ClientKey;
use crate::{Ask, Claim, ClaimId, Error, Instant, Kind, LockName, Result, Token, Versioned, View};

pub use self::backend::Lease;
use self::batch::Lane;
use self::ear::Ear;
use self::tidy::Sweeps;
pub use self::tries::{Tries, pause_after};
use self::unended::Unended;

/// How long the server keeps the place of a waiter whose client it does not hear of.
pub const ALIVE: Duration = Duration::from_secs(4);

/// How long a mark stays that a claim was ended. A copy of its ask that arrives later than this is granted, to nobody: it closes the
/// name for one ttl.
pub const MARK: Duration = Duration::from_secs(60);

/// A store whose server does each verb in one atomic step, as [`Record`](crate::record::Record) does it.
///
/// Every method is **one attempt**: it sends one request, and says in its [`Failure`] whether the server may have executed it
/// and whether another try may help. Trying again is the caller's. Every future may be dropped at any await: the request may
/// then be executed or not.
#[async_trait]
pub trait Desk: Send + Sync + 'static {
    /// What the store does.
    fn abilities(&self) -> Abilities;

    /// The store in words, without secrets.
    fn describe(&self) -> String;

    /// This client among all that use the store: random, so that nobody has to hand keys out.
    fn client(&self) -> ClientKey;

    /// How long its answers may take.
    fn limits(&self) -> Limits;

    /// Called once, before anything else: who is told what the server says unasked, and what happens to connections.
    fn attach(&self, listener: Arc<dyn Listener>);

    /// Asks for claims, all in one commit, in the order of their names. An answer for each, in the same order.
    async fn ask(&self, asks: &[Asking]) -> Answer<Vec<Asked>>;

    /// Ends claims, all in one commit, in the order of their names. On a connection that
    /// asks do not hold up, or on one that is idle when it is looked at.
    async fn end(&self, ends: &[Ending]) -> Answer<Vec<Ended>>;

    /// Renews holds, an answer for each. Dropped, it took too long: the connection that carried it carries nothing more.
    async fn renew(&self, claims: &[Claim]) -> Answer<Vec<Renewed>>;

    /// Sees to it that there is a connection for [`touch`](Desk::touch). Making one may take longer than a look may: dropped, it goes on
    /// being made.
    async fn stand_ready(&self) -> std::result::Result<(), Failure> {
        Ok(())
    }

    /// Looks after waiters: lets in whom time alone has made room for, and says how each stands. With `beat` the places of all
    /// of this client's waiters, also of those that are not listed, are kept for [`ALIVE`] from now on. What others had to say
    /// to this client is fetched along.
    async fn touch(&self, beat: bool, waiters: &[(LockName, ClaimId)]) -> Answer<Looked>;

    /// Makes a reader of the writer that holds an rw lock; `false` if it is not held any more.
    async fn downgrade(&self, claim: &Claim) -> Answer<bool>;

    /// Who holds and who waits.
    async fn view(&self, name: &LockName) -> Answer<View>;

    /// See [`Backend::list`](crate::Backend::list).
    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Answer<Vec<View>>;

    /// Leaves a request with every holder, and tells them. How many.
    async fn request(&self, name: &LockName, ask: &Ask) -> Answer<usize>;

    /// Ends holds by force, and tells their holders. How many.
    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Answer<usize>;

    /// See [`Backend::cell_get`](crate::Backend::cell_get).
    async fn cell_get(&self, name: &LockName) -> Answer<Versioned>;

    /// See [`Backend::cell_set`](crate::Backend::cell_set).
    async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Answer<Option<u64>>;

    /// Removes names that nobody has used for `quiet`, and what dead clients left behind, among at most `limit` names after this one;
    /// the last name it looked at, or `None` at the end. Marks whose time is over and clients that are dead go along.
    async fn tidy_after(&self, after: Option<&LockName>, limit: usize, quiet: Duration) -> Answer<Option<LockName>>;

    /// Removes what this client has in the store besides names.
    async fn leave(&self) -> Answer<()>;

    /// The smallest request that a grant could possibly cost.
    async fn probe(&self) -> Answer<()>;

    /// What could hurt.
    async fn examine(&self) -> Result<Vec<Finding>>;
}

/// How long an idle name stays in the store: a hot one is locked again long before.
pub const QUIET: Duration = Duration::from_secs(1);

/// How long answers may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long a request may go unanswered, all tries together.
    pub answer: Duration,
    /// How long whoever waits in line puts up with a server that cannot be reached.
    pub patience: Duration,
}

/// What the server said, and when, by its own clock in microseconds since 1970.
#[derive(Clone, Debug)]
pub struct Said<T> {
    /// When it handled the request.
    pub now: u64,
    /// What it answered.
    pub value: T,
}

/// An answer, or why there is none.
pub type Answer<T> = std::result::Result<Said<T>, Failure>;

/// One attempt that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// For the person who must act.
    pub error: Error,
    /// What became of the request.
    pub fate: Fate,
    /// Whether trying again may help.
    pub again: bool,
}

/// What became of a request that has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was certainly not executed, and never will be.
    Refused,
    /// It may have been executed, or may still be.
    Unknown,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        failure.error
    }
}

/// One ask.
#[derive(Clone, Debug)]
pub struct Asking {
    /// For what.
    pub claim: Claim,
    /// Whether it may stand in line, for [`ALIVE`] unheard.
    pub queue: bool,
}

/// What came of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Let in. `left` of its window was left when the server answered: a whole ttl, or less when the ask is a repeated one.
    Granted {
        /// Its fencing number.
        token: Token,
        /// How long it holds from the answer's `now` on, its lock-delay not counted.
        left: Duration,
    },
    /// In line.
    Queued {
        /// Whether at its head.
        first: bool,
        /// When time alone may next let somebody in.
        change_in: Option<Duration>,
    },
    /// Not let in, and not in line.
    Busy,
    /// Somebody's own transaction has the name; nothing of the claim is in the store.
    Locked,
    /// The name is in use otherwise.
    Mismatch {
        /// As this kind.
        kind: Kind,
        /// With so many permits, if it is a semaphore.
        of: u32,
    },
    /// The claim was ended before this request of its came, and stays so.
    Ended,
}

/// One ending.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Of which name.
    pub name: LockName,
    /// Which claim.
    pub id: ClaimId,
    /// A hold let go earlier than this after its grant keeps the name closed until then.
    pub min_hold: Duration,
    /// For so long no ask for this claim is granted.
    pub mark: Duration,
}

/// What came of ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nothing of the claim is left.
    Done,
    /// Nothing of it was there, or only what keeps the name closed: it ran out, it was broken, or it was ended before.
    Nothing,
    /// Somebody's own transaction has the name just now, and the claim may still be in its line.
    Locked,
}

/// What came of renewing one hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// Held for another ttl; somebody may have asked its holder to let go.
    Held(Option<Ask>),
    /// Not held any more.
    Lost,
    /// Somebody else was at it in that very moment: neither yes nor no.
    Unknown,
}

/// What a look brought.
#[derive(Clone, Debug, Default)]
pub struct Looked {
    /// How each waiter stands, in order.
    pub waiters: Vec<Touched>,
    /// What others had to say.
    pub mail: Vec<Message>,
}

/// How a waiter stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// It still waits.
    Waiting {
        /// At the head of the line.
        first: bool,
        /// When time alone may next let somebody in.
        change_in: Option<Duration>,
    },
    /// It was let in at `since`, in microseconds of the server's clock, and had `left` of its window.
    Granted {
        /// Its fencing number.
        token: Token,
        /// When it was let in.
        since: u64,
        /// How long it holds from the answer's `now` on.
        left: Duration,
    },
    /// It is not in line any more: it was thought dead, or ended.
    Gone,
}

/// What the server tells a client unasked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Your claim was let in, for its hand-over's ttl. Nobody who may only read the store can have sent this.
    Granted {
        /// Which.
        id: ClaimId,
        /// Its fencing number.
        token: Token,
        /// When, in microseconds of the server's clock.
        granted: u64,
    },
    /// Your claim may have been let in, says a message that anybody can have sent: look after it.
    MaybeGranted(ClaimId),
    /// Somebody asks you to let go of your claim.
    Asked(ClaimId, Ask),
    /// Your claim was ended by force.
    Lost(ClaimId),
}

/// Who hears what a server says unasked, and what becomes of the connections to it.
pub trait Listener: Send + Sync + 'static {
    /// A message to this client.
    fn told(&self, message: Message);
    /// There is a connection on which messages come from now on: what is said before it may have been missed.
    fn listening(&self);
    /// There is none any more.
    fn silenced(&self);
    /// There is a new connection to this `run` of the server, another one after every start or failover. A look at its clock
    /// that was asked for at `sent` showed `now`.
    fn connected(&self, run: &str, sent: Instant, now: u64);
    /// A runtime that is always running, if there is one: for work that must not stand still with a caller's.
    fn home(&self) -> Option<Handle>;
}

/// What became of the copies of an ask that has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copies {
    /// One may be on its way: the claim's end leaves a mark.
    Unknown,
    /// Each was refused: nothing of the claim is in the store, and there is nothing to end.
    Refused,
}

/// What a client's tasks share.
pub(crate) struct Inner<D> {
    pub(crate) desk: D,
    pub(crate) ear: Arc<Ear>,
    /// Claims that were asked for without an answer. All others were asked for once and answered.
    doubtful: Mutex<HashMap<ClaimId, Copies>>,
    unended: Unended,
    asks: Lane<Asking>,
    ends: Lane<Ending>,
    sweeps: Sweeps,
    /// Whether the heart beats.
    beats: Arc<AtomicBool>,
}

impl<D: Desk> Inner<D> {
    fn new(desk: D) -> Arc<Self> {
        let ear = Arc::new(Ear::default());
        desk.attach(ear.clone());
        Arc::new(Inner {
            desk,
            ear,
            doubtful: Mutex::default(),
            unended: Unended::default(),
            asks: Lane::default(),
            ends: Lane::default(),
            sweeps: Sweeps::default(),
            beats: Arc::default(),
        })
    }

    fn doubtful(&self) -> MutexGuard<'_, HashMap<ClaimId, Copies>> {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something in the background, wherever there is a runtime for it. Whether there was one.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> bool {
        match self.ear.home().or_else(|| Handle::try_current().ok()) {
            Some(runtime) => drop(runtime.spawn(work)),
            None => return false,
        }
        true
    }
}

/// A flag that says that somebody is at it; dropped, nobody is.
pub struct Lowered(pub Arc<AtomicBool>);

impl Drop for Lowered {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
