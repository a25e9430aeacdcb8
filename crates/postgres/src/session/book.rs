//! Which claim is on which session.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Ask, Claim, ClaimId, Instant, LockName, Mode, Token};
use tokio::sync::OwnedSemaphorePermit;

use super::Held;
use super::advisory::Advisory;
use super::near::Hopeful;

/// A session, and what this client has on it. All but the session itself is only looked at under the book's mutex.
pub(super) struct Seat {
    pub(super) session: Arc<Advisory>,
    pub(super) number: u64,
    /// How long its server keeps it unheard.
    pub(super) idle: Duration,
    /// Whoever changes or shows a hold on it has this, from before the book says so until after the server has answered.
    pub(super) pen: Arc<tokio::sync::Mutex<()>>,
}

/// Some sessions.
pub(super) type Seats = Vec<Arc<Seat>>;

/// What the book knows of a session.
struct Place {
    seat: Arc<Seat>,
    /// Names that may be locked on it.
    names: HashSet<LockName>,
    /// It was opened for somebody who had to wait.
    is_own: bool,
    /// It was opened just now, and is for whoever did so.
    is_reserved: bool,
    /// When it was last used.
    used: Instant,
    /// When it was last heard of.
    heard: Instant,
}

impl Place {
    /// Whether claims with this idle limit may go there.
    fn serves(&self, idle: Duration) -> bool {
        self.seat.idle == idle && !self.is_reserved && self.seat.session.is_open()
    }
}

/// What the book knows of a claim.
pub(super) struct Entry {
    pub(super) claim: Claim,
    pub(super) seat: Arc<Seat>,
    pub(super) stage: Stage,
    pub(super) asked: Option<Ask>,
    /// Somebody broke it before it was known to be held.
    pub(super) broken: bool,
    /// Since when its session has had the lock, for whichever claim of ours.
    pub(super) had_since: Instant,
    /// Whose lock was passed on to it, if others see that one still.
    pub(super) before: Option<Claim>,
    /// When its end was last asked for.
    pub(super) given_up: Option<Instant>,
    /// Whoever ends it has this.
    pub(super) ending: Arc<tokio::sync::Mutex<()>>,
    /// Room for its session, where it has one of its own.
    pub(super) room: Option<OwnedSemaphorePermit>,
}

/// Where a claim stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A request is under way, or was and has no answer: nobody knows what it has.
    Unknown,
    /// It waits in the server's line.
    Waiting,
    /// It holds.
    Held {
        token: Token,
        mode: Mode,
        since: Instant,
        /// Let go by us if it was not renewed by then.
        expires: Instant,
        shown: Shown,
    },
    /// Its mode is being changed by whoever has its session's pen.
    Changing,
}

/// Whether others see a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// From then on they should.
    At(Instant),
    /// The same; until then they see it wait, or as it was.
    AsWaiting(Instant),
    /// A request for that is under way, from whoever has its session's pen.
    UnderWay,
    /// They do.
    Yes,
}

impl Shown {
    /// Of a hold that is to be shown as it is now, of which others may see something else.
    pub(super) fn anew(is_seen: bool, at: Instant) -> Self {
        if is_seen { Shown::AsWaiting(at) } else { Shown::At(at) }
    }

    /// From when on others should see it, if they do not yet.
    pub(super) fn due(self) -> Option<Instant> {
        match self {
            Shown::At(at) | Shown::AsWaiting(at) => Some(at),
            Shown::UnderWay | Shown::Yes => None,
        }
    }

    /// Whether there is anything of it to be seen.
    pub(super) fn is_something(self) -> bool {
        !matches!(self, Shown::At(_))
    }
}

#[derive(Default)]
pub(super) struct Book {
    pub(super) claims: HashMap<ClaimId, Entry>,
    places: Vec<Place>,
    next: u64,
    /// Who hopes to be passed a name on by another task of this client; see `near`.
    pub(super) near: HashMap<LockName, VecDeque<Hopeful>>,
}

