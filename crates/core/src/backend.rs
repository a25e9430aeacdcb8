//! The contract between this library and a store.
//!
//! A backend is asked for **a claim in a mode** and waits in whatever way is native to its store; the kinds above it are
//! thin. Third parties may write one: implement [`Backend`], run `tenure_testkit::conformance!` over it, and every kind,
//! guard and command works on it.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

pub use async_trait::async_trait;

use crate::keeper::News;
use crate::{Ask, Claim, Error, ErrorKind, Grant, Kind, LockName, Renewal, Result, Sequencer, Standing, Token, View, Wait};

/// A boxed future: what an object-safe trait returns where it would say `async fn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One store, as this library sees it.
///
/// # Contract
///
/// What an implementor owes to everybody above it:
///
/// - **The id is the ask.** Every request carries the claim's id. Asking twice with one id is one ask, and once an id was
///   released no copy of its ask is granted that arrives within a minute. One that arrives later than that may be: nobody holds
///   by it, and it keeps the name closed for one ttl.
/// - **Counted from sending.** A [`Grant`]'s and a [`Renewal`]'s `until` is [`Claim::window`] of an instant read *before*
///   the request left, or of the store's own clock where both share it. The store keeps the name closed for at least
///   `ttl + lock_delay` from the moment it handled the request.
/// - **Unknown is an error.** A timeout or a broken connection is `Err`, never `Ok(None)` and never `Lost`. Whoever gets
///   that error ends the claim by its id.
/// - **Cancel safety.** Every future may be dropped at any await. [`acquire`](Backend::acquire) may leave the claim behind
///   when dropped: the caller always calls [`release`](Backend::release) then. A dropped [`renew`](Backend::renew) means
///   that it took too long: the connection that carried it must not carry the next one.
/// - **No thread, task or connection stands for ownership.** Two claims of one client exclude each other like any others.
/// - **Nothing is left.** A name that nobody holds and nobody waits for leaves nothing in the store after a while.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// What this store really does. Must not change while the backend lives.
    fn abilities(&self) -> Abilities;

    /// The store in words for errors and listings, without secrets: `sqlite:/var/lib/tenure.db`.
    fn describe(&self) -> String;

    /// Called once, before anything else: where to report what the store says on its own account.
    fn attach(&self, news: News) {
        drop(news);
    }

    /// Grants the claim, or waits for it natively; `Ok(None)` when it was not granted in time, and then nothing of it is
    /// left in the store.
    async fn acquire(&self, claim: &Claim, wait: Wait) -> Result<Option<Grant>>;

    /// Renews a batch, with an answer for each in the same order. Called on the keeper's own thread, and must not queue
    /// behind anything a user does.
    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>>;

    /// Ends whatever the claim's id left behind: a hold, a place in line, or nothing. Idempotent and final.
    ///
    /// `Err(Lost)` if the store answers that nothing was there any more. It is ended then too. A store that learns of a broken hold
    /// only by being told owes this to its holders, who may release before they are told; of a retry whose first answer was lost
    /// it says `Ok`.
    async fn release(&self, claim: &Claim) -> Result<()>;

    /// Makes a reader of the writer that holds an rw lock, in place, and lets in whom that makes
    /// room for. Its token and its window stay as they are. `false` if it is not held any more. A
    /// store whose [`Abilities`] have no `downgrade` gives [`Unsupported`](ErrorKind::Unsupported).
    ///
    /// A hold that is a reader's already stays one, and the answer is `true`. Nothing makes a
    /// reader the writer, so a copy that arrives late finds a reader or nothing.
    /// [`Record::downgrade`](crate::record::Record::downgrade) is the rule to the letter.
    async fn downgrade(&self, claim: &Claim) -> Result<bool>;

    /// Who holds and who waits.
    async fn view(&self, name: &LockName) -> Result<View>;

    /// How a sequencer stands: one read, which needs no right to lock. A store whose [`view`](Backend::view) says which token it
    /// gave last need not say it in its own words; whoever wraps a backend that does hands this on too.
    async fn check(&self, sequencer: &Sequencer) -> Result<Standing> {
        Ok(self.view(&sequencer.name).await?.standing(sequencer))
    }

    /// Names in use that begin with `prefix`, in byte order, after `after`; at most `limit`. Never a scan that blocks the
    /// store for others.
    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>>;

    /// Completes with the name's view once that says something else than `seen`.
    ///
    /// A store that tells those who hold and wait, but not those who only watch, is looked at from time to time.
    async fn watch(&self, name: &LockName, seen: &View) -> Result<View> {
        loop {
            let view = self.view(name).await?;
            if !view.says_the_same_as(seen) {
                return Ok(view);
            }
            tokio::time::sleep(WATCH_EVERY).await;
        }
    }

    /// Asks every holder of the name to let go. How many there were.
    async fn ask(&self, name: &LockName, ask: &Ask) -> Result<usize>;

    /// Ends holds of the name by force: all of them, or the one with this token. How many there were.
    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Result<usize>;

    /// The value and version of a cell; version 0 when there is none.
    async fn cell_get(&self, name: &LockName) -> Result<crate::Versioned>;

    /// Writes a cell (or removes it) if its version is still `expected`; the new version, or `None` if it was not.
    async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Result<Option<u64>>;

    /// The smallest request that a grant on this store could possibly cost: what `tenure bench` divides by.
    async fn probe(&self) -> Result<()>;

    /// Looks at the store and says what could hurt: versions, settings, permissions, file systems.
    async fn examine(&self) -> Result<Vec<Finding>>;

    /// Removes what this client leaves in the store besides its holds, now and not some time later. It may be called while
    /// others hold, wait or ask through the same client, more than once, and the client may be used afterwards.
    async fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// How often a watcher looks.
