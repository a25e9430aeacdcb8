//! Being told: all that a client watches, on one stream.
//!
//! A waiter watches exactly the key in front of it, *from now on*, since a watch from a past revision is served by a loop that
//! runs ten times a second. When the watch is [`Live`](Told::Live) the waiter looks once, and from then on nothing can happen
//! to that key unheard. Several waiters behind one key share a watch.
//!
//! A claim's own key is watched too, once it lasted for a moment ([`SOON`]), from the revision after its own: it costs a short
//! hold nothing, and being served ten times a second is soon enough to hear that one was broken or asked for. Who waits behind a
//! claim of the same client shares that watch: until it is there, what this client itself does to the key is
//! [told](Ear::gone_here) without the server.
//!
//! Who can interleave: callers subscribe and leave at any time, under the mutex; one task owns the stream, and makes another on
//! another member when it ends, is silent, or belongs to a member that lost the others. Then every watch is made anew and is
//! `Live` again, so whoever waits looks again: nothing that happened in between is missed.
//!
//! A stream has the login that it was opened with, and a login ends: then what is watched goes on, and whatever is new is refused.
//! So the first refusal ends the stream, and only what is refused with a new login too is [`Refused`](Told::Refused).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::{ClaimId, Clock, Instant};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::error::is_over;
use crate::proto::{GONE, KeyValue, WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse, Watching};

/// How long a claim lasts before its own key is watched.
pub(crate) const SOON: Duration = Duration::from_millis(50);

/// What a watch tells.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    /// From now on nothing is missed: look once.
    Live,
    /// A key was written.
    Put(KeyValue),
    /// A key is gone, at this revision.
    Gone(i64),
    /// The cluster has confirmed the end of a hold of this client, of this create revision: the waiter right behind it is first now.
    Over(i64),
    /// The server refuses to tell.
    Refused(String),
}

/// Everything that is watched.
#[derive(Default)]
pub(crate) struct Ear {
    state: Mutex<State>,
    /// Something new is to be watched, or soon.
    pub(crate) bell: Notify,
}

#[derive(Default)]
struct State {
    watched: HashMap<Vec<u8>, Watched>,
    /// The watches on the stream that there is.
    ids: HashMap<i64, Vec<u8>>,
    /// Those that were asked for and not answered yet, in order, which is that of the answers: a refusal may not say whose it is.
    unanswered: VecDeque<i64>,
    last_id: i64,
    last_subscriber: u64,
    /// How many there are.
    subscribers: usize,
    /// Keys that are to be watched then, if anybody still wants it.
    soon: VecDeque<(Instant, Vec<u8>)>,
    out: Option<UnboundedSender<WatchRequest>>,
}

/// One key, or all keys from one up to another.
struct Watched {
    to: Vec<u8>,
    /// Its number on the stream; 0 while it has none.
    id: i64,
    live: bool,
    /// It was refused on the stream before this one, whose login may have been over.
    refused: bool,
    /// Not before its time has come.
    wanted: bool,
    /// The revision to begin at; 0 is now.
    from: i64,
    own: Option<ClaimId>,
    /// What happened before `from` was forgotten: the owner must look.
    gap: bool,
    subscribers: Vec<(u64, UnboundedSender<Told>)>,
}

impl Watched {
    fn new(to: &[u8], from: i64) -> Self {
        let (to, subscribers) = (to.to_vec(), Vec::new());
        Watched { to, id: 0, live: false, refused: false, wanted: false, from, own: None, gap: false, subscribers }
    }
}

/// What a stream told about a claim's own key.
pub(crate) enum Own {
    Told(ClaimId, Told),
    /// Something may have been missed.
    Look(ClaimId),
}

/// A watch, for as long as somebody wants it.
pub(crate) struct Subscription {
    ear: Arc<Ear>,
    key: Vec<u8>,
    number: u64,
    told: UnboundedReceiver<Told>,
}

impl Subscription {
    /// Whether nothing can happen unheard.
    pub(crate) fn is_live(&self) -> bool {
        self.ear.state().watched.get(&self.key).is_some_and(|watched| watched.live)
    }

