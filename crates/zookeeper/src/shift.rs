//! Waiting with a short session and holding with a long one.
//!
//! A waiter that died stands in the line until its session ends, and everybody behind it waits for that. So a claim whose ttl is
//! longer than [`WAITING`](crate::layout::WAITING) does not wait with a session of its own ttl: it moves to a shorter one, at the
//! same place in the line, and once it holds, its first renewal moves it to the long one. A move is one transaction of the new
//! session that deletes the old node and makes another with the same number and the next generation: the place is never empty,
//! and a node that somebody took away is not made again. The token stays what it was, and is written into the new node.
//!
//! Whoever watches such a node does not take its going for the end of it: its name says that it may move, and then the line is
//! listed again.
//!
//! Who can interleave: moves, changes of mode and the end of one claim take turns. A hold that is on its way, or whose move had no
//! answer, is trusted for no longer than either of its two sessions, since its node may be in one or the other; the next renewal
//! finishes the move. What its holder was given before cannot be taken back, so it sets out only for a session that can be trusted
//! for as long; that is looked at under the book's mutex, and so is whatever a renewal gives. An end looks for its nodes in the
//! session that it was on its way to, since what was sent last was sent there, and in the old one if that is over.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Claim, Instant, Result, margin};

use crate::error::refused;
use crate::inner::{Entry, Inner};
use crate::layout::{is_movable, node};
use crate::session::{Session, Trouble, User};
use crate::ticket::Ticket;
use crate::wire::{NodeKind, Op, Refusal, Reply, Request};

impl Inner {
    /// Moves a claim to the session for this timeout; its new node. `None` if one of the sessions ended: ask anew.
    ///
    /// # Cancel safety
    /// Dropped, it has one node or the other: its end looks for both.
    pub(crate) async fn shift(self: &Arc<Self>, claim: &Claim, timeout: Duration) -> Result<Option<(User, String)>> {
        let user = self.session(timeout).await?;
        let Some(entry) = self.entry(claim.id) else { return Ok(None) };
        if entry.granted {
            // So that it is known for how long that session can be trusted. Not in its turn: an end would wait for it.
            let _ = tokio::time::timeout(self.settings.answer_limit, self.prove(&user.0)).await;
        }
        let _turn = entry.turn.lock().await;
        let Some(entry) = self.entry(claim.id).filter(|entry| !entry.lost && !entry.unsure) else { return Ok(None) };
        if Arc::ptr_eq(&entry.user.0, &user.0) {
            return Ok(entry.node.map(|node| (user, node)));
        }
        if !self.sets_out(claim, &user) {
            return Ok(None);
        }
        let (Some(old), generation) = (entry.path(), entry.generation + 1) else { return Ok(None) };
        let name = node(self.settings.layout, claim, entry.mode, generation, entry.sequence);
        let is_there = self.swap(&user.0, claim, &entry, old, &name).await?;
        self.edit(claim.id, |entry| {
            entry.moving = None;
            if is_there {
                (entry.user, entry.node, entry.generation) = (user.clone(), Some(name.clone()), generation);
            }
        });
        if entry.granted {
            self.watch_soon(&entry.user.0, claim.id); // one of the two has something to look at
            self.watch_soon(&user.0, claim.id);
        }
        Ok(is_there.then_some((user, name)))
    }

    /// Notes that a claim is on its way to this session; `false` if its holder was given more than that can be trusted for.
    fn sets_out(&self, claim: &Claim, to: &User) -> bool {
        let mut book = self.book();
        let Some(entry) = book.get_mut(&claim.id) else { return false };
        let is_given_more = entry.granted && entry.expires > to.0.until() + margin(claim.ttl);
        if !is_given_more {
            entry.moving = Some(to.clone());
        }
        !is_given_more
    }

