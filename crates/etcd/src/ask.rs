//! Asking: one transaction that puts a claim's key and reads what its entry depends on.
//!
//! Who can interleave: between the put and the reads nobody, as they are one transaction; so whoever is first in it holds, and whoever
//! is not knows whom to watch. Sent twice, the second copy finds the key and only reads. A copy that arrives after the claim was
//! ended finds the mark that its end has left, or no lease to put its key on. Another kind of the same name, or another number of
//! permits, is a condition of the same step.

use std::sync::Arc;

use tenure_core::{Claim, Error, ErrorKind, Grant, Instant, Mode, Result, Token, Wait, margin};

use crate::codec::Value;
use crate::config::Layout;
use crate::ear::Told;
use crate::error::{Attempt, Next};
use crate::inner::Inner;
use crate::leases::{OnLease, waiting_seconds};
use crate::line::{Front, Seen, first_read, first_seen, reads, seen};
use crate::link::Answer;
use crate::proto::*;
use crate::schema::{Place, shown};
use crate::table::{Entry, Stage};

/// What came of asking.
pub(crate) enum Asked {
    Granted(Grant),
    Queued(Front),
    Busy,
}

/// An ask that was answered.
struct Answered {
    revision: i64,
    succeeded: bool,
    reads: Vec<RangeResponse>,
}

impl Inner {
    /// Grants, or waits in line.
    ///
    /// # Cancel safety
    /// Dropped, the claim may be in the store: end it by its id.
    pub(crate) async fn acquire(self: &Arc<Self>, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        tokio::task::coop::consume_budget().await; // a task that locks in a loop must let others run
        self.start();
        let deadline = wait.deadline(Instant::now());
        {
            let mut table = self.table();
            let entry = table.claims.entry(claim.id).or_insert_with(|| Entry::new(claim));
            (entry.ending, entry.given_up) = (false, None);
        }
        loop {
            let asked = match wait {
                Wait::No => self.try_once(claim).await?,
                _ => self.ask_once(claim).await?,
            };
            let front = match asked {
                Asked::Granted(grant) => return Ok(Some(grant)),
                Asked::Busy => {
                    self.end(claim, std::time::Duration::ZERO).await?; // another copy of the ask may still arrive
                    return Ok(None);
                }
                Asked::Queued(front) => front,
            };
            match self.wait_in_line(claim, front, deadline).await? {
                Waited::Granted(grant) => return Ok(Some(grant)),
                Waited::Over => {
                    self.end(claim, std::time::Duration::ZERO).await?; // nobody has used it: it owes nobody a minimum hold
                    return Ok(None);
                }
                Waited::Gone => {} // its place is lost: ask anew
            }
        }
    }

    /// Asks for a place in line, or more.
    async fn ask_once(self: &Arc<Self>, claim: &Claim) -> Result<Asked> {
        for _ in 0..4 {
            let place = self.schema.place(&claim.name, claim.kind, claim.mode);
            let (on, stale) = self.lease(claim).await?;
            let key = self.enter(claim, &on);
            let compare = self.conditions(claim, &key, place.others().map(|range| empty(&range)));
            let success = vec![self.put(claim, &key, &on), read(first_read(&place, claim.mode))];
            // Nothing is read for the case that it fails, which is rare: it would be in everybody's log.
            let txn = TxnRequest { compare, success, failure: Vec::new() };
            let Some(answer) = self.send(claim, &on, stale, txn).await? else { continue };
            if !answer.succeeded {
                let why = TxnRequest { success: self.reasons(claim, &key, &place), ..Default::default() };
                let reads: Vec<_> = self.asks.txn("asking for a lock", why).await?.value.ranges().collect();
                match self.refused(claim, &key, &on, &reads)? {
                    // What stood in its way has gone meanwhile, or it has another key now.
                    Refused::NoRoom | Refused::KeyTaken => continue,
                    Refused::IsThere => return self.look_again(claim, &place).await,
                    Refused::OnAnEndedLease => {
                        self.take_out(&key, &reads).await?;
                        continue;
                    }
                }
            }
            self.joined(claim, answer.revision);
            let Some(line) = answer.reads.first() else { return Err(unsettled(claim)) };
            match first_seen(&self.schema, &place, claim.mode, &key, line) {
                Seen::Enter => {
                    if let Some(grant) = self.granted(claim) {
                        return Ok(Asked::Granted(grant));
                    }
                }
                Seen::Behind(front) => return Ok(Asked::Queued(front)),
                Seen::Gone => {}
            }
        }
        Err(unsettled(claim))
    }

