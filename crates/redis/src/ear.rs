//! Waiting, and being told.
//!
//! Whoever is let in by another's release is told by a message on its client's inbox, and holds when that arrives. A message
//! is a hint all the same: it may be lost with its connection, and a hold that ends by time is announced by nobody. So every
//! waiter is also *touched* about once a second, all of a client's waiters in one command, which keeps its place in line and
//! says how it stands; and the first in line is touched at the moment when time alone may let it in.
//!
//! # When was it granted, on our clock?
//!
//! The server says when, on its own clock. Two bounds are known on ours, both from below, and the later one counts:
//!
//! - the last answer about this claim was asked for at `sent` and given at the server's time `then`: a grant made at or after
//!   `then` was made after `sent`. One made before is an old message, stuck somewhere since: it was over when that answer was
//!   given, and is not listened to. Nor is one from another server.
//! - any answer that was asked for at `sent` showed the server's time `then`: the server's `granted` is at least
//!   `sent + (granted − then)`, less 1 % for clocks of different speed. This one needs a server whose clock does not step
//!   forward, which every hold on Redis needs anyway; a step back only makes the bound earlier.
//!
//! # Who says so?
//!
//! Whoever may publish on an inbox, and read there or in a record which claim waits. So a grant's message carries the waiter's
//! secret, which its client made of the claim's id and a key of its own, and the server keeps in `line`, where those who may
//! only look do not read. It says nothing of how long the grant stands, since the waiter knows that itself. That a hold is
//! lost is no more than a hint: a renewal says whether it is true.
//!
//! What is not listened to is found by the next touch, if it is still true.
//!
//! # Which grants did a touch find that a message should have told?
//!
//! They are [counted](tenure_core::Client::grants_by_poll), and what counts is what is known, not how long anything took. The server has sent
//! a message for a grant that it made after it last said that the claim waits; and that has arrived, or will, if this client has
//! listened ever since it asked for that. A grant whose time is the touch's own was made by the touch, since time alone let it in. A
//! message may still be on its way when a touch overtakes it: so a grant that is only just made does not count, and any other not any
//! more once its message arrives.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tenure_core::{Claim, ClaimId, Error, Grant, Instant, LockName, News, Token, jitter, margin, random};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use crate::codec::{Message, Secret};
use crate::examine::Server;
use crate::link::Listener;
use crate::verbs::Touched;
use tenure_core::Address;

/// How often a waiter makes itself heard.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long the server keeps the place of a waiter that it does not hear of.
pub(crate) const ALIVE: Duration = Duration::from_secs(4);
/// A message about a grant that was made so long before a touch is on its way as surely as what the touch says.
const ON_ITS_WAY: Duration = Duration::from_millis(10);
/// Waiters that would be touched within this time go along now.
const COMPANY: Duration = Duration::from_millis(200);

/// What a waiter learns.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It was let in.
    Granted(Grant),
    /// The server does not know it any more, and said so then.
    Gone(Heard),
    /// The server could not be reached for too long.
    Failed(Error),
}

/// All waiters of a client, and what is known about its servers' clocks.
pub(crate) struct Ear {
    /// What the secrets of its waiters are made of.
    key: [u8; 32],
    waits: Mutex<HashMap<ClaimId, Waiter>>,
    /// How many have ever waited.
    came: AtomicU64,
    /// Where in a second this client's heart beats: all its waiters at once, and not all clients at once.
    phase: Duration,
    clocks: Mutex<HashMap<Address, Reading>>,
    pub(crate) news: OnceLock<News>,
    /// A connection is gone on which we may have listened.
    deaf: AtomicBool,
    /// When that was last so, or another one came.
    silenced_at: AtomicU64,
    /// When the heart wakes up by itself.
    planned: AtomicU64,
    /// Rung when somebody should be touched earlier than that.
    pub(crate) bell: Notify,
}

struct Waiter {
    name: LockName,
    /// How long it holds when it is let in.
    handover_ttl: Duration,
    /// Who came first has the lower number.
    number: u64,
    verdict: oneshot::Sender<Verdict>,
    /// The last that was heard about it: a grant, if one comes, comes after that.
    last: Option<Heard>,
    /// When to touch it.
    due: Instant,
    /// When the server was last heard about it.
    heard: Instant,
}

/// The last answer about a claim.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    server: Address,
    /// When it was asked for.
    sent: Instant,
    /// When it was given, on the server's clock.
    then: u64,
}

impl Heard {
    pub(crate) fn new(server: &Address, sent: Instant, then: u64) -> Self {
        Heard { server: server.clone(), sent, then }
    }
}

/// One look at a server's clock, and which run of the server it was.
struct Reading {
    run: Run,
    sent: Instant,
    then: u64,
}

