//! A backend for the simulated store: what a careful networked backend does, in the fewest words.
//!
//! - Every window is counted from an instant read before the request left, by how long the store says the grant stands.
//! - A request without an answer is sent again with the same id, or is an error; it is never a yes, a no or a loss.
//! - A waiter is woken by a message that may be lost, and looks by itself from time to time, which also keeps its place.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tenure_core::backend::{Abilities, Fencing, Finding, Liveness, Reach, Waiting, async_trait};
use tenure_core::record::ClientKey;
use tenure_core::{
    Ask, Backend, Claim, ClaimId, Clock, Error, ErrorKind, Grant, Instant, Kind, LockName, MIN_TTL, News, Renewal, Result,
    Token, View, Wait, margin,
};
use tokio::sync::Notify;

use crate::history::Event;
use crate::mutant::Mutant;
use crate::store::{Given, Push, Reply, Request};
use crate::world::{Lane, World};

/// One client's end of the simulated store.
pub(crate) struct SimBackend {
    world: Arc<World>,
    client: ClientKey,
    /// The client's own clock: the same as the store's only where the plan says so.
    clock: Clock,
    waiting: Arc<Waiters>,
    /// A renewal that took too long gives its connection up: the next one has another number.
    keeper_lane: AtomicU64,
}

#[derive(Default)]
struct Waiters {
    wakes: Mutex<BTreeMap<ClaimId, Arc<Wakeup>>>,
    news: OnceLock<News>,
}

#[derive(Default)]
struct Wakeup {
    given: Mutex<Option<Given>>,
    rings: Notify,
}

impl Waiters {
    fn hear(&self, push: Push) {
        match (push, self.news.get()) {
            (Push::Wake(id, given), _) => {
                let wakes = self.wakes.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(wakeup) = wakes.get(&id) {
                    *wakeup.given.lock().unwrap_or_else(PoisonError::into_inner) = Some(given);
                    wakeup.rings.notify_one();
                }
            }
            (Push::Asked(id, ask), Some(news)) => news.asked(id, ask),
            (Push::Lost(id), Some(news)) => news.lost(id),
            (_, None) => {}
        }
    }
}

impl SimBackend {
    pub(crate) fn new(world: &Arc<World>, client: ClientKey, clock: Clock) -> Self {
        let waiting = Arc::new(Waiters::default());
        let inbox = Arc::clone(&waiting);
        world.attach(client, Arc::new(move |push| inbox.hear(push)));
        let keeper_lane = AtomicU64::new(0);
        SimBackend { world: Arc::clone(world), client, clock, waiting, keeper_lane }
    }

    /// One request and its answer, if that comes in time.
    async fn call(&self, request: Request) -> Result<Reply> {
        let call = self.world.call(self.client, Lane::User, request);
        let answer = tokio::time::timeout(self.world.plan.patience, call.answer()).await;
        answer.ok().flatten().ok_or_else(|| Error::new(ErrorKind::Unavailable, "the simulated store did not answer"))
    }

    /// The window of a grant that was asked for at `sent`.
    fn grant(&self, given: Given, sent: Instant) -> Grant {
        let from = if self.world.is(Mutant::WindowFromReply) { self.clock.now() } else { sent };
        Grant { token: given.token, until: from + (given.stands_for - margin(given.stands_for)) }
    }

    fn nothing_left(&self, claim: &Claim) -> Result<Option<Grant>> {
        let number = self.world.lock().history.claim(claim.id);
        self.world.write(Event::NothingLeft { claim: number });
        Ok(None)
    }

    async fn ask_for(&self, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        let deadline = match wait {
            Wait::For(wait) => self.clock.now() + wait,
            Wait::No | Wait::Forever => Instant::NEVER,
        };
        let place = Place::new(&self.waiting, claim.id); // listen first, then ask
        let mut silent = 0;
        let mut in_line = false;
        loop {
            let sent = self.clock.now();
            let request = match in_line {
                true => Request::Touch { name: claim.name.clone(), id: claim.id },
                false => Request::Ask { claim: claim.clone(), queue: wait != Wait::No },
            };
            match self.call(request).await {
                Ok(Reply::Granted(given)) => return Ok(Some(self.grant(given, sent))),
                Ok(Reply::Busy) => return self.nothing_left(claim),
                Ok(Reply::Waits) => (in_line, silent) = (true, 0),
                Ok(Reply::Gone) => {
                    (in_line, silent) = (false, 0);
                    continue; // thought dead: ask again, at the end of the line
                }
                Ok(Reply::Mismatch(what)) => return Err(Error::new(ErrorKind::Mismatch, what)),
                Ok(reply) => unreachable!("{reply:?} is no answer to that"),
                Err(_) if self.world.is(Mutant::TimeoutIsBusy) => return self.nothing_left(claim),
                Err(error) => {
                    silent += 1;
                    // Not known to be in line, so nothing to keep: say so soon. In line, a place is worth some patience.
                    if silent > if wait == Wait::No { 0 } else { 20 } {
                        return Err(error);
                    }
                }
            }
            if let Some(grant) = self.sleep(claim, &place, deadline, in_line).await {
                return Ok(Some(grant));
            }
            if self.clock.now() >= deadline {
                // Nobody has used it: it owes nobody a minimum hold.
                self.call(Request::End { name: claim.name.clone(), id: claim.id, min_hold: Duration::ZERO }).await?;
                return self.nothing_left(claim);
            }
        }
    }