    /// Asks without a place in line: what does not get in leaves nothing.
    async fn try_once(self: &Arc<Self>, claim: &Claim) -> Result<Asked> {
        let place = self.schema.place(&claim.name, claim.kind, claim.mode);
        let mut seen_at = None;
        for _ in 0..8 {
            let (on, stale) = self.lease(claim).await?;
            let key = self.enter(claim, &on);
            let free = match (claim.mode, seen_at) {
                (Mode::Shared, None) => place.others().chain([place.writers.clone()]).map(|range| empty(&range)).collect(),
                (_, None) => vec![empty(&place.name)],
                // Nobody came since it was seen that there is room; if somebody left, there is more.
                (_, Some(revision)) => {
                    let others = place.others().map(|range| empty(&range));
                    others.chain([nothing_since(&place.kind, revision)]).collect::<Vec<_>>()
                }
            };
            let compare = self.conditions(claim, &key, free);
            let mut failure = self.reasons(claim, &key, &place);
            failure.extend(reads(&place, claim.kind, claim.mode, 0).into_iter().map(read));
            let txn = TxnRequest { compare, success: vec![self.put(claim, &key, &on)], failure };
            let Some(answer) = self.send(claim, &on, stale, txn).await? else { continue };
            if answer.succeeded {
                self.joined(claim, answer.revision);
                match self.granted(claim) {
                    Some(grant) => return Ok(Asked::Granted(grant)),
                    None => continue,
                }
            }
            match self.refused(claim, &key, &on, &answer.reads)? {
                Refused::IsThere => {
                    return match self.look_again(claim, &place).await? {
                        Asked::Queued(_) => {
                            self.end(claim, std::time::Duration::ZERO).await?;
                            Ok(Asked::Busy)
                        }
                        asked => Ok(asked),
                    };
                }
                Refused::OnAnEndedLease => self.take_out(&key, &answer.reads).await?,
                Refused::KeyTaken => {} // what is under it may close the name, and must not pass for the claim's own
                Refused::NoRoom if !has_room(self, claim, &place, &key, &answer.reads[3..]) => return Ok(Asked::Busy),
                Refused::NoRoom => seen_at = Some(answer.revision),
            }
        }
        Ok(Asked::Busy)
    }

    /// Notes on which lease a claim is going to be, and under which key.
    pub(crate) fn enter(&self, claim: &Claim, on: &OnLease) -> Vec<u8> {
        let mut table = self.table();
        let seat = table.seat(claim);
        let key = self.schema.key(claim, seat, on.lease().id);
        let mut before = Vec::new();
        if let Some(entry) = table.claims.get_mut(&claim.id) {
            (entry.revision, entry.stage, entry.under_way) = (0, Stage::Asking, true);
            (entry.gone, entry.asked) = (false, None);
            entry.on = Some(on.clone());
            before.clone_from(&entry.key);
        }
        table.name(claim.id, &key);
        drop(table);
        if !before.is_empty() && before != key {
            self.ear.gone_here(&before, None); // nobody else would end its watch
        }
        key
    }

    fn conditions(&self, claim: &Claim, key: &[u8], free: impl IntoIterator<Item = Compare>) -> Vec<Compare> {
        let mut compare = vec![absent(key), absent(&self.schema.ended(claim.id))];
        compare.extend(free);
        compare
    }