const WATCH_EVERY: Duration = Duration::from_millis(75);

/// The answer to a [release](Backend::release), from whether the store still had anything of the claim.
pub fn released(was_there: bool, claim: &Claim, store: String) -> Result<()> {
    if was_there {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Lost, "the store has no such claim any more").with_name(&claim.name).with_store(store))
}

/// For those who want a claim to be over, and not to know what it was: one that was not there any more is over.
pub(crate) fn ended(released: Result<()>) -> Result<()> {
    released.or_else(|error| if error.kind() == ErrorKind::Lost { Ok(()) } else { Err(error) })
}

/// What a store really does: queryable, so that nothing has to be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// The store's word: `memory`, `sqlite`.
    pub store: &'static str,
    /// The kinds it offers; any other is [`Unsupported`](ErrorKind::Unsupported) when it is made.
    pub kinds: &'static [Kind],
    /// Whether its tokens rise for ever, and through what.
    pub fencing: Fencing,
    /// How its waiters learn that they were let in.
    pub waiting: Waiting,
    /// What keeps a hold alive.
    pub liveness: Liveness,
    /// Who can meet on one name.
    pub reach: Reach,
    /// Whether it has cells, the optimistic lock.
    pub cells: bool,
    /// Whether it can keep a name closed that nobody holds: minimum holds and lock-delays.
    pub delays: bool,
    /// Whether the writer of an rw lock can become a reader in place.
    pub downgrade: bool,
    /// The shortest ttl it can do; shorter ones are rounded up.
    pub shortest_ttl: Duration,
}

impl Abilities {
    /// `Ok` if the store offers the kind.
    pub fn require(&self, kind: Kind) -> Result<()> {
        if self.kinds.contains(&kind) {
            return Ok(());
        }
        let offered: Vec<&str> = self.kinds.iter().map(|kind| kind.as_str()).collect();
        Err(Error::new(ErrorKind::Unsupported, format!("this store has no {kind}"))
            .with_store(self.store)
            .with_hint(format!("It offers: {}. GUARANTEES.md says why", offered.join(", "))))
    }

    /// `Ok` if the store can keep a name closed that nobody holds, or need not.
    pub(crate) fn require_delay(&self, what: &str, delay: Duration) -> Result<Duration> {
        if self.delays || delay.is_zero() {
            return Ok(delay);
        }
        Err(Error::new(ErrorKind::Unsupported, format!("this store has no way to honour {what}"))
            .with_store(self.store)
            .with_hint("Its server lets go of a lock whenever a session ends, and keeps nothing after it. Use leases"))
    }
}

/// Through what a store's tokens keep rising.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fencing {
    /// As long as the store keeps its data *or* its clock does not go back.
    DataOrClock,
    /// As long as the store keeps its data: its own numbers.
    Data,
    /// Tokens are given but may repeat or go back.
    None,
}

/// How waiters learn that they were let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waiting {
    /// The store wakes exactly the one that was let in.
    Notified,
    /// Waiters look from time to time.
    Polled,
}

/// What keeps a hold alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Liveness {
    /// A lease that is renewed; a dead holder costs its ttl.
    Lease,
    /// A lease, and a holder that was killed on the same host is noticed at once.
    LeaseAndProcess,
    /// A session with the store.
    Session,
}

/// Who can meet on one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reach {
    /// The tasks and threads of one process.
    Process,
    /// The processes of one host.
    Host,
    /// Everybody who can reach the server.
    Network,
}

/// One thing [`Backend::examine`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What was looked at: `file system`, `SQLite version`.
    pub what: String,
    /// What was found, and what to do about it.
    pub says: String,
}

impl Finding {
    /// It is as it should be.
    pub fn good(what: impl Into<String>, says: impl Into<String>) -> Self {
        Finding { level: Level::Good, what: what.into(), says: says.into() }
    }

    /// It works, but this should be known.
    pub fn warning(what: impl Into<String>, says: impl Into<String>) -> Self {
        Finding { level: Level::Warning, ..Finding::good(what, says) }
    }

    /// It will not work, or not safely.
    pub fn bad(what: impl Into<String>, says: impl Into<String>) -> Self {
        Finding { level: Level::Bad, ..Finding::good(what, says) }
    }

    /// What a server's clock means, which is so many microseconds ahead of ours; less than 0 if behind. Clocks that are off by a few
    /// seconds are nobody's trouble.
    pub fn clock(ahead: i64) -> Self {
        let off = Duration::from_micros(ahead.unsigned_abs()).as_secs();
        if off < 10 {
            return Finding::good("clock", format!("within {} s of this host's", off + 1));
        }
        let side = if ahead < 0 { "behind" } else { "ahead of" };
        let says = format!(
            "{off} s {side} this host's. Nobody compares them, but tokens begin with the server's: keep the clocks of all servers \
             right (NTP), or tokens may go back when another one takes over"
        );
        Finding::warning("clock", says)
    }
}

/// How bad a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Good,
    /// Works, but know this.
    Warning,
    /// Will not work, or not safely.
    Bad,
}
