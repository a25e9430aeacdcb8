//! The keeper: one per client, keeps every hold alive and tells its owner when it cannot.
//!
//! It lives on a thread of its own, with a runtime of its own, so that a busy executor cannot starve it (a renewal that
//! the user's own CPU loop delays is a lost lock). Holds are kept in order of when something must next be done about
//! them; the keeper sleeps until the first of those moments.
//!
//! - **Renewal** at a third of the ttl with jitter (at once where a grant was waited for, since its first window is short), in batches: whatever is about due goes along, so a thousand holds
//!   soon share one request per round. A renewal that has no answer within a sixth of the ttl is dropped, which tells the
//!   backend to use a fresh connection, and tried again for as long as the window is open.
//! - **Doubt**, when a backend says that its store may have forgotten: every hold is in jeopardy and asks at once.
//! - **Loss** by the local clock, before the store can let anybody else in.
//! - **Endings**: a dropped guard or a cancelled ask is ended by its id, again and again until the store confirmed it or
//!   must have forgotten it by itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::backend::{Backend, ended};
use crate::environment::{Environment, Home};
use crate::hold::{Duty, Phase, State};
use crate::kept::Hold;
use crate::options::Options;
use crate::polled::GrantsByPoll;
use crate::{Ask, Claim, ClaimId, Error, ErrorKind, Instant, LossReason, Renewal, Result, Token};

/// All holds of a client, in order of when something must next be done about them.
#[derive(Default)]
struct Table {
    holds: BTreeMap<(Instant, u64), Arc<Hold>>,
    next_number: u64,
    /// When the keeper will wake up by itself.
    wakes_at: Option<Instant>,
}

impl Table {
    fn matching(&self, id: ClaimId) -> impl Iterator<Item = Arc<Hold>> + '_ {
        self.holds.values().filter(move |hold| hold.claim.id == id).map(Arc::clone)
    }

    fn insert(&mut self, hold: Arc<Hold>) {
        let at = hold.lock().state.next_event();
        hold.place.store(at.as_nanos(), Ordering::Relaxed);
        self.holds.insert((at, hold.number), hold);
    }

    /// Keeps a hold that is still one; a lost one is handed over to be cleared away.
    fn put_back(&mut self, hold: Arc<Hold>, lost: &mut Vec<Arc<Hold>>) {
        let phase = hold.lock().state.phase;
        match phase {
            Phase::Held | Phase::Jeopardy => self.insert(hold),
            Phase::Lost => lost.push(hold),
            Phase::Gone => {}
        }
    }

    fn remove(&mut self, hold: &Hold) {
        let at = Instant::from_nanos(hold.place.load(Ordering::Relaxed));
        self.holds.remove(&(at, hold.number));
    }
}

/// The client's end of its keeper.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) environment: Environment,
    table: Mutex<Table>,
    wake: Notify,
    /// How often the store may have forgotten; only raised under the table's mutex.
    doubts: AtomicU64,
    pub(crate) by_poll: Arc<GrantsByPoll>,
    runtime: Handle,
    jobs: mpsc::UnboundedSender<Job>,
}

/// What the keeper is told to do.
enum Job {
    /// End this claim, whatever it was.
    End(Claim),
    /// End this claim once the store's own time for it is over.
    EndAfterLoss(Claim),
    /// Say when every ending so far is done.
    Drain(oneshot::Sender<()>),
    /// The client is gone.
    Stop,
}

impl Keeper {
    /// Starts the keeper of a client.
    pub(crate) fn start(backend: Arc<dyn Backend>, environment: Environment) -> Result<Self> {
        let (jobs, inbox) = mpsc::unbounded_channel();
        let own = match environment.home {
            Home::Here => None,
            Home::OwnThread => {
                Some(tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(not_started)?)
            }
        };
        let runtime = own.as_ref().map_or_else(Handle::current, |own| own.handle().clone());
        let (table, wake) = (Mutex::default(), Notify::new());
        let (doubts, by_poll) = (AtomicU64::new(0), Arc::default());
        let shared = Arc::new(Shared { backend, environment, table, wake, doubts, by_poll, runtime, jobs });
        let listener: Weak<dyn Listener> = Arc::downgrade(&(Arc::clone(&shared) as Arc<dyn Listener>));
        shared.backend.attach(News(listener));
        let keeping = keep(Arc::clone(&shared), inbox);
        match own {
            None => drop(shared.runtime.spawn(keeping)),
            Some(own) => start_thread(own, keeping)?,
        }
        Ok(Keeper { shared })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The keeper's runtime: a place for work that must not depend on the caller's.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.shared.runtime
    }

