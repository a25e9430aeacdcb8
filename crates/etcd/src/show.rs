//! Who holds and who waits; asking holders to let go, and breaking their holds.
//!
//! A view is one read of a name's keys, with the entry rule applied. Ages are by the wall clock of whoever asked, and an expiry is
//! the most that it can be: the server counts leases, not locks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Ask, Clock, Fingerprint, Holder, LockName, Result, Sequencer, Standing, Token, View, Waiter};

use crate::codec::Value;
use crate::config::Layout;
use crate::ear::Told;
use crate::error::Next;
use crate::inner::Inner;
use crate::leases::whole_seconds;
use crate::line::{Ticket, line};
use crate::proto::*;
use crate::schema::Range;

/// How many keys a listing reads at once.
const PAGE: i64 = 500;

impl Inner {
    /// The keys of a name, with the revision at which they were read.
    async fn line_of(&self, name: &LockName) -> Result<(Vec<Ticket>, i64)> {
        let request = RangeRequest::of(&self.schema.name(name)).oldest(0);
        let answer = self.asks.range("looking at a name", request).await?.value;
        let revision = answer.header.revision;
        let mut tickets = line(&self.schema, answer.kvs);
        tickets.retain(|ticket| ticket.parsed.name == *name);
        Ok((tickets, revision))
    }

    pub(crate) async fn view(&self, name: &LockName) -> Result<View> {
        Ok(show(name.clone(), self.line_of(name).await?.0))
    }

    /// How a sequencer stands. etcd remembers: where the name does not show it any more, its past does, until it is compacted.
    pub(crate) async fn check(&self, sequencer: &Sequencer) -> Result<Standing> {
        let (tickets, revision) = self.line_of(&sequencer.name).await?;
        let still_there = tickets.iter().any(|ticket| was_given(ticket, sequencer));
        let standing = show(sequencer.name.clone(), tickets).standing(sequencer);
        let token = sequencer.token.get();
        if standing != Standing::Unknown || still_there || token == 0 || token > revision as u64 {
            return Ok(standing);
        }
        let mut request = RangeRequest::of(&self.schema.name(&sequencer.name));
        request.revision = token as i64;
        match self.asks.range("looking at a name's past", request).await {
            Ok(answer) => {
                let then = line(&self.schema, answer.value.kvs);
                let given = then.iter().any(|ticket| was_given(ticket, sequencer));
                Ok(if given { Standing::Released } else { Standing::Unknown })
            }
            Err(failure) if failure.next == Next::Compacted => Ok(Standing::Unknown),
            Err(failure) => Err(failure.error),
        }
    }

    /// Names in use, in order.
    pub(crate) async fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Result<Vec<View>> {
        let Range { mut from, to } = self.schema.names(prefix);
        // The keys of etcd's recipe are not in the order of their names: there all are read.
        let are_in_order = self.schema.layout == Layout::Tenure;
        if let Some(after) = after.filter(|_| are_in_order) {
            from = from.max(self.schema.name(after).to);
        }
        let mut names: BTreeMap<LockName, Vec<KeyValue>> = BTreeMap::new();
        // One more than wanted: the last may not be whole yet.
        while (names.len() <= limit || !are_in_order) && limit > 0 && (from < to || to == [0]) {
            let request = RangeRequest { key: from, range_end: to.clone(), limit: PAGE, ..Default::default() };
            let answer = self.asks.range("listing names", request).await?.value;
            let last = answer.kvs.last().map(|kv| kv.key.clone());
            for kv in answer.kvs {
                let parsed = self
                    .schema
                    .parse(&kv.key)
                    .filter(|parsed| kv.lease != 0 && after.is_none_or(|after| parsed.name > *after));
                if let Some(parsed) = parsed {
                    names.entry(parsed.name).or_default().push(kv);
                }
            }
            match last.filter(|_| answer.more) {
                Some(mut next) => {
                    next.push(0);
                    from = next;
                }
                None => break,
            }
        }
        let views = names.into_iter().map(|(name, kvs)| show(name, line(&self.schema, kvs)));
        Ok(views.filter(|view| !view.is_free()).take(limit).collect())
    }

    /// Completes when the view says something else.
    pub(crate) async fn watch(self: &Arc<Self>, name: &LockName, seen: &View) -> Result<View> {
        self.start();
        let Range { from, to } = self.schema.name(name);
        let mut watch = self.ear.subscribe(&from, &to, None);
        loop {
            let view = self.view(name).await?;
            if !view.says_the_same_as(seen) {
                return Ok(view);
            }
            tokio::select! {
                told = watch.next() => if let Told::Refused(_) = told {
                    tokio::time::sleep(WATCH_EVERY).await;
                },
                () = tokio::time::sleep(WATCH_EVERY) => {}
            }
        }
    }