impl Book {
    /// A new session, for whoever opened it.
    pub(super) fn open(&mut self, session: Arc<Advisory>, idle: Duration, is_own: bool) -> Arc<Seat> {
        self.next += 1;
        let seat = Arc::new(Seat { session, number: self.next, idle, pen: Arc::default() });
        let now = Instant::now();
        self.places.push(Place {
            seat: Arc::clone(&seat),
            names: HashSet::new(),
            is_own,
            is_reserved: true,
            used: now,
            heard: now,
        });
        seat
    }

    /// A session for a try: shared, or one that nobody waits on just now. It has nothing of this name.
    pub(super) fn shared(&self, idle: Duration, name: &LockName) -> Option<Arc<Seat>> {
        let fits = |place: &&Place| !place.is_own && place.serves(idle) && !place.names.contains(name);
        self.places.iter().find(fits).map(|place| Arc::clone(&place.seat)).or_else(|| self.vacant(idle))
    }

    /// A session that was opened for somebody who had to wait, and has nothing.
    pub(super) fn vacant(&self, idle: Duration) -> Option<Arc<Seat>> {
        let fits = |place: &&Place| place.is_own && place.serves(idle) && place.names.is_empty();
        self.places.iter().find(fits).map(|place| Arc::clone(&place.seat))
    }

    /// Whether there is a session that many share.
    pub(super) fn has_shared(&self, idle: Duration) -> bool {
        self.places.iter().any(|place| !place.is_own && place.serves(idle))
    }

    /// Whether the name may be locked on a session.
    pub(super) fn has_name(&self, name: &LockName) -> bool {
        self.places.iter().any(|place| place.names.contains(name))
    }

    /// A claim of this client that certainly holds the name alone.
    pub(super) fn holder(&self, name: &LockName) -> Option<&Entry> {
        if !self.has_name(name) {
            return None;
        }
        let holds = |entry: &&Entry| {
            entry.claim.name == *name
                && entry.seat.session.is_open()
                && matches!(entry.stage, Stage::Held { mode: Mode::Exclusive, .. })
        };
        self.claims.values().find(holds)
    }

    /// A claim goes to a session.
    pub(super) fn seat(&mut self, claim: &Claim, seat: &Arc<Seat>, stage: Stage, room: Option<OwnedSemaphorePermit>) {
        if let Some(place) = self.place(seat) {
            let is_new = place.names.insert(claim.name.clone());
            assert!(is_new, "two claims of one name would both hold it on one session");
            place.is_reserved = false;
            place.used = Instant::now();
        }
        let (claim, seat) = (claim.clone(), Arc::clone(seat));
        let had_since = Instant::now();
        let entry = Entry {
            claim,
            seat,
            stage,
            asked: None,
            broken: false,
            had_since,
            before: None,
            given_up: None,
            ending: Arc::default(),
            room,
        };
        self.claims.insert(entry.claim.id, entry);
    }

    /// Whoever opened it does not need it any more.
    pub(super) fn unreserve(&mut self, seat: &Arc<Seat>) {
        if let Some(place) = self.place(seat) {
            place.is_reserved = false;
        }
    }

    pub(super) fn entry(&mut self, id: ClaimId) -> Option<&mut Entry> {
        self.claims.get_mut(&id)
    }

    /// Nothing of the claim is left on its session.
    pub(super) fn leave(&mut self, id: ClaimId) {
        if let Some(entry) = self.claims.remove(&id)
            && let Some(place) = self.place(&entry.seat)
        {
            place.names.remove(&entry.claim.name);
            place.used = Instant::now();
        }
    }

    /// A session is no more: which claims held on it.
    pub(super) fn close(&mut self, number: u64) -> Vec<ClaimId> {
        self.places.retain(|place| place.seat.number != number);
        let gone = self.claims.extract_if(|_, entry| entry.seat.number == number);
        // A hold whose mode is being changed is one all the same.
        gone.filter(|(_, entry)| matches!(entry.stage, Stage::Held { .. } | Stage::Changing)).map(|(id, _)| id).collect()
    }