/// One run of a server, from its start to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Another one after every start; empty where the server does not say.
    pub(crate) id: String,
    /// How long it had been up at least when it was asked; `None` where the server does not say.
    pub(crate) uptime: Option<Duration>,
    /// When it was asked.
    pub(crate) asked: Instant,
}

impl Run {
    /// How long it has been up at least.
    pub(crate) fn up_for(&self) -> Option<Duration> {
        self.uptime.map(|uptime| uptime + Instant::now().since(self.asked))
    }
}

/// A waiter to be touched.
pub(crate) struct Due {
    pub(crate) name: LockName,
    pub(crate) id: ClaimId,
}

impl Default for Ear {
    fn default() -> Self {
        Ear {
            key: random(),
            waits: Mutex::default(),
            came: AtomicU64::new(0),
            phase: jitter(HEARTBEAT),
            clocks: Mutex::default(),
            news: OnceLock::new(),
            deaf: AtomicBool::new(false),
            silenced_at: AtomicU64::new(0),
            planned: AtomicU64::new(0),
            bell: Notify::new(),
        }
    }
}

impl Ear {
    fn waits(&self) -> MutexGuard<'_, HashMap<ClaimId, Waiter>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clocks(&self) -> MutexGuard<'_, HashMap<Address, Reading>> {
        self.clocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What only the server and this client know of a claim of this client that waits. The same each time.
    pub(crate) fn secret(&self, id: ClaimId) -> Secret {
        let hash = Sha256::new_with_prefix(self.key).chain_update(id.as_bytes()).finalize();
        *hash.first_chunk().expect("a hash has 32 bytes")
    }

    /// Expects a verdict about a claim that is about to be asked for, for the first time or after this was `last` heard.
    pub(crate) fn expect(&self, claim: &Claim, last: Option<Heard>) -> Expecting<'_> {
        let (verdict, waiting) = oneshot::channel();
        let (name, number) = (claim.name.clone(), self.came.fetch_add(1, Ordering::Relaxed));
        let (handover_ttl, heard) = (claim.handover_ttl.min(claim.ttl), Instant::now());
        let waiter = Waiter { name, handover_ttl, number, verdict, last, due: Instant::NEVER, heard };
        self.waits().insert(claim.id, waiter);
        Expecting { ear: self, id: claim.id, verdict: waiting }
    }

    /// It is in line, as of this answer.
    pub(crate) fn queued(&self, id: ClaimId, last: Heard, change_in: Option<Duration>) {
        let now = Instant::now();
        if let Some(waiter) = self.waits().get_mut(&id) {
            waiter.last = Some(last);
            waiter.heard = now;
            let beat = self.beat_after(now);
            waiter.due = change_in.map_or(beat, |change_in| beat.min(now + change_in));
            self.ring_before(waiter.due);
        }
    }

    /// The next beat that is not just now.
    fn beat_after(&self, now: Instant) -> Instant {
        let (every, phase) = (HEARTBEAT.as_nanos() as u64, self.phase.as_nanos() as u64);
        Instant::from_nanos((now + COMPANY).as_nanos().saturating_sub(phase).next_multiple_of(every) + phase)
    }

    /// Wakes the heart if it would sleep past this. Waking a thread costs more than a hand-over, so only then.
    fn ring_before(&self, due: Instant) {
        if due.as_nanos() < self.planned.load(Ordering::Relaxed) {
            self.bell.notify_one();
        }
    }

    /// When somebody is next to be touched: until then the heart sleeps, unless it is rung.
    pub(crate) fn plan(&self) -> Instant {
        let waits = self.waits(); // held until the plan is made: whoever comes next must see it
        let next = waits.values().map(|waiter| waiter.due).min().unwrap_or(Instant::NEVER);
        self.planned.store(next.as_nanos(), Ordering::Relaxed);
        next
    }

    /// Whether a connection has gone since this was last asked.
    pub(crate) fn was_silenced(&self) -> bool {
        self.deaf.swap(false, Ordering::Relaxed)
    }

    /// Everybody who is to be touched now or soon. Who came first goes first: a touch takes away the places before it that nobody was
    /// heard of for, and after a long silence those would be of our own waiters, alive and about to be touched too.
    pub(crate) fn due(&self, now: Instant) -> Vec<Due> {
        let waits = self.waits();
        let mut due: Vec<_> = waits.iter().filter(|(_, waiter)| waiter.due <= now + COMPANY).collect();
        due.sort_unstable_by_key(|(_, waiter)| waiter.number);
        due.into_iter().map(|(id, waiter)| Due { name: waiter.name.clone(), id: *id }).collect()
    }