    fn put(&self, claim: &Claim, key: &[u8], on: &OnLease) -> RequestOp {
        put(key, Value::of(claim).encode(), on.lease().id)
    }

    /// What must be read to know why an ask was refused.
    fn reasons(&self, claim: &Claim, key: &[u8], place: &Place) -> Vec<RequestOp> {
        vec![
            read(RangeRequest::one(key)),
            read(RangeRequest::one(&self.schema.ended(claim.id)).keys()),
            read(RangeRequest::of(&place.name).oldest(3).keys()),
        ]
    }

    /// Sends an ask, and a keepalive before it where the lease was not heard of for a while. It is believed once the key is on that lease,
    /// in the same term. `None`: the lease was gone, ask again.
    async fn send(&self, claim: &Claim, on: &OnLease, stale: bool, txn: TxnRequest) -> Result<Option<Answered>> {
        let mut kept = None;
        if stale {
            kept = match self.send_keepalive(on.lease(), &self.asks).await {
                Ok(None) => return Ok(None), // its lease is over: another one
                Ok(kept) => kept,
                Err(_) => None, // then the window is what the lease has left
            };
        }
        match self.asks.txn("asking for a lock", txn).await {
            Ok(Answer { value, clean, .. }) => {
                if let Some((sent, term)) = kept
                    && value.succeeded
                    && value.header.raft_term == term
                {
                    on.lease().kept_since(sent);
                }
                if let Some(entry) = self.table().claims.get_mut(&claim.id) {
                    entry.under_way = !value.succeeded; // what was refused may have a key from before: see `refused`
                    if !clean {
                        entry.copied = Some(on.clone());
                    }
                }
                let (revision, succeeded) = (value.header.revision, value.succeeded);
                Ok(Some(Answered { revision, succeeded, reads: value.ranges().collect() }))
            }
            Err(failure) if failure.next == Next::NoLease => {
                self.lease_is_gone(on.lease());
                Ok(None)
            }
            Err(failure) => Err(failure.error),
        }
    }

    /// Why a transaction put nothing.
    fn refused(&self, claim: &Claim, key: &[u8], on: &OnLease, reads: &[RangeResponse]) -> Result<Refused> {
        let [own, ended, others, ..] = reads else { return Err(unsettled(claim)) };
        if let Some(kv) = own.kvs.first().filter(|kv| kv.key == key) {
            let value = Value::decode(&kv.value);
            let is_mine = self.schema.layout == Layout::Concurrency || value.id == shown(claim.id);
            if value.closing || !is_mine {
                // Broken, or let go before its minimum hold was over; or of a twin: a machine that was restored from the same snapshot, and
                // has the same keys. It stays, and the claim waits for it like everybody else.
                self.ear.gone_here(key, None);
                self.nothing_came_of_it(claim);
                self.table().move_over(claim.id);
                return Ok(Refused::KeyTaken);
            }
            // It may stand on the short lease of those who wait: it keeps its place.
            let on = if kv.lease == on.lease().id { Some(on.clone()) } else { self.leases.by_id(kv.lease, Instant::now()) };
            let Some(on) = on else { return Ok(Refused::OnAnEndedLease) };
            if let Some(entry) = self.table().claims.get_mut(&claim.id) {
                (entry.revision, entry.written, entry.on) = (kv.create_revision, kv.mod_revision, Some(on));
                (entry.under_way, entry.asked) = (false, value.asked);
            }
            return Ok(Refused::IsThere);
        }
        self.nothing_came_of_it(claim);
        if !ended.kvs.is_empty() {
            let what = "this claim was ended before its request arrived";
            return Err(Error::new(ErrorKind::Unavailable, what).with_hint("Ask again: that is another claim"));
        }
        for kv in &others.kvs {
            let Some(parsed) = self.schema.parse(&kv.key) else { continue };
            let of = |mode| if let Mode::Permits { of, .. } = mode { of.get() } else { 0 };
            if parsed.kind != claim.kind || of(parsed.mode) != of(claim.mode) {
                return Err(claim.mismatch(parsed.kind, of(parsed.mode)));
            }
        }
        Ok(Refused::NoRoom)
    }

