//! The record of one name, and what each verb does to it: the whole lock algorithm, pure.
//!
//! Stores that can run Rust on a record inside one atomic step (memory under a mutex, SQLite inside an immediate
//! transaction) load a record, call one verb, store it back and wake whom the verb names. No verb reads a clock, draws a
//! random number or waits, so whatever interleaves does so *between* verbs, and a history of verbs is all there is to
//! reason about.
//!
//! What holds after every verb:
//!
//! 1. the holders are a prefix of the line, and together they are what [`admit`](crate::admit) lets in;
//! 2. nobody waits who could be let in: each verb that makes room also hands it over, in the same step;
//! 3. tokens only rise, whatever happened in between;
//! 4. a claim that was ended is in nobody's way: not in the line, not renewable.

use std::collections::VecDeque;
use std::time::Duration;

use crate::admit::{Before, Entry};
use crate::{
    Ask, Claim, ClaimId, Grant, Holder, Instant, Kind, LockName, Mode, Note, Origin, Result, Token, View, Waiter, margin,
};

/// Which client of the store a ticket belongs to; the store chooses what it means.
pub type ClientKey = u64;

/// The moment a verb happens: the store's clock, and the wall clock that seeds tokens.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// On the clock that expiry is counted on.
    pub now: Instant,
    /// Microseconds since 1970, for tokens only.
    pub wall_micros: u64,
}

/// One name: its kind, its last token, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The kind of every claim in the line.
    pub kind: Kind,
    /// The last token given for this name.
    pub last: Token,
    /// Holders, then waiters, in order of asking.
    pub line: VecDeque<Ticket>,
}

/// One claim in the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The claim's id.
    pub id: ClaimId,
    /// How it wants, or holds, the name.
    pub mode: Mode,
    /// The client it belongs to.
    pub client: ClientKey,
    /// The claim's ttl.
    pub ttl: Duration,
    /// The claim's ttl for a grant made while it waits.
    pub handover_ttl: Duration,
    /// How long the name stays closed if this holder is lost.
    pub lock_delay: Duration,
    /// What it shows.
    pub note: Note,
    /// Who it is.
    pub origin: Origin,
    /// When it joined, or was granted.
    pub since: Instant,
    /// Where it stands.
    pub stage: Stage,
}

/// Where a ticket stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// In line; forgotten if not heard of until then.
    Waiting {
        /// When it counts as dead.
        alive_until: Instant,
    },
    /// Let in.
    Held {
        /// Its fencing number.
        token: Token,
        /// When the store lets the next one in if nothing more is heard.
        expires: Instant,
        /// Somebody asked it to let go.
        asked: Option<Ask>,
    },
    /// Released before its minimum hold was over, or broken with a lock-delay: closed until then, and nobody's.
    Closing {
        /// The fencing number it had.
        token: Token,
        /// When the name opens.
        expires: Instant,
    },
}

/// What came of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Let in at once.
    Granted(Token),
    /// In line.
    Queued,
    /// Not let in, and not in line.
    Busy,
}

/// What a waiter learns when it makes itself heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// It was let in.
    Granted(Wake),
    /// It still waits.
    Waiting,
    /// It is not in line any more: it was thought dead, or ended.
    Gone,
}

/// A waiter that was let in by a verb, for the store to wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// Whose it is.
    pub client: ClientKey,
    /// Which claim.
    pub id: ClaimId,
    /// Its token.
    pub token: Token,
    /// When it was let in, on the store's clock.
    pub granted: Instant,
    /// How long the grant stands unless it is renewed.
    pub handover_ttl: Duration,
}

impl Wake {
    /// The grant, for a waiter that shares the store's clock.
    pub fn grant(&self) -> Grant {
        Grant { token: self.token, until: self.granted + (self.handover_ttl - margin(self.handover_ttl)) }
    }
}

impl Ticket {
    /// When time alone ends it.
    fn ends(&self) -> Instant {
        match self.stage {
            Stage::Waiting { alive_until } => alive_until,
            Stage::Held { expires, .. } | Stage::Closing { expires, .. } => expires,
        }
    }
}

