//! Making a reader of the writer that holds an rw lock.
//!
//! A mode is in the name of a node, so that everybody who lists knows it. So a reader is another
//! node **at the same place**: its name is written whole, with the number of the writer's. One transaction makes the one and deletes the other. Readers who watch the
//! writer's node are let in by that; writers look again. The token stays, and is written into the
//! node.
//!
//! Who can interleave: a downgrade and the end of one claim take turns. Whether one without an
//! answer was done is found out before the next request of that claim, and where the writer's node
//! is seen to have gone: the watch on the hold's own node goes to the reader's then.

use std::sync::Arc;

use tenure_core::{Claim, ClaimId, Instant, Mode, Result};

use crate::error::refused;
use crate::inner::{Entry, Inner};
use crate::layout::{Key, node};
use crate::session::Trouble;
use crate::ticket::Ticket;
use crate::wire::{NodeKind, Op, Refusal, Request};

impl Inner {
    /// Makes a reader of a writer; `false` if it is not held any more.
    ///
    /// # Cancel safety
    /// Dropped, it may have been done or not: that is found out in the background, or by the next
    /// downgrade or the release.
    pub(crate) async fn downgrade(self: &Arc<Self>, claim: &Claim) -> Result<bool> {
        let Some(entry) = self.entry(claim.id) else { return Ok(false) };
        let _turn = entry.turn.lock().await;
        let deadline = Instant::now() + self.settings.answer_limit;
        loop {
            let done = match self.settled(claim.id).await {
                Ok(Some(entry)) if entry.mode == Mode::Exclusive => self.make_reader(claim, &entry).await,
                settled => settled.map(|entry| entry.is_some()),
            };
            let error = match done {
                Err(error) if error.is_transient() => error,
                done => return done,
            };
            // The connection was lost, perhaps with the answer: `settled` asks over the next one.
            let left = deadline.since(Instant::now());
            match tokio::time::timeout(left, entry.user.0.here()).await {
                Ok(Ok(())) if !left.is_zero() => {}
                Ok(Err(_)) => return Ok(false),
                _ => return Err(error),
            }
        }
    }

    /// The hold as it is, once it is known whether a downgrade without an answer was done; `None`
    /// if there is none. Whoever asks has the turn.
    pub(crate) async fn settled(&self, id: ClaimId) -> Result<Option<Entry>> {
        let held = || self.entry(id).filter(|entry| entry.granted && !entry.lost && !entry.user.0.is_over());
        let Some(entry) = held() else { return Ok(None) };
        if !entry.unsure {
            return Ok(Some(entry));
        }
        let line = match self.line_after_a_write(&entry.user.0, &entry.parent).await? {
            Ok(line) => line,
            Err(Trouble::Over(_)) => return Ok(None),
            Err(trouble) => return Err(self.explain(trouble, "list", &entry.parent)),
        };
        // What a session before this one has left has another number, and goes by itself.
        let Some(place) = line.of(Key::of(id)).find(|place| place.sequence == entry.sequence) else {
            self.gone(id);
            return Ok(None);
        };
        self.settle(id, place.mode, place.node.clone());
        Ok(held())
    }

    fn settle(&self, id: ClaimId, mode: Mode, node: String) {
        self.edit(id, |entry| {
            (entry.mode, entry.node, entry.unsure) = (mode, Some(node), false);
        });
        if let Some(entry) = self.entry(id) {
            self.watch_soon(&entry.user.0, id); // it may be another node now
        }
    }

    async fn make_reader(&self, claim: &Claim, entry: &Entry) -> Result<bool> {
        let session = &entry.user.0;
        let name = node(self.settings.layout, claim, Mode::Shared, entry.sequence);
        let ticket = Ticket { token: Some(entry.token), asked: entry.asked.clone(), ..Ticket::of(claim) };
        let create =
            Op::Create { path: format!("{}/{name}", entry.parent), data: ticket.encode(), kind: NodeKind::Ephemeral };
        let path = entry.path().expect("a hold has a node");
        let swap = Request::Multi(vec![create, Op::Delete { path: path.clone(), version: -1 }]);
        self.edit(claim.id, |entry| entry.unsure = true);
        match self.flight(session, "a downgrade", vec![swap]).await?.map(|mut outcomes| outcomes.pop()) {
            Ok(Some(Ok(_))) => {
                self.settle(claim.id, Mode::Shared, name);
                Ok(true)
            }
            // Somebody took the writer's node away.
            Ok(Some(Err(Trouble::Refused(Refusal::NO_NODE)))) => {
                self.gone(claim.id);
                Ok(false)
            }
            Ok(Some(Err(Trouble::Refused(refusal)))) => Err(refused(refusal, "change", &path)),
            Ok(_) => Err(crate::error::late("a downgrade", &self.settings.hosts())),
            Err(trouble) => Err(self.explain(trouble, "change", &path)),
        }
    }
}