    /// Waits until it is woken, or it is time to look: at the latest when a grant that nobody told us of is half over.
    async fn sleep(&self, claim: &Claim, place: &Place<'_>, deadline: Instant, in_line: bool) -> Option<Grant> {
        let nap = if in_line { (self.world.plan.alive / 4).min(claim.handover_ttl / 3) } else { Duration::from_millis(5) };
        let mut looks = self.clock.now() + nap;
        if self.world.is(Mutant::NoSlowPoll) && in_line {
            looks = Instant::NEVER;
        }
        tokio::select! {
            biased;
            () = place.wakeup.rings.notified() => {}
            () = self.clock.sleep_until(looks.min(deadline)) => {}
        }
        // On one clock the message is the grant; on another its age is not known, so one more look is needed.
        let given = place.wakeup.given.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let until = given.until - margin(given.stands_for);
        (self.world.plan.one_clock && until > self.clock.now()).then_some(Grant { token: given.token, until })
    }

    fn unexpected<T>(&self) -> Result<T> {
        Err(Error::new(ErrorKind::Unsupported, "the simulated store does not have this"))
    }
}

/// A waiter's bell, for as long as it waits.
struct Place<'a> {
    waiting: &'a Waiters,
    id: ClaimId,
    wakeup: Arc<Wakeup>,
}

impl<'a> Place<'a> {
    fn new(waiting: &'a Waiters, id: ClaimId) -> Self {
        let wakeup = Arc::<Wakeup>::default();
        waiting.wakes.lock().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::clone(&wakeup));
        Place { waiting, id, wakeup }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.waiting.wakes.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// Counts up if the renewal it belongs to is dropped.
struct Lanes<'a>(&'a AtomicU64);

impl Drop for Lanes<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl Backend for SimBackend {
    fn abilities(&self) -> Abilities {
        Abilities {
            store: "simulated",
            kinds: &Kind::ALL,
            fencing: Fencing::DataOrClock,
            waiting: if self.world.plan.wakes { Waiting::Notified } else { Waiting::Polled },
            liveness: Liveness::Lease,
            reach: Reach::Network,
            cells: false,
            delays: true,
            downgrade: true,
            shortest_ttl: MIN_TTL,
        }
    }

    fn describe(&self) -> String {
        "simulated".to_owned()
    }

    fn attach(&self, news: News) {
        let _ = self.waiting.news.set(news);
    }

    async fn acquire(&self, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        self.ask_for(claim, wait).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let sent = self.clock.now();
        let lane = Lane::Keeper(self.keeper_lane.load(Ordering::Relaxed));
        let ids = claims.iter().map(|claim| (claim.name.clone(), claim.id)).collect();
        let call = self.world.call(self.client, lane, Request::Renew { claims: ids });
        let dropped = Lanes(&self.keeper_lane);
        let answer = match self.world.is(Mutant::TimeoutIsLost) {
            true => tokio::time::timeout(Duration::from_millis(15), call.answer()).await.ok().flatten(),
            false => call.answer().await,
        };
        std::mem::forget(dropped);
        let Some(Reply::Renewed(answers)) = answer else {
            let unknown = || Err(Error::new(ErrorKind::Unavailable, "the connection broke"));
            let lost = self.world.is(Mutant::TimeoutIsLost);
            return claims.iter().map(|_| if lost { Ok(Renewal::Lost) } else { unknown() }).collect();
        };
        let from = if self.world.is(Mutant::WindowFromReply) { self.clock.now() } else { sent };
        let renewal = |(claim, answer): (&Claim, Option<Option<Ask>>)| {
            Ok(answer.map_or(Renewal::Lost, |asked| Renewal::Held { until: claim.window(from), asked }))
        };
        claims.iter().zip(answers).map(renewal).collect()
    }

    async fn release(&self, claim: &Claim) -> Result<()> {
        let Claim { name, id, min_hold, .. } = claim;
        self.call(Request::End { name: name.clone(), id: *id, min_hold: *min_hold }).await.map(drop)
    }

    async fn downgrade(&self, claim: &Claim) -> Result<bool> {
        match self.call(Request::Downgrade { name: claim.name.clone(), id: claim.id }).await? {
            Reply::Downgraded(held) => Ok(held),
            _ => self.unexpected(),
        }
    }

    async fn view(&self, name: &LockName) -> Result<View> {
        match self.call(Request::View { name: name.clone() }).await? {
            Reply::View(view) => Ok(view),
            _ => self.unexpected(),
        }
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        let Reply::List(views) = self.call(Request::List).await? else { return self.unexpected() };
        let wanted = |view: &View| view.name.as_str().starts_with(prefix) && after.is_none_or(|after| view.name > *after);
        Ok(views.into_iter().filter(wanted).take(limit).collect())
    }

    async fn watch(&self, name: &LockName, seen: &View) -> Result<View> {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            match self.view(name).await {
                Ok(view) if view.says_the_same_as(seen) => {}
                answer => return answer,
            }
        }
    }

    async fn ask(&self, name: &LockName, ask: &Ask) -> Result<usize> {
        match self.call(Request::AskHolders { name: name.clone(), ask: ask.clone() }).await? {
            Reply::Count(told) => Ok(told),
            _ => self.unexpected(),
        }
    }

    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Result<usize> {
        match self.call(Request::Break { name: name.clone(), only }).await? {
            Reply::Count(broken) => Ok(broken),
            _ => self.unexpected(),
        }
    }

    async fn cell_get(&self, _: &LockName) -> Result<tenure_core::Versioned> {
        self.unexpected()
    }

    async fn cell_set(&self, _: &LockName, _: u64, _: Option<&[u8]>) -> Result<Option<u64>> {
        self.unexpected()
    }

    async fn probe(&self) -> Result<()> {
        self.call(Request::List).await.map(drop)
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}
