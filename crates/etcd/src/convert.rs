//! Changing the mode of a held rw lock in place, by the rule of `tenure_core`'s record.
//!
//! A claim keeps its key, and so its place in line, for as long as it holds. A writer that becomes a reader says so in its
//! value. A reader that becomes the writer puts a second key beside it, among the writers, for newcomers to wait for; the
//! revision of that is its new token.
//!
//! Who can interleave: it is a look and then a transaction that does nothing unless what was seen still stands. Whoever may
//! have come in between did so by writing a key, which is compared over the whole line. Readers who wait already look only at the
//! writers before them, and would not see the new key when those are gone: while one waits, nobody becomes the writer. A copy that
//! arrives late finds another revision, and does nothing. Whoever ends or breaks the hold at that moment cannot know of the second key: it
//! is always removed along with the first.

use std::sync::Arc;

use tenure_core::{Claim, Grant, Instant, Kind, Mode, Result, Token, margin};

use crate::codec::Value;
use crate::error::Failure;
use crate::inner::Inner;
use crate::line::{Ticket, line};
use crate::proto::*;
use crate::schema::Schema;

/// What a conversion comes to, by what was seen.
enum Plan {
    /// It is as it should be: this is its token.
    Done(Token),
    /// It cannot be had.
    No,
    /// Do this; the token, unless it is the revision at which it is done.
    Do(TxnRequest, Option<Token>, Mode),
}

impl Inner {
    /// Changes the mode of a hold; `None` if it cannot be had now.
    ///
    /// # Cancel safety
    /// Dropped, it may have been done or not: whoever asks again learns which.
    pub(crate) async fn convert(self: &Arc<Self>, claim: &Claim, to: Mode, known: Token) -> Result<Option<Grant>> {
        self.move_back(claim, &self.asks).await?;
        let Some(on) = self.table().claims.get(&claim.id).and_then(|entry| entry.on.clone()) else { return Ok(None) };
        for _ in 0..16 {
            if Instant::now() > on.lease().base() + claim.ttl / 6 && !self.keep_alive(on.lease(), &self.asks).await? {
                return Ok(None);
            }
            let (tickets, revision) = self.tickets(claim).await?;
            let Some(mine) = tickets.iter().position(|ticket| ticket.kv.key == self.key_of(claim)) else { return Ok(None) };
            let token = match plan(&self.schema, claim, &tickets, mine, to, known, revision) {
                Plan::No => return Ok(None),
                Plan::Done(token) => token,
                Plan::Do(txn, token, mode) => {
                    let answer = self.txn("converting an rw lock", txn).await?.value;
                    if !answer.succeeded {
                        continue; // something has changed: look again
                    }
                    if mode == Mode::Shared {
                        self.ear.gone_here(&self.schema.beside(&claim.name, &self.key_of(claim)), None);
                    }
                    token.unwrap_or(Token::new(answer.revision() as u64))
                }
            };
            let mut table = self.table();
            let Some(entry) = table.claims.get_mut(&claim.id) else { return Ok(None) };
            let (base, trusted) = (on.lease().base(), entry.trusted());
            entry.expires = entry.expires.max(base + trusted + claim.lock_delay);
            entry.token = token.get() as i64;
            return Ok(Some(Grant { token, until: base + (trusted - margin(trusted)) }));
        }
        Ok(None)
    }

    fn key_of(&self, claim: &Claim) -> Vec<u8> {
        self.table().claims.get(&claim.id).map(|entry| entry.key.clone()).unwrap_or_default()
    }

    /// The whole line of a claim's name, and when it was seen.
    async fn tickets(&self, claim: &Claim) -> std::result::Result<(Vec<Ticket>, i64), Failure> {
        let request = RangeRequest::of(&self.schema.name(&claim.name)).oldest(0);
        let answer = self.asks.call("looking at the line", |wire| {
            let request = request.clone();
            async move { wire.range(request).await }
        });
        let answer = answer.await?.value;
        let revision = answer.revision();
        Ok((line(&self.schema, answer.kvs), revision))
    }

    /// A claim as the store has it.
    pub(crate) async fn ticket(&self, claim: &Claim) -> std::result::Result<Option<(Ticket, i64)>, Failure> {
        let (tickets, revision) = self.tickets(claim).await?;
        let key = self.key_of(claim);
        Ok(tickets.into_iter().find(|ticket| ticket.kv.key == key).map(|ticket| (ticket, revision)))
    }
}

fn plan(schema: &Schema, claim: &Claim, line: &[Ticket], mine: usize, to: Mode, known: Token, revision: i64) -> Plan {
    let ticket = &line[mine];
    let (token, had) = (ticket.token(), ticket.mode);
    if !ticket.holds || ticket.value.closing || ticket.parsed.kind != Kind::RwLock {
        return Plan::No;
    }
    let alone = line.iter().filter(|ticket| ticket.holds).count() == 1;
    let readers_wait = line.iter().any(|ticket| !ticket.holds && ticket.mode == Mode::Shared);
    let is_of_this_hold = token == known;
    let unchanged_place = unchanged(&ticket.kv.key, ticket.kv.mod_revision);
    let beside = schema.beside(&claim.name, &ticket.kv.key);
    let beside_is = |revision| unchanged(&beside, revision);
    match (had, to) {
        (Mode::Exclusive, Mode::Shared) if is_of_this_hold => {
            let value = Value { shared: true, token: Some(token.get()), ..ticket.value.clone() };
            let mut success = vec![rewrite(&ticket.kv.key, value.encode())];
            let mut compare = vec![unchanged_place];
            if let Some(kv) = &ticket.beside {
                compare.push(beside_is(kv.mod_revision));
                success.push(delete(&beside));
            }
            Plan::Do(TxnRequest { compare, success, failure: Vec::new() }, Some(token), Mode::Shared)
        }
        (Mode::Exclusive | Mode::Shared, Mode::Exclusive) if is_of_this_hold && alone && !readers_wait => {
            let place = schema.place(&claim.name, claim.kind, claim.mode);
            let compare = vec![unchanged_place, nothing_since(&place.kind, revision)];
            let value = Value { shared: false, token: None, ..ticket.value.clone() };
            let success = vec![put(&beside, value.encode(), ticket.kv.lease)];
            Plan::Do(TxnRequest { compare, success, failure: Vec::new() }, None, Mode::Exclusive)
        }
        // The answer to the first time was lost; an upgrade that was done has another token, and without one a late downgrade could
        // still undo what is said here.
        (had, to) if had == to && (to == Mode::Shared || !is_of_this_hold) => Plan::Done(token),
        _ => Plan::No,
    }
}

#[cfg(test)]
mod tests;
