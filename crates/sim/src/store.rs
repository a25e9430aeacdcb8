//! The simulated server: core's [`Record`] of each name, and the memory of what is over.
//!
//! It is what a networked store must add to the record: an id that was released or turned away is remembered, so that a
//! late copy of its request does nothing; and an answer says how long a grant still *stands*, counted on this clock, so
//! that a client can count from its own sending.
//!
//! It also has the switches of most [`Mutant`]s: each is a few lines where the bug would be.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tenure_core::record::{Admission, ClientKey, Moment, Record, Stage, Ticket, Touched, Wake};
use tenure_core::{Ask, Claim, ClaimId, Instant, Kind, LockName, Mode, Token, View};

use crate::history::{Answer, Event, History, Keeps, Terms};
use crate::mutant::Mutant;

/// What a client can ask of the store.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Ask { claim: Claim, queue: bool },
    Touch { name: LockName, id: ClaimId },
    End { name: LockName, id: ClaimId, min_hold: Duration },
    Renew { claims: Vec<(LockName, ClaimId)> },
    Downgrade { name: LockName, id: ClaimId },
    View { name: LockName },
    List,
    AskHolders { name: LockName, ask: Ask },
    Break { name: LockName, only: Option<Token> },
}

/// What the store answers.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Granted(Given),
    /// In line, now or still.
    Waits,
    Busy,
    /// Not in line: thought dead, ended, or never known.
    Gone,
    Done,
    Renewed(Vec<Option<Option<Ask>>>),
    Downgraded(bool),
    View(View),
    List(Vec<View>),
    Count(usize),
    /// Used with another kind.
    Mismatch(String),
}

/// A grant, as the store tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) token: Token,
    /// How long it stood, when the store answered, until the holder must not trust it any more.
    pub(crate) stands_for: Duration,
    /// When that will be, on the store's clock: for clients that share it.
    pub(crate) until: Instant,
}

/// What the store says unasked.
#[derive(Clone, Debug)]
pub(crate) enum Push {
    Wake(ClaimId, Given),
    Asked(ClaimId, Ask),
    Lost(ClaimId),
}

/// The server.
pub(crate) struct SimStore {
    records: BTreeMap<LockName, Record>,
    /// The highest token of any record that was dropped.
    floor: Token,
    /// Ids that are over. A real store forgets them once no request can be that late; here that is never.
    over: HashSet<ClaimId>,
    alive: Duration,
    mutant: Option<Mutant>,
    pushes: Vec<(ClientKey, Push)>,
    /// [`Mutant::OnePredecessor`]: who waits outside the record, and behind whom.
    parked: Vec<(Claim, ClientKey, ClaimId)>,
    /// [`Mutant::WriterFastPath`]: who took a name without the record.
    fast: BTreeMap<LockName, (Claim, Token, Instant)>,
}

