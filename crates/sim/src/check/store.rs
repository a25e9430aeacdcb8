//! What the store answered, replayed: a line of our own per name, made of the answers alone.
//!
//! - P2: tokens rise with every grant of a name, through everything, also a restart that forgot all.
//! - P1 from both sides: no guard is trusted for longer than the store keeps its hold, and none is lost before it must be.
//! - P4: only a live hold is renewed or downgraded, and a live hold is not refused.
//! - P5: whoever asked first is let in first, except on a plain mutex, unless it ended or fell silent.
//! - P6: nobody is left waiting or turned away who could have been let in at that moment.
//! - P15: however often and late a request arrives, a claim has one place, and none once it has ended.
//! - P1, P9, P10 as the store sees them: whoever is let in may be inside together with everybody who is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_core::{ClaimId, Entry, Instant, Kind, Mode, Token, admit};

use crate::history::{Answer, ClaimIx, Event, Fault, History, HoldIx, Keeps, NameIx, Terms};
use crate::plan::Plan;

/// Every grant the store made: when, and how many times it had forgotten everything by then.
pub(crate) type Grants = BTreeMap<(NameIx, Token), u32>;

/// Replays the store's side of a history.
pub(crate) fn check(history: &History, plan: &Plan) -> (Vec<String>, Grants) {
    let mut replay = Replay { alive: plan.alive, ..Replay::default() };
    for (at, event) in &history.events {
        replay.step(*at, event);
    }
    (replay.violations, replay.grants)
}

#[derive(Default)]
struct Replay {
    alive: Duration,
    lines: BTreeMap<NameIx, Vec<Place>>,
    last: BTreeMap<NameIx, Token>,
    ended: BTreeSet<ClaimIx>,
    nothing_left: BTreeSet<ClaimIx>,
    /// What each guard was granted as, and which claim each token went to.
    holds: BTreeMap<HoldIx, (NameIx, Token)>,
    claims: BTreeMap<(NameIx, Token), ClaimIx>,
    wipes: u32,
    grants: Grants,
    violations: Vec<String>,
}

/// A claim in our line.
#[derive(Clone, Copy)]
struct Place {
    claim: ClaimIx,
    terms: Terms,
    mode: Mode,
    /// When it was last heard of, or let in.
    since: Instant,
    /// `None` while it waits; else until when it is inside.
    inside_until: Option<Instant>,
    token: Token,
    /// Released, but the name stays closed for its minimum hold.
    closing: bool,
}

impl Replay {
    fn step(&mut self, at: Instant, event: &Event) {
        match *event {
            Event::Answered { claim, name, terms, answer } => self.answered(at, claim, name, terms, answer),
            Event::LetIn { claim, name, token } => self.let_in(at, claim, name, token),
            Event::Heard { claim, name } => {
                if let Some(place) = self.place(name, claim).filter(|place| place.inside_until.is_none()) {
                    place.since = at;
                }
            }
            Event::Told { claim, name, waits } => self.told(at, claim, name, waits),
            Event::Forgot { claim, name } => self.forgot(at, claim, name),
            Event::Renewed { claim, name, held } => self.renewed(at, claim, name, held),
            Event::Ends { claim, name, min_hold } => self.ends(at, claim, name, min_hold),
            Event::Downgraded { claim, name, held } => self.downgraded(at, claim, name, held),
            Event::Has { hold, name, token, until, .. } => {
                self.holds.insert(hold, (name, token));
                self.trusts(at, hold, until);
            }
            Event::Ended { hold, until, .. } => self.trusts(at, hold, until),
            Event::SawLoss { hold, until, .. } if until > at => self.lost_early(at, hold),
            Event::NothingLeft { claim } => {
                self.nothing_left.insert(claim);
                if self.lines.values().flatten().any(|place| place.claim == claim && !place.closing) {
                    self.complain(at, format!("P15: claim {claim} was given up as leaving nothing, and is in line"));
                }
            }
            Event::Fault(Fault::Back(Keeps::Holds)) => {
                self.lines.values_mut().for_each(|line| line.retain(|place| place.inside_until.is_some()));
            }
            Event::Fault(Fault::Back(Keeps::Nothing)) => {
                self.wipes += 1;
                self.lines.clear();
                self.ended.clear();
                self.nothing_left.clear();
            }
            _ => {}
        }
    }