    /// An ask was answered, and left nothing: the claim has nothing to be ended.
    fn nothing_came_of_it(&self, claim: &Claim) {
        if let Some(entry) = self.table().claims.get_mut(&claim.id) {
            entry.under_way = false;
        }
    }

    /// An earlier copy of the ask put the key on a lease that is over by now: it would vanish under whoever relies on it.
    async fn take_out(&self, key: &[u8], reads: &[RangeResponse]) -> Result<()> {
        let Some(kv) = reads.first().and_then(|own| own.kvs.first()) else { return Ok(()) };
        let compare = vec![created_at(key, kv.create_revision)];
        let txn = TxnRequest { compare, success: vec![delete(key)], failure: Vec::new() };
        Ok(self.asks.txn("asking for a lock", txn).await.map(drop)?)
    }

    /// A claim that is in line already: how it stands.
    async fn look_again(self: &Arc<Self>, claim: &Claim, place: &Place) -> Result<Asked> {
        let revision = self.table().claims.get(&claim.id).map_or(0, |entry| entry.revision);
        self.joined(claim, revision);
        match self.look(claim, place).await? {
            Seen::Enter => match self.let_in(claim).await {
                Some(Waited::Granted(grant)) => {
                    self.tell_next(claim);
                    Ok(Asked::Granted(grant))
                }
                _ => Err(unsettled(claim)),
            },
            Seen::Behind(front) => Ok(Asked::Queued(front)),
            Seen::Gone => Err(unsettled(claim)),
        }
    }

    /// Looks how a claim stands that is in line. The first look also moves it to the short lease of
    /// those who wait.
    pub(crate) async fn look(&self, claim: &Claim, place: &Place) -> Attempt<Seen> {
        let seconds = waiting_seconds(claim);
        let (key, revision, written, on) = {
            let table = self.table();
            let Some(entry) = table.claims.get(&claim.id) else { return Ok(Seen::Gone) };
            (entry.key.clone(), entry.revision, entry.written, entry.on.clone())
        };
        let moves = self.schema.layout == Layout::Tenure && on.is_none_or(|on| on.lease().seconds != seconds);
        let to = if moves { Some(self.lasting_lease(seconds, &self.asks).await?) } else { None };
        let mut success = Vec::new();
        let mut compare = vec![created_at(&key, revision)];
        if let Some(to) = &to {
            success.push(moved(&key, to.lease().id));
            compare.push(unchanged(&key, written)); // arriving late, it would take a hold back to the lease of those who wait
        }
        success.extend(reads(place, claim.kind, claim.mode, revision).into_iter().map(read));
        let txn = TxnRequest { compare, success, failure: Vec::new() };
        let answer = match self.asks.txn("looking at the line", txn).await {
            Ok(answer) => answer.value,
            Err(failure) if failure.next == Next::NoLease => {
                if let Some(to) = &to {
                    self.lease_is_gone(to.lease());
                }
                return Ok(Seen::Gone);
            }
            Err(failure) => return Err(failure),
        };
        if !answer.succeeded {
            return Ok(Seen::Gone); // or it was written by a look without an answer: the next ask finds it
        }
        if let Some(to) = to
            && let Some(entry) = self.table().claims.get_mut(&claim.id)
        {
            let base = to.lease().base();
            (entry.on, entry.written) = (Some(to), answer.header.revision);
            self.beat_by(base + entry.pace());
        }
        Ok(seen(&self.schema, place, claim.mode, &key, &answer.reads()))
    }

