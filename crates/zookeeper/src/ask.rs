//! Asking, and waiting in line.
//!
//! An ask is **one flight**: the line is listed and a node is made at its end (ephemeral, with a number from the server), with no
//! wait in between. The list comes first since its member answers it by itself while the quorum takes the write, so an
//! uncontended ask takes as long as a bare create. It has everybody in front of the new node if nobody came between the two, and
//! that can be seen: the number that the server draws is how many children the parent ever had, and the list says how many it
//! had then. Who left in between is in the list and in nobody's way. A parent that was deleted and made again in between counts
//! from 0 and could reach the same number, but not in so few transactions as there were between list and node. In any other case
//! the line is listed again, after the node. So it is known whether the claim is in, or whom it is behind. A waiter watches
//! exactly that one node; [`line`](crate::line) says when its going is the grant. A waiter is in only while its own session may
//! be trusted, by our own clock: an event that a member hands out late never makes a holder of a session that is over.
//!
//! What may happen in between:
//!
//! - *The answer to the create is lost.* Then nothing is sent before the session has another connection; on that, a write and a
//!   list say for ever whether the node is there (see [`session`](crate::session)). A node counts only if its owner is this very
//!   session: one that a session before it has left is somebody in front, who will go.
//! - *The session ends while the claim waits.* Its node is gone or going: the claim asks anew on another session, at the end of
//!   the line. Nothing is ever granted from the old node.
//! - *The future is dropped.* The book has what was sent; the release that follows looks it up.
//! - *The name's container goes* between two asks: it is made again.
//! - *Somebody of another kind stands in front*, and may not have been let in either: refused by a holder that has left since, it is
//!   about to leave. So its going is waited for, for a moment, before anybody is refused because of it.
//! - *Somebody deletes the waiting node by hand.* A list shows that, and the claim asks anew. A waiter that an event lets in does
//!   not list; whoever deletes waiting nodes of a live client by hand may let two in, until the second one's node is looked at.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Claim, Clock, Error, ErrorKind, Grant, Instant, Kind, Mode, Result, Token, Wait};
use tokio::sync::oneshot;

use crate::error::refused;
use crate::inner::{Entry, Inner, SLOW_LOOK, lock};
use crate::layout::{Key, Layout, Place, node_prefix, place};
use crate::line::{Line, Standing, is_used_up};
use crate::session::{Session, Trouble, User, Watched};
use crate::ticket::Ticket;
use crate::wire::{Event, Listed, NodeKind, Refusal, Reply, Request};

/// How long whoever stands in front, as another kind, may take to leave: it may be about to be refused itself.
const LEAVES: Duration = Duration::from_millis(200);

/// What came of asking on one session.
enum Came {
    In(Grant),
    TooLate,
    /// The session is over, or the node was taken away: ask anew.
    Nothing,
}

/// What came of looking for a claim's node.
enum Found {
    Here(Node),
    Nowhere,
    /// The connection went away again.
    Unsure,
}

/// A claim's node.
#[derive(Clone, Debug)]
struct Node {
    name: String,
    token: Token,
}

