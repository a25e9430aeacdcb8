//! A server in this process that keeps the line with core's own [`Record`], and a network to it that can be bad: what the
//! client's side of the lease stores is tested with before any real server is.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tenure_core::backend::{Abilities, BoxFuture, Fencing, Finding, Level, Liveness, Reach, Waiting, async_trait};
use tenure_core::lease::{
    ALIVE, Answer, Asked, Asking, Desk, Ended, Ending, Failure, Fate, Limits, Listener, Looked, Message, QUIET, Renewed,
    Said, Touched,
};
use tenure_core::record::{Admission, ClientKey, Moment, Record, Stage, Touched as Stands, Wake};
use tenure_core::{
    Ask, Claim, ClaimId, Clock, Error, ErrorKind, Instant, Kind, LockName, MIN_TTL, Mode, Result, Token, Versioned, View,
};

/// What is wrong with the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Nothing.
    Fair,
    /// Nobody is ever told anything.
    Mute,
    /// Some messages and answers are lost, and some requests; which, a counter decides.
    Foul,
}

/// The server.
pub(crate) struct Server {
    weather: Weather,
    state: Mutex<State>,
    requests: AtomicU64,
    /// What becomes of the next asks, before the server sees any.
    pub(crate) next: Mutex<VecDeque<Fortune>>,
    /// From now on it does not answer to chores; and how many it was asked for since.
    pub(crate) ignores_chores: AtomicBool,
    pub(crate) chores: AtomicU64,
    /// From now on ends are lost, and nobody knows; and how many were asked for together, each time one was not.
    pub(crate) loses_ends: AtomicBool,
    pub(crate) ends: Mutex<Vec<usize>>,
    /// How many milliseconds late its answers come.
    pub(crate) late: AtomicU64,
    /// Somebody breaks what is renewed next, just before, and nobody is told.
    pub(crate) breaks: AtomicBool,
    /// The next look that fetches a message has no answer.
    pub(crate) loses_mail: AtomicBool,
    /// What is on its disk, if that is not everything: it is killed, and has only this, as soon as a look has shown a grant.
    disk: Mutex<Option<BTreeMap<LockName, (Record, Instant)>>>,
}

/// What may become of an ask.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fortune {
    /// It is lost, and nobody knows.
    Lost,
    /// It is done, and its answer is lost.
    Unanswered,
    /// It is refused, and would be again.
    Refused,
    /// Somebody's transaction has the name.
    Locked,
}

#[derive(Default)]
struct State {
    names: BTreeMap<LockName, (Record, Instant)>,
    clients: HashMap<ClientKey, Arc<dyn Listener>>,
    mail: HashMap<ClientKey, Vec<Message>>,
    marks: HashMap<ClaimId, Instant>,
    cells: BTreeMap<LockName, (Vec<u8>, u64)>,
    floor: u64,
    next_client: ClientKey,
}

impl Server {
    pub(crate) fn new(weather: Weather) -> Arc<Self> {
        Arc::new(Server {
            weather,
            state: Mutex::default(),
            requests: AtomicU64::new(0),
            next: Mutex::default(),
            ignores_chores: AtomicBool::new(false),
            chores: AtomicU64::new(0),
            loses_ends: AtomicBool::new(false),
            ends: Mutex::default(),
            late: AtomicU64::new(0),
            breaks: AtomicBool::new(false),
            loses_mail: AtomicBool::new(false),
            disk: Mutex::default(),
        })
    }

    /// Whatever comes after this is not written to the disk any more.
    pub(crate) fn loses_its_disk(&self) {
        *self.disk.lock().unwrap() = Some(self.state().names.clone());
    }

    pub(crate) fn desk(self: &Arc<Self>) -> RecordDesk {
        let mut state = self.state();
        state.next_client += 1;
        RecordDesk { server: Arc::clone(self), client: state.next_client, listener: OnceLock::new() }
    }

    pub(crate) fn residue(&self) -> usize {
        let state = self.state();
        state.names.len() + state.cells.len() + state.mail.values().map(Vec::len).sum::<usize>()
    }

