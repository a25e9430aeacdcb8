//! What guards told their owners.
//!
//! - P1, P9, P10: the windows of holds that exclude each other do not overlap. A store that forgot everything has broken
//!   this for those it forgot, and for nobody else.
//! - P2: a hold that was given after one that excludes it had ended has the higher token, whenever it was asked for; so has one
//!   that was asked for after any other had ended; and no two share one. A hold that the store forgot since has the token it has.
//! - P3: the fenced resource accepts a token from one hold only, and never goes back.
//! - P12: loss is told when the window ends: not later, and not before unless the store gave the hold away.
//! - P14: observers see terms that were really given, and they rise.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::{Instant, Mode, Token};

use super::store::Grants;
use crate::history::{Ending, Event, Fault, History, HoldIx, NameIx, Who};

/// Timers have steps of a millisecond, and a sleep is rounded up once more.
const TIMER_STEPS: Duration = Duration::from_millis(3);

/// One guard's life.
struct Hold {
    number: HoldIx,
    who: Who,
    name: NameIx,
    asked: Instant,
    /// What it was held as, from when; the last piece goes until `to`.
    pieces: Vec<Piece>,
    /// When trust ended.
    to: Instant,
    /// When its owner was told of a loss, and when that should have been: at the window's end, if it listened by then.
    told: Option<(Instant, Instant)>,
    lost: bool,
}

struct Piece {
    from: Instant,
    to: Instant,
    mode: Mode,
    token: Token,
}

/// Checks the holders' side of a history.
pub(crate) fn check(history: &History, grants: &Grants) -> Vec<String> {
    let holds = holds(history);
    let mut violations = Vec::new();
    windows(&holds, grants, &mut violations);
    tokens(&holds, grants, &mut violations);
    fences(history, &mut violations);
    losses(&holds, history, &mut violations);
    terms(history, grants, &mut violations);
    violations
}

fn holds(history: &History) -> Vec<Hold> {
    let mut holds: BTreeMap<HoldIx, Hold> = BTreeMap::new();
    for (at, event) in &history.events {
        match *event {
            Event::Has { who, hold, name, mode, token, until, asked } => {
                let pieces = vec![Piece { from: *at, to: until, mode, token }];
                holds.insert(hold, Hold { number: hold, who, name, asked, pieces, to: until, told: None, lost: false });
            }
            // From the moment a writer steps down it may not rely on being alone.
            Event::StepsDown { hold } => steps_down(&mut holds, hold, *at),
            Event::SawLoss { hold, until, listened } => {
                if let Some(hold) = holds.get_mut(&hold) {
                    hold.told = Some((*at, until.max(listened)));
                }
            }
            Event::Ended { hold, how, until } => {
                if let Some(hold) = holds.get_mut(&hold) {
                    hold.to = until.min(*at);
                    hold.lost = how == Ending::Lost;
                    hold.pieces.last_mut().expect("never empty").to = hold.to;
                }
            }
            _ => {}
        }
    }
    holds.into_values().collect()
}

fn steps_down(holds: &mut BTreeMap<HoldIx, Hold>, hold: HoldIx, at: Instant) {
    let Some(Hold { pieces, .. }) = holds.get_mut(&hold) else { return };
    let last = pieces.last_mut().expect("never empty");
    last.to = last.to.min(at);
    let token = last.token;
    pieces.push(Piece { from: at, to: Instant::NEVER, mode: Mode::Shared, token });
}

fn windows(holds: &[Hold], grants: &Grants, violations: &mut Vec<String>) {
    for (place, one) in holds.iter().enumerate() {
        for other in holds[place + 1..].iter().filter(|other| other.name == one.name) {
            for (a, b) in one.pieces.iter().flat_map(|a| other.pieces.iter().map(move |b| (a, b))) {
                let overlap = a.from.max(b.from) < a.to.min(b.to);
                let epoch = |piece: &Piece| grants.get(&(one.name, piece.token));
                if overlap && !together(a.mode, b.mode) && epoch(a) == epoch(b) {
                    violations.push(format!(
                        "P1/P9: holds {} and {} of name {} overlap from {:?} to {:?}",
                        one.number,
                        other.number,
                        one.name,
                        Duration::from_nanos(a.from.max(b.from).as_nanos()),
                        Duration::from_nanos(a.to.min(b.to).as_nanos()),
                    ));
                }
            }
        }
        permits(one, holds, grants, violations);
    }
}