    /// What comes next.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn next(&mut self) -> Told {
        match self.told.recv().await {
            Some(told) => told,
            None => std::future::pending().await, // the sender is in the ear, which this keeps
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.ear.state();
        state.subscribers = state.subscribers.saturating_sub(1);
        if let Some(watched) = state.watched.get_mut(&self.key) {
            watched.subscribers.retain(|(number, _)| *number != self.number);
        }
        state.forget_unwanted(&self.key);
    }
}

impl State {
    /// Asks the server for a watch, if there is a stream.
    fn create(&mut self, key: &[u8]) {
        let (Some(out), Some(watched)) = (&self.out, self.watched.get_mut(key)) else { return };
        if watched.id != 0 || !watched.wanted {
            return;
        }
        self.last_id += 1;
        watched.id = self.last_id;
        self.ids.insert(watched.id, key.to_vec());
        self.unanswered.push_back(watched.id);
        let create = WatchCreateRequest {
            key: key.to_vec(),
            range_end: watched.to.clone(),
            start_revision: watched.from,
            watch_id: watched.id,
        };
        let _ = out.send(WatchRequest { watching: Some(Watching::Create(create)) });
    }

    /// Which watch an answer is for: a server may say -1 for one that it refuses.
    fn answered(&mut self, id: i64) -> i64 {
        let id = if id < 0 { self.unanswered.front().copied().unwrap_or(id) } else { id };
        self.unanswered.retain(|unanswered| *unanswered != id);
        id
    }

    fn forget_unwanted(&mut self, key: &[u8]) {
        let unwanted = |watched: &Watched| watched.own.is_none() && watched.subscribers.is_empty();
        if !self.watched.get(key).is_some_and(unwanted) {
            return;
        }
        let Some(watched) = self.watched.remove(key) else { return };
        if watched.id != 0 {
            self.ids.remove(&watched.id);
            if let Some(out) = &self.out {
                let cancel = WatchCancelRequest { watch_id: watched.id };
                let _ = out.send(WatchRequest { watching: Some(Watching::Cancel(cancel)) });
            }
        }
    }
}

impl Ear {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a key, or a range of them. A key that is `ours` was put at that revision: its own watch, which comes soon, will do.
    pub(crate) fn subscribe(self: &Arc<Self>, key: &[u8], to: &[u8], ours: Option<i64>) -> Subscription {
        let (sender, told) = unbounded_channel();
        let mut state = self.state();
        state.last_subscriber += 1;
        state.subscribers += 1;
        let number = state.last_subscriber;
        let mut is_new = false;
        let watched = state.watched.entry(key.to_vec()).or_insert_with(|| {
            is_new = true;
            Watched::new(to, ours.map_or(0, |revision| revision + 1))
        });
        if watched.live {
            let _ = sender.send(Told::Live);
        }
        watched.subscribers.push((number, sender));
        if ours.is_none() {
            watched.wanted = true;
            state.create(key);
        } else if is_new {
            state.soon.push_back((Instant::now() + SOON, key.to_vec()));
        }
        // The first one wants the stream to be looked after more often.
        let must_ring = state.out.is_none() || (is_new && ours.is_some()) || state.subscribers == 1;
        drop(state);
        if must_ring {
            self.bell.notify_one();
        }
        Subscription { ear: Arc::clone(self), key: key.to_vec(), number, told }
    }

    /// Watches a claim's own key, which was put at that revision: soon.
    pub(crate) fn own(&self, key: &[u8], id: ClaimId, revision: i64) {
        let mut state = self.state();
        let from = revision + 1;
        let watched = state.watched.entry(key.to_vec()).or_insert_with(|| Watched::new(&[], from));
        watched.own = Some(id);
        if watched.wanted {
            return;
        }
        let must_ring = state.soon.is_empty();
        state.soon.push_back((Instant::now() + SOON, key.to_vec()));
        drop(state);
        if must_ring {
            self.bell.notify_one();
        }
    }

    /// A claim is over: nobody needs to hear of its key any more but the waiters behind it, and those hear now. If it held, with that
    /// create revision, nobody was before it; and the cluster has confirmed that it is gone.
    pub(crate) fn gone_here(&self, key: &[u8], held: Option<i64>) {
        let mut state = self.state();
        if let Some(watched) = state.watched.get_mut(key) {
            watched.own = None;
            for (_, subscriber) in &watched.subscribers {
                let _ = subscriber.send(held.map_or(Told::Live, Told::Over));
            }
        }
        state.forget_unwanted(key);
    }

