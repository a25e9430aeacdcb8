//! What a client's tasks share: its sessions, and the book of its claims.
//!
//! Who can interleave: any task of the user's, the keeper's, and the sessions' drivers. Each map has a mutex of its own that is
//! never held over an await, and none is taken while another is held but in the order `sessions`, `book`, a session's state.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tenure_core::{Ask, Claim, ClaimId, Error, ErrorKind, Instant, LockName, Mode, News, Result, Token, margin};
use tokio::runtime::Handle;

use crate::config::Settings;
use crate::driver;
use crate::error::{late, refused};
use crate::layout::{self, Key};
use crate::session::{Asked, Outcome, Session, Trouble, User, Watched, Watcher, answer};
use crate::ticket::Ticket;
use crate::wire::{NodeKind, Refusal, Reply, Request};

/// A hold that is shorter than this never has its own node watched: it would cost a request and save nothing.
const WATCHED_AFTER: Duration = Duration::from_millis(50);
/// How long it is waited at most before something is looked at again that nobody may have told of.
pub(crate) const SLOW_LOOK: Duration = Duration::from_secs(10);
/// How long a session without claims is kept.
const IDLE: Duration = Duration::from_secs(60);
/// How long it is remembered that a claim was ended.
const REMEMBERED: Duration = Duration::from_secs(60);
/// How many of those that held are remembered.
const HELD: usize = 4096;

/// What a client's tasks share.
pub(crate) struct Inner {
    pub(crate) settings: Arc<Settings>,
    /// A runtime that lives as long as the client.
    pub(crate) home: Handle,
    pub(crate) news: OnceLock<News>,
    sessions: Mutex<Sessions>,
    /// Only one session is opened at a time; the others may find it open then.
    opening: tokio::sync::Mutex<()>,
    book: Mutex<HashMap<ClaimId, Entry>>,
    ended: Mutex<VecDeque<(Instant, ClaimId)>>,
    held: Mutex<(HashSet<Key>, VecDeque<Key>)>,
    /// Names that were let go of, and when.
    pub(crate) idle: Mutex<HashMap<String, Instant>>,
    /// Names that were not there, and that this client has sent for.
    pub(crate) made: Mutex<HashSet<String>>,
}

/// The sessions, and what was learnt of the timeouts that the servers grant.
#[derive(Default)]
struct Sessions {
    open: Vec<Arc<Session>>,
    shortest: Option<Duration>,
    longest: Option<Duration>,
}

/// A claim that this client has asked for.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) user: User,
    /// Its end was asked for.
    pub(crate) ending: bool,
    pub(crate) parent: String,
    /// Its node, once its name is known.
    pub(crate) node: Option<String>,
    pub(crate) sequence: i32,
    pub(crate) mode: Mode,
    pub(crate) token: Token,
    pub(crate) granted: bool,
    pub(crate) lost: bool,
    /// When a hold is over for everybody unless it is renewed: the end of the longest window that its holder was given, and the margin.
    pub(crate) expires: Instant,
    /// A change of its mode had no answer.
    pub(crate) unsure: bool,
    pub(crate) asked: Option<Ask>,
    /// Who changes or ends it takes turns.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
}