    /// What a touch said about one waiter, and whether this client listened where its messages come when that left.
    pub(crate) fn touched(&self, id: ClaimId, last: Heard, touched: &Touched, listens: bool) {
        match *touched {
            Touched::Waiting { first, change_in } => self.queued(id, last, change_in.filter(|_| first)),
            Touched::Granted { token, since, left } => {
                if listens && last.then.saturating_sub(since) > ON_ITS_WAY.as_micros() as u64 {
                    self.found_by_touch(id, &last.server);
                }
                let until = last.sent + left.saturating_sub(margin(left));
                self.tell(id, Verdict::Granted(Grant { token, until }));
            }
            Touched::Gone => self.tell(id, Verdict::Gone(last)),
        }
    }

    /// A touch has found a grant that was made before it: it counts if the server owes this waiter a message.
    fn found_by_touch(&self, id: ClaimId, server: &Address) {
        let silenced = Instant::from_nanos(self.silenced_at.load(Ordering::Relaxed));
        let waits = self.waits(); // held until it is counted: a message that finds the waiter gone comes after that
        let last = waits.get(&id).and_then(|waiter| waiter.last.as_ref());
        if last.is_some_and(|last| last.server == *server && last.sent > silenced) {
            self.news.get().into_iter().for_each(|news| news.grant_by_poll(id, false));
        }
    }

    /// A message about this grant came: whether or not a touch had found it before.
    fn is_told_of(&self, id: ClaimId) {
        self.news.get().into_iter().for_each(|news| news.grant_by_poll(id, true));
    }

    /// A touch had no answer: try again after a while, unless that has gone on for longer than `patience`.
    pub(crate) fn unheard(&self, id: ClaimId, again_in: Duration, patience: Duration, error: &Error) {
        let now = Instant::now();
        let mut waits = self.waits();
        let Some(waiter) = waits.get_mut(&id) else { return };
        waiter.due = now + again_in;
        if now.since(waiter.heard) > patience {
            drop(waits);
            self.tell(id, Verdict::Failed(error.clone()));
        }
    }

    fn tell(&self, id: ClaimId, verdict: Verdict) {
        if let Some(waiter) = self.waits().remove(&id) {
            let _ = waiter.verdict.send(verdict);
        }
    }

    /// An answer that was asked for at `sent` showed this server's time.
    pub(crate) fn read_clock(&self, server: &Address, sent: Instant, then: u64) {
        if let Some(reading) = self.clocks().get_mut(server) {
            (reading.sent, reading.then) = (sent, then);
        }
    }

    /// The run of a server that we last connected to.
    pub(crate) fn run(&self, server: &Address) -> Option<Run> {
        self.clocks().get(server).map(|reading| reading.run.clone())
    }

    /// The earliest local instant that the server's `granted` can have been.
    fn not_before(&self, server: &Address, granted: u64) -> Option<Instant> {
        let clocks = self.clocks();
        let reading = clocks.get(server)?;
        if granted >= reading.then {
            let later = Duration::from_micros(granted - reading.then);
            Some(reading.sent + (later - later / 100))
        } else {
            let earlier = Duration::from_micros(reading.then - granted);
            Some(reading.sent - (earlier + earlier / 100))
        }
    }
}

impl Listener for Ear {
    fn message(&self, from: &Address, payload: &[u8]) {
        match Message::decode(payload) {
            Some(Message::Granted { id, secret, token, granted }) => {
                if secret != self.secret(id) || token < Token::new(granted) {
                    return; // not from the server, which gives no token below its clock
                }
                let (after, left) = match self.waits().get(&id).map(|waiter| (&waiter.last, waiter.handover_ttl)) {
                    None => return self.is_told_of(id), // nobody waits for it any more
                    Some((None, left)) => (Instant::from_nanos(0), left),
                    Some((Some(last), left)) if last.server == *from && last.then <= granted => (last.sent, left),
                    Some(_) => return, // an old one
                };
                let Some(bound) = self.not_before(from, granted) else { return };
                let until = bound.max(after).min(Instant::now()) + left.saturating_sub(margin(left));
                self.tell(id, Verdict::Granted(Grant { token, until }));
                self.is_told_of(id);
            }
            Some(Message::Asked(id, ask)) => {
                if let Some(news) = self.news.get() {
                    news.asked(id, ask);
                }
            }
            Some(Message::Lost(_)) => {
                if let Some(news) = self.news.get() {
                    news.verify();
                }
            }
            None => {} // not one of ours
        }
    }

    fn silenced(&self) {
        let now = Instant::now();
        self.silenced_at.store(now.as_nanos(), Ordering::Relaxed);
        for waiter in self.waits().values_mut() {
            waiter.due = waiter.due.min(now);
        }
        self.deaf.store(true, Ordering::Relaxed);
        self.bell.notify_one();
    }