    /// How many ends have left a mark.
    pub(crate) fn marks(&self) -> usize {
        self.state().marks.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether this one is among the unlucky, one in `many`.
    fn is_lost(&self, many: u64) -> bool {
        self.weather == Weather::Foul && self.requests.fetch_add(1, Ordering::Relaxed) % many == many - 1
    }

    fn tell(&self, clients: &HashMap<ClientKey, Arc<dyn Listener>>, client: ClientKey, message: Message) {
        if self.weather != Weather::Mute
            && !self.is_lost(3)
            && let Some(listener) = clients.get(&client)
        {
            listener.told(message);
        }
    }
}

/// One client's way to it.
pub(crate) struct RecordDesk {
    server: Arc<Server>,
    client: ClientKey,
    listener: OnceLock<Arc<dyn Listener>>,
}

fn micros(at: Instant) -> u64 {
    at.as_nanos() / 1_000
}

fn moment() -> Moment {
    Moment { now: Instant::now(), wall_micros: Clock::Boot.wall_micros() }
}

fn broken(fate: Fate) -> Failure {
    Failure { error: Error::new(ErrorKind::Unavailable, "the weather is foul"), fate, again: true }
}

impl RecordDesk {
    /// One request that may be made again: it may be lost on its way, or its answer may be.
    fn request<'a, T: Send + 'a>(
        &'a self,
        verb: impl FnOnce(&Server, &mut State, Moment) -> T + Send + 'a,
    ) -> BoxFuture<'a, Answer<T>> {
        self.carry(true, verb)
    }

    /// One that may not: whether it was executed is known, or a test of what comes of it would be a test of luck.
    fn once<'a, T: Send + 'a>(
        &'a self,
        verb: impl FnOnce(&Server, &mut State, Moment) -> T + Send + 'a,
    ) -> BoxFuture<'a, Answer<T>> {
        self.carry(false, verb)
    }

    fn carry<'a, T: Send + 'a>(
        &'a self,
        again: bool,
        verb: impl FnOnce(&Server, &mut State, Moment) -> T + Send + 'a,
    ) -> BoxFuture<'a, Answer<T>> {
        Box::pin(async move {
            tokio::task::yield_now().await; // as a network would
            if self.server.is_lost(13) {
                return Err(broken(Fate::Refused));
            }
            let answer = {
                let (mut state, at) = (self.server.state(), moment());
                Said { now: micros(at.now), value: verb(&self.server, &mut state, at) }
            };
            if again && self.server.is_lost(11) {
                return Err(broken(Fate::Unknown));
            }
            match self.server.late.load(Ordering::Relaxed) {
                0 => tokio::task::yield_now().await,
                late => tokio::time::sleep(Duration::from_millis(late)).await,
            }
            Ok(answer)
        })
    }
}

impl State {
    /// One verb on a record; whoever it lets in is told.
    fn with<T>(
        &mut self,
        server: &Server,
        name: &LockName,
        at: Moment,
        verb: impl FnOnce(&mut Record, &mut Vec<Wake>) -> T,
    ) -> Option<T> {
        let (record, used) = self.names.get_mut(name)?;
        *used = at.now;
        let mut woken = Vec::new();
        let answer = verb(record, &mut woken);
        for Wake { client, id, token, granted, .. } in woken {
            let message = Message::Granted { id, token, granted: micros(granted) };
            server.tell(&self.clients, client, message);
        }
        Some(answer)
    }

    fn say(&mut self, server: &Server, client: ClientKey, message: Message) {
        self.mail.entry(client).or_default().push(message.clone());
        server.tell(&self.clients, client, message);
    }

    fn forget(&mut self, name: &LockName, before: Instant, at: Moment) {
        if let Some((record, used)) = self.names.get_mut(name) {
            record.sweep(at, &mut Vec::new());
            if record.is_idle() && *used <= before {
                self.floor = self.floor.max(record.last.get());
                self.names.remove(name);
            }
        }
    }
}

/// What a place in line looks like to whoever stands in it.
fn place(record: &Record, id: ClaimId, now: Instant) -> (bool, Option<Duration>) {
    (record.first_waiter() == Some(id), record.next_change().map(|at| at.since(now)))
}

/// How long a hold is held from now on.
fn left(record: &Record, id: ClaimId, now: Instant) -> Duration {
    let ticket = record.line.iter().find(|ticket| ticket.id == id).expect("it is held");
    match ticket.stage {
        Stage::Held { expires, .. } => expires.since(now).saturating_sub(ticket.lock_delay),
        _ => Duration::ZERO,
    }
}

#[async_trait]
impl Desk for RecordDesk {
    fn abilities(&self) -> Abilities {
        Abilities {
            store: "record",
            kinds: &Kind::ALL,
            fencing: Fencing::DataOrClock,
            waiting: Waiting::Notified,
            liveness: Liveness::Lease,
            reach: Reach::Process,
            cells: true,
            delays: true,
            downgrade: true,
            shortest_ttl: MIN_TTL,
        }
    }

    fn describe(&self) -> String {
        "record".to_owned()
    }

    fn client(&self) -> ClientKey {
        self.client
    }

    fn limits(&self) -> Limits {
        Limits { answer: Duration::from_secs(20), patience: Duration::from_secs(30) }
    }

    fn attach(&self, listener: Arc<dyn Listener>) {
        let sent = Instant::now();
        listener.connected("one", sent, micros(sent));
        if self.server.weather != Weather::Mute {
            listener.listening();
        }
        self.server.state().clients.insert(self.client, Arc::clone(&listener));
        let _ = self.listener.set(listener);
    }

