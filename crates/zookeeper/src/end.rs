//! Ending a claim: a hold, a place in line, or something of which nobody knows whether it is there.
//!
//! Whoever ends a claim whose node is known deletes that. Where it is not known, because the ask was dropped or had no answer, a
//! write and a list on the claim's own session find it; nothing that the session has sent before can come after that (see
//! [`session`](crate::session)). A claim of a session that is over has nothing any more, or nothing that its leader will not take
//! away by itself. So an end is final.
//!
//! Where nobody answers, whoever asked for the end gives up after a while, and the session may go on all the same: then the claim would
//! stand there for as long as the client lives. So what is to be ended is noted, and [ended again](Inner::end_abandoned) once a second.
//! A hold that nobody renews any more, and that nobody lets go of, is [ended](Inner::end_overdue) when its time is over.

use std::sync::Arc;

use tenure_core::{Claim, ClaimId, Instant, Result};

use crate::error::refused;
use crate::inner::{Entry, Inner};
use crate::layout::Key;
use crate::line::Line;
use crate::session::{Session, Trouble};
use crate::wire::{Refusal, Reply, Request};

impl Inner {
    /// Ends whatever the claim left behind; `false` if its node was surely gone before.
    ///
    /// # Cancel safety
    /// Dropped, it may have been done or not: end it again.
    pub(crate) async fn end(self: &Arc<Self>, claim: &Claim) -> Result<bool> {
        self.bury(claim.id);
        if self.entry(claim.id).is_none() {
            return self.end_unknown(claim).await.map(|()| true);
        }
        self.edit(claim.id, |entry| entry.ending = true);
        self.end_known(claim.id).await
    }

    /// Ends what was to be ended, and whose end nobody waits for any more.
    pub(crate) fn end_abandoned(self: &Arc<Self>) {
        let is_abandoned = |entry: &Entry| entry.ending && entry.turn.try_lock().is_ok();
        let ids: Vec<ClaimId> = self.book().iter().filter(|(_, entry)| is_abandoned(entry)).map(|(id, _)| *id).collect();
        for id in ids {
            let inner = Arc::clone(self);
            self.home.spawn(async move { inner.end_known(id).await });
        }
    }

    /// Sees to it that holds are ended whose time is over, though nobody has let go of them: their session lives on, and with it their
    /// nodes. Their holders know it by their own clocks. What is found is ended at the next look, since a machine that stood
    /// still may be late with telling them.
    pub(crate) fn end_overdue(&self) {
        let now = Instant::now();
        let mut over = Vec::new();
        for (id, entry) in self.book().iter_mut().filter(|(_, entry)| entry.granted && entry.expires <= now) {
            if std::mem::replace(&mut entry.lost, true) && !std::mem::replace(&mut entry.ending, true) {
                over.push(*id);
            }
        }
        over.into_iter().for_each(|id| self.bury(id));
    }

    async fn end_known(&self, id: ClaimId) -> Result<bool> {
        let Some(entry) = self.entry(id) else { return Ok(true) };
        let _turn = entry.turn.lock().await;
        let Some(entry) = self.entry(id) else { return Ok(true) }; // somebody was faster
        let was_there = self.end_in(&entry.user.0, id, &entry).await?;
        self.forget(id);
        Ok(was_there)
    }

    /// Ends a claim by way of its session; if that is over, so is the claim. `false` if its node was surely gone before.
    async fn end_in(&self, session: &Session, id: ClaimId, entry: &Entry) -> Result<bool> {
        let deadline = Instant::now() + self.settings.answer_limit;
        let sure = entry.node.is_some() && !entry.unsure;
        let mut may_be_done = !sure;
        loop {
            let ended = if sure {
                self.delete(session, entry).await?
            } else {
                self.search(session, id, entry).await?.map(|()| true)
            };
            let trouble = match ended {
                Ok(was_there) => return Ok(was_there || may_be_done),
                Err(trouble) => trouble,
            };
            if matches!(trouble, Trouble::Over(_)) || session.is_over() {
                return Ok(true);
            }
            may_be_done = true; // what was sent may have been carried out
            let left = deadline.since(Instant::now());
            match tokio::time::timeout(left, session.here()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Ok(true),
                Err(_) => return Err(self.explain(trouble, "delete a node in", &entry.parent)),
            }
        }
    }