    fn answered(&mut self, at: Instant, claim: ClaimIx, name: NameIx, terms: Terms, answer: Answer) {
        self.sweep(at, name);
        let known = self.place(name, claim).copied();
        match (answer, known) {
            (Answer::Granted(token), Some(place)) if place.token == token && place.inside_until.is_some() => {}
            (Answer::Queued, Some(place)) if place.inside_until.is_none() => {}
            (_, Some(_)) => self.complain(at, format!("P15: claim {claim} was asked for twice, and answered {answer:?}")),
            (Answer::Granted(token), None) => {
                if !self.could_enter(at, name, None, terms.mode, Who::Alive) {
                    self.complain(at, format!("P1/P5: claim {claim} was let into name {name} over others"));
                }
                self.enter(at, claim, name, terms, token, terms.ttl);
            }
            (Answer::Queued | Answer::Busy, None) => {
                if self.could_enter(at, name, None, terms.mode, Who::All) {
                    self.complain(at, format!("P6: claim {claim} was kept out of name {name} with room inside"));
                }
                if answer == Answer::Queued {
                    let place = Place {
                        claim,
                        terms,
                        mode: terms.mode,
                        since: at,
                        inside_until: None,
                        token: Token::new(0),
                        closing: false,
                    };
                    self.lines.entry(name).or_default().push(place);
                    self.has_not_ended(at, claim);
                }
            }
        }
    }

    fn let_in(&mut self, at: Instant, claim: ClaimIx, name: NameIx, token: Token) {
        self.sweep(at, name);
        let Some(place) = self.place(name, claim).copied().filter(|place| place.inside_until.is_none()) else {
            return self.complain(at, format!("P15: claim {claim} was let into name {name}, and did not wait for it"));
        };
        if !self.could_enter(at, name, Some(claim), place.mode, Who::Alive) {
            self.complain(at, format!("P1/P5: claim {claim} was let into name {name} over others"));
        }
        self.enter(at, claim, name, place.terms, token, place.terms.handover_ttl);
    }

    /// Writes a grant down where the claim stands, or at the end of the line.
    fn enter(&mut self, at: Instant, claim: ClaimIx, name: NameIx, terms: Terms, token: Token, stands_for: Duration) {
        self.has_not_ended(at, claim);
        self.token(at, name, token);
        self.claims.insert((name, token), claim);
        let inside_until = Some(at + stands_for + terms.lock_delay);
        let entered = Place { claim, terms, mode: terms.mode, since: at, inside_until, token, closing: false };
        match self.place(name, claim) {
            Some(place) => *place = entered,
            None => self.lines.entry(name).or_default().push(entered),
        }
    }

    fn token(&mut self, at: Instant, name: NameIx, token: Token) {
        let last = self.last.insert(name, token);
        if last.is_some_and(|last| last >= token) {
            self.complain(at, format!("P2: name {name} gave token {token} after {last:?}"));
        }
        self.grants.insert((name, token), self.wipes);
    }

    fn has_not_ended(&mut self, at: Instant, claim: ClaimIx) {
        if self.ended.contains(&claim) || self.nothing_left.contains(&claim) {
            self.complain(at, format!("P15: claim {claim} had ended, and was let in or put in line again"));
        }
    }

    /// A guard says that it may be trusted until then: the store must keep its hold for longer, unless it forgot everything.
    fn trusts(&mut self, at: Instant, hold: HoldIx, until: Instant) {
        let Some(place) = self.kept(hold) else { return };
        // In line again, or nowhere: what it had has expired.
        let kept = place.and_then(|place| Some(place.inside_until? - place.terms.lock_delay)).unwrap_or(at);
        if until > kept {
            self.complain(at, format!("P1: hold {hold} is trusted until {until:?}, and kept until {kept:?}"));
        }
    }

    fn lost_early(&mut self, at: Instant, hold: HoldIx) {
        if let Some(Some(Place { inside_until: Some(kept), .. })) = self.kept(hold)
            && kept > at
        {
            self.complain(at, format!("P12: hold {hold} was lost, and the store keeps it until {kept:?}"));
        }
    }

    /// The place of a guard in our line, if it has one; nothing if the store has forgotten everything since.
    fn kept(&mut self, hold: HoldIx) -> Option<Option<Place>> {
        let (name, token) = *self.holds.get(&hold)?;
        let claim = *self.claims.get(&(name, token))?;
        (self.grants.get(&(name, token)) == Some(&self.wipes)).then(|| self.place(name, claim).copied())
    }

