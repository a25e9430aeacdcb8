//! One seed's world: the store, the faulty network to it, the fenced resources, and the history of it all.
//!
//! Every message is a task that sleeps for as long as the message is under way. What happens to it is drawn when it is
//! sent, from the network's own stream of random numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::record::{ClientKey, Moment};
use tenure_core::{Clock, Instant, Token};
use tokio::sync::oneshot;

use crate::history::{Event, Fault, History, HoldIx, Keeps, NameIx};
use crate::mutant::Mutant;
use crate::plan::Plan;
use crate::rng::Rng;
use crate::store::{Push, Reply, Request, SimStore};

/// One world.
pub(crate) struct World {
    pub(crate) clock: Clock,
    pub(crate) plan: Plan,
    pub(crate) mutant: Option<Mutant>,
    state: Mutex<State>,
}

/// Everything in it that changes.
pub(crate) struct State {
    rng: Rng,
    pub(crate) store: SimStore,
    pub(crate) history: History,
    pub(crate) violations: Vec<String>,
    /// Faults are over.
    healed: bool,
    /// The store is down.
    down: bool,
    next_call: u64,
    /// Who waits for an answer to which call; a cut connection drops them all.
    calls: BTreeMap<(ClientKey, u64), oneshot::Sender<Reply>>,
    links: BTreeMap<ClientKey, Link>,
    /// The highest token each fenced resource has accepted.
    fences: BTreeMap<NameIx, Token>,
}

/// A client's way to the store.
#[derive(Default)]
struct Link {
    vanished: bool,
    isolated: bool,
    frozen: bool,
    /// Tasks that would run if the client did.
    stopped: Vec<Waker>,
    /// When the last message there and the last one back arrive, per lane: where messages keep their order.
    arrives: BTreeMap<(Lane, bool), Instant>,
    /// Where pushes go.
    inbox: Option<Arc<dyn Fn(Push) + Send + Sync>>,
}

/// Which of a client's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// What users do.
    User,
    /// Renewals, and which connection of theirs.
    Keeper(u64),
}

impl World {
    pub(crate) fn new(seed: u64, plan: Plan, clock: Clock, mutant: Option<Mutant>) -> Arc<Self> {
        let history = History::of(plan.names.iter().map(|name| name.name.clone()).collect());
        let state = State {
            rng: Rng::new(seed, 2),
            store: SimStore::new(plan.alive, mutant),
            history,
            violations: Vec::new(),
            healed: false,
            down: false,
            next_call: 0,
            calls: BTreeMap::new(),
            links: BTreeMap::new(),
            fences: BTreeMap::new(),
        };
        Arc::new(World { clock, plan, mutant, state: Mutex::new(state) })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment { now: self.clock.now(), wall_micros: self.clock.wall_micros() }
    }

    /// Writes an event down.
    pub(crate) fn write(&self, event: Event) {
        let now = self.now();
        self.lock().history.write(now, event);
    }

    pub(crate) fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Where what the store says unasked reaches a client.
    pub(crate) fn attach(&self, client: ClientKey, inbox: Arc<dyn Fn(Push) + Send + Sync>) {
        self.lock().links.entry(client).or_default().inbox = Some(inbox);
    }

    /// Sends a request; the answer, if one ever comes.
    pub(crate) fn call(self: &Arc<Self>, client: ClientKey, lane: Lane, request: Request) -> Call {
        let (sender, answer) = oneshot::channel();
        let mut state = self.lock();
        state.next_call += 1;
        let number = state.next_call;
        state.calls.insert((client, number), sender);
        let copies = if !state.healed && state.rng.chance(self.plan.repeated) { 2 } else { 1 };
        let mut travels = Vec::new();
        for _ in 0..copies {
            travels.extend(self.travel(&mut state, client, lane, true, self.plan.requests_lost));
        }
        drop(state);
        for travel in travels {
            let (world, request) = (Arc::clone(self), request.clone());
            tokio::spawn(async move {
                travel.arrive().await;
                world.serve(client, lane, number, &request).await;
            });
        }
        Call { world: Arc::clone(self), key: (client, number), answer }
    }

    /// A request has arrived: handles it and brings the answer back.
    async fn serve(self: Arc<Self>, client: ClientKey, lane: Lane, number: u64, request: &Request) {
        let (reply, back) = {
            let mut state = self.lock();
            if state.down {
                return;
            }
            let State { store, history, .. } = &mut *state;
            let (reply, pushes) = store.handle(client, request, self.moment(), history);
            for (to, push) in pushes {
                self.push(&mut state, to, push);
            }
            (reply, self.travel(&mut state, client, lane, false, self.plan.replies_lost))
        };
        let Some(back) = back else { return };
        back.arrive().await;
        self.runs_again(client).await;
        let mut state = self.lock();
        if let Some(caller) = state.calls.remove(&(client, number)) {
            let _ = caller.send(reply); // the caller may have given up
        }
    }

    fn push(self: &Arc<Self>, state: &mut State, client: ClientKey, push: Push) {
        if matches!(push, Push::Wake(..)) && !self.plan.wakes {
            return;
        }
        let Some(travel) = self.travel(state, client, Lane::User, false, self.plan.replies_lost * 2) else { return };
        let Some(inbox) = state.links.get(&client).and_then(|link| link.inbox.clone()) else { return };
        let world = Arc::clone(self);
        tokio::spawn(async move {
            travel.arrive().await;
            world.runs_again(client).await;
            inbox(push);
        });
    }