impl SimStore {
    pub(crate) fn new(alive: Duration, mutant: Option<Mutant>) -> Self {
        SimStore {
            records: BTreeMap::new(),
            floor: Token::new(0),
            over: HashSet::new(),
            alive,
            mutant,
            pushes: Vec::new(),
            parked: Vec::new(),
            fast: BTreeMap::new(),
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Handles one request; also gives what must be told to others.
    pub(crate) fn handle(
        &mut self,
        client: ClientKey,
        request: &Request,
        at: Moment,
        log: &mut History,
    ) -> (Reply, Vec<(ClientKey, Push)>) {
        let at = if self.is(Mutant::TokenRestarts) { Moment { wall_micros: 0, ..at } } else { at };
        let reply = match request {
            Request::Ask { claim, queue } => self.ask_for(client, claim, *queue, at, log),
            Request::Touch { name, id } => self.touch(name, *id, at, log),
            Request::End { name, id, min_hold } => self.end(name, *id, *min_hold, at, log),
            Request::Renew { claims } => {
                Reply::Renewed(claims.iter().map(|(name, id)| self.renew(name, *id, at, log)).collect())
            }
            Request::Downgrade { name, id } => self.downgrade(name, *id, at, log),
            Request::View { name } => Reply::View(self.view(name, at.now)),
            Request::List => Reply::List(self.records.iter().map(|(name, record)| record.view(name, at.now)).collect()),
            Request::AskHolders { name, ask } => {
                let told = self.records.get_mut(name).map(|record| record.ask(ask)).unwrap_or_default();
                self.pushes.extend(told.iter().map(|(client, id)| (*client, Push::Asked(*id, ask.clone()))));
                Reply::Count(told.len())
            }
            Request::Break { name, only } => {
                let broken =
                    self.verb(name, at, log, |record, woken| record.break_holds(*only, at, woken)).unwrap_or_default();
                self.pushes.extend(broken.iter().map(|(client, id)| (*client, Push::Lost(*id))));
                Reply::Count(broken.len())
            }
        };
        (reply, std::mem::take(&mut self.pushes))
    }

    /// Restarts, with what it keeps.
    pub(crate) fn restart(&mut self, keeps: Keeps) {
        match keeps {
            Keeps::All => {}
            Keeps::Holds => {
                for record in self.records.values_mut() {
                    record.line.retain(|ticket| !matches!(ticket.stage, Stage::Waiting { .. }));
                }
                self.parked.clear();
            }
            Keeps::Nothing => *self = SimStore::new(self.alive, self.mutant),
        }
    }

    /// Names that somebody still holds or waits for.
    pub(crate) fn residue(&mut self, at: Moment, log: &mut History) -> Vec<LockName> {
        let names: Vec<LockName> = self.records.keys().cloned().collect();
        for name in &names {
            self.verb(name, at, log, |record, woken| record.sweep(at, woken));
        }
        self.records.keys().cloned().chain(self.parked.iter().map(|(claim, ..)| claim.name.clone())).collect()
    }

    fn ask_for(&mut self, client: ClientKey, claim: &Claim, queue: bool, at: Moment, log: &mut History) -> Reply {
        if self.over.contains(&claim.id) {
            return Reply::Busy;
        }
        let (name, terms) = (log.name(&claim.name), terms(claim));
        let number = log.claim(claim.id);
        let answered = move |answer| Event::Answered { claim: number, name, terms, answer };
        if let Some(reply) = self.ask_on_fast_path(claim, at, log, answered) {
            return reply;
        }
        let (claim, queue_until) = (self.mutated(claim), queue.then_some(at.now + self.alive));
        // As the ask itself begins; apart, so that a claim that is forgotten and asks again is seen to do both.
        self.verb(&claim.name, at, log, |record, woken| record.sweep(at, woken));
        self.records.entry(claim.name.clone()).or_insert_with(|| Record::new(claim.kind, self.floor));
        if let Some(reply) = self.jump_the_line(client, &claim, at, log, answered) {
            return reply;
        }
        let parks = self.is(Mutant::OnePredecessor) && claim.kind == Kind::Semaphore;
        if parks && self.parked.iter().any(|(parked, ..)| parked.id == claim.id) {
            return Reply::Waits;
        }
        let twice = self.is(Mutant::DuplicateIsSecondTicket) && queue;
        let until = queue_until.filter(|_| !parks);
        let admission = self.verb(&claim.name, at, log, |record, woken| {
            let stands = record.line.iter().find(|ticket| ticket.id == claim.id).cloned();
            if let Some(ticket @ Ticket { stage: Stage::Waiting { .. }, .. }) = stands.filter(|_| twice) {
                record.line.push_back(ticket);
            }
            record.ask_for(&claim, client, until, at, woken)
        });
        match admission.expect("it was just made") {
            Ok(Admission::Granted(token)) => {
                log.write(at.now, answered(Answer::Granted(token)));
                self.given(&claim.name, claim.id, at.now).map_or(Reply::Gone, Reply::Granted)
            }
            Ok(Admission::Queued) => {
                log.write(at.now, answered(Answer::Queued));
                Reply::Waits
            }
            Ok(Admission::Busy) if parks && queue => {
                log.write(at.now, answered(Answer::Queued));
                let behind = self.last_in_line(&claim.name);
                self.parked.push((claim, client, behind));
                Reply::Waits
            }
            Ok(Admission::Busy) => {
                log.write(at.now, answered(Answer::Busy));
                if !self.is(Mutant::BusyForgotten) {
                    self.over.insert(claim.id); // one id, one ask: a late copy is turned away like the first
                }
                Reply::Busy
            }
            Err(error) => Reply::Mismatch(error.to_string()),
        }
    }

    fn touch(&mut self, name: &LockName, id: ClaimId, at: Moment, log: &mut History) -> Reply {
        let (claim, ix) = (log.claim(id), log.name(name));
        log.write(at.now, Event::Heard { claim, name: ix });
        let (alive_until, requeue) = (at.now + self.alive, self.is(Mutant::RequeueOnPoll));
        let touched = self.verb(name, at, log, |record, woken| {
            let place =
                record.line.iter().position(|ticket| ticket.id == id && matches!(ticket.stage, Stage::Waiting { .. }));
            if let Some(ticket) = place.filter(|_| requeue).and_then(|place| record.line.remove(place)) {
                record.line.push_back(ticket);
            }
            record.touch(id, alive_until, at, woken)
        });
        let parked = self.parked.iter().any(|(claim, ..)| claim.id == id);
        match touched.unwrap_or(Touched::Gone) {
            Touched::Granted(_) => self.given(name, id, at.now).map_or(Reply::Gone, Reply::Granted),
            answer => {
                let waits = answer == Touched::Waiting || parked;
                log.write(at.now, Event::Told { claim, name: ix, waits });
                if waits { Reply::Waits } else { Reply::Gone }
            }
        }
    }

    fn end(&mut self, name: &LockName, id: ClaimId, min_hold: Duration, at: Moment, log: &mut History) -> Reply {
        let (claim, ix) = (log.claim(id), log.name(name));
        log.write(at.now, Event::Ends { claim, name: ix, min_hold });
        if !self.is(Mutant::NoTombstones) {
            self.over.insert(id);
        }
        self.parked.retain(|(claim, ..)| claim.id != id);
        self.fast.retain(|_, (claim, ..)| claim.id != id);
        let anybody = self.is(Mutant::ReleaseIgnoresId);
        self.verb(name, at, log, |record, woken| {
            let theirs = record.line.front().map(|ticket| ticket.id).filter(|_| anybody);
            if !record.end(id, min_hold, at, woken)
                && let Some(theirs) = theirs
            {
                record.end(theirs, min_hold, at, woken);
            }
        });
        Reply::Done
    }

    fn renew(&mut self, name: &LockName, id: ClaimId, at: Moment, log: &mut History) -> Option<Option<Ask>> {
        let mutant = self.mutant;
        let mut renewed =
            self.verb(name, at, log, |record, _| record.renew(id, at).or_else(|| renew_wrongly(record, id, at, mutant)));
        if let Some((claim, _, expires)) =
            self.fast.get_mut(name).filter(|(claim, _, expires)| claim.id == id && *expires > at.now)
        {
            *expires = at.now + claim.ttl + claim.lock_delay;
            renewed = Some(Some(None));
        }
        let event = Event::Renewed {
            claim: log.claim(id),
            name: log.name(name),
            held: renewed.as_ref().is_some_and(Option::is_some),
        };
        log.write(at.now, event);
        renewed.flatten()
    }

    fn downgrade(&mut self, name: &LockName, id: ClaimId, at: Moment, log: &mut History) -> Reply {
        let (claim, ix, mutant) = (log.claim(id), log.name(name), self.mutant);
        if let Some(record) = self.records.get_mut(name) {
            downgrade_wrongly(record, id, at, mutant);
        }
        // As the downgrade itself begins; apart, so that who is let in by it is seen before who is
        // downgraded.
        self.verb(name, at, log, |record, woken| record.sweep(at, woken));
        let Some(record) = self.records.get_mut(name) else { return Reply::Downgraded(false) };
        let (before, waited, mut woken) = (record.clone(), waiters(record), Vec::new());
        let first = record.line.front().map(|ticket| ticket.id).filter(|_| mutant == Some(Mutant::DowngradeWrongId));
        let held = record.downgrade(first.unwrap_or(id), at, &mut woken);
        if mutant == Some(Mutant::DowngradeLetsNobodyIn) {
            *record = before;
            woken.clear();
        }
        log.write(at.now, Event::Downgraded { claim, name: ix, held });
        self.settle(name, &waited, woken, at, log);
        Reply::Downgraded(held)
    }

    fn view(&self, name: &LockName, now: Instant) -> View {
        self.records.get(name).map_or_else(|| View::free(name.clone()), |record| record.view(name, now))
    }

    /// Runs one verb on the record of a name, if it has one.
    fn verb<T>(
        &mut self,
        name: &LockName,
        at: Moment,
        log: &mut History,
        verb: impl FnOnce(&mut Record, &mut Vec<Wake>) -> T,
    ) -> Option<T> {
        let mut woken = Vec::new();
        let record = self.records.get_mut(name)?;
        let waited = waiters(record);
        let answer = verb(record, &mut woken);
        self.settle(name, &waited, woken, at, log);
        Some(answer)
    }

    /// What every verb ends with: whoever was let in is told, and an idle record is dropped.
    fn settle(&mut self, name: &LockName, waited: &[ClaimId], woken: Vec<Wake>, at: Moment, log: &mut History) {
        let here =
            |id: &ClaimId| self.records.get(name).is_some_and(|record| record.line.iter().any(|ticket| ticket.id == *id));
        for forgotten in waited.iter().filter(|id| !here(id)) {
            let event = Event::Forgot { claim: log.claim(*forgotten), name: log.name(name) };
            log.write(at.now, event);
        }
        for wake in woken {
            if self.is(Mutant::HandoverNeverExpires) {
                let ticket = self.records.get_mut(name).and_then(|record| record.line.iter_mut().find(|t| t.id == wake.id));
                if let Some(Ticket { stage: Stage::Held { expires, .. }, .. }) = ticket {
                    *expires = Instant::NEVER;
                }
            }
            self.let_in(name, wake.client, wake.id, wake.token, at, log);
        }
        self.unpark(name, at, log);
        if self.records.get(name).is_some_and(Record::is_idle) {
            let record = self.records.remove(name).expect("it was just there");
            if !self.is(Mutant::TokenRestarts) {
                self.floor = self.floor.max(record.last);
            }
        }
    }

    fn let_in(&mut self, name: &LockName, client: ClientKey, id: ClaimId, token: Token, at: Moment, log: &mut History) {
        let event = Event::LetIn { claim: log.claim(id), name: log.name(name), token };
        log.write(at.now, event);
        if let Some(given) = self.given(name, id, at.now) {
            self.pushes.push((client, Push::Wake(id, given)));
        }
    }

    /// How long a held claim still stands.
    fn given(&self, name: &LockName, id: ClaimId, now: Instant) -> Option<Given> {
        let ticket = self.records.get(name)?.line.iter().find(|ticket| ticket.id == id)?;
        let Stage::Held { token, expires, .. } = ticket.stage else { return None };
        let mut stands_for = (expires - ticket.lock_delay).since(now).min(ticket.ttl);
        if self.is(Mutant::ExpiryShort) {
            stands_for = stands_for * 5 / 4;
        }
        if self.is(Mutant::HandoverTrustedTooLong) {
            stands_for = ticket.ttl;
        }
        Some(Given { token, stands_for, until: now + stands_for })
    }

    /// The claim as a store with a bug writes it down.
    fn mutated(&self, claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        match (self.mutant, claim.mode) {
            (Some(Mutant::ExpiryShort), _) => {
                claim.ttl = claim.ttl * 4 / 5;
                claim.handover_ttl = claim.handover_ttl * 4 / 5;
            }
            (Some(Mutant::LockDelayIgnored), _) => claim.lock_delay = Duration::ZERO,
            (Some(Mutant::PermitsNotWeighed), Mode::Permits { of, .. }) => {
                claim.mode = Mode::Permits { take: std::num::NonZeroU32::MIN, of };
            }
            _ => {}
        }
        claim
    }

    /// [`Mutant::NewcomerBarges`] and [`Mutant::ReadersPassWriters`]: in front of everybody who waits.
    fn jump_the_line(
        &mut self,
        client: ClientKey,
        claim: &Claim,
        at: Moment,
        log: &mut History,
        answered: impl Fn(Answer) -> Event,
    ) -> Option<Reply> {
        let barges = self.is(Mutant::NewcomerBarges) && claim.kind == Kind::FairMutex;
        let passes = self.is(Mutant::ReadersPassWriters) && claim.mode == Mode::Shared;
        if !barges && !passes {
            return None;
        }
        let record = self.records.get_mut(&claim.name)?;
        if record.line.iter().any(|ticket| ticket.id == claim.id) {
            return None;
        }
        let first = record.line.iter().position(|ticket| matches!(ticket.stage, Stage::Waiting { .. }))?;
        if passes && record.line.iter().take(first).any(|ticket| ticket.mode != Mode::Shared) {
            return None;
        }
        let mut ticket = Record::new(claim.kind, record.last);
        ticket.ask_for(claim, client, None, at, &mut Vec::new()).ok()?;
        let mut ticket = ticket.line.pop_front()?;
        let answer = if passes {
            record.last = Token::next(record.last, at.wall_micros);
            ticket.stage = Stage::Held { token: record.last, expires: at.now + claim.ttl + claim.lock_delay, asked: None };
            Answer::Granted(record.last)
        } else {
            ticket.stage = Stage::Waiting { alive_until: at.now + self.alive };
            Answer::Queued
        };
        record.line.insert(first, ticket);
        log.write(at.now, answered(answer));
        Some(self.given(&claim.name, claim.id, at.now).map_or(Reply::Waits, Reply::Granted))
    }

    /// [`Mutant::WriterFastPath`].
    fn ask_on_fast_path(
        &mut self,
        claim: &Claim,
        at: Moment,
        log: &mut History,
        answered: impl Fn(Answer) -> Event,
    ) -> Option<Reply> {
        if !self.is(Mutant::WriterFastPath) || claim.kind != Kind::RwLock || claim.mode != Mode::Exclusive {
            return None;
        }
        self.fast.retain(|_, (_, _, expires)| *expires > at.now);
        if self.fast.get(&claim.name).is_some_and(|(owner, ..)| owner.id != claim.id) {
            self.over.insert(claim.id);
            log.write(at.now, answered(Answer::Busy));
            return Some(Reply::Busy);
        }
        if self.records.contains_key(&claim.name) {
            return None;
        }
        self.floor = Token::next(self.floor, at.wall_micros);
        let expires = at.now + claim.ttl + claim.lock_delay;
        let (_, token, expires) = *self.fast.entry(claim.name.clone()).or_insert((claim.clone(), self.floor, expires));
        log.write(at.now, answered(Answer::Granted(token)));
        let stands_for = (expires - claim.lock_delay).since(at.now);
        Some(Reply::Granted(Given { token, stands_for, until: at.now + stands_for }))
    }

    /// [`Mutant::OnePredecessor`]: lets those in whose predecessor has gone, if there is room.
    fn unpark(&mut self, name: &LockName, at: Moment, log: &mut History) {
        if !self.is(Mutant::OnePredecessor) {
            return;
        }
        let here = |store: &Self, id: ClaimId| {
            store.parked.iter().any(|(claim, ..)| claim.id == id)
                || store.records.get(name).is_some_and(|record| record.line.iter().any(|ticket| ticket.id == id))
        };
        while let Some(place) = self.parked.iter().position(|(claim, _, behind)| claim.name == *name && !here(self, *behind))
        {
            let (claim, client, _) = self.parked.remove(place);
            let record = self.records.entry(name.clone()).or_insert_with(|| Record::new(claim.kind, self.floor));
            match record.ask_for(&claim, client, None, at, &mut Vec::new()) {
                Ok(Admission::Granted(token)) => {
                    // As any grant to a waiter: it stands for the short first ttl.
                    if let Some(Ticket { stage: Stage::Held { expires, .. }, .. }) = record.line.back_mut() {
                        *expires = at.now + claim.handover_ttl + claim.lock_delay;
                    }
                    self.let_in(name, client, claim.id, token, at, log);
                }
                _ => {
                    let behind = record.line.back().map_or(claim.id, |ticket| ticket.id);
                    self.parked.insert(place, (claim, client, behind));
                    return;
                }
            }
        }
    }

    fn last_in_line(&self, name: &LockName) -> ClaimId {
        let parked = self.parked.iter().rev().find(|(claim, ..)| claim.name == *name).map(|(claim, ..)| claim.id);
        parked.unwrap_or_else(|| self.records[name].line.back().expect("somebody was in the way").id)
    }
}

/// [`Mutant::RenewAfterExpiry`] and [`Mutant::RenewWrongId`].
fn renew_wrongly(record: &mut Record, id: ClaimId, at: Moment, mutant: Option<Mutant>) -> Option<Option<Ask>> {
    let wrong = match mutant? {
        Mutant::RenewAfterExpiry => |ticket: &Ticket, id: ClaimId| ticket.id == id,
        Mutant::RenewWrongId => |_: &Ticket, _: ClaimId| true,
        _ => return None,
    };
    let ticket = record.line.iter_mut().find(|ticket| matches!(ticket.stage, Stage::Held { .. }) && wrong(ticket, id))?;
    if let Stage::Held { expires, .. } = &mut ticket.stage {
        *expires = at.now + ticket.ttl + ticket.lock_delay;
    }
    Some(None)
}

/// [`Mutant::DowngradeAfterExpiry`].
fn downgrade_wrongly(record: &mut Record, id: ClaimId, at: Moment, mutant: Option<Mutant>) {
    let ticket = record.line.iter_mut().find(|ticket| ticket.id == id);
    if mutant == Some(Mutant::DowngradeAfterExpiry)
        && let Some(Ticket { stage: Stage::Held { expires, .. }, ttl, .. }) = ticket
    {
        *expires = (*expires).max(at.now + *ttl);
    }
}

fn waiters(record: &Record) -> Vec<ClaimId> {
    record.line.iter().filter(|ticket| matches!(ticket.stage, Stage::Waiting { .. })).map(|ticket| ticket.id).collect()
}

fn terms(claim: &Claim) -> Terms {
    let Claim { kind, mode, ttl, handover_ttl, lock_delay, .. } = *claim;
    Terms { kind, mode, ttl, handover_ttl, lock_delay }
}