    /// Asks every holder to let go. Tried once: the second time it might ask somebody who came after the first.
    pub(crate) async fn request(&self, name: &LockName, ask: &Ask) -> Result<usize> {
        let (tickets, _) = self.line_of(name).await?;
        let mut asked = 0;
        for ticket in tickets.into_iter().filter(|ticket| ticket.holds && !ticket.value.closing) {
            let mut current = Some(ticket);
            // A holder that writes its own key at this moment is asked again, as it is then.
            for _ in 0..8 {
                let Some(ticket) = current.take() else { break };
                let value = Value { asked: Some(ask.clone()), ..ticket.value.clone() };
                let key = &ticket.kv.key;
                let compare = vec![unchanged(key, ticket.kv.mod_revision)];
                let txn = TxnRequest { compare, success: vec![rewrite(key, value.encode())], failure: Vec::new() };
                if self.asks.txn("asking a holder", txn).await?.value.succeeded {
                    asked += 1;
                    break;
                }
                let (tickets, _) = self.line_of(name).await?;
                current = tickets.into_iter().find(|now| now.kv.key == ticket.kv.key && now.holds);
            }
        }
        Ok(asked)
    }

    /// Ends holds by force. Tried once: the second time it would break whoever was let in by the first.
    pub(crate) async fn break_holds(&self, name: &LockName, only: Option<Token>) -> Result<usize> {
        let (tickets, _) = self.line_of(name).await?;
        let mut broken = 0;
        for ticket in tickets.into_iter().filter(|ticket| ticket.holds) {
            if only.is_none_or(|only| only == ticket.token()) {
                broken += usize::from(self.break_hold(&ticket).await?);
            }
        }
        Ok(broken)
    }

    /// Ends one hold, as it was seen.
    async fn break_hold(&self, ticket: &Ticket) -> Result<bool> {
        let key = &ticket.kv.key;
        let delay = ticket.value.lock_delay;
        let mut lease = None;
        let success = if delay.is_zero() || ticket.value.closing {
            vec![delete(key)]
        } else {
            let closes = lease.insert(self.grant(whole_seconds(delay), &self.asks).await?);
            let value = Value { closing: true, ttl: delay, asked: None, ..ticket.value.clone() };
            vec![put(key, value.encode(), closes.id)]
        };
        let compare = vec![created_at(key, ticket.kv.create_revision)];
        let txn = TxnRequest { compare, success, failure: Vec::new() };
        let broken = self.asks.txn("breaking a hold", txn).await?.value.succeeded;
        if let Some(lease) = lease.filter(|_| !broken) {
            let _ = self.revoke(lease.id).await; // or it ends by itself
        }
        Ok(broken)
    }
}

/// Whether this is the claim that a sequencer says, at the revision at which it was seen.
fn was_given(ticket: &Ticket, sequencer: &Sequencer) -> bool {
    let is_of = |mode| mode == sequencer.mode;
    ticket.token() == sequencer.token
        && ticket.parsed.kind == sequencer.kind
        && (is_of(ticket.mode) || is_of(ticket.parsed.mode))
}

/// A line as people see it.
fn show(name: LockName, tickets: Vec<Ticket>) -> View {
    let now = Clock::Boot.wall_micros();
    let kind = tickets.first().map(|ticket| ticket.parsed.kind);
    let mut view = View { kind, ..View::free(name) };
    for ticket in tickets {
        let token = ticket.token();
        let Ticket { value, parsed, mode, holds, .. } = ticket;
        let Value { note, origin, ttl, lock_delay, since, closing, asked, .. } = value;
        // Where another program wrote the key it says nothing of the claim but what its key does.
        let claim = if value.claim == Fingerprint(0) { fingerprint(&parsed.seat) } else { value.claim };
        let age = Duration::from_micros(now.saturating_sub(if since == 0 { now } else { since }));
        if !holds {
            view.line.push(Waiter { claim, mode, note, origin, waiting_for: age });
            continue;
        }
        let expires_in = if closing { ttl } else { ttl + lock_delay };
        view.holders.push(Holder { claim, mode, token, note, origin, held_for: age, expires_in, closing, asked });
    }
    view.last = view.holders.iter().map(|holder| holder.token).max();
    view
}

fn fingerprint(claim: &str) -> Fingerprint {
    let tail = claim.get(claim.len().saturating_sub(8)..).unwrap_or_default(); // another program may have written anything
    Fingerprint(u32::from_str_radix(tail, 16).unwrap_or_default())
}

/// How often a watcher looks by itself: a net.
const WATCH_EVERY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;