    fn connected(&self, to: &Address, server: &Server, sent: Instant, then: u64) {
        // Redis rounds: what it calls one second may have been a moment.
        let uptime = server.uptime.map(|uptime| uptime.saturating_sub(Duration::from_secs(1)));
        let run = Run { id: server.run_id.clone(), uptime, asked: Instant::now() };
        let last = self.clocks().insert(to.clone(), Reading { run, sent, then });
        let forgot = last.is_some_and(|last| last.run.id != server.run_id);
        if forgot {
            self.moved(); // to another run of itself
        }
        self.silenced();
    }

    fn home(&self) -> Option<Handle> {
        self.news.get().and_then(News::runtime)
    }

    fn moved(&self) {
        // Whoever has our holds now may never have heard of them: each is in jeopardy until it was renewed there.
        if let Some(news) = self.news.get() {
            news.verify();
        }
        self.silenced();
    }
}

/// Somebody who waits; dropped, nobody does any more. The ticket itself is ended by its id.
pub(crate) struct Expecting<'a> {
    ear: &'a Ear,
    id: ClaimId,
    pub(crate) verdict: oneshot::Receiver<Verdict>,
}

impl Drop for Expecting<'_> {
    fn drop(&mut self) {
        self.ear.waits().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::{Kind, Mode, Note, Origin};

    use super::*;

    fn claim(name: &LockName, id: ClaimId) -> Claim {
        Claim {
            name: name.clone(),
            kind: Kind::Mutex,
            mode: Mode::Exclusive,
            id,
            ttl: Duration::from_secs(30),
            handover_ttl: Duration::from_secs(2),
            lock_delay: Duration::ZERO,
            min_hold: Duration::ZERO,
            note: Note::none(),
            origin: Origin { host: "here".into(), pid: 1 },
        }
    }

    #[test]
    fn a_secret_is_one_claims_and_one_clients() {
        let (ear, other) = (Ear::default(), Ear::default());
        let [one, two] = [1, 2].map(|number| ClaimId::from_bytes([number; 16]));
        assert_eq!(ear.secret(one), ear.secret(one));
        assert!(ear.secret(one) != ear.secret(two) && ear.secret(one) != other.secret(one));
    }

    #[test]
    fn a_grant_is_believed_that_only_the_server_can_have_sent() {
        let (ear, name, at) = (Ear::default(), LockName::new("x").unwrap(), Address::new("localhost", 6379));
        let claim = claim(&name, ClaimId::from_bytes([7; 16]));
        let server = Server { run_id: "one".to_owned(), ..Server::default() };
        ear.connected(&at, &server, Instant::now(), 1_000_000);
        let mut expecting = ear.expect(&claim, None);
        let mut told = |secret: Secret, token: u64, granted: u64| {
            let numbers = [token as f64, granted as f64].map(f64::to_le_bytes).concat();
            ear.message(&at, &[b"g", &claim.id.as_bytes()[..], &secret, &numbers].concat());
            expecting.verdict.try_recv().ok()
        };
        let secret = ear.secret(claim.id);
        assert!(told([0; 16], 2_000_000, 1_000_000).is_none());
        assert!(told(secret, 999_999, 1_000_000).is_none(), "the server gives no token below its clock");
        // However late it says that it was granted, the window is the waiter's own.
        let Some(Verdict::Granted(grant)) = told(secret, 1 << 50, 1 << 40) else { panic!("it is the server's") };
        assert_eq!(grant.token, Token::new(1 << 50));
        assert!(grant.until <= Instant::now() + claim.handover_ttl);
    }

    #[test]
    fn a_second_that_has_begun_is_not_taken_for_a_whole_one() {
        let (ear, at) = (Ear::default(), Address::new("localhost", 6379));
        let server = Server { uptime: Some(Duration::from_secs(3)), ..Server::default() };
        ear.connected(&at, &server, Instant::now(), 1_000_000);
        assert_eq!(ear.run(&at).unwrap().uptime, Some(Duration::from_secs(2)));
    }

    #[test]
    fn who_came_first_is_touched_first() {
        let (ear, name) = (Ear::default(), LockName::new("x").unwrap());
        let ids: Vec<ClaimId> = (0..100).rev().map(|number| ClaimId::from_bytes([number; 16])).collect();
        let claims: Vec<Claim> = ids.iter().map(|id| claim(&name, *id)).collect();
        let _expecting: Vec<_> = claims.iter().map(|claim| ear.expect(claim, None)).collect();
        ear.silenced(); // so that all are due
        let due: Vec<ClaimId> = ear.due(Instant::now()).into_iter().map(|due| due.id).collect();
        assert_eq!(due, ids);
    }
}
