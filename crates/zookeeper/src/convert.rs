//! Changing the mode of a held rw lock in place.
//!
//! A mode is in the name of a node, so that everybody who lists knows it; another mode is another node **at the same place**: its
//! name is written whole, with the number of the old one and the next generation.
//!
//! - *A writer becomes a reader* in one transaction that makes the one node and deletes the other. Readers who watch the writer's
//!   node are let in by that; writers look again. The token stays, and is written into the node.
//! - *A reader becomes the writer* by making the writer's node and listing, in one flight. Whoever comes later lists later and
//!   sees that node in front; whoever came before is in the list, and then it is given up. So of two that want it neither gets it
//!   while the other is in. One transaction deletes the reader's node and writes into the other one that it is in. It must be
//!   alone in the **line**, not only inside: whoever waits already has the number of its own node as its token, and that is lower
//!   than what the new writer's would be. That is a no where other stores could say yes; `try_upgrade` may always say no.
//!
//! Who can interleave: changes and the end of one claim take turns. What a lost answer leaves is found out before the next one:
//! two nodes mean that an upgrade was not finished, so the older counts; one node is what it says. But a writer's that does not say
//! that it is in was never decided upon: somebody broke the reader, and others may read. So it is when the old node is
//! seen to have gone: the watch on the hold's own node goes to the new one. And so it is [once a second](Inner::settle_abandoned),
//! since readers wait behind a writer's node that nobody sees to.

use std::sync::Arc;

use tenure_core::{Claim, ClaimId, Grant, Instant, Mode, Result, Token};

use crate::error::refused;
use crate::inner::{Entry, Inner};
use crate::layout::{Key, Place, node};
use crate::line::Line;
use crate::session::Trouble;
use crate::ticket::Ticket;
use crate::wire::{NodeKind, Op, Refusal, Reply, Request};

impl Inner {
    /// Changes the mode of a hold; `None` if it cannot be had now.
    ///
    /// # Cancel safety
    /// Dropped, it may have been done or not: that is found out in the background, or by the next change or the release.
    pub(crate) async fn convert(self: &Arc<Self>, claim: &Claim, to: Mode, known: Token) -> Result<Option<Grant>> {
        let Some(entry) = self.entry(claim.id) else { return Ok(None) };
        let _turn = entry.turn.lock().await;
        let Some(entry) = self.settled(claim.id).await? else { return Ok(None) };
        let is_of_this_hold = entry.token == known;
        let token = match (entry.mode, to) {
            (Mode::Exclusive, Mode::Shared) if is_of_this_hold => Some(self.downgrade(claim, &entry).await?),
            (Mode::Exclusive | Mode::Shared, Mode::Exclusive) if is_of_this_hold => self.upgrade(claim, &entry).await?,
            (had, to) if had == to => Some(entry.token),
            _ => None,
        };
        let until = self.give(claim).unwrap_or_else(Instant::now); // or it is over by now
        Ok(token.map(|token| Grant { token, until }))
    }

    /// The hold as it is, once everything that was sent for it is known to be done or not; `None` if there is none.
    /// Whoever asks has the turn.
    pub(crate) async fn settled(&self, id: ClaimId) -> Result<Option<Entry>> {
        let held = || self.entry(id).filter(|entry| entry.granted && !entry.lost && !entry.user.0.is_over());
        let Some(entry) = held() else { return Ok(None) };
        if !entry.unsure {
            return Ok(Some(entry));
        }
        let (session, parent) = (&entry.user.0, &entry.parent);
        let line = match self.line_after_a_write(session, parent).await? {
            Ok(line) => line,
            Err(Trouble::Over(_)) => return Ok(None),
            Err(trouble) => return Err(self.explain(trouble, "list", parent)),
        };
        let path = |place: &Place| format!("{parent}/{}", place.node);
        let mine: Vec<Place> = line.of(Key::of(id)).cloned().collect();
        let looks = mine.iter().map(|place| Request::Get { path: path(place), watch: false }).collect();
        let outcomes = match self.flight(session, "a look at a hold", looks).await? {
            Ok(outcomes) => outcomes,
            Err(Trouble::Over(_)) => return Ok(None),
            Err(trouble) => return Err(self.explain(trouble, "look at", parent)),
        };
        let owner = session.number();
        let (mut first, mut rest) = (None, Vec::new());
        for (place, outcome) in mine.into_iter().zip(outcomes) {
            let Ok(Reply::Data(data, stat)) = outcome else { continue };
            if stat.owner != owner {
                continue; // what a session before this one has left goes by itself
            }
            let ticket = Ticket::decode(&data);
            let is_decided = entry.mode != Mode::Shared || place.mode != Mode::Exclusive || ticket.entered;
            if first.is_none() && is_decided {
                first = Some((place, ticket, stat));
            } else {
                rest.push(Request::Delete { path: path(&place), version: -1 });
            }
        }
        match self.flight(session, "a change of mode", rest).await? {
            Ok(_) => {}
            Err(Trouble::Over(_)) => return Ok(None),
            Err(trouble) => return Err(self.explain(trouble, "delete a node in", parent)),
        }
        let Some((place, ticket, stat)) = first else {
            self.gone(id);
            return Ok(None);
        };
        let token = ticket.token.unwrap_or(Token::new(stat.czxid as u64));
        self.settle(id, place.mode, token, place.generation, place.node.clone());
        Ok(held())
    }