    /// Completes when every ending begun so far is done.
    pub(crate) async fn drain(&self) {
        let (done, drained) = oneshot::channel();
        if self.shared.jobs.send(Job::Drain(done)).is_ok() {
            let _ = drained.await;
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.shared.jobs.send(Job::Stop);
    }
}

fn start_thread(runtime: Runtime, keeping: impl Future<Output = ()> + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name("tenure-keeper".to_owned());
    thread.spawn(move || runtime.block_on(keeping)).map(drop).map_err(not_started)
}

fn not_started(error: std::io::Error) -> Error {
    Error::new(ErrorKind::Backend, "the keeper's thread could not be started")
        .with_source(error)
        .with_hint("Look at the process's limits on threads and open files")
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Instant {
        self.environment.clock.now()
    }

    /// How often the store may have forgotten. A grant asked for before the last time is in doubt from its start.
    pub(crate) fn doubts(&self) -> u64 {
        self.doubts.load(Ordering::Relaxed)
    }

    /// Takes a grant into keeping that was asked for after so many doubts.
    pub(crate) fn hold(&self, claim: Claim, token: Token, until: Instant, options: &Options, doubts: u64) -> Arc<Hold> {
        let now = self.now();
        let cap = options.max_hold.map_or(Instant::NEVER, |max| now + max);
        let mut state = State::new(claim.ttl, now, until, options.keep, cap);
        let mut table = self.table();
        if claim.handover_ttl < claim.ttl && until.since(now) <= claim.handover_ttl {
            state.renew_at(now + FIRST_RENEWAL);
        }
        if self.doubts() != doubts {
            state.verify(now);
        }
        let next = state.next_event();
        table.next_number += 1;
        let hold = Arc::new(Hold::new(claim, state, token, table.next_number));
        table.insert(Arc::clone(&hold));
        // Waking a thread costs more than the rest of a grant: only when it would sleep through this one.
        let must_wake = table.wakes_at.is_none_or(|wakes_at| next < wakes_at);
        if must_wake {
            table.wakes_at = Some(next);
        }
        drop(table);
        if must_wake {
            self.wake.notify_one();
        }
        hold
    }

    /// Stops keeping a hold. Says whether it could still be trusted.
    pub(crate) fn let_go(&self, hold: &Hold) -> bool {
        let had_it = hold.let_go(self.now());
        self.table().remove(hold); // in this order: a renewal just coming back must see that it is over
        had_it
    }

    /// Ends a claim in the background. Needs no runtime and never blocks.
    pub(crate) fn end(&self, claim: Claim) {
        let _ = self.jobs.send(Job::End(claim));
    }

    /// Ends a lost claim in the background, but not before its lock-delay is over.
    pub(crate) fn end_after_loss(&self, claim: Claim) {
        let _ = self.jobs.send(Job::EndAfterLoss(claim));
    }

    /// A third of the ttl after `sent`, less up to a tenth of that, so that clients that started together drift apart.
    pub(crate) fn next_renewal(&self, sent: Instant, ttl: Duration) -> Instant {
        let interval = ttl / 3;
        sent + self.environment.between(interval.mul_f64(0.9), interval)
    }

    fn holds_matching(&self, id: ClaimId) -> Vec<Arc<Hold>> {
        self.table().matching(id).collect()
    }
}

/// Where a backend reports what its store says unasked. Cheap to clone; does nothing once the client is gone.
#[derive(Clone)]
pub struct News(Weak<dyn Listener>);

impl News {
    /// For whoever stands between a backend and its keeper.
    pub(crate) fn to(listener: Weak<dyn Listener>) -> Self {
        News(listener)
    }