    fn told(&mut self, at: Instant, claim: ClaimIx, name: NameIx, waits: bool) {
        self.sweep(at, name);
        let Some(place) = self.place(name, claim).copied().filter(|place| !place.closing) else { return };
        if !waits {
            self.complain(at, format!("P6: claim {claim} is in line for name {name}, and was told that it is not"));
        } else if self.could_enter(at, name, Some(claim), place.mode, Who::All) {
            self.complain(at, format!("P6: claim {claim} was told to wait for name {name} with room inside"));
        }
    }

    /// Only who was silent for too long may be forgotten; who ended is not in our line any more.
    fn forgot(&mut self, at: Instant, claim: ClaimIx, name: NameIx) {
        let alive = self.alive;
        if self.place(name, claim).is_some_and(|place| place.inside_until.is_some() || place.since + alive > at) {
            self.complain(at, format!("P6: claim {claim} was forgotten, and had just been heard of"));
        }
        self.line(name).retain(|place| place.claim != claim);
    }

    fn renewed(&mut self, at: Instant, claim: ClaimIx, name: NameIx, held: bool) {
        self.sweep(at, name);
        match (self.place(name, claim).filter(|place| place.inside_until.is_some() && !place.closing), held) {
            (Some(place), true) => place.inside_until = Some(at + place.terms.ttl + place.terms.lock_delay),
            (None, false) => {}
            (Some(_), false) => self.complain(at, format!("P4: claim {claim} is held, and its renewal was refused")),
            (None, true) => self.complain(at, format!("P4: claim {claim} is not held, and was renewed")),
        }
    }

    fn ends(&mut self, at: Instant, claim: ClaimIx, name: NameIx, min_hold: Duration) {
        self.sweep(at, name);
        self.ended.insert(claim);
        // Released once, it stays closed for as long as that said: a second end changes nothing.
        if let Some(place) = self.place(name, claim).filter(|place| !place.closing) {
            let opens = place.since + min_hold;
            if place.inside_until.is_some() && opens > at {
                (place.inside_until, place.closing) = (Some(opens), true);
            } else {
                self.line(name).retain(|place| place.claim != claim);
            }
        }
    }

    fn downgraded(&mut self, at: Instant, claim: ClaimIx, name: NameIx, held: bool) {
        self.sweep(at, name);
        let place = self.place(name, claim).filter(|place| place.inside_until.is_some() && !place.closing);
        match (place, held) {
            (Some(place), true) => place.mode = Mode::Shared,
            (None, true) => self.complain(at, format!("P4: claim {claim} is not held, and was downgraded")),
            (Some(_), false) => self.complain(at, format!("P4: claim {claim} is held, and was not downgraded")),
            (None, false) => {}
        }
    }

    /// Whether the entry rule lets somebody in, given those before it in line and whoever else is inside.
    fn could_enter(&mut self, at: Instant, name: NameIx, me: Option<ClaimIx>, mode: Mode, who: Who) -> bool {
        let alive = self.alive;
        let line = self.line(name);
        let mine = line.iter().position(|place| Some(place.claim) == me).unwrap_or(line.len());
        let counts = |(index, place): &(usize, &Place)| match place.inside_until {
            Some(_) => *index != mine,
            // A plain mutex may let a newcomer in first.
            None if place.terms.kind == Kind::Mutex && who == Who::Alive => false,
            None => *index < mine && (who == Who::All || place.since + alive > at),
        };
        let id = |claim: u64| ClaimId::from_bytes(u128::from(claim).to_be_bytes());
        let before = line.iter().enumerate().filter(counts).map(|(_, place)| (id(place.claim.into()), place.mode));
        admit(before.chain([(id(u64::MAX), mode)]), id(u64::MAX)) == Entry::Enter
    }

    /// Drops holds that time has ended.
    fn sweep(&mut self, at: Instant, name: NameIx) {
        self.line(name).retain(|place| place.inside_until.is_none_or(|until| until > at));
    }

    fn line(&mut self, name: NameIx) -> &mut Vec<Place> {
        self.lines.entry(name).or_default()
    }

    fn place(&mut self, name: NameIx, claim: ClaimIx) -> Option<&mut Place> {
        self.line(name).iter_mut().find(|place| place.claim == claim)
    }

    fn complain(&mut self, at: Instant, what: String) {
        self.violations.push(format!("{what} at {:?}", Duration::from_nanos(at.as_nanos())));
    }
}

/// Whom of the waiters before a claim to count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    /// Those heard of lately: nobody may pass these.
    Alive,
    /// All, also those that may count as dead: whoever could enter even so must.
    All,
}