    /// Finds out what became of changes that were dropped or had no answer, and that nobody waits for any more.
    pub(crate) fn settle_abandoned(self: &Arc<Self>) {
        let is_abandoned =
            |entry: &Entry| entry.unsure && entry.granted && !entry.lost && !entry.ending && entry.turn.try_lock().is_ok();
        let ids: Vec<ClaimId> = self.book().iter().filter(|(_, entry)| is_abandoned(entry)).map(|(id, _)| *id).collect();
        for id in ids {
            let inner = Arc::clone(self);
            self.home.spawn(async move {
                let Some(entry) = inner.entry(id) else { return };
                let _turn = entry.turn.lock().await;
                let _ = inner.settled(id).await; // if nobody answers, it is tried again
            });
        }
    }

    fn settle(&self, id: ClaimId, mode: Mode, token: Token, generation: u32, node: String) {
        self.edit(id, |entry| {
            (entry.mode, entry.token, entry.generation, entry.unsure) = (mode, token, generation, false);
            entry.node = Some(node);
        });
        if let Some(entry) = self.entry(id) {
            self.watch_soon(&entry.user.0, id); // it is another node now
        }
    }

    async fn downgrade(&self, claim: &Claim, entry: &Entry) -> Result<Token> {
        let (session, generation) = (&entry.user.0, entry.generation + 1);
        let name = node(self.settings.layout, claim, Mode::Shared, generation, entry.sequence);
        let ticket = Ticket { token: Some(entry.token), asked: entry.asked.clone(), ..Ticket::of(claim) };
        let create =
            Op::Create { path: format!("{}/{name}", entry.parent), data: ticket.encode(), kind: NodeKind::Ephemeral };
        let path = entry.path().expect("a hold has a node");
        let swap = Request::Multi(vec![create, Op::Delete { path: path.clone(), version: -1 }]);
        self.edit(claim.id, |entry| entry.unsure = true);
        match self.flight(session, "a change of mode", vec![swap]).await?.map(|mut outcomes| outcomes.pop()) {
            Ok(Some(Ok(_))) => {
                self.settle(claim.id, Mode::Shared, entry.token, generation, name);
                Ok(entry.token)
            }
            Ok(Some(Err(Trouble::Refused(refusal)))) => Err(refused(refusal, "change", &path)),
            Ok(_) => Err(crate::error::late("a change of mode", &self.settings.hosts())),
            Err(trouble) => Err(self.explain(trouble, "change", &path)),
        }
    }

    async fn upgrade(&self, claim: &Claim, entry: &Entry) -> Result<Option<Token>> {
        let (session, generation, parent) = (&entry.user.0, entry.generation + 1, &entry.parent);
        let name = node(self.settings.layout, claim, Mode::Exclusive, generation, entry.sequence);
        let path = format!("{parent}/{name}");
        let ticket = Ticket { asked: entry.asked.clone(), ..Ticket::of(claim) };
        let ask = vec![
            Request::Create { path: path.clone(), data: ticket.encode(), kind: NodeKind::Ephemeral },
            Request::Children { path: parent.clone(), watch: false },
        ];
        self.edit(claim.id, |entry| entry.unsure = true);
        let (token, line) = match self.flight(session, "a change of mode", ask).await? {
            Err(trouble) => return Err(self.explain(trouble, "change", &path)),
            Ok(outcomes) => match <[_; 2]>::try_from(outcomes) {
                Ok([Ok(Reply::Created(_, stat)), Ok(Reply::Children(children, _))]) => {
                    (Token::new(stat.czxid as u64), Line::read(self.settings.layout, &children))
                }
                Ok([Err(Trouble::Refused(Refusal::NO_NODE)), _]) => return Ok(None), // the name is gone, and the hold with it
                Ok([Err(Trouble::Refused(refusal)), _]) => return Err(refused(refusal, "make", &path)),
                _ => return Err(crate::error::late("a change of mode", &self.settings.hosts())),
            },
        };
        let key = Key::of(claim.id);
        let is_alone = line.0.iter().all(|place| place.key == key);
        let still_held = entry.node.as_ref().is_some_and(|node| line.find(node).is_some());
        let is_in = is_alone && still_held;
        let decide = if is_in {
            // In one: if somebody breaks the hold meanwhile it does not become the writer, and what is left of it says so.
            let data = Ticket { entered: true, ..ticket }.encode();
            let old = Op::Delete { path: entry.path().expect("a hold has a node"), version: -1 };
            Request::Multi(vec![old, Op::Set { path: path.clone(), data, version: -1 }])
        } else {
            Request::Delete { path: path.clone(), version: -1 }
        };
        match self.flight(session, "a change of mode", vec![decide]).await?.map(|mut outcomes| outcomes.pop()) {
            Ok(Some(Ok(_))) if is_in => {
                self.settle(claim.id, Mode::Exclusive, token, generation, name);
                Ok(Some(token))
            }
            Ok(Some(Err(Trouble::Refused(Refusal::NO_NODE)))) if is_in => {
                self.settled(claim.id).await?; // somebody took one of the two away: it is lost, or still a reader
                Ok(None)
            }
            Ok(Some(Ok(_) | Err(Trouble::Refused(Refusal::NO_NODE)))) => {
                self.edit(claim.id, |entry| entry.unsure = false);
                Ok(None)
            }
            Ok(Some(Err(Trouble::Refused(refusal)))) => Err(refused(refusal, "delete a node in", parent)),
            Ok(_) => Err(crate::error::late("a change of mode", &self.settings.hosts())),
            Err(trouble) => Err(self.explain(trouble, "change", &path)),
        }
    }
}