    /// Somebody asks the holder of this claim to let go.
    pub fn asked(&self, id: ClaimId, ask: Ask) {
        if let Some(listener) = self.0.upgrade() {
            listener.asked(id, ask);
        }
    }

    /// The store says that this claim is not held any more.
    pub fn lost(&self, id: ClaimId) {
        self.lost_for(id, LossReason::Refused);
    }

    /// The same, with what is known about it.
    pub fn lost_for(&self, id: ClaimId, reason: LossReason) {
        if let Some(listener) = self.0.upgrade() {
            listener.lost(id, reason);
        }
    }

    /// The store may have forgotten: it restarted, or it failed over. Every hold of this client is in
    /// [jeopardy](Phase::Jeopardy) until its next renewal, which is due at once; so is a grant still on its way. Extends
    /// nothing by itself, and a renewal that was under way already neither does nor makes anything safe again: its answer
    /// may be from before.
    ///
    /// A hold whose renewal is off or at its cap is renewed this once too, since somebody else may have been let in: its
    /// own window stays, but the store may keep its name closed for a ttl from then if nobody releases it.
    pub fn verify(&self) {
        if let Some(listener) = self.0.upgrade() {
            listener.verify();
        }
    }

    /// The store may have told this client something that was lost on its way. Every hold of it is renewed at once, and the answers
    /// say what the message would have said.
    pub fn renew_now(&self) {
        if let Some(listener) = self.0.upgrade() {
            listener.renew_now();
        }
    }

    /// A waiter found by a look of its own that it was let in, which a message should have told it of: not if the look itself, or time
    /// alone, let it in, nor if nobody listened when that happened. A backend that reports this must also report the message, if that
    /// comes later, with `is_told`: then it was on its way, and is not counted.
    pub fn grant_by_poll(&self, id: ClaimId, is_told: bool) {
        if let Some(listener) = self.0.upgrade() {
            listener.grant_by_poll(id, is_told);
        }
    }

    /// The keeper's runtime: a place for a backend's work in the background, which must not depend on the caller's. `None`
    /// once the client is gone; what still runs there ends with it.
    pub fn runtime(&self) -> Option<Handle> {
        self.0.upgrade().and_then(|listener| listener.runtime())
    }
}

/// Who hears the news: a keeper, or somebody who makes one store of several.
pub(crate) trait Listener: Send + Sync {
    fn asked(&self, id: ClaimId, ask: Ask);
    fn lost(&self, id: ClaimId, reason: LossReason);
    fn verify(&self);
    fn renew_now(&self);
    fn grant_by_poll(&self, id: ClaimId, is_told: bool);
    fn runtime(&self) -> Option<Handle>;
}

impl Listener for Shared {
    fn grant_by_poll(&self, id: ClaimId, is_told: bool) {
        if is_told { self.by_poll.is_told(id) } else { self.by_poll.is_found(id) }
    }

    fn asked(&self, id: ClaimId, ask: Ask) {
        for hold in self.holds_matching(id) {
            hold.told(ask.clone());
        }
    }

    fn lost(&self, id: ClaimId, reason: LossReason) {
        let table = self.table();
        let lost: Vec<_> = table.matching(id).collect();
        if lost.is_empty() {
            self.doubts.fetch_add(1, Ordering::Relaxed); // it may be on its way here, and is looked at when it comes
        }
        drop(table);
        for hold in lost {
            hold.refused(reason.clone());
        }
    }

    fn verify(&self) {
        self.renew_all(State::verify);
    }

    fn renew_now(&self) {
        self.renew_all(State::renew_now);
    }