fn together(a: Mode, b: Mode) -> bool {
    a != Mode::Exclusive && b != Mode::Exclusive
}

/// At the moment a hold begins, all permits that are out together are not more than there are.
fn permits(one: &Hold, holds: &[Hold], grants: &Grants, violations: &mut Vec<String>) {
    let Piece { from, mode: Mode::Permits { of, .. }, token, .. } = one.pieces[0] else { return };
    let epoch = |hold: &Hold| grants.get(&(hold.name, hold.pieces[0].token));
    let out = holds.iter().filter(|hold| hold.name == one.name && hold.pieces[0].from <= from && from < hold.to);
    let taken: u32 = out
        .filter(|hold| epoch(hold) == epoch(one))
        .map(|hold| match hold.pieces[0].mode {
            Mode::Permits { take, .. } => take.get(),
            _ => 0,
        })
        .sum();
    if taken > of.get() {
        violations.push(format!("P10: {taken} of {of} permits of name {} are out with token {token}", one.name));
    }
}

fn tokens(holds: &[Hold], grants: &Grants, violations: &mut Vec<String>) {
    for one in holds {
        let token = one.pieces[0].token;
        if !grants.contains_key(&(one.name, token)) {
            violations.push(format!("P2: hold {} has token {token}, which the store never gave", one.number));
        }
        for other in holds.iter().filter(|other| other.name == one.name && other.number != one.number) {
            let later = other.pieces[0].token;
            if later == token {
                violations.push(format!("P2: holds {} and {} share token {token}", one.number, other.number));
            }
            // A store that forgot everything may have let others in and out before a grant that it forgot comes to its holder.
            let was_forgotten = grants.get(&(one.name, one.pieces[0].token)) > grants.get(&(other.name, later));
            let excluded = |piece: &&Piece| {
                !was_forgotten && !together(piece.mode, other.pieces[0].mode) && piece.to <= other.pieces[0].from
            };
            if let Some(before) = one.pieces.iter().filter(excluded).find(|piece| later <= piece.token) {
                let before = before.token;
                violations.push(format!(
                    "P2: hold {} was given token {later} after hold {} had ended, which had {before}",
                    other.number, one.number
                ));
            }
            if one.to <= other.asked && later <= one.pieces.last().expect("never empty").token {
                violations.push(format!("P2: hold {} came after hold {} and has no higher token", other.number, one.number));
            }
        }
    }
}

fn fences(history: &History, violations: &mut Vec<String>) {
    let mut highest: BTreeMap<NameIx, (Token, HoldIx)> = BTreeMap::new();
    for (_, event) in &history.events {
        if let Event::Wrote { hold, name, token, accepted: true } = *event {
            let before = highest.insert(name, (token, hold));
            if before.is_some_and(|(last, owner)| last > token || (last == token && owner != hold)) {
                violations.push(format!("P3: the resource of name {name} went from {before:?} to {token} of hold {hold}"));
            }
        }
    }
}

fn losses(holds: &[Hold], history: &History, violations: &mut Vec<String>) {
    for hold in holds {
        let Some((told, due)) = hold.told else { continue };
        // A client that stood still learns it as soon as it runs again.
        let stood_still = |(at, event): &(Instant, Event)| match *event {
            Event::Fault(Fault::Frozen(client, lasts)) if client == hold.who.client => Some((*at, *at + lasts)),
            Event::Fault(Fault::Jump(lasts)) => Some((*at, *at + lasts)),
            _ => None,
        };
        let excused =
            history.events.iter().filter_map(stood_still).any(|(from, to)| from <= told && to + TIMER_STEPS >= told);
        // Of a multi-lock only the weakest is lost; the others' windows may go on.
        let late = told > due + TIMER_STEPS;
        if late && !excused {
            violations.push(format!("P12: hold {} was told of its loss {:?} late", hold.number, told.since(due)));
        }
    }
}

fn terms(history: &History, grants: &Grants, violations: &mut Vec<String>) {
    let mut seen: BTreeMap<(Who, NameIx), Token> = BTreeMap::new();
    for (_, event) in &history.events {
        if let Event::Observed { who, name, term } = *event {
            let before = seen.insert((who, name), term);
            if !grants.contains_key(&(name, term)) || before.is_some_and(|before| before >= term) {
                violations.push(format!("P14: an observer of name {name} saw term {term} after {before:?}"));
            }
        }
    }
}