    /// A claim is in line.
    fn joined(self: &Arc<Self>, claim: &Claim, revision: i64) {
        let mut table = self.table();
        let Some(entry) = table.claims.get_mut(&claim.id) else { return };
        (entry.revision, entry.stage, entry.gone) = (revision, Stage::Waiting, false);
        entry.written = entry.written.max(revision);
        let key = entry.key.clone();
        let keep_by = entry.on.as_ref().map(|on| on.lease().base() + entry.pace());
        drop(table);
        self.ear.own(&key, claim.id, revision);
        if let Some(keep_by) = keep_by {
            self.beat_by(keep_by);
        }
    }

    /// A claim is in: its token, which is the create revision of its key, and its window, as its lease has it. `None` if that is over, or its key gone, and then it is as if it had never
    /// been asked for.
    pub(crate) fn granted(&self, claim: &Claim) -> Option<Grant> {
        let mut table = self.table();
        let entry = table.claims.get_mut(&claim.id).filter(|entry| !entry.gone)?;
        let lease = entry.on.as_ref().map(|on| Arc::clone(on.lease()))?;
        let now = Instant::now();
        let trusted = entry.trusted();
        let until = lease.base() + (trusted - margin(trusted));
        if lease.is_dead() || until <= now {
            return None;
        }
        entry.stage = Stage::Held { since: now };
        entry.expires = lease.base() + trusted + claim.lock_delay;
        let (expires, token) = (entry.expires, Token::new(entry.revision as u64));
        drop(table);
        self.beat_by(expires);
        Some(Grant { token, until })
    }
}

/// Why the transaction of an ask put nothing.
enum Refused {
    /// The claim is there from before.
    IsThere,
    /// It is there on a lease that is over, and must be taken out.
    OnAnEndedLease,
    /// Under its key is something else: what keeps the name closed, or a twin's claim. It has another key from now on.
    KeyTaken,
    /// Others hold the name, or wait for it.
    NoRoom,
}

/// Whether there may be room, by what a refused try has read.
fn has_room(inner: &Inner, claim: &Claim, place: &Place, key: &[u8], line: &[RangeResponse]) -> bool {
    let line: Vec<_> = line.iter().map(|range| range.kvs.clone()).collect();
    match (claim.mode, &line[..]) {
        (Mode::Exclusive, _) => false,
        (Mode::Shared, line) => seen(&inner.schema, place, claim.mode, key, line) == Seen::Enter,
        (Mode::Permits { .. }, [line]) => {
            let mut with_me = line.clone();
            with_me.push(KeyValue { key: key.to_vec(), create_revision: i64::MAX, ..Default::default() });
            seen(&inner.schema, place, claim.mode, key, &[with_me]) == Seen::Enter
        }
        _ => false,
    }
}

fn unsettled(claim: &Claim) -> Error {
    Error::new(ErrorKind::Unavailable, "the claim's lease ended again and again while it was asked for")
        .with_name(&claim.name)
        .with_hint("Ask again; is the ttl shorter than what the cluster takes to answer?")
}

/// What became of waiting.
pub(crate) enum Waited {
    Granted(Grant),
    /// Its time is over.
    Over,
    /// Its key is gone.
    Gone,
}

/// Whether what was told may mean that the claim gets in.
pub(crate) fn matters(claim: &Claim, front: &Front, told: &Told) -> bool {
    match told {
        Told::Live | Told::Gone(_) | Told::Over(_) => true,
        // A reader's writer became a reader.
        Told::Put(kv) if claim.mode == Mode::Shared => Value::decode(&kv.value).shared,
        // The waiter in front was let in: now it is the first who waits. To the first, who watches all, a newcomer is nothing.
        Told::Put(_) => front.to.is_empty() && matches!(claim.mode, Mode::Permits { .. }),
        Told::Refused(_) => false,
    }
}

#[cfg(test)]
mod tests;