impl Record {
    /// An empty record; `floor` is the highest token the store may ever have given for this name.
    pub fn new(kind: Kind, floor: Token) -> Self {
        Record { kind, last: floor, line: VecDeque::new() }
    }

    /// Whether nobody holds and nobody waits, so that only the last token is worth remembering.
    pub fn is_idle(&self) -> bool {
        self.line.is_empty()
    }

    /// Asks for a claim: lets it in, puts it in line if `queue_until` says how long it may wait there unheard, or neither.
    ///
    /// Asking again with the id of a claim that is already here changes nothing and answers as the first time: a retry
    /// after a lost reply is not a second ask. It may have been let in while it waited, on the short ttl of a hand-over:
    /// whoever answers a second ask with a window must look at the ticket, not at the claim.
    pub fn ask_for(
        &mut self,
        claim: &Claim,
        client: ClientKey,
        queue_until: Option<Instant>,
        at: Moment,
        woken: &mut Vec<Wake>,
    ) -> Result<Admission> {
        self.sweep(at, woken);
        if let Some(ticket) = self.line.iter().find(|ticket| ticket.id == claim.id) {
            return Ok(match ticket.stage {
                Stage::Held { token, .. } => Admission::Granted(token),
                Stage::Waiting { .. } => Admission::Queued,
                Stage::Closing { .. } => Admission::Busy,
            });
        }
        self.same_kind_as(claim)?;
        let enters = self.admits_newcomer(claim.mode);
        if !enters && queue_until.is_none() {
            return Ok(Admission::Busy);
        }
        let mut ticket = Ticket {
            id: claim.id,
            mode: claim.mode,
            client,
            ttl: claim.ttl,
            handover_ttl: claim.handover_ttl,
            lock_delay: claim.lock_delay,
            note: claim.note.clone(),
            origin: claim.origin.clone(),
            since: at.now,
            stage: Stage::Waiting { alive_until: queue_until.unwrap_or(at.now) },
        };
        let admission = if enters {
            self.last = Token::next(self.last, at.wall_micros);
            ticket.stage = Stage::Held { token: self.last, expires: at.now + ticket.ttl + ticket.lock_delay, asked: None };
            Admission::Granted(self.last)
        } else {
            Admission::Queued
        };
        self.line.push_back(ticket);
        self.assert_invariants();
        Ok(admission)
    }

    /// Ends a claim, whatever it was: a hold, a place in line, or nothing at all. Says whether it was there: what was broken, and
    /// only keeps the name closed, was not.
    ///
    /// A hold that is let go before its `min_hold` is over keeps the name closed until then. Whoever gives up a claim that
    /// nobody ever used says zero, and a hold that has expired closes nothing any more.
    pub fn end(&mut self, id: ClaimId, min_hold: Duration, at: Moment, woken: &mut Vec<Wake>) -> bool {
        let Some(place) = self.place(id) else {
            self.sweep(at, woken);
            return false;
        };
        let ticket = &mut self.line[place];
        let opens = ticket.since + min_hold;
        match ticket.stage {
            Stage::Held { token, expires, .. } if opens > at.now && expires > at.now => {
                ticket.stage = Stage::Closing { token, expires: opens };
            }
            Stage::Closing { .. } => {
                self.sweep(at, woken);
                return false;
            }
            _ => drop(self.line.remove(place)),
        }
        self.sweep(at, woken);
        true
    }

    /// Extends a hold by its ttl. `None` if it is not held any more; else what somebody asked of the holder.
    pub fn renew(&mut self, id: ClaimId, at: Moment) -> Option<Option<Ask>> {
        let place = self.place(id)?;
        let ticket = &mut self.line[place];
        match &mut ticket.stage {
            // Expired but not yet swept is expired all the same: the holder's window ended before this did.
            Stage::Held { expires, asked, .. } if *expires > at.now => {
                *expires = at.now + ticket.ttl + ticket.lock_delay;
                Some(asked.clone())
            }
            _ => None,
        }
    }

    /// Hears from a waiter: keeps its place until `alive_until`, and says whether it was let in meanwhile.
    pub fn touch(&mut self, id: ClaimId, alive_until: Instant, at: Moment, woken: &mut Vec<Wake>) -> Touched {
        if let Some(place) = self.place(id)
            && let Stage::Waiting { alive_until: alive } = &mut self.line[place].stage
        {
            *alive = alive_until;
        }
        self.sweep(at, woken);
        self.standing(id)
    }

