//! Waiting: being told, and looking where nobody tells.
//!
//! Where the server can speak unasked, whoever is let in by another's release is told by a message, and holds when that
//! arrives. A message is a hint all the same: it may be lost with its connection, and a hold that ends by time is announced by
//! nobody. So every client with waiters also *looks* about once a second, for all of them in one request, which keeps their
//! places in line; and the first in line is looked after at the moment when time alone may let it in.
//!
//! Where nothing is told (a server that cannot speak, or a pooler in between), looking is all there is, and its pace is made
//! of what is waited for: a waiter looks again after a sixteenth of the time it has waited already, so that looking adds at
//! most so much to its wait, and a long wait costs little; but soon enough that a grant with a short ttl is found in time. Of
//! all waiters of a client for one name only the first looks: those behind it cannot be let in before. So the cost does not
//! grow with the number of waiters.
//!
//! Whether messages come is not believed but seen: a grant that a look found, and that no message had told for a while, was
//! missed, and from then on this client looks; a message that arrives ends that.
//!
//! # When was it granted, on our clock?
//!
//! The server says when, on its own clock. Two bounds are known on ours, both from below, and the later one counts:
//!
//! - the last answer to an ask for this claim was asked for at `sent` and given at the server's time `then`: a grant made at or
//!   after `then` was made after `sent`. One made before is an old message, stuck somewhere since, and is not listened to.
//! - any answer that was asked for at `sent` showed the server's time `then`: the server's `granted` is at least
//!   `sent + (granted − then)`, less 1 % for clocks of different speed. This one needs a server whose clock does not step
//!   forward, which every hold in such a store needs anyway; a step back only makes the bound earlier.
//!
//! What is not listened to is found by the next look, if it is still true.
//!
//! A message says neither how long the grant lasts, which is the claim's own hand-over ttl, nor is it believed with a token that the server
//! cannot have given: then the waiter is looked after at once. So it is where the message bears no proof of who sent it.
//!
//! # Which grants did a look find that a message should have told?
//!
//! They are [counted](crate::Client::grants_by_poll), and what counts is what is known, not how long anything took. The server owes a
//! message for a grant that it made after an answer which says that the claim waits, if that was asked for when this client listened
//! already: a look or an ask from before may have been overtaken by a grant of which nobody was told. A grant whose time is the look's own
//! was made by the look, since time alone let it in. A waiter that is looked after because of a message was told. And a message may still be
//! on its way when a look overtakes it: so a grant that is only just made does not count, and any other not any more once its message
//! arrives.
//!
//! # May a look be believed?
//!
//! Not every server keeps what it shows: InnoDB shows a commit before it is on its disk, and forgets it if it is killed in
//! between. An answer to whoever wrote comes after the disk; a look may come before. So a grant that a look finds may turn out
//! never to have been. Then the waiter's place in line is back, and nobody passes it for as long as it is kept, which is
//! [`ALIVE`](super::ALIVE) from the last beat, or the ask, that *was* answered. A look is sent [`HEARTBEAT`] and [`COMPANY`]
//! after that at the latest, or brings a beat along, whose write is on the disk before the look is answered. What it finds ends
//! [`HANDOVER_TTL`](crate::HANDOVER_TTL) after it was sent at the latest: 1.2 s + 2 s are less than 4 s, so nobody else is in
//! before that. The first renewal, which writes, finds out, and the hold is lost like any other. A grant that lasts longer, as
//! those do that nobody renews, is renewed once before it is believed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use super::{Listener, Message, Touched};
use crate::keeper::News;
use crate::{Claim, ClaimId, Error, Grant, HANDOVER_TTL, Instant, LockName, jitter, margin};