    /// Begins to watch what has been there for long enough. When to do so again.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        let mut state = self.state();
        while let Some((at, _)) = state.soon.front() {
            if *at > now {
                return Some(*at);
            }
            let (_, key) = state.soon.pop_front()?;
            if let Some(watched) = state.watched.get_mut(&key) {
                watched.wanted = true;
                state.create(&key);
            }
        }
        None
    }

    /// Whether there is anything to be watched now, and whether anybody waits for it.
    pub(crate) fn wants(&self) -> (bool, bool) {
        let state = self.state();
        let any = state.watched.values().any(|watched| watched.wanted);
        (any, state.watched.values().any(|watched| watched.wanted && !watched.subscribers.is_empty()))
    }

    /// There is a new stream that says what is sent here: everything is watched anew on it.
    pub(crate) fn opened(&self) -> UnboundedReceiver<WatchRequest> {
        self.closed();
        let (out, requests) = unbounded_channel();
        let mut state = self.state();
        state.out = Some(out);
        let keys: Vec<_> = state.watched.keys().cloned().collect();
        for key in keys {
            if let Some(watched) = state.watched.get_mut(&key).filter(|watched| watched.own.is_none()) {
                watched.from = 0; // whoever waits looks when it is live
            }
            state.create(&key);
        }
        requests
    }

    /// The stream is gone.
    pub(crate) fn closed(&self) {
        let mut state = self.state();
        state.out = None;
        state.ids.clear();
        state.unanswered.clear();
        for watched in state.watched.values_mut() {
            (watched.id, watched.live) = (0, false);
        }
    }

    /// Hands on what the server said, on a stream whose login is that of now or not. What it said about claims' own keys is for
    /// the caller; `None` if it refused a watch for what may be the login's sake: then the stream must end.
    pub(crate) fn hear(&self, response: WatchResponse, logged_in: bool) -> Option<Vec<Own>> {
        let mut state = self.state();
        let id = if response.created { state.answered(response.watch_id) } else { response.watch_id };
        let is_refused = response.created && response.canceled && response.compact_revision == 0;
        let key = state.ids.get(&id).cloned();
        let Some((key, watched)) = key.and_then(|key| state.watched.get_mut(&key).map(|watched| (key, watched))) else {
            return (!is_refused).then(Vec::new);
        };
        if is_refused && !(watched.refused && logged_in && !is_over(&response.cancel_reason)) {
            watched.refused = logged_in; // what an old login was refused says nothing
            return None;
        }
        let mut own = Vec::new();
        let mut tell = |watched: &Watched, told: &Told| {
            for (_, subscriber) in &watched.subscribers {
                let _ = subscriber.send(told.clone());
            }
            if let Some(id) = watched.own {
                own.push(Own::Told(id, told.clone()));
            }
        };
        if response.created && !response.canceled {
            (watched.live, watched.refused) = (true, false);
            for (_, subscriber) in &watched.subscribers {
                let _ = subscriber.send(Told::Live);
            }
            let look = std::mem::take(&mut watched.gap).then_some(watched.own).flatten();
            return Some(look.map(Own::Look).into_iter().collect());
        }
        for event in response.events {
            let Some(kv) = event.kv else { continue };
            watched.from = watched.from.max(kv.mod_revision + 1);
            let told = if event.kind == GONE { Told::Gone(kv.mod_revision) } else { Told::Put(kv) };
            tell(watched, &told);
        }
        if response.canceled {
            (watched.id, watched.live, watched.refused) = (0, false, false);
            if response.compact_revision > 0 {
                (watched.from, watched.gap) = (0, true); // what happened meanwhile is forgotten: from now on, and look
                state.ids.remove(&id);
                state.create(&key);
            } else {
                tell(watched, &Told::Refused(response.cancel_reason));
                state.ids.remove(&id);
            }
        }
        Some(own)
    }

    /// Waits until something is new, or the next one's time has come.
    pub(crate) async fn ring(&self, next: Option<Instant>) {
        tokio::select! {
            () = self.bell.notified() => {}
            () = Clock::Boot.sleep_until(next.unwrap_or(Instant::NEVER)) => {}
        }
    }
}

#[cfg(test)]
mod tests;