    /// Makes the new node in place of the old one; whether it is there, in this session.
    async fn swap(&self, session: &Session, claim: &Claim, entry: &Entry, old: String, name: &str) -> Result<bool> {
        let new = format!("{}/{name}", entry.parent);
        let data = Ticket { token: Some(entry.token), asked: entry.asked.clone(), ..Ticket::of(claim) }.encode();
        let deadline = Instant::now() + self.settings.answer_limit;
        loop {
            let delete = Op::Delete { path: old.clone(), version: -1 };
            let create = Op::Create { path: new.clone(), data: data.clone(), kind: NodeKind::Ephemeral };
            let outcome = self.flight(session, "a move", vec![Request::Multi(vec![delete, create])]).await?;
            match outcome.map(|mut outcomes| outcomes.pop()) {
                Ok(Some(Ok(_))) => return Ok(true),
                // The old one is gone: it was taken away, or this is the second time and the first one's answer was lost.
                Ok(Some(Err(Trouble::Refused(Refusal::NO_NODE)))) => {
                    let look = Request::Get { path: new.clone(), watch: false };
                    if let Ok(mut outcomes) = self.flight(session, "a move", vec![look]).await? {
                        return Ok(
                            matches!(outcomes.pop(), Some(Ok(Reply::Data(_, stat))) if stat.owner == session.number()),
                        );
                    }
                }
                Ok(Some(Err(Trouble::Refused(refusal)))) => return Err(refused(refusal, "make", &new)),
                Err(Trouble::Over(_)) | Ok(_) => return Ok(false),
                Err(trouble) => {
                    let left = deadline.since(Instant::now());
                    if !matches!(tokio::time::timeout(left, session.here()).await, Ok(Ok(()))) {
                        return Err(self.explain(trouble, "make", &new));
                    }
                }
            }
        }
    }

    /// Moves a hold that waited to the session of its own ttl, in the background.
    pub(crate) fn shift_home(self: &Arc<Self>, claim: &Claim) {
        // One that is on its way is left alone while somebody sees to it.
        let is_free = |entry: &Entry| entry.moving.is_none() || entry.turn.try_lock().is_ok();
        let is_away = |entry: &Entry| entry.granted && !entry.lost && entry.user.0.wanted < claim.ttl && is_free(entry);
        if is_movable(self.settings.layout, claim) && self.entry(claim.id).is_some_and(|entry| is_away(&entry)) {
            let (inner, claim) = (Arc::clone(self), claim.clone());
            // If it does not work now, the next renewal tries again; until then the hold stands on the short session.
            self.home.spawn(async move {
                if inner.may_grant_longer(claim.ttl, &claim) {
                    let _ = inner.shift(&claim, claim.ttl).await;
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::Kind;

    use super::*;
    use crate::config::Settings;
    use crate::driver::tests::{hold, session_since};

    #[tokio::test]
    async fn a_hold_is_never_given_more_than_the_session_that_it_moves_to() {
        let inner = Inner::new(Settings::default(), tokio::runtime::Handle::current());
        let (claim, now) = (tenure_testkit::claim(Kind::Mutex, 1), Instant::now());
        let [stale, short, home] = [20, 10, 0].map(|ago| session_since(now - Duration::from_secs(ago)));
        inner.book().insert(claim.id, hold(&short));
        assert_eq!(inner.give(&claim), Some(short.until()));
        let is_moving = || inner.book()[&claim.id].moving.is_some();
        assert!(!inner.sets_out(&claim, &stale.enter()) && !is_moving(), "its holder was given more than that");
        assert!(inner.sets_out(&claim, &home.enter()) && is_moving());
        inner.book().insert(claim.id, Entry { moving: Some(stale.enter()), ..hold(&short) });
        assert_eq!(inner.give(&claim), Some(stale.until()), "its node may be in either");
        inner.book().insert(claim.id, Entry { granted: false, ..hold(&short) });
        assert!(inner.sets_out(&claim, &stale.enter()), "whoever waits was given nothing");
    }
}