/// How often a client with waiters makes itself heard.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);
/// Waiters that would be looked after within this time go along now.
const COMPANY: Duration = Duration::from_millis(200);
/// A grant that was made so long ago without a message was missed by it.
const MISSED: Duration = Duration::from_millis(100);
/// A message about a grant that was made so long before a look is on its way as surely as what the look says.
const ON_ITS_WAY: Duration = Duration::from_millis(10);
/// The shortest and the longest pause between two looks of a waiter that nobody tells.
const SHORTEST_PACE: Duration = Duration::from_millis(1);
const LONGEST_PACE: Duration = Duration::from_millis(100);
/// A waiter that nobody tells looks again after this part of the time it has waited.
const PART: u32 = 16;
/// When a client that holds something first looks whether somebody has something to say to it, and how often then: where nobody
/// tells, and where it should have been told. A store that can tell is listened to from the first look on.
const FIRST_MAIL: Duration = Duration::from_millis(50);
const MAIL: Duration = Duration::from_millis(500);
const SPARE_MAIL: Duration = Duration::from_secs(5);
/// A token is the server's time of the grant, or one more than the last. So far it may be ahead of that time, where a clock was set back.
const MOST_AHEAD: Duration = Duration::from_secs(86_400);

/// What a waiter learns.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It was let in.
    Granted(Grant),
    /// It was let in: by a look, for long, which must be confirmed; or a while ago, so that little is left of it.
    Found(Grant),
    /// The server does not know it any more, and said so then.
    Gone(Heard),
    /// The server could not be reached for too long.
    Failed(Error),
}

/// All waiters and holds of a client, and what is known about its server's clock.
pub(crate) struct Ear {
    waits: Mutex<Waits>,
    /// Where in a second this client's heart beats: not all clients at once.
    phase: Duration,
    clock: Mutex<Option<Reading>>,
    news: OnceLock<News>,
    /// A connection is there on which messages come.
    listens: AtomicBool,
    /// Since when.
    listens_since: AtomicU64,
    /// A message was missed although one was: there may be something in between that swallows them.
    misses: AtomicBool,
    /// When the heart wakes up by itself.
    planned: AtomicU64,
    /// Rung when it should wake up earlier.
    pub(crate) bell: Notify,
}

#[derive(Default)]
struct Waits {
    waiters: HashMap<ClaimId, Waiter>,
    /// The waiters of each name, in the order in which their asks left: so they stand in the server's line too.
    lines: HashMap<LockName, VecDeque<ClaimId>>,
    /// What this client holds, as far as this knows: the keeper knows better.
    held: HashSet<ClaimId>,
    /// When the places of all waiters are to be kept.
    beat: Option<Instant>,
    /// The last try to keep them had no answer: whoever looks next tries again with it.
    missed_a_beat: bool,
    /// When they were last kept: as of an answer to a beat, or to an ask that joined a line.
    kept: Option<Instant>,
    /// When somebody may have something to say.
    mail: Option<Instant>,
    /// When there is something to tidy.
    chores: Option<Instant>,
}

struct Waiter {
    name: LockName,
    verdict: oneshot::Sender<Verdict>,
    /// The last answer to an ask for it: a grant, if one comes, comes after that.
    last: Option<Heard>,
    /// Since when it waits.
    since: Instant,
    /// When to look after it; none while its ask is under way.
    due: Option<Instant>,
    /// When the server was last heard about it.
    heard: Instant,
    /// The last answer that says that it waits was asked for then.
    waits: Option<Instant>,
    /// A message said that something has happened to it, and not what.
    is_hinted: bool,
    /// Its ask has left, and it is among `lines`.
    is_in_line: bool,
    /// How long a grant lasts that is made while it waits: one that nobody tells of must be found before it is over.
    handover_ttl: Duration,
}

/// An answer about a claim: when it was asked for, and when it was given by the server's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    pub(crate) sent: Instant,
    pub(crate) then: u64,
}

/// One look at the server's clock, and which run of the server it was.
struct Reading {
    run: String,
    heard: Heard,
}

/// What the heart has to do now.
#[derive(Default)]
pub(crate) struct Due {
    /// Keep all places.
    pub(crate) beat: bool,
    /// Fetch the mail.
    pub(crate) mail: bool,
    /// Look after these.
    pub(crate) waiters: Vec<(LockName, ClaimId)>,
    /// Tidy up.
    pub(crate) chores: bool,
}