    fn runtime(&self) -> Option<Handle> {
        Some(self.runtime.clone())
    }
}

impl Shared {
    /// Every hold is renewed as soon as possible, in whichever state this leaves it. A grant on its way here is in doubt from its start.
    fn renew_all(&self, doubt: impl Fn(&mut State, Instant)) {
        let now = self.now();
        let mut table = self.table();
        self.doubts.fetch_add(1, Ordering::Relaxed);
        for (key, hold) in std::mem::take(&mut table.holds) {
            hold.step(|shown| doubt(&mut shown.state, now));
            match hold.phase_at(now) {
                Phase::Held | Phase::Jeopardy => table.insert(hold),
                Phase::Lost | Phase::Gone => drop(table.holds.insert(key, hold)), // the keeper clears it away in its time
            }
        }
        table.wakes_at = Some(now);
        drop(table);
        self.wake.notify_one();
    }
}

/// How soon the short first window of a hold that was waited for is renewed. Not in the same instant: a critical section that is
/// over sooner costs the store no request and the keeper no wake-up.
const FIRST_RENEWAL: Duration = Duration::from_millis(5);

/// How long a client that nobody closed may take to leave.
const LEAVING: Duration = Duration::from_secs(2);

/// The keeper's life.
async fn keep(shared: Arc<Shared>, mut inbox: mpsc::UnboundedReceiver<Job>) {
    let mut endings = JoinSet::new();
    // Every ending has a copy of the sender; when all of them are gone, so are the endings before a drain.
    let mut current = mpsc::channel::<()>(1);
    let mut stopping = false;
    loop {
        let next = look_after(&shared);
        let sleep = shared.environment.clock.sleep_until(next);
        tokio::select! {
            biased;
            job = inbox.recv(), if !stopping => match job {
                Some(Job::End(claim)) => { endings.spawn(end(Arc::clone(&shared), claim, current.0.clone())); }
                Some(Job::EndAfterLoss(claim)) => clear_away(&shared, claim),
                Some(Job::Drain(done)) => {
                    let (sender, mut ended) = std::mem::replace(&mut current, mpsc::channel(1));
                    drop(sender);
                    tokio::spawn(async move {
                        ended.recv().await;
                        let _ = done.send(());
                    });
                }
                Some(Job::Stop) | None => stopping = true,
            },
            Some(_) = endings.join_next() => {}
            () = shared.wake.notified() => {}
            () = sleep => {}
        }
        while stopping && let Ok(job) = inbox.try_recv() {
            if let Job::End(claim) = job {
                endings.spawn(end(Arc::clone(&shared), claim, current.0.clone()));
            }
        }
        if stopping && endings.is_empty() {
            // Nobody is left to close the client: what it still has in the store goes with it, if that is quickly done.
            let _ = timeout(LEAVING, shared.backend.close()).await;
            return;
        }
    }
}

/// Does what is due, and says when to look again.
fn look_after(shared: &Arc<Shared>) -> Instant {
    let now = shared.now();
    let (mut due, mut lost) = (Vec::new(), Vec::new());
    let mut table = shared.table();
    // Each hold once, whatever it says about when it wants to be looked at next.
    let later = table.holds.split_off(&(now, u64::MAX));
    for (_, hold) in std::mem::replace(&mut table.holds, later) {
        if hold.step(|shown| shown.state.tick(now)) == Duty::Renew {
            due.push(hold);
        } else {
            table.put_back(hold, &mut lost);
        }
    }
    if let Some(shortest) = due.iter().map(|hold| hold.claim.ttl).min() {
        // Company for the road: what would be due within three quarters of a round goes now.
        let soon = now + shortest / 4;
        let company: Vec<_> = table
            .holds
            .range(..=(soon, u64::MAX))
            .filter(|(_, hold)| hold.claim.ttl / 4 >= soon.since(now) && hold.lock().state.wants_renewal_before(soon))
            .map(|(key, _)| *key)
            .collect();
        due.extend(company.into_iter().filter_map(|key| table.holds.remove(&key)));
        for hold in due.iter() {
            hold.lock().state.sent();
        }
    }
    for hold in &due {
        table.insert(Arc::clone(hold));
    }
    let next = table.holds.first_key_value().map_or(Instant::NEVER, |((at, _), _)| *at);
    table.wakes_at = Some(next);
    drop(table);
    lost.into_iter().for_each(|hold| clear_away(shared, hold.claim.clone()));
    for batch in batches(due) {
        tokio::spawn(renew(Arc::clone(shared), batch));
    }
    next
}

/// So many holds share a request at the most: a server that takes long over many must not cost all of them.
const MOST_AT_ONCE: usize = 2_000;

/// Holds of about the same ttl share a request, and so a deadline.
fn batches(mut due: Vec<Arc<Hold>>) -> Vec<Vec<Arc<Hold>>> {
    due.sort_by_key(|hold| hold.claim.ttl);
    let mut batches: Vec<Vec<Arc<Hold>>> = Vec::new();
    for hold in due {
        match batches.last_mut() {
            Some(batch) if batch.len() < MOST_AT_ONCE && batch[0].claim.ttl * 2 > hold.claim.ttl => batch.push(hold),
            _ => batches.push(vec![hold]),
        }
    }
    batches
}

/// However long a ttl is, a hold in doubt is not left so for longer than this between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// One renewal of one batch, and what comes of it.
async fn renew(shared: Arc<Shared>, batch: Vec<Arc<Hold>>) {
    let claims: Vec<Claim> = batch.iter().map(|hold| hold.claim.clone()).collect();
    let ttl = claims[0].ttl; // the shortest, see `batches`
    let sent = shared.now();
    let deadline = batch.iter().map(|hold| hold.lock().state.renewal_deadline(sent)).min().unwrap_or_default();
    let answers = timeout(deadline, shared.backend.renew(&claims)).await;
    let now = shared.now();
    let next = shared.next_renewal(sent, ttl);
    let answers = answers.unwrap_or_default();
    let mut answers = answers.into_iter();
    for hold in &batch {
        match answers.next() {
            Some(Ok(Renewal::Held { until, asked })) => {
                hold.step(|shown| shown.state.renewed(until, next, now));
                if let Some(ask) = asked {
                    hold.told(ask);
                }
            }
            Some(Ok(Renewal::Lost)) => hold.refused(LossReason::Refused),
            failed @ (Some(Err(_)) | None) => {
                hold.failed(failed.and_then(Result::err).as_ref());
                // Soon, and sooner where the window is short: there must be time for another try.
                let pause = (ttl / 24).min(hold.until().since(now) / 4).min(LONGEST_PAUSE);
                let retry = now + shared.environment.between(pause / 2, pause);
                hold.step(|shown| shown.state.unknown(retry, now));
            }
        }
    }
    let mut lost = Vec::new();
    let mut table = shared.table();
    for hold in batch {
        table.remove(&hold);
        table.put_back(hold, &mut lost);
    }
    drop(table);
    lost.into_iter().for_each(|hold| clear_away(&shared, hold.claim.clone()));
    shared.wake.notify_one();
}

/// A lost hold is the store's to forget, but a store may not look at a name again that nobody asks for. Ended by its id
/// when the store's own time for it is over, and not before: until then its lock-delay keeps the name closed.
fn clear_away(shared: &Arc<Shared>, claim: Claim) {
    let claim = Claim { min_hold: Duration::ZERO, ..claim };
    let (shared, over) = (Arc::clone(shared), shared.now() + claim.ttl + claim.lock_delay);
    tokio::spawn(async move {
        shared.environment.clock.sleep_until(over).await;
        let _ = timeout(claim.ttl.max(LEAST_PATIENCE), shared.backend.release(&claim)).await;
    });
}

/// However short a ttl is, an end may take so long. One that is cut off may leave traces of the name in the store, whose own time only
/// ends the hold.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);

/// Ends one claim for good: until the store confirmed it, or must have forgotten it by itself.
async fn end(shared: Arc<Shared>, claim: Claim, _until_done: mpsc::Sender<()>) {
    let forgotten = shared.now() + claim.ttl + claim.lock_delay + claim.min_hold;
    let mut pause = Duration::from_millis(5);
    loop {
        let deadline = (claim.ttl / 6).max(LEAST_PATIENCE);
        if let Ok(Ok(())) = timeout(deadline, shared.backend.release(&claim)).await.map(ended) {
            return;
        }
        if shared.now() >= forgotten {
            return;
        }
        tokio::time::sleep(shared.environment.between(pause / 2, pause)).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