    /// Takes away what an ask has left in a session that is still there, before the claim asks anew: it must not stand behind
    /// itself.
    pub(crate) async fn clear_away(&self, claim: &Claim) -> Result<()> {
        let Some(entry) = self.entry(claim.id).filter(|entry| entry.node.is_some()) else { return Ok(()) };
        if entry.user.0.is_over() {
            return Ok(());
        }
        match self.search(&entry.user.0, claim.id, &entry).await? {
            Ok(()) | Err(Trouble::Over(_)) => Ok(()),
            Err(trouble) => Err(self.explain(trouble, "delete a node in", &entry.parent)),
        }
    }

    /// Deletes the claim's node; whether it was there.
    async fn delete(&self, session: &Session, entry: &Entry) -> Result<Result<bool, Trouble>> {
        let path = entry.path().expect("its node is known");
        let asked = match session.send([Request::Delete { path: path.clone(), version: -1 }]) {
            Ok([asked]) => asked,
            Err(trouble) => return Ok(Err(trouble)),
        };
        match self.within(session, "an end", asked).await? {
            Ok(_) => Ok(Ok(true)),
            Err(Trouble::Refused(Refusal::NO_NODE)) => Ok(Ok(false)),
            Err(Trouble::Refused(refusal)) => Err(refused(refusal, "delete", &path)),
            Err(trouble) => Ok(Err(trouble)),
        }
    }

    /// Finds the claim's nodes and deletes them.
    async fn search(&self, session: &Session, id: ClaimId, entry: &Entry) -> Result<Result<(), Trouble>> {
        match self.line_after_a_write(session, &entry.parent).await? {
            Err(trouble) => Ok(Err(trouble)),
            Ok(line) => self.delete_of(session, &entry.parent, &line, Key::of(id)).await,
        }
    }

    /// A name's line, with all that this session has sent before: a write goes first.
    pub(crate) async fn line_after_a_write(&self, session: &Session, parent: &str) -> Result<Result<Line, Trouble>> {
        let look = vec![
            Request::Delete { path: self.settings.proof(), version: -1 },
            Request::Children { path: parent.to_owned(), watch: false },
        ];
        let children = match self.flight(session, "a look for a node", look).await? {
            Err(trouble) => return Ok(Err(trouble)),
            Ok(mut outcomes) => match outcomes.pop() {
                Some(Ok(Reply::Children(children, _))) => children,
                Some(Err(Trouble::Refused(refusal))) if refusal != Refusal::NO_NODE => {
                    return Err(refused(refusal, "list", parent));
                }
                _ => Vec::new(),
            },
        };
        Ok(Ok(Line::read(self.settings.layout, &children)))
    }

    /// Deletes the nodes of a claim that are in this line.
    async fn delete_of(&self, session: &Session, parent: &str, line: &Line, key: Key) -> Result<Result<(), Trouble>> {
        let delete = |node: &str| Request::Delete { path: format!("{parent}/{node}"), version: -1 };
        let requests: Vec<Request> = line.of(key).map(|place| delete(&place.node)).collect();
        match self.flight(session, "an end", requests).await? {
            Err(trouble) => Ok(Err(trouble)),
            Ok(outcomes) => {
                for outcome in outcomes {
                    if let Err(Trouble::Refused(refusal)) = outcome
                        && refusal != Refusal::NO_NODE
                    {
                        return Err(refused(refusal, "delete a node in", parent));
                    }
                }
                Ok(Ok(()))
            }
        }
    }

    /// Ends a claim that this client has never asked for, or has ended before.
    async fn end_unknown(self: &Arc<Self>, claim: &Claim) -> Result<()> {
        let parent = self.parent(&claim.name)?;
        let line = Line::read(self.settings.layout, &self.children("look for a node", &parent).await?);
        if line.of(Key::of(claim.id)).next().is_none() {
            return Ok(());
        }
        let user = self.any_session().await?;
        match self.delete_of(&user.0, &parent, &line, Key::of(claim.id)).await? {
            Ok(()) => Ok(()),
            Err(trouble) => Err(self.explain(trouble, "delete a node in", &parent)),
        }
    }
}