    /// How a waiter stands, as of the last sweep.
    pub fn standing(&self, id: ClaimId) -> Touched {
        match self.place(id).map(|place| &self.line[place]) {
            Some(Ticket { stage: Stage::Waiting { .. }, .. }) => Touched::Waiting,
            Some(&Ticket { stage: Stage::Held { token, .. }, client, since, handover_ttl, .. }) => {
                Touched::Granted(Wake { client, id, token, granted: since, handover_ttl })
            }
            Some(Ticket { stage: Stage::Closing { .. }, .. }) | None => Touched::Gone,
        }
    }

    /// Makes a reader of the writer that holds an rw lock, in place, and lets in whom that makes
    /// room for. It keeps its token and its expiry. `false` if it is not held any more.
    ///
    /// A reader stays a reader: no verb makes it the writer, so a copy of the request that arrives
    /// late changes nothing.
    pub fn downgrade(&mut self, id: ClaimId, at: Moment, woken: &mut Vec<Wake>) -> bool {
        self.sweep(at, woken);
        let Some(place) = self.place(id) else { return false };
        let ticket = &mut self.line[place];
        match (&ticket.stage, ticket.mode) {
            (Stage::Held { .. }, Mode::Exclusive) => ticket.mode = Mode::Shared,
            (Stage::Held { .. }, Mode::Shared) => return true, // the answer to the first time was lost
            _ => return false,
        }
        self.sweep(at, woken);
        true
    }

    /// Ends holds by force, all or the one with this token; says which clients lost which claims. To its holder that is a
    /// loss, so its lock-delay keeps the name closed; breaking it a second time ends that too.
    pub fn break_holds(&mut self, only: Option<Token>, at: Moment, woken: &mut Vec<Wake>) -> Vec<(ClientKey, ClaimId)> {
        let mut broken = Vec::new();
        self.line.retain_mut(|ticket| match ticket.stage {
            Stage::Held { token, .. } | Stage::Closing { token, .. } if only.is_none_or(|only| only == token) => {
                broken.push((ticket.client, ticket.id));
                let stays_closed = matches!(ticket.stage, Stage::Held { .. }) && !ticket.lock_delay.is_zero();
                ticket.stage = Stage::Closing { token, expires: at.now + ticket.lock_delay };
                stays_closed
            }
            _ => true,
        });
        self.sweep(at, woken);
        broken
    }

    /// Leaves a request with every holder to let go; says whom to tell.
    pub fn ask(&mut self, ask: &Ask) -> Vec<(ClientKey, ClaimId)> {
        let mut told = Vec::new();
        for ticket in &mut self.line {
            if let Stage::Held { asked, .. } = &mut ticket.stage {
                *asked = Some(ask.clone());
                told.push((ticket.client, ticket.id));
            }
        }
        told
    }

    /// Forgets a client that is known to be dead: its tickets at once, its holds after their lock-delay.
    pub fn bury(&mut self, client: ClientKey, at: Moment, woken: &mut Vec<Wake>) {
        self.line.retain_mut(|ticket| {
            if ticket.client != client {
                return true;
            }
            match &mut ticket.stage {
                Stage::Waiting { .. } => false,
                Stage::Held { expires, .. } => {
                    *expires = (*expires).min(at.now + ticket.lock_delay);
                    true
                }
                Stage::Closing { .. } => true,
            }
        });
        self.sweep(at, woken);
    }