impl Default for Ear {
    fn default() -> Self {
        Ear {
            waits: Mutex::default(),
            phase: jitter(HEARTBEAT),
            clock: Mutex::default(),
            news: OnceLock::new(),
            listens: AtomicBool::new(false),
            listens_since: AtomicU64::new(0),
            misses: AtomicBool::new(false),
            planned: AtomicU64::new(0),
            bell: Notify::new(),
        }
    }
}

impl Ear {
    pub(crate) fn attach(&self, news: News) {
        let _ = self.news.set(news);
    }

    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clock(&self) -> MutexGuard<'_, Option<Reading>> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether messages can be relied on.
    fn is_told(&self) -> bool {
        self.listens.load(Ordering::Relaxed) && !self.misses.load(Ordering::Relaxed)
    }

    /// Expects a verdict about a claim that is about to be asked for, for the first time or after this was `last` heard.
    pub(crate) fn expect(&self, claim: &Claim, last: Option<Heard>) -> Expecting<'_> {
        let (verdict, waiting) = oneshot::channel();
        let now = Instant::now();
        let waiter = Waiter {
            name: claim.name.clone(),
            verdict,
            last,
            since: now,
            due: None,
            heard: now,
            waits: None,
            is_hinted: false,
            is_in_line: false,
            handover_ttl: claim.handover_ttl,
        };
        self.waits().waiters.insert(claim.id, waiter);
        Expecting { ear: self, id: claim.id, verdict: waiting }
    }

    /// These asks leave now, in this order. One that leaves again may have been lost, and then stands behind.
    pub(crate) fn asked(&self, ids: impl Iterator<Item = ClaimId>) {
        let mut waits = self.waits();
        let Waits { waiters, lines, .. } = &mut *waits;
        for id in ids {
            let Some(waiter) = waiters.get_mut(&id) else { continue }; // it does not wait
            let line = lines.entry(waiter.name.clone()).or_default();
            if std::mem::replace(&mut waiter.is_in_line, true) {
                line.retain(|known| *known != id);
            }
            line.push_back(id);
        }
    }

    /// It is in line, as of this answer to its ask.
    pub(crate) fn queued(&self, id: ClaimId, last: Heard, change_in: Option<Duration>) {
        self.waits().kept = Some(Instant::now());
        self.stands(id, last.sent, Some(last), change_in);
    }

    /// It stands in line. `last` is the answer to its ask, and none for a look, which locks nothing: a grant whose time is before the
    /// look's may not have been committed yet when it looked, and its message is no old one.
    fn stands(&self, id: ClaimId, sent: Instant, last: Option<Heard>, change_in: Option<Duration>) {
        let (now, told) = (Instant::now(), self.is_told());
        let beat = self.beat_after(now);
        let mut waits = self.waits();
        waits.beat.get_or_insert(beat);
        let leads = waits.leads(id);
        let Some(waiter) = waits.waiters.get_mut(&id) else { return };
        waiter.last = last.or(waiter.last);
        waiter.heard = now;
        waiter.waits = Some(sent);
        let longest = LONGEST_PACE.min(waiter.handover_ttl / 4).max(SHORTEST_PACE);
        let pace = (now.since(waiter.since) / PART).clamp(SHORTEST_PACE, longest);
        // What time has ended and nobody could let go of yet: somebody's own transaction may have the name for hours.
        let soonest = |change_in: Duration| if change_in.is_zero() { pace } else { change_in };
        let mut due = change_in.map_or(beat, |change_in| beat.min(now + soonest(change_in)));
        if !told && leads {
            due = due.min(now + pace);
        }
        waiter.due = Some(due);
        drop(waits);
        self.ring_before(due);
    }

    /// The claim is held from now on, or is over.
    pub(crate) fn holds(&self, id: ClaimId, held: bool) {
        let told = self.is_told();
        let mut waits = self.waits();
        if !held {
            waits.held.remove(&id);
            return;
        }
        waits.held.insert(id);
        if waits.mail.is_none() {
            let mail = Instant::now() + if told { SPARE_MAIL } else { FIRST_MAIL };
            waits.mail = Some(mail);
            drop(waits);
            self.ring_before(mail);
        }
    }

    /// A claim on the name was ended by this client: whoever of its own stands first may be in, and nobody tells it.
    pub(crate) fn let_go(&self, name: &LockName) {
        if self.is_told() {
            return;
        }
        let first = self.waits().lines.get(name).and_then(|line| line.front().copied());
        let _ = first.map(|first| self.look_after(first));
    }

    /// It may be in: it is looked after at once.
    fn look_after(&self, id: ClaimId) {
        let mut waits = self.waits();
        let Some(due) = waits.waiters.get_mut(&id).and_then(|waiter| waiter.due.as_mut()) else { return };
        *due = Instant::now();
        drop(waits);
        self.bell.notify_one();
    }

    /// There is something to tidy then.
    pub(crate) fn chores_at(&self, at: Instant) {
        let mut waits = self.waits();
        if waits.chores.is_none_or(|known| at < known) {
            waits.chores = Some(at);
            drop(waits);
            self.ring_before(at);
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

    /// When there is next something to do: until then the heart sleeps, unless it is rung.
    pub(crate) fn plan(&self) -> Instant {
        let waits = self.waits(); // held until the plan is made: whoever comes next must see it
        let dues = waits.waiters.values().filter_map(|waiter| waiter.due);
        let next = dues.chain(waits.beat).chain(waits.mail).chain(waits.chores).min().unwrap_or(Instant::NEVER);
        self.planned.store(next.as_nanos(), Ordering::Relaxed);
        next
    }

    /// A request that fetches mail was sent, and has no answer: what it fetched is in the store no more. Renewals will say the same.
    pub(crate) fn may_have_missed_mail(&self) {
        if !self.waits().held.is_empty() {
            self.news.get().into_iter().for_each(News::renew_now);
        }
    }

    /// Takes what is to be done now or soon.
    pub(crate) fn due(&self, now: Instant) -> Due {
        let told = self.is_told();
        let mut waits = self.waits();
        let mut due = Due { chores: waits.chores.is_some_and(|at| at <= now), ..Due::default() };
        if due.chores {
            waits.chores = None;
        }
        if waits.beat.is_some_and(|at| at <= now) {
            due.beat = !waits.waiters.is_empty();
            waits.beat = due.beat.then(|| self.beat_after(now));
        }
        if waits.mail.is_some_and(|at| at <= now) {
            due.mail = !waits.held.is_empty();
            waits.mail = due.mail.then(|| now + if told { SPARE_MAIL } else { MAIL });
        }
        let soon = now + if due.beat { COMPANY } else { Duration::ZERO };
        let is_due = |waiter: &&mut Waiter| waiter.due.is_some_and(|at| at <= soon);
        let Waits { waiters, .. } = &mut *waits;
        for (id, waiter) in waiters.iter_mut() {
            if is_due(&waiter) {
                due.waiters.push((waiter.name.clone(), *id));
            }
        }
        due.beat |= waits.missed_a_beat && !due.waiters.is_empty();
        due
    }

    /// What a look said about one waiter.
    pub(crate) fn touched(&self, id: ClaimId, last: Heard, touched: &Touched) {
        match *touched {
            Touched::Waiting { first, change_in } => self.stands(id, last.sent, None, change_in.filter(|_| first)),
            Touched::Granted { token, since, left } => {
                if self.listens.load(Ordering::Relaxed) && last.then.saturating_sub(since) > MISSED.as_micros() as u64 {
                    self.misses.store(true, Ordering::Relaxed);
                }
                if last.then.saturating_sub(since) > ON_ITS_WAY.as_micros() as u64 {
                    self.found_by_look(id);
                }
                let left = self.waits().waiters.get(&id).map_or(left, |waiter| left.min(waiter.handover_ttl));
                let until = last.sent + left.saturating_sub(margin(left));
                self.tell_grant(id, Grant { token, until }, left > HANDOVER_TTL);
            }
            Touched::Gone => self.tell(id, Verdict::Gone(last)),
        }
    }

    /// A look has found a grant that was made before it: it counts if the server owes this waiter a message.
    fn found_by_look(&self, id: ClaimId) {
        let since = Instant::from_nanos(self.listens_since.load(Ordering::Relaxed));
        let is_owed = |waiter: &Waiter| !waiter.is_hinted && waiter.waits.is_some_and(|sent| sent > since);
        let waits = self.waits(); // held until it is counted: a message that finds the waiter gone comes after that
        if self.listens.load(Ordering::Relaxed) && waits.waiters.get(&id).is_some_and(is_owed) {
            self.news.get().into_iter().for_each(|news| news.grant_by_poll(id, false));
        }
    }

    /// A message about this grant came: whether or not a look had found it before.
    fn is_told_of(&self, id: ClaimId) {
        self.news.get().into_iter().for_each(|news| news.grant_by_poll(id, true));
    }

    /// A message says that something has happened to it.
    fn hint(&self, id: ClaimId) {
        match self.waits().waiters.get_mut(&id) {
            Some(waiter) => waiter.is_hinted = true,
            None => return self.is_told_of(id),
        }
        self.look_after(id);
    }

    /// A look had no answer: try again after a while, unless that has gone on for longer than `patience`.
    pub(crate) fn unheard(&self, id: ClaimId, again_in: Duration, patience: Duration, error: &Error) {
        let now = Instant::now();
        let mut waits = self.waits();
        let Some(waiter) = waits.waiters.get_mut(&id) else { return };
        waiter.due = Some(now + again_in);
        if now.since(waiter.heard) > patience {
            drop(waits);
            self.tell(id, Verdict::Failed(error.clone()));
        }
    }

    /// The places were kept.
    pub(crate) fn kept_places(&self) {
        let mut waits = self.waits();
        waits.missed_a_beat = false;
        waits.kept = Some(Instant::now());
    }

    /// When that was.
    pub(crate) fn last_kept_places(&self) -> Option<Instant> {
        self.waits().kept
    }

    /// The places could not be kept: the next try comes soon.
    pub(crate) fn missed_a_beat(&self, again_in: Duration) {
        let mut waits = self.waits();
        waits.missed_a_beat = true;
        if let Some(beat) = &mut waits.beat {
            *beat = (*beat).min(Instant::now() + again_in);
        }
    }

    /// It was let in. Whoever gets a hold must have time to do something with it, so what is half over is renewed first.
    fn tell_grant(&self, id: ClaimId, grant: Grant, is_doubtful: bool) {
        let Some(stands) = self.waits().waiters.get(&id).map(|waiter| waiter.handover_ttl) else { return };
        let is_old = grant.until.since(Instant::now()) < stands / 2;
        let verdict = if is_doubtful || is_old { Verdict::Found } else { Verdict::Granted };
        self.tell(id, verdict(grant));
    }

    fn tell(&self, id: ClaimId, verdict: Verdict) {
        let waiter = self.waits().remove(id);
        if let Some(waiter) = waiter {
            let _ = waiter.verdict.send(verdict);
        }
    }

    /// An answer that was asked for at `sent` showed the server's time.
    pub(crate) fn read_clock(&self, heard: Heard) {
        if let Some(reading) = &mut *self.clock() {
            reading.heard = heard;
        }
    }

    /// The earliest local instant that the server's `granted` can have been.
    fn not_before(&self, granted: u64) -> Option<Instant> {
        let clock = self.clock();
        let Heard { sent, then } = clock.as_ref()?.heard;
        let apart = Duration::from_micros(granted.abs_diff(then));
        Some(if granted >= then { sent + (apart - apart / 100) } else { sent - (apart + apart / 100) })
    }
}

impl Waits {
    /// Whether nobody of this client stands before it.
    fn leads(&self, id: ClaimId) -> bool {
        let line = self.waiters.get(&id).and_then(|waiter| self.lines.get(&waiter.name));
        line.is_some_and(|line| line.front() == Some(&id))
    }

    /// Nobody waits for it any more. Whoever comes behind it is looked after at once: it may have been let in along.
    fn remove(&mut self, id: ClaimId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        if let Some(line) = self.lines.get_mut(&waiter.name) {
            let led = line.front() == Some(&id);
            line.retain(|known| *known != id);
            match line.front().copied() {
                None => drop(self.lines.remove(&waiter.name)),
                Some(next) if led => {
                    let next = self.waiters.get_mut(&next).filter(|next| next.due.is_some());
                    if let Some(next) = next {
                        next.due = Some(Instant::now());
                    }
                }
                Some(_) => {}
            }
        }
        Some(waiter)
    }
}

impl Listener for Ear {
    fn told(&self, message: Message) {
        let news = self.news.get();
        match message {
            Message::Granted { id, token, granted } => {
                if !(granted..=granted.saturating_add(MOST_AHEAD.as_micros() as u64)).contains(&token.get()) {
                    return self.hint(id);
                }
                let (after, left) = match self.waits().waiters.get(&id).map(|waiter| (waiter.last, waiter.handover_ttl)) {
                    None => return self.is_told_of(id), // nobody waits for it any more
                    Some((None, left)) => (Instant::from_nanos(0), left),
                    Some((Some(last), left)) if last.then <= granted => (last.sent, left),
                    Some((Some(_), _)) => return, // an old one
                };
                let Some(bound) = self.not_before(granted) else { return };
                let until = bound.max(after).min(Instant::now()) + left.saturating_sub(margin(left));
                self.misses.store(false, Ordering::Relaxed);
                self.tell_grant(id, Grant { token, until }, false);
                self.is_told_of(id);
            }
            Message::MaybeGranted(id) => self.hint(id),
            Message::Asked(id, ask) => drop(news.map(|news| news.asked(id, ask))),
            Message::Lost(id) => drop(news.map(|news| news.lost(id))),
        }
    }

    fn listening(&self) {
        self.listens_since.store(Instant::now().as_nanos(), Ordering::Relaxed);
        self.listens.store(true, Ordering::Relaxed);
        self.look_now();
    }

    fn silenced(&self) {
        self.listens.store(false, Ordering::Relaxed);
        self.look_now();
    }

    fn connected(&self, run: &str, sent: Instant, now: u64) {
        let reading = Reading { run: run.to_owned(), heard: Heard { sent, then: now } };
        let last = self.clock().replace(reading);
        if last.is_some_and(|last| last.run != run) {
            // Whoever has our holds now may never have heard of them: each is in jeopardy until it was renewed there.
            if let Some(news) = self.news.get() {
                news.verify();
            }
            self.look_now();
        }
    }

    fn home(&self) -> Option<Handle> {
        self.news.get().and_then(News::runtime)
    }
}

impl Ear {
    /// Something may have been missed: everybody is looked after at once.
    fn look_now(&self) {
        let now = Instant::now();
        let mut waits = self.waits();
        for due in waits.waiters.values_mut().filter_map(|waiter| waiter.due.as_mut()) {
            *due = (*due).min(now);
        }
        if !waits.held.is_empty() {
            waits.mail = Some(now);
        }
        drop(waits);
        self.bell.notify_one();
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
        let mut waits = self.ear.waits();
        waits.remove(self.id);
        let hurry = !waits.lines.is_empty() && !self.ear.is_told();
        drop(waits);
        if hurry {
            self.ear.bell.notify_one(); // the one behind it leads now
        }
    }
}

#[cfg(test)]
mod tests;