impl Entry {
    pub(crate) fn path(&self) -> Option<String> {
        self.node.as_ref().map(|node| format!("{}/{node}", self.parent))
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    pub(crate) fn new(settings: Settings, home: Handle) -> Arc<Self> {
        Arc::new(Inner {
            settings: Arc::new(settings),
            home,
            news: OnceLock::new(),
            sessions: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
            book: Mutex::default(),
            ended: Mutex::default(),
            held: Mutex::default(),
            idle: Mutex::default(),
            made: Mutex::default(),
        })
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, HashMap<ClaimId, Entry>> {
        lock(&self.book)
    }

    pub(crate) fn entry(&self, id: ClaimId) -> Option<Entry> {
        self.book().get(&id).cloned()
    }

    /// Changes an entry, if it is there.
    pub(crate) fn edit(&self, id: ClaimId, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.book().get_mut(&id) {
            change(entry);
        }
    }

    pub(crate) fn parent(&self, name: &LockName) -> Result<String> {
        layout::parent(&self.settings, name)
    }

    // Sessions

    /// The session for a ttl, if there is one.
    fn open_session(&self, ttl: Duration) -> Option<User> {
        let sessions = lock(&self.sessions);
        let wanted = ttl.min(sessions.longest.unwrap_or(ttl)).max(sessions.shortest.unwrap_or(ttl));
        let fits = |session: &&Arc<Session>| (session.wanted == ttl || session.timeout == wanted) && !session.is_over();
        sessions.open.iter().find(fits).map(Session::enter)
    }

    /// The session for a ttl, opened now if need be.
    ///
    /// # Cancel safety
    /// Dropped, a session that is being opened is there for whoever comes next.
    pub(crate) async fn session(self: &Arc<Self>, ttl: Duration) -> Result<User> {
        if let Some(user) = self.open_session(ttl) {
            return Ok(user);
        }
        let inner = Arc::clone(self);
        let opening = self.home.spawn(async move { inner.make_session(ttl).await });
        opening.await.map_err(|_| closed())?
    }

    async fn make_session(self: Arc<Self>, ttl: Duration) -> Result<User> {
        let _turn = self.opening.lock().await;
        if let Some(user) = self.open_session(ttl) {
            return Ok(user); // somebody was faster
        }
        let opened = driver::open(&self.settings, ttl).await;
        let (session, dialed, members) = opened.map_err(|(fault, at)| {
            let plain = format!("zk://{at}");
            let at = if self.settings.servers.len() > 1 {
                format!("{} (last tried: {at})", self.settings.hosts())
            } else {
                at.to_string()
            };
            fault.explain(&at, &plain)
        })?;
        let session = Arc::new(session);
        let user = session.enter();
        let mut sessions = lock(&self.sessions);
        if session.timeout < ttl {
            sessions.longest = Some(session.timeout);
        } else if session.timeout > ttl {
            sessions.shortest = Some(session.timeout);
        }
        sessions.open.push(Arc::clone(&session));
        drop(sessions);
        tokio::spawn(driver::drive(session, dialed, members, Arc::downgrade(&self), Arc::clone(&self.settings)));
        Ok(user)
    }

    /// Any session, for whoever only looks.
    ///
    /// # Cancel safety
    /// As [`session`](Self::session).
    pub(crate) async fn any_session(self: &Arc<Self>) -> Result<User> {
        let open = lock(&self.sessions).open.iter().find(|session| !session.is_over()).map(Session::enter);
        match open {
            Some(user) => Ok(user),
            None => self.session(tenure_core::DEFAULT_TTL).await,
        }
    }

    /// Closes sessions that nobody needs and nobody has needed for so long.
    pub(crate) fn close_idle(&self, idle: Duration) {
        let now = Instant::now();
        lock(&self.sessions).open.retain(|session| {
            let since = Instant::from_nanos(session.idle_since.load(Ordering::Relaxed));
            let needless = session.users.load(Ordering::Acquire) == 0 && now.since(since) >= idle;
            if needless {
                session.close();
            }
            !needless
        });
    }

    /// Closes all of them: the client is gone.
    pub(crate) fn close_all(&self) -> Vec<Arc<Session>> {
        let sessions = std::mem::take(&mut lock(&self.sessions).open);
        sessions.iter().for_each(|session| session.close());
        sessions
    }

    /// Closes what is idle for long.
    pub(crate) fn tidy_sessions(&self) {
        self.close_idle(IDLE);
    }

    /// A session lost its connection: its holds are in jeopardy until a write has gone through.
    pub(crate) fn in_doubt(&self, session: &Arc<Session>) {
        let concerns = self.book().values().any(|entry| entry.granted && !entry.lost && Arc::ptr_eq(&entry.user.0, session));
        if let Some(news) = self.news.get().filter(|_| concerns) {
            news.verify();
        }
    }

    /// A session is over: so are its holds. Who waits asks anew by itself.
    pub(crate) fn session_over(&self, session: &Arc<Session>) {
        lock(&self.sessions).open.retain(|other| !Arc::ptr_eq(other, session));
        let mut lost = Vec::new();
        for (id, entry) in self.book().iter_mut() {
            if Arc::ptr_eq(&entry.user.0, session) && entry.granted && !entry.lost {
                entry.lost = true;
                lost.push(*id);
            }
        }
        if let Some(news) = self.news.get() {
            lost.into_iter().for_each(|id| news.lost(id));
        }
    }

    // Requests

    /// Waits for an answer within the limit.
    pub(crate) async fn within(&self, session: &Session, what: &str, asked: Asked) -> Result<Outcome> {
        let sent = Instant::now();
        match tokio::time::timeout(self.settings.answer_limit, answer(asked)).await {
            Ok(outcome) => Ok(outcome),
            Err(_) => {
                session.leave_if_silent_since(sent);
                Err(late(what, &self.settings.hosts()))
            }
        }
    }

    /// What went wrong, where nothing more is to be tried.
    pub(crate) fn explain(&self, trouble: Trouble, what: &str, path: &str) -> Error {
        match trouble {
            Trouble::Refused(refusal) => refused(refusal, what, path),
            Trouble::Unsure(fault) | Trouble::Over(fault) => {
                fault.explain(&self.settings.hosts(), &self.settings.describe().replacen("zks:", "zk:", 1))
            }
        }
    }

    /// Reads, again over another connection or session if need be: reading twice changes nothing.
    ///
    /// # Cancel safety
    /// Only reads.
    pub(crate) async fn read(self: &Arc<Self>, what: &str, requests: &[Request]) -> Result<Vec<Outcome>> {
        let path = self.settings.root.as_str();
        let deadline = Instant::now() + self.settings.answer_limit;
        loop {
            let user = self.any_session().await?;
            let trouble = match self.flight(&user.0, what, requests.to_vec()).await? {
                Ok(outcomes) => return Ok(outcomes),
                Err(trouble) => trouble,
            };
            if Instant::now() >= deadline {
                return Err(self.explain(trouble, what, path));
            }
            let left = deadline.since(Instant::now());
            let _ = tokio::time::timeout(left, user.0.here()).await;
        }
    }

    /// Sends requests in one flight; trouble with the connection is one for all of them.
    pub(crate) async fn flight(
        &self,
        session: &Session,
        what: &str,
        requests: Vec<Request>,
    ) -> Result<Result<Vec<Outcome>, Trouble>> {
        let asked = match session.send_all(requests) {
            Ok(asked) => asked,
            Err(trouble) => return Ok(Err(trouble)),
        };
        let mut outcomes = Vec::with_capacity(asked.len());
        for asked in asked {
            match self.within(session, what, asked).await? {
                Err(trouble @ (Trouble::Unsure(_) | Trouble::Over(_))) => return Ok(Err(trouble)),
                outcome => outcomes.push(outcome),
            }
        }
        Ok(Ok(outcomes))
    }

    /// Makes a node's ancestors, and itself: containers, which go when they are empty.
    ///
    /// # Cancel safety
    /// Dropped, some may be there; they go by themselves once they had something in them.
    pub(crate) async fn make_path(&self, session: &Session, path: &str, kind: NodeKind) -> Result<Result<(), Trouble>> {
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
        let create = |end: usize| Request::Create { path: path[..end].to_owned(), data: Vec::new(), kind };
        // All in one flight: a parent is there before its child is asked for.
        match self.flight(session, "make a node", ends.map(create).collect()).await? {
            Err(trouble) => Ok(Err(trouble)),
            Ok(outcomes) => match in_the_way(&outcomes) {
                Some(refusal) => Err(refused(refusal, "make the node", path)),
                None => Ok(Ok(())),
            },
        }
    }

    // Claims

    /// A claim was granted until then; its own node is watched after a while. `false` if its session is over.
    pub(crate) fn granted(&self, claim: &Claim, token: Token, until: Instant) -> bool {
        let session = {
            let mut book = self.book();
            let Some(entry) = book.get_mut(&claim.id) else { return true };
            // Whoever ends a session says so before it looks into the book for the holds that are lost with it.
            if entry.user.0.phase.borrow().is_over() {
                return false;
            }
            (entry.granted, entry.token, entry.expires) = (true, token, until + margin(claim.ttl));
            Arc::clone(&entry.user.0)
        };
        let (keys, order) = &mut *lock(&self.held);
        let key = Key::of(claim.id);
        if keys.insert(key) {
            order.push_back(key);
            if order.len() > HELD {
                order.pop_front().map(|oldest| keys.remove(&oldest));
            }
        }
        self.watch_soon(&session, claim.id);
        true
    }

    /// Whether a claim of this client, which this is, was let in.
    pub(crate) fn was_let_in(&self, key: Key) -> bool {
        lock(&self.held).0.contains(&key)
    }

    /// Until when a grant on this session may be trusted that was asked for, or told, then.
    pub(crate) fn until(&self, session: &Session, claim: &Claim, since: Instant) -> Instant {
        (since + (claim.ttl - margin(claim.ttl))).min(session.until())
    }

    /// Until when a hold may be trusted from now on, which is noted: it is given no more than its session can be trusted for. `None`
    /// if there is none, or its time is over.
    pub(crate) fn give(&self, claim: &Claim) -> Option<Instant> {
        let mut book = self.book();
        let now = Instant::now();
        let entry = book.get_mut(&claim.id).filter(|entry| entry.granted && !entry.lost && entry.expires > now)?;
        let until = self.until(&entry.user.0, claim, now);
        entry.expires = entry.expires.max(until + margin(claim.ttl));
        Some(until)
    }

    /// A claim is over, for ever.
    pub(crate) fn forget(&self, id: ClaimId) {
        if let Some(entry) = self.book().remove(&id) {
            if let Some(path) = entry.path() {
                let mut state = entry.user.0.state();
                if let Some(watchers) = state.watchers.get_mut(&(Watched::Node, path)) {
                    watchers.retain(|watcher| !matches!(watcher, Watcher::Own(own) if *own == id));
                }
            }
            lock(&self.idle).insert(entry.parent, Instant::now());
        }
    }

    /// From now on this claim may not be granted.
    pub(crate) fn bury(&self, id: ClaimId) {
        let now = Instant::now();
        let mut ended = lock(&self.ended);
        while ended.front().is_some_and(|(at, _)| now.since(*at) > REMEMBERED) {
            ended.pop_front();
        }
        ended.push_back((now, id));
    }

    /// Whether it was ended before.
    pub(crate) fn must_not_be_ended(&self, id: ClaimId) -> Result<()> {
        // The last ones are at the end: whoever asks again does so soon.
        if lock(&self.ended).iter().rev().take(256).any(|(_, ended)| *ended == id) {
            let what = "this claim was ended before its request was sent";
            return Err(Error::new(ErrorKind::Unavailable, what).with_hint("Ask again: that is another claim"));
        }
        Ok(())
    }

    // The holds' own nodes

    pub(crate) fn watch_soon(&self, session: &Session, id: ClaimId) {
        let mut fresh = lock(&session.fresh);
        let was_empty = fresh.is_empty();
        fresh.push_back((Instant::now() + WATCHED_AFTER, id));
        drop(fresh);
        if was_empty {
            session.wake.notify_one();
        }
    }

    /// Watches the own nodes of holds that are old enough; says when the next one is.
    pub(crate) fn look_after_own(self: &Arc<Self>, session: &Session, now: Instant) -> Instant {
        let mut fresh = lock(&session.fresh);
        let book = self.book();
        // Those that were let go of meanwhile stay here until their time, so that a task that locks in a loop does not wake the
        // driver each time.
        while let Some((due, id)) = fresh.front().copied() {
            if due > now {
                return due;
            }
            fresh.pop_front();
            if book.contains_key(&id) {
                self.own_changed(id);
            }
        }
        Instant::NEVER
    }

    /// Something happened to a hold's own node: look at it, and go on watching.
    pub(crate) fn own_changed(self: &Arc<Self>, id: ClaimId) {
        let inner = Arc::clone(self);
        self.home.spawn(async move { inner.look_at_own(id).await });
    }

    async fn look_at_own(&self, id: ClaimId) {
        let mut pause = WATCHED_AFTER;
        loop {
            let Some(entry) = self.entry(id).filter(|entry| entry.granted && !entry.lost) else { return };
            let Some(path) = entry.path() else { return };
            let session = &entry.user.0;
            {
                let mut state = session.state();
                let watchers = state.watchers.entry((Watched::Node, path.clone())).or_default();
                if !watchers.iter().any(|watcher| matches!(watcher, Watcher::Own(own) if *own == id)) {
                    watchers.push(Watcher::Own(id));
                }
            }
            match session.call(Request::Get { path: path.clone(), watch: true }).await {
                Ok(Reply::Data(data, _)) => return self.heard_ask(id, Ticket::decode(&data).asked),
                Err(Trouble::Refused(Refusal::NO_NODE)) => {
                    self.own_went(id, &path).await;
                    // Such a look costs a write, and what is left unfinished may stay so until the next renewal.
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(SLOW_LOOK);
                }
                Err(Trouble::Unsure(_)) => {
                    if session.here().await.is_err() {
                        return; // whoever ends the session tells
                    }
                }
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// A hold's own node is not there: the hold is gone, or a change of its mode has given it another one.
    async fn own_went(&self, id: ClaimId, path: &str) {
        let Some(entry) = self.entry(id) else { return };
        let Ok(_turn) = entry.turn.try_lock() else { return }; // whoever has it sees to it
        let Some(entry) = self.entry(id).filter(|entry| entry.path().as_deref() == Some(path)) else { return };
        if entry.unsure {
            let _ = self.settled(id).await; // if nobody answers, it is tried again
        } else {
            self.gone(id);
        }
    }

    /// A hold has no node any more: so it is lost, and told.
    pub(crate) fn gone(&self, id: ClaimId) {
        let mut is_new = false;
        self.edit(id, |entry| is_new = !std::mem::replace(&mut entry.lost, true));
        if let Some(news) = self.news.get().filter(|_| is_new) {
            news.lost(id);
        }
    }

    fn heard_ask(&self, id: ClaimId, asked: Option<Ask>) {
        let Some(ask) = asked else { return };
        let mut is_new = false;
        self.edit(id, |entry| {
            is_new = entry.asked.as_ref() != Some(&ask);
            entry.asked = Some(ask.clone());
        });
        if let Some(news) = self.news.get().filter(|_| is_new) {
            news.asked(id, ask);
        }
    }
}

/// Why a path was not made, if asking again will not change it: what was said to the last of its nodes whose parent is there. What
/// was said to those before it says nothing: a node that is there is refused, too, where nobody may make another beside it.
fn in_the_way(outcomes: &[Outcome]) -> Option<Refusal> {
    let parent_is_there = |outcome: &&Outcome| !matches!(outcome, Err(Trouble::Refused(Refusal::NO_NODE)));
    match outcomes.iter().rev().find(parent_is_there) {
        Some(Err(Trouble::Refused(refusal))) if *refusal != Refusal::NODE_EXISTS => Some(*refusal),
        _ => None,
    }
}

/// The client's runtime is gone.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "this client was closed").with_hint("Connect again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_missing_node_was_refused_for_is_in_the_way() {
        let made = || Ok(Reply::Done);
        let refused = |refusal| Err(Trouble::Refused(refusal));
        let (no_auth, exists, no_node) =
            (|| refused(Refusal::NO_AUTH), || refused(Refusal::NODE_EXISTS), || refused(Refusal::NO_NODE));
        assert_eq!(in_the_way(&[no_auth(), no_node(), no_node()]), Some(Refusal::NO_AUTH), "the first one is missing");
        assert_eq!(in_the_way(&[exists(), no_auth()]), Some(Refusal::NO_AUTH));
        assert_eq!(in_the_way(&[no_auth(), made(), made()]), None, "the first one is there");
        assert_eq!(in_the_way(&[no_auth(), exists(), no_node()]), None, "the second one went meanwhile: make it again");
        assert_eq!(in_the_way(&[exists(), exists()]), None);
    }
}