    /// Drops what time has ended and lets in who may now enter. Every verb ends with it.
    ///
    /// It walks from the front to the first live waiter that must stay, so it costs what it changes and not what waits: a
    /// dead waiter further back is dropped when the walk reaches it, however many there are, in one step.
    pub fn sweep(&mut self, at: Moment, woken: &mut Vec<Wake>) {
        let mut before = Before::default();
        let mut place = 0;
        while let Some(ticket) = self.line.get_mut(place) {
            if ticket.ends() <= at.now {
                self.line.remove(place);
                continue;
            }
            if let Stage::Waiting { .. } = ticket.stage {
                if before.admits(ticket.mode) != Entry::Enter {
                    break;
                }
                self.last = Token::next(self.last, at.wall_micros);
                let Ticket { client, id, handover_ttl, lock_delay, .. } = *ticket;
                let expires = at.now + handover_ttl + lock_delay;
                ticket.stage = Stage::Held { token: self.last, expires, asked: None };
                ticket.since = at.now;
                woken.push(Wake { client, id, token: self.last, granted: at.now, handover_ttl });
            }
            before.pass(ticket.id, ticket.mode);
            place += 1;
        }
        self.assert_invariants();
    }

    /// When time alone may next let somebody in: the earliest end of a hold, or of the first waiter.
    pub fn next_change(&self) -> Option<Instant> {
        self.line.iter().take(self.holders() + 1).map(Ticket::ends).min()
    }

    /// Who is first in line, if anybody waits.
    pub fn first_waiter(&self) -> Option<ClaimId> {
        self.line.get(self.holders()).map(|ticket| ticket.id)
    }

    /// The record as people see it.
    pub fn view(&self, name: &LockName, now: Instant) -> View {
        let kind = (!self.line.is_empty()).then_some(self.kind);
        let mut view = View { kind, last: Some(self.last), ..View::free(name.clone()) };
        for ticket in &self.line {
            let (claim, mode) = (ticket.id.fingerprint(), ticket.mode);
            let (note, origin) = (ticket.note.clone(), ticket.origin.clone());
            let age = now.since(ticket.since);
            let (token, expires, asked, closing) = match &ticket.stage {
                Stage::Waiting { alive_until } if *alive_until > now => {
                    view.line.push(Waiter { claim, mode, note, origin, waiting_for: age });
                    continue;
                }
                Stage::Held { token, expires, asked } if *expires > now => (*token, *expires, asked.clone(), false),
                Stage::Closing { token, expires } if *expires > now => (*token, *expires, None, true),
                _ => continue, // ended by time, not yet swept
            };
            let expires_in = expires.since(now);
            view.holders.push(Holder { claim, mode, token, note, origin, held_for: age, expires_in, closing, asked });
        }
        view
    }

    /// The entry rule for somebody at the end of the line. Where anybody waits nobody behind is let in, so only holders are
    /// looked at.
    fn admits_newcomer(&self, mode: Mode) -> bool {
        if matches!(self.line.back(), Some(Ticket { stage: Stage::Waiting { .. }, .. })) {
            return false;
        }
        let mut before = Before::default();
        self.line.iter().for_each(|ticket| before.pass(ticket.id, ticket.mode));
        before.admits(mode) == Entry::Enter
    }

    fn place(&self, id: ClaimId) -> Option<usize> {
        self.line.iter().position(|ticket| ticket.id == id)
    }

    fn holders(&self) -> usize {
        self.line.iter().take_while(|ticket| !matches!(ticket.stage, Stage::Waiting { .. })).count()
    }

    /// One name, one algorithm: a claim of another kind, or for another number of permits, is refused while the name is
    /// in use. Once it is idle the newcomer decides.
    fn same_kind_as(&mut self, claim: &Claim) -> Result<()> {
        if self.line.is_empty() {
            self.kind = claim.kind;
            return Ok(());
        }
        let of = |mode| if let Mode::Permits { of, .. } = mode { of.get() } else { 0 };
        if self.kind != claim.kind || of(self.line[0].mode) != of(claim.mode) {
            return Err(claim.mismatch(self.kind, of(self.line[0].mode)));
        }
        Ok(())
    }

    /// Invariants 1 and 2 of this module, left on in release builds: a walk over the holders, which the verb just made.
    fn assert_invariants(&self) {
        let mut before = Before::default();
        for ticket in &self.line {
            let waits = matches!(ticket.stage, Stage::Waiting { .. });
            let enters = before.admits(ticket.mode) == Entry::Enter;
            assert!(waits != enters, "a holder that the entry rule keeps out, or a waiter that it lets in");
            if waits {
                break;
            }
            before.pass(ticket.id, ticket.mode);
        }
    }
}