    /// Draws what happens to one message: how long it is under way, or nothing if it is lost.
    fn travel(&self, state: &mut State, client: ClientKey, lane: Lane, there: bool, lost: u64) -> Option<Travel> {
        let Plan { latency_ms, late, late_ms, in_order, .. } = self.plan;
        let mut takes = state.rng.millis(1, latency_ms);
        if !state.healed {
            if state.rng.chance(lost) {
                return None;
            }
            if state.rng.chance(late) {
                takes += state.rng.millis(1, late_ms);
            }
        }
        let link = state.links.entry(client).or_default();
        if link.vanished || link.isolated {
            return None;
        }
        let mut arrives = self.now() + takes;
        if in_order {
            let last = link.arrives.entry((lane, there)).or_insert(arrives);
            arrives = arrives.max(*last);
            *last = arrives;
        }
        Some(Travel { clock: self.clock, arrives })
    }

    /// Completes once the client is not standing still.
    fn runs_again(&self, client: ClientKey) -> impl Future<Output = ()> {
        std::future::poll_fn(move |context| match self.stops(client, context) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
    }

    fn stops(&self, client: ClientKey, context: &Context<'_>) -> bool {
        let mut state = self.lock();
        let link = state.links.entry(client).or_default();
        if link.frozen {
            link.stopped.push(context.waker().clone());
        }
        link.frozen
    }

    /// Runs a future of a client, which stands still whenever the client does.
    pub(crate) fn of_client<F: Future>(
        self: &Arc<Self>,
        client: ClientKey,
        work: F,
    ) -> impl Future<Output = F::Output> + use<F> {
        let (world, mut work) = (Arc::clone(self), Box::pin(work));
        std::future::poll_fn(move |context| {
            if world.stops(client, context) {
                return Poll::Pending;
            }
            Pin::new(&mut work).poll(context)
        })
    }

    /// A write that reaches the fenced resource of a name, which refuses it if it has seen a higher token.
    pub(crate) fn fence(&self, hold: HoldIx, name: NameIx, token: Token) {
        let now = self.now();
        let mut state = self.lock();
        let highest = state.fences.entry(name).or_insert(Token::new(0));
        let accepted = token >= *highest;
        *highest = token.max(*highest);
        state.history.write(now, Event::Wrote { hold, name, token, accepted });
    }

    /// Lets a fault happen.
    pub(crate) fn fault(&self, fault: Fault) {
        let now = self.now();
        let mut state = self.lock();
        state.history.write(now, Event::Fault(fault));
        match fault {
            Fault::Cut(client) => state.cut(client),
            Fault::Isolated(client, _) => state.link(client).isolated = true,
            Fault::Frozen(client, _) => state.link(client).frozen = true,
            Fault::Vanished(client) => state.link(client).vanished = true,
            Fault::Down => state.down = true,
            Fault::Back(keeps) => {
                state.down = false;
                state.store.restart(keeps);
            }
            Fault::Jump(_) => {}
            Fault::Healed => state.healed = true,
        }
    }

    /// Ends a client's isolation or freeze.
    pub(crate) fn recover(&self, client: ClientKey) {
        let stopped = {
            let mut state = self.lock();
            let link = state.link(client);
            (link.isolated, link.frozen) = (false, false);
            std::mem::take(&mut link.stopped)
        };
        stopped.into_iter().for_each(Waker::wake);
    }

    /// Draws from the world's own stream.
    pub(crate) fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.lock().rng)
    }

    /// Clients that are still there.
    pub(crate) fn alive(&self) -> BTreeSet<ClientKey> {
        let state = self.lock();
        (1..=self.plan.clients).filter(|client| state.links.get(client).is_none_or(|link| !link.vanished)).collect()
    }

    /// Takes the store down and brings it back.
    pub(crate) async fn restart(&self, keeps: Keeps, after: Duration) {
        self.fault(Fault::Down);
        self.clock.sleep_until(self.now() + after).await;
        self.fault(Fault::Back(keeps));
    }
}

impl State {
    fn link(&mut self, client: ClientKey) -> &mut Link {
        self.links.entry(client).or_default()
    }

    /// Whoever waits for an answer learns at once that none will come; what was sent may still arrive.
    fn cut(&mut self, client: ClientKey) {
        self.calls.retain(|(caller, _), _| *caller != client);
        self.link(client).arrives.clear();
    }
}

/// A message under way.
struct Travel {
    clock: Clock,
    arrives: Instant,
}

impl Travel {
    async fn arrive(&self) {
        self.clock.sleep_until(self.arrives).await;
    }
}

/// A request under way. Dropping it forgets the answer, not the request.
pub(crate) struct Call {
    world: Arc<World>,
    key: (ClientKey, u64),
    answer: oneshot::Receiver<Reply>,
}

impl Call {
    /// The answer; `None` if the connection broke.
    pub(crate) async fn answer(mut self) -> Option<Reply> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.world.lock().calls.remove(&self.key);
    }
}