impl Inner {
    /// Grants, or waits in line.
    ///
    /// # Cancel safety
    /// Dropped, the claim may be in the store: end it by its id.
    pub(crate) async fn acquire(self: &Arc<Self>, claim: &Claim, wait: Wait) -> Result<Option<Grant>> {
        tokio::task::coop::consume_budget().await; // a task that locks in a loop must let others run
        let parent = self.parent(&claim.name)?;
        self.must_not_be_ended(claim.id)?;
        if let Some(entry) = self.entry(claim.id).filter(|entry| entry.granted && !entry.lost) {
            let until = self.give(claim).unwrap_or_else(Instant::now); // one id, one ask; or its time is over by now
            return Ok(Some(Grant { token: entry.token, until }));
        }
        let deadline = wait.deadline(Instant::now());
        let mut queued = false;
        let mut give_up = Instant::now() + self.settings.answer_limit;
        loop {
            let user = match self.session(claim.ttl).await {
                Ok(user) => user,
                // Whoever has waited for long does not give up at the first trouble.
                Err(error) if error.is_transient() && queued && Instant::now() < give_up.min(deadline) => continue,
                Err(_) if queued && Instant::now() >= deadline => {
                    self.forget(claim.id);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            self.enter_book(claim, &parent, &user);
            match self.ask(user, claim, &parent, wait, deadline, &mut queued).await? {
                Came::In(grant) => return Ok(Some(grant)),
                Came::TooLate => {
                    if self.entry(claim.id).is_some_and(|entry| entry.node.is_none() && wait == Wait::No) {
                        self.forget(claim.id); // nothing was sent for it
                        return Ok(None);
                    }
                    self.end(claim).await?;
                    return Ok(None);
                }
                Came::Nothing if Instant::now() >= give_up && !queued => {
                    return Err(Error::new(ErrorKind::Unavailable, "no session lasted long enough to ask")
                        .with_hint("Look at the servers: they lose their quorum again and again, or are overloaded"));
                }
                Came::Nothing => {}
            }
            self.clear_away(claim).await?;
            if queued {
                give_up = Instant::now() + self.settings.patience;
            }
        }
    }

    fn enter_book(&self, claim: &Claim, parent: &str, user: &User) {
        let entry = Entry {
            user: user.clone(),
            ending: false,
            parent: parent.to_owned(),
            node: None,
            sequence: 0,
            mode: claim.mode,
            token: Token::new(0),
            granted: false,
            lost: false,
            expires: Instant::NEVER,
            unsure: false,
            asked: None,
            turn: Arc::default(),
        };
        self.book().insert(claim.id, entry);
    }

    async fn ask(
        self: &Arc<Self>,
        user: User,
        claim: &Claim,
        parent: &str,
        wait: Wait,
        deadline: Instant,
        queued: &mut bool,
    ) -> Result<Came> {
        let mut since = Instant::now();
        let session = &user.0;
        if wait == Wait::No && self.is_busy(session, claim, parent).await? {
            return Ok(Came::TooLate);
        }
        let Some((node, mut line, mut seen)) = self.join(session, claim, parent).await? else {
            return Ok(Came::Nothing);
        };
        let path = |node: &str| format!("{parent}/{node}");
        let mut is_first_look = true;
        let mut missed = false;
        loop {
            let Some(me) = line.find(&node.name) else { return Ok(Came::Nothing) };
            self.must_be_in_order(session, &line.0[me], parent).await?;
            if !line.fits(claim) {
                if std::mem::take(&mut is_first_look) {
                    seen = true;
                    let front = path(&line.0[0].node);
                    self.watch_one(session, Watched::Node, &front, false, Instant::now() + LEAVES).await?;
                    since = Instant::now();
                    let Some(now) = self.list(session, claim, parent, false).await? else { return Ok(Came::Nothing) };
                    line = now;
                    continue;
                }
                return Err(self.mismatch(session, claim, &line, &path(&node.name)).await);
            }
            let standing = line.standing(me);
            if standing == Standing::Enter {
                if missed && let Some(news) = self.news.get() {
                    news.grant_by_poll(claim.id, false);
                }
                return Ok(self.let_in(session, claim, &node, parent, since, seen));
            }
            if wait == Wait::No || Instant::now() >= deadline {
                if std::mem::replace(&mut seen, true) {
                    return Ok(Came::TooLate);
                }
                // A list that went ahead of the node may be of a member that is behind, and have somebody in it who has gone.
                since = Instant::now();
                let Some(now) = self.list(session, claim, parent, false).await? else { return Ok(Came::Nothing) };
                line = now;
                continue;
            }
            (*queued, seen) = (true, true);
            let (event, decides) = match standing {
                Standing::Behind { node: front, key, decides } => {
                    let event = self.watch_one(session, Watched::Node, &path(&front), false, deadline).await?;
                    let is_simple = matches!(claim.kind, Kind::Mutex | Kind::FairMutex | Kind::Election);
                    (event, decides || is_simple && self.was_let_in(key))
                }
                Standing::BehindWaiter { node: front } => {
                    (self.watch_one(session, Watched::Node, &path(&front), true, deadline).await?, false)
                }
                Standing::First => (self.watch_children(session, claim, &node, parent, deadline).await?, false),
                Standing::Enter | Standing::Gone => unreachable!("it is in line, and not in"),
            };
            since = Instant::now();
            missed = false;
            match event {
                Heard::Gone if decides && session.until() > since => {
                    return Ok(self.let_in(session, claim, &node, parent, since, seen));
                }
                Heard::Gone | Heard::Change => {
                    let Some(now) = self.list(session, claim, parent, false).await? else { return Ok(Came::Nothing) };
                    line = now;
                }
                Heard::Nothing(mut told) => {
                    let Some(now) = self.list(session, claim, parent, false).await? else { return Ok(Came::Nothing) };
                    // An event comes before the answer to any look that shows what it tells.
                    missed = told.try_recv().is_err();
                    line = now;
                }
                Heard::Line(now) => line = now,
                Heard::Same => {}
                Heard::Deadline => return Ok(Came::TooLate),
                Heard::Over => return Ok(Came::Nothing),
            }
        }
    }

    /// Whether whoever does not want to wait need not ask: a look costs a member little, and an ask in vain would cost the
    /// quorum two writes and stand in the line meanwhile.
    async fn is_busy(&self, session: &Session, claim: &Claim, parent: &str) -> Result<bool> {
        let path = || parent.to_owned();
        let look = vec![Request::Sync { path: path() }, Request::Children { path: path(), watch: false }];
        let Ok(mut outcomes) = self.flight(session, "a look at the line", look).await? else { return Ok(false) };
        let Some(Ok(Reply::Children(children, _))) = outcomes.pop() else { return Ok(false) };
        let mut line = Line::read(self.settings.layout, &children);
        if !line.fits(claim) {
            return Ok(false); // asking says what is wrong
        }
        let node = String::new();
        let (key, kind, mode) = (Key::of(claim.id), claim.kind, claim.mode);
        line.0.push(Place { node, key, kind, mode, sequence: 0 });
        Ok(line.standing(line.0.len() - 1) != Standing::Enter)
    }

    /// Lists the line and makes the claim's node, in one flight; also says whether somebody behind may have seen it wait, which is
    /// so where the line was listed after the node. `None` if the session ends before that is done.
    async fn join(&self, session: &Session, claim: &Claim, parent: &str) -> Result<Option<(Node, Line, bool)>> {
        let prefix = format!("{parent}/{}", node_prefix(self.settings.layout, claim, claim.mode));
        let data = Ticket::of(claim).encode();
        loop {
            let create = Request::Create { path: prefix.clone(), data: data.clone(), kind: NodeKind::EphemeralSequential };
            let list = Request::Children { path: parent.to_owned(), watch: false };
            let outcomes = match session.send([list, create]) {
                Err(trouble) => Err(trouble),
                Ok([list, create]) => match self.within(session, "an ask", create).await? {
                    Err(trouble @ (Trouble::Unsure(_) | Trouble::Over(_))) => Err(trouble),
                    created => Ok((created, self.within(session, "a look at the line", list).await?)),
                },
            };
            match outcomes {
                Ok((Ok(Reply::Created(path, stat)), listed)) => {
                    let (node, sequence) = self.joined(claim, parent, &path, stat.czxid);
                    if let Ok(Reply::Children(mut children, listed)) = listed
                        && listed.is_the_line_before(sequence, stat.czxid)
                    {
                        children.push(node.name.clone());
                        let line = Line::read(self.settings.layout, &children);
                        // A member that is behind may list somebody who has gone: good to wait for, and not to be refused by.
                        if line.fits(claim) {
                            return Ok(Some((node, line, false)));
                        }
                    }
                    return Ok(self.list(session, claim, parent, false).await?.map(|line| (node, line, true)));
                }
                Ok((Err(Trouble::Refused(Refusal::NO_NODE)), _)) => {
                    lock(&self.made).insert(parent.to_owned());
                    if self.make_path(session, parent, NodeKind::Container).await?.is_err_and(|trouble| is_over(&trouble)) {
                        return Ok(None);
                    }
                }
                Ok((Err(Trouble::Refused(refusal)), _)) => return Err(refused(refusal, "make a node in", parent)),
                Err(Trouble::Over(_)) => return Ok(None),
                // Did it land? That can be said on the next connection, and nothing is made before it was said.
                Err(_) | Ok(_) => loop {
                    let Some(line) = self.list(session, claim, parent, true).await? else { return Ok(None) };
                    match self.found(session, claim, parent, &line).await? {
                        Found::Here(node) => return Ok(Some((node, line, true))),
                        Found::Nowhere => break,
                        Found::Unsure => {}
                    }
                },
            }
        }
    }

    /// Writes into the book where the claim's node is.
    fn joined(&self, claim: &Claim, parent: &str, path: &str, czxid: i64) -> (Node, i32) {
        let name = path.strip_prefix(parent).and_then(|rest| rest.strip_prefix('/')).unwrap_or(path).to_owned();
        let sequence = place(self.settings.layout, &name).map_or(0, |place| place.sequence);
        self.edit(claim.id, |entry| {
            entry.node = Some(name.clone());
            (entry.sequence, entry.token) = (sequence, Token::new(czxid as u64));
        });
        (Node { name, token: Token::new(czxid as u64) }, sequence)
    }

    /// The claim's node in a line, if it is this session's.
    async fn found(&self, session: &Session, claim: &Claim, parent: &str, line: &Line) -> Result<Found> {
        let mine: Vec<String> = line.of(Key::of(claim.id)).map(|place| format!("{parent}/{}", place.node)).collect();
        for path in mine {
            let look = Request::Get { path: path.clone(), watch: false };
            match self.flight(session, "a look at a node", vec![look]).await? {
                Ok(mut outcomes) => match outcomes.pop() {
                    Some(Ok(Reply::Data(_, stat))) if stat.owner == session.number() => {
                        return Ok(Found::Here(self.joined(claim, parent, &path, stat.czxid).0));
                    }
                    _ => {} // it is a ghost of a session before this one, or has gone
                },
                Err(_) => return Ok(Found::Unsure),
            }
        }
        Ok(Found::Nowhere)
    }

    /// The line as it is now. Where it is in doubt what became of an earlier request, after a write, so that nothing that this
    /// session has sent can come after it. `None` if the session ends before that is done.
    async fn list(&self, session: &Session, claim: &Claim, parent: &str, doubt: bool) -> Result<Option<Line>> {
        let deadline = Instant::now() + self.settings.answer_limit.max(session.timeout);
        let mut sure = !doubt;
        loop {
            let mut requests = vec![Request::Children { path: parent.to_owned(), watch: false }];
            if !sure {
                requests.insert(0, Request::Delete { path: self.settings.proof(), version: -1 });
            }
            match self.flight(session, "a look at the line", requests).await? {
                Ok(mut outcomes) => match outcomes.pop() {
                    Some(Ok(Reply::Children(children, _))) => return Ok(Some(Line::read(self.settings.layout, &children))),
                    Some(Err(Trouble::Refused(Refusal::NO_NODE))) => return Ok(Some(Line::default())),
                    Some(Err(trouble)) => return Err(self.explain(trouble, "list", parent).with_name(&claim.name)),
                    _ => return Err(crate::error::late("a look at the line", &self.settings.hosts())),
                },
                Err(Trouble::Over(_)) => return Ok(None),
                Err(trouble) => {
                    sure = false;
                    match tokio::time::timeout(deadline.since(Instant::now()), session.here()).await {
                        Ok(Ok(())) => {}
                        Ok(Err(_)) => return Ok(None),
                        Err(_) => return Err(self.explain(trouble, "list", parent).with_name(&claim.name)),
                    }
                }
            }
        }
    }

    /// The name is of another kind, or another number of permits: the first in line has decided that.
    async fn mismatch(&self, session: &Session, claim: &Claim, line: &Line, path: &str) -> Error {
        self.take_back(session, path.to_owned()).await;
        let (kind, permits) = line.kind().expect("a line without a kind fits everybody");
        claim.mismatch(kind, permits.unwrap_or_default())
    }

    /// A parent whose numbers are used up has no order any more.
    async fn must_be_in_order(&self, session: &Session, me: &Place, parent: &str) -> Result<()> {
        if !is_used_up(me.sequence) {
            return Ok(());
        }
        self.take_back(session, format!("{parent}/{}", me.node)).await;
        let what = format!("{parent} has given all the numbers that a node of ZooKeeper's has for its children");
        let hint = format!(
            "They begin anew once {parent} is gone: let nobody ask for a minute, or delete it when it has no children"
        );
        Err(Error::new(ErrorKind::Unavailable, what).with_hint(hint))
    }

    /// Deletes the node of a claim that must not stay in line. If that has no answer, the end of the claim sees to it.
    async fn take_back(&self, session: &Session, path: String) {
        if let Ok([asked]) = session.send([Request::Delete { path, version: -1 }]) {
            let _ = self.within(session, "an end", asked).await;
        }
    }

    /// The claim is in, if its session may still be trusted. `seen`: somebody behind may have seen it wait.
    fn let_in(&self, session: &Session, claim: &Claim, node: &Node, parent: &str, since: Instant, seen: bool) -> Came {
        let until = self.until(session, claim, since);
        if until <= Instant::now() {
            // Either we stood still for longer than the ttl, or the session is over or about to be.
            return if session.is_over() { Came::Nothing } else { Came::In(Grant { token: node.token, until }) };
        }
        if !self.granted(claim, node.token, until) {
            return Came::Nothing;
        }
        if seen && matches!(claim.mode, Mode::Permits { .. }) {
            // Whoever is behind learns that it is the first now. If this is lost, its slow look finds out. If somebody has asked the
            // claim to let go meanwhile, that must stay, and says that it is in, too: so only if nobody has written.
            let data = Ticket { entered: true, token: Some(node.token), ..Ticket::of(claim) }.encode();
            let _ = session.send([Request::Set { path: format!("{parent}/{}", node.name), data, version: 0 }]);
        }
        Came::In(Grant { token: node.token, until })
    }

    /// Watches one node until something happens to it.
    async fn watch_one(
        &self,
        session: &Session,
        watched: Watched,
        path: &str,
        says_when_in: bool,
        deadline: Instant,
    ) -> Result<Heard> {
        match tokio::time::timeout(self.settings.answer_limit, session.watch(watched, path)).await {
            Err(_) => {
                session.leave_if_silent_since(Instant::now() - self.settings.answer_limit / 2);
                Ok(Heard::Change)
            }
            Ok(Ok((Reply::Data(data, _), told))) => {
                if says_when_in && Ticket::decode(&data).says_that_it_is_in() {
                    return Ok(Heard::Change);
                }
                Ok(self.wait_for(session, told, deadline).await)
            }
            Ok(Ok(_)) => Ok(Heard::Change),
            Ok(Err(Trouble::Refused(Refusal::NO_NODE))) => Ok(Heard::Gone),
            Ok(Err(Trouble::Refused(refusal))) => Err(refused(refusal, "watch", path)),
            Ok(Err(Trouble::Unsure(_))) => Ok(self.come_back(session, deadline).await),
            Ok(Err(Trouble::Over(_))) => Ok(Heard::Over),
        }
    }

    /// Lists and watches the whole line until something in it changes: for the first of those that wait for room.
    async fn watch_children(
        &self,
        session: &Session,
        claim: &Claim,
        node: &Node,
        parent: &str,
        deadline: Instant,
    ) -> Result<Heard> {
        match tokio::time::timeout(self.settings.answer_limit, session.watch(Watched::Children, parent)).await {
            Ok(Ok((Reply::Children(children, _), told))) => {
                let line = Line::read(self.settings.layout, &children);
                match line.find(&node.name).map(|me| line.standing(me)) {
                    Some(Standing::First) => Ok(self.wait_for(session, told, deadline).await),
                    _ => Ok(Heard::Line(line)), // it changed since the last list
                }
            }
            Ok(Err(Trouble::Refused(Refusal::NO_NODE))) | Err(_) => Ok(Heard::Change),
            Ok(Err(Trouble::Refused(refusal))) => Err(refused(refusal, "watch", parent).with_name(&claim.name)),
            Ok(Err(Trouble::Over(_))) => Ok(Heard::Over),
            Ok(Err(Trouble::Unsure(_)) | Ok(_)) => Ok(self.come_back(session, deadline).await),
        }
    }

    async fn wait_for(&self, session: &Session, mut told: oneshot::Receiver<Event>, deadline: Instant) -> Heard {
        tokio::select! {
            biased;
            event = &mut told => match event {
                Ok(Event::Deleted) => Heard::Gone,
                Ok(_) => Heard::Change,
                Err(_) if session.phase.borrow().is_over() => Heard::Over,
                Err(_) => Heard::Same,
            },
            () = Clock::Boot.sleep_until(deadline) => Heard::Deadline,
            _ = session.over() => Heard::Over,
            () = tokio::time::sleep(SLOW_LOOK) => Heard::Nothing(told),
        }
    }

    /// Waits for another connection: what was watched is looked at again then.
    async fn come_back(&self, session: &Session, deadline: Instant) -> Heard {
        tokio::select! {
            back = session.here() => if back.is_ok() { Heard::Change } else { Heard::Over },
            () = Clock::Boot.sleep_until(deadline) => Heard::Deadline,
        }
    }
}

/// What a waiter heard.
enum Heard {
    /// The node that it watched has gone.
    Gone,
    /// Something else may be the case now: look.
    Change,
    /// This is the line now.
    Line(Line),
    /// Nothing happened: watch again.
    Same,
    /// Nothing was told for so long that it is looked at all the same.
    Nothing(oneshot::Receiver<Event>),
    Deadline,
    Over,
}

impl Listed {
    /// Whether a list has everybody who was in front when a node was made that came after it.
    fn is_the_line_before(self, sequence: i32, czxid: i64) -> bool {
        let nobody_came = self.creates == sequence as u32 & (u32::MAX >> 1);
        // Deleted and made again, with as many children since: that would have been more transactions than there were.
        let same_parent = czxid.wrapping_sub(self.zxid) <= i64::from(sequence.max(0)) + 1;
        nobody_came && same_parent
    }
}

fn is_over(trouble: &Trouble) -> bool {
    matches!(trouble, Trouble::Over(_))
}

/// Which kinds a layout has.
pub(crate) fn kinds(layout: Layout) -> &'static [Kind] {
    match layout {
        Layout::Tenure => &Kind::ALL,
        Layout::Curator => &[Kind::Mutex, Kind::RwLock],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_before_the_node_counts_only_if_nobody_came_between() {
        let listed = |zxid, creates| Listed { zxid, creates };
        assert!(listed(100, 7).is_the_line_before(7, 101));
        assert!(listed(100, 7).is_the_line_before(7, 108), "others wrote elsewhere meanwhile");
        assert!(!listed(100, 6).is_the_line_before(7, 102), "somebody came");
        assert!(!listed(100, 7).is_the_line_before(7, 110), "the parent may be another one");
        assert!(!listed(100, 7).is_the_line_before(7, (1 << 32) + 1), "another leader's time");
        assert!(listed(100, 0).is_the_line_before(i32::MIN, 101), "numbers wrap");
        assert!(!listed(100, 0).is_the_line_before(i32::MIN, 103));
    }
}