    /// An answer came on a session.
    pub(super) fn heard(&mut self, seat: &Arc<Seat>, sent: Instant) {
        if let Some(place) = self.place(seat) {
            place.heard = place.heard.max(sent);
        }
    }

    /// Sessions with holds that others are to see by now.
    pub(super) fn to_show(&self, now: Instant) -> Vec<Arc<Seat>> {
        let mut due: Vec<Arc<Seat>> = Vec::new();
        for entry in self.claims.values() {
            if matches!(entry.stage, Stage::Held { shown, .. } if shown.due().is_some_and(|at| at <= now))
                && due.iter().all(|seat| seat.number != entry.seat.number)
            {
                due.push(Arc::clone(&entry.seat));
            }
        }
        due
    }

    /// What is to be shown of a session: from now on that is under way. For whoever has its pen.
    pub(super) fn show(&mut self, seat: &Seat, now: Instant) -> Vec<(Claim, Held)> {
        let mut due = Vec::new();
        for entry in self.claims.values_mut().filter(|entry| entry.seat.number == seat.number) {
            if let Stage::Held { token, mode, since, shown, .. } = &mut entry.stage
                && shown.due().is_some()
            {
                *shown = Shown::UnderWay;
                due.push((entry.claim.clone(), Held { token: *token, mode: *mode, age: now.since(*since), shown: true }));
            }
        }
        due
    }

    /// Holds that were not renewed in time, and claims whose end nobody has asked for again for that long.
    pub(super) fn expired(&self, now: Instant, patience: Duration) -> Vec<Claim> {
        let is_over = |entry: &&Entry| match entry.stage {
            // One that is being shown cannot be ended yet, and is asked for again later.
            Stage::Held { expires, .. } => expires <= now && entry.given_up.is_none_or(|last| last + patience <= now),
            _ => entry.given_up.is_some_and(|last| last + patience <= now),
        };
        self.claims.values().filter(is_over).map(|entry| entry.claim.clone()).collect()
    }

    /// Sessions that nobody has used for long, or `all` that nobody uses, which leave the book; and those that must make
    /// themselves heard to live on.
    pub(super) fn idle(&mut self, now: Instant, all: bool) -> (Seats, Seats) {
        let (mut close, mut ping) = (Vec::new(), Vec::new());
        self.places.retain(|place| {
            let is_vacant = place.names.is_empty() && !place.is_reserved;
            let kept_for = if place.is_own { KEPT_OWN } else { KEPT_SHARED };
            if !place.seat.session.is_open() || (is_vacant && (all || place.used + kept_for <= now)) {
                close.push(Arc::clone(&place.seat));
                return false;
            }
            if is_vacant && place.heard + place.seat.idle / 3 <= now {
                ping.push(Arc::clone(&place.seat));
            }
            true
        });
        (close, ping)
    }

    /// When something is next to be done.
    pub(super) fn next(&self, patience: Duration) -> Instant {
        let claims = self.claims.values().filter_map(|entry| match entry.stage {
            Stage::Held { expires, shown, .. } => {
                let ends = entry.given_up.map_or(expires, |last| expires.max(last + patience));
                Some(shown.due().map_or(ends, |at| at.min(ends)))
            }
            _ => entry.given_up.map(|last| last + patience),
        });
        let places = self.places.iter().filter(|place| place.names.is_empty()).map(|place| {
            let kept_for = if place.is_own { KEPT_OWN } else { KEPT_SHARED };
            (place.used + kept_for).min(place.heard + place.seat.idle / 3)
        });
        claims.chain(places).min().unwrap_or(Instant::NEVER)
    }

    /// All sessions.
    pub(super) fn seats(&self) -> impl Iterator<Item = &Arc<Seat>> {
        self.places.iter().map(|place| &place.seat)
    }

    fn place(&mut self, seat: &Arc<Seat>) -> Option<&mut Place> {
        self.places.iter_mut().find(|place| place.seat.number == seat.number)
    }
}

/// How long a session is kept that nobody uses: one that many share, and one that somebody waited on.
const KEPT_SHARED: Duration = Duration::from_secs(60);
const KEPT_OWN: Duration = Duration::from_secs(2);