    async fn ask(&self, asks: &[Asking]) -> Answer<Vec<Asked>> {
        assert!(asks.is_sorted_by(|one, other| one.claim.name <= other.claim.name), "in the order of their names");
        let ask = move |server: &Server, state: &mut State, at: Moment| {
            asks.iter().map(|ask| ask_one(self.client, server, state, at, ask)).collect()
        };
        let fortune = self.server.next.lock().unwrap().pop_front();
        match fortune {
            Some(Fortune::Lost) => Err(broken(Fate::Unknown)),
            Some(Fortune::Unanswered) => self.once(ask).await.and_then(|_| Err(broken(Fate::Unknown))),
            Some(Fortune::Refused) => Err(Failure { again: false, ..broken(Fate::Refused) }),
            Some(Fortune::Locked) => self.once(move |_, _, _| vec![Asked::Locked; asks.len()]).await,
            None => self.request(ask).await,
        }
    }

    async fn end(&self, ends: &[Ending]) -> Answer<Vec<Ended>> {
        assert!(ends.is_sorted_by(|one, other| one.name <= other.name), "in the order of their names");
        if self.server.loses_ends.load(Ordering::Relaxed) {
            return Err(Failure { again: false, ..broken(Fate::Unknown) });
        }
        self.server.ends.lock().unwrap().push(ends.len());
        self.request(move |server, state, at| {
            let end = |Ending { name, id, min_hold, mark }: &Ending| {
                let was_there = state.with(server, name, at, |record, woken| record.end(*id, *min_hold, at, woken));
                if !mark.is_zero() {
                    state.marks.insert(*id, at.now + *mark);
                }
                if was_there == Some(true) { Ended::Done } else { Ended::Nothing }
            };
            ends.iter().map(end).collect()
        })
        .await
    }

    async fn renew(&self, claims: &[Claim]) -> Answer<Vec<Renewed>> {
        self.request(move |server, state, at| {
            let breaks = server.breaks.swap(false, Ordering::Relaxed);
            for claim in claims.iter().filter(|_| breaks) {
                state.with(server, &claim.name, at, |record, woken| record.break_holds(None, at, woken));
            }
            let renew = |claim: &Claim| {
                let renewed = state.with(server, &claim.name, at, |record, _| record.renew(claim.id, at)).flatten();
                renewed.map_or(Renewed::Lost, Renewed::Held)
            };
            claims.iter().map(renew).collect()
        })
        .await
    }

    async fn touch(&self, beat: bool, waiters: &[(LockName, ClaimId)]) -> Answer<Looked> {
        let has_mail = self.server.state().mail.contains_key(&self.client);
        if has_mail && self.server.loses_mail.swap(false, Ordering::Relaxed) {
            self.server.state().mail.remove(&self.client);
            return Err(broken(Fate::Unknown));
        }
        self.request(move |server, state, at| {
            if beat {
                let tickets = state.names.values_mut().flat_map(|(record, _)| record.line.iter_mut());
                for ticket in tickets.filter(|ticket| ticket.client == self.client) {
                    if let Stage::Waiting { alive_until } = &mut ticket.stage
                        && *alive_until > at.now
                    {
                        *alive_until = at.now + ALIVE;
                    }
                }
            }
            let look = |(name, id): &(LockName, ClaimId)| {
                let stands = state.with(server, name, at, |record, woken| {
                    record.sweep(at, woken);
                    (record.standing(*id), record.clone())
                });
                match stands {
                    Some((Stands::Waiting, record)) => {
                        let (first, change_in) = place(&record, *id, at.now);
                        Touched::Waiting { first, change_in }
                    }
                    Some((Stands::Granted(wake), record)) => {
                        let left = left(&record, *id, at.now);
                        Touched::Granted { token: wake.token, since: micros(wake.granted), left }
                    }
                    Some((Stands::Gone, _)) | None => Touched::Gone,
                }
            };
            let waiters: Vec<Touched> = waiters.iter().map(look).collect();
            if waiters.iter().any(|touched| matches!(touched, Touched::Granted { .. }))
                && let Some(kept) = server.disk.lock().unwrap().take()
            {
                state.names = kept;
            }
            Looked { waiters, mail: state.mail.remove(&self.client).unwrap_or_default() }
        })
        .await
    }

    async fn downgrade(&self, claim: &Claim) -> Answer<bool> {
        self.request(move |server, state, at| {
            let verb = |record: &mut Record, woken: &mut Vec<Wake>| record.downgrade(claim.id, at, woken);
            state.with(server, &claim.name, at, verb).unwrap_or_default()
        })
        .await
    }

    async fn view(&self, name: &LockName) -> Answer<View> {
        self.request(move |_, state, at| {
            state.names.get(name).map_or_else(|| View::free(name.clone()), |(record, _)| record.view(name, at.now))
        })
        .await
    }

    async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Answer<Vec<View>> {
        self.request(move |_, state, at| {
            let names = state.names.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
            let names = names.filter(|(name, _)| after.is_none_or(|after| *name > after));
            let views = names.map(|(name, (record, _))| record.view(name, at.now));
            views.filter(|view| !view.is_free()).take(limit).collect()
        })
        .await
    }

    async fn request(&self, name: &LockName, ask: &Ask) -> Answer<usize> {
        self.once(move |server, state, at| {
            let told = state.with(server, name, at, |record, _| record.ask(ask)).unwrap_or_default();
            told.iter().for_each(|(client, id)| state.say(server, *client, Message::Asked(*id, ask.clone())));
            told.len()
        })
        .await
    }

    async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Answer<usize> {
        self.once(move |server, state, at| {
            let verb = |record: &mut Record, woken: &mut Vec<Wake>| record.break_holds(only, at, woken);
            let broken = state.with(server, name, at, verb).unwrap_or_default();
            broken.iter().for_each(|(client, id)| state.say(server, *client, Message::Lost(*id)));
            broken.len()
        })
        .await
    }

    async fn cell_get(&self, name: &LockName) -> Answer<Versioned> {
        RecordDesk::request(self, move |_, state, _| {
            state.cells.get(name).map_or((None, 0), |(value, version)| (Some(value.clone()), *version))
        })
        .await
    }

    async fn cell_set(&self, name: &LockName, expected: u64, value: Option<&[u8]>) -> Answer<Option<u64>> {
        self.once(move |_, state, at| {
            let current = state.cells.get(name).map_or(0, |(_, version)| *version);
            if current != expected {
                return None;
            }
            let version = Token::next(Token::new(current.max(state.floor)), at.wall_micros).get();
            match value {
                Some(value) => drop(state.cells.insert(name.clone(), (value.to_vec(), version))),
                None => drop(state.cells.remove(name)),
            }
            state.floor = state.floor.max(version);
            Some(version)
        })
        .await
    }

    async fn tidy_after(&self, after: Option<&LockName>, limit: usize, quiet: Duration) -> Answer<Option<LockName>> {
        if quiet == QUIET && self.server.ignores_chores.load(Ordering::Relaxed) {
            self.server.chores.fetch_add(1, Ordering::Relaxed);
            return std::future::pending().await;
        }
        RecordDesk::request(self, move |_, state, at| {
            let names = state.names.keys().filter(|name| after.is_none_or(|after| *name > after));
            let names: Vec<LockName> = names.take(limit).cloned().collect();
            names.iter().for_each(|name| state.forget(name, at.now - quiet, at));
            names.last().filter(|_| names.len() == limit).cloned()
        })
        .await
    }

    async fn leave(&self) -> Answer<()> {
        RecordDesk::request(self, move |_, state, _| {
            state.mail.remove(&self.client);
        })
        .await
    }

    async fn probe(&self) -> Answer<()> {
        RecordDesk::request(self, |_, _, _| ()).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        let says = "the line is kept in this process".to_owned();
        Ok(vec![Finding { level: Level::Good, what: "server".to_owned(), says }])
    }
}

impl Drop for RecordDesk {
    fn drop(&mut self) {
        let listener = self.server.state().clients.remove(&self.client);
        drop(listener);
    }
}

fn ask_one(client: ClientKey, server: &Server, state: &mut State, at: Moment, ask: &Asking) -> Asked {
    let Asking { claim, queue } = ask;
    if state.marks.get(&claim.id).is_some_and(|until| *until > at.now) {
        return Asked::Ended;
    }
    let fresh = || (Record::new(claim.kind, Token::new(state.floor)), at.now);
    state.names.entry(claim.name.clone()).or_insert_with(fresh);
    let queue_until = queue.then(|| at.now + ALIVE);
    let asked = state.with(server, &claim.name, at, |record, woken| {
        let admission = record.ask_for(claim, client, queue_until, at, woken);
        (admission, record.clone())
    });
    let (admission, record) = asked.expect("it is there");
    match admission {
        Ok(Admission::Granted(token)) => Asked::Granted { token, left: left(&record, claim.id, at.now) },
        Ok(Admission::Queued) => {
            let (first, change_in) = place(&record, claim.id, at.now);
            Asked::Queued { first, change_in }
        }
        Ok(Admission::Busy) => Asked::Busy,
        Err(_) => {
            let of = match record.line[0].mode {
                Mode::Permits { of, .. } => of.get(),
                _ => 0,
            };
            Asked::Mismatch { kind: record.kind, of }
        }
    }
}
