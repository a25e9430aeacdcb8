//! Core's real [`Record`] under every interleaving of asking, ending, expiring, renewing, downgrading and being heard of,
//! in steps of a clock that anybody may sleep through.

use std::hash::{Hash, Hasher};
use std::num::NonZeroU32;
use std::time::Duration;

use stateright::{Checker, HasDiscoveries, Model, Property};
use tenure_core::record::{Admission, Moment, Record, Stage, Wake};
use tenure_core::{Claim, ClaimId, Entry, Instant, Kind, LockName, Mode, Note, Origin, Token, admit};

const TTL: u64 = 2;
/// How long a waiter may be silent.
const ALIVE: u64 = 2;

/// Which rule is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    Nothing,
    /// A claim that ended may be asked for again.
    NoTombstones,
    /// A newcomer is put in front of those who wait.
    JumpsTheLine,
    /// A renewal revives what has expired.
    RenewsTheExpired,
    /// Tokens start over when the record is idle.
    TokensStartOver,
    /// A downgrade lets nobody in.
    DowngradeLetsNobodyIn,
    /// A release does not let the next one in.
    NoHandover,
}

struct Line {
    kind: Kind,
    modes: Vec<Mode>,
    end_of_time: u64,
    sabotage: Sabotage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    now: u64,
    record: Record,
    /// Per claim: whether it ended, and until when its owner trusts it.
    ended: Vec<bool>,
    trusted: Vec<u64>,
    /// Who waits, in the order of asking.
    queue: Vec<usize>,
    /// The last thing that happened was a verb: nobody may wait now who could enter.
    swept: bool,
    /// What went wrong on the way here.
    wrong: Option<&'static str>,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.now, &self.ended, &self.trusted, &self.queue, self.swept, self.wrong).hash(state);
        self.record.last.hash(state);
        for ticket in &self.record.line {
            (ticket.id, ticket.mode, ticket.since).hash(state);
            match &ticket.stage {
                Stage::Waiting { alive_until } => (0, alive_until, Token::new(0)).hash(state),
                Stage::Held { token, expires, .. } => (1, expires, *token).hash(state),
                Stage::Closing { token, expires } => (2, expires, *token).hash(state),
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    TimePasses,
    Ask(usize),
    Try(usize),
    Touch(usize),
    Renew(usize),
    End(usize),
    Downgrade(usize),
}

fn id(claim: usize) -> ClaimId {
    ClaimId::from_bytes((claim as u128 + 1).to_be_bytes())
}

fn number(id: ClaimId) -> usize {
    u128::from_be_bytes(*id.as_bytes()) as usize - 1
}

fn at(step: u64) -> Moment {
    Moment { now: Instant::from_nanos(step), wall_micros: 0 } // tokens count one by one: fewer states
}

impl Line {
    fn claim(&self, claim: usize) -> Claim {
        Claim {
            name: LockName::new("x").unwrap(),
            kind: self.kind,
            mode: self.modes[claim],
            id: id(claim),
            ttl: Duration::from_nanos(TTL),
            handover_ttl: Duration::from_nanos(TTL),
            lock_delay: Duration::ZERO,
            min_hold: Duration::ZERO,
            note: Note::none(),
            origin: Origin { host: "host".into(), pid: 1 },
        }
    }

    fn claims(&self) -> std::ops::Range<usize> {
        0..self.modes.len()
    }
}

impl State {
    fn inside(&self) -> Vec<(ClaimId, Mode)> {
        let holds = |stage: &Stage| matches!(stage, Stage::Held { expires, .. } if expires.as_nanos() > self.now);
        self.record.line.iter().filter(|ticket| holds(&ticket.stage)).map(|ticket| (ticket.id, ticket.mode)).collect()
    }

    fn is_compatible(&self) -> bool {
        let inside = self.inside();
        inside.iter().all(|(me, _)| admit(inside.clone(), *me) == Entry::Enter)
    }

    fn waits(&self, claim: usize) -> bool {
        let alive = |stage: &Stage| matches!(stage, Stage::Waiting { alive_until } if alive_until.as_nanos() > self.now);
        self.record.line.iter().any(|ticket| ticket.id == id(claim) && alive(&ticket.stage))
    }

    /// Somebody was let in.
    fn granted(&mut self, before: &State, claim: usize, token: Token) {
        if token <= before.record.last && !before.inside().iter().any(|(inside, _)| *inside == id(claim)) {
            self.wrong = Some("a token did not rise");
        }
        if self.ended[claim] {
            self.wrong = Some("an ended claim was let in");
        }
        let place = self.queue.iter().position(|waiting| *waiting == claim).unwrap_or(self.queue.len());
        if self.queue[..place].iter().any(|earlier| before.waits(*earlier) && self.waits(*earlier)) {
            self.wrong = Some("somebody was passed");
        }
        self.queue.retain(|waiting| *waiting != claim);
        self.trusted[claim] = self.now + TTL;
    }
}

impl Model for Line {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let (count, record) = (self.modes.len(), Record::new(self.kind, Token::new(0)));
        vec![State {
            now: 0,
            record,
            ended: vec![false; count],
            trusted: vec![0; count],
            queue: vec![],
            swept: true,
            wrong: None,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.wrong.is_some() || !state.is_compatible() {
            return; // found; and core's own assertions would end the search one step later
        }
        if state.now < self.end_of_time {
            steps.push(Step::TimePasses);
        }
        for claim in self.claims() {
            let known = state.record.line.iter().find(|ticket| ticket.id == id(claim));
            if !state.ended[claim] || self.sabotage == Sabotage::NoTombstones {
                steps.push(Step::Ask(claim));
                if known.is_none() {
                    steps.push(Step::Try(claim));
                }
            }
            match known.map(|ticket| &ticket.stage) {
                Some(Stage::Waiting { .. }) => steps.push(Step::Touch(claim)),
                Some(Stage::Held { .. }) => steps.push(Step::Renew(claim)),
                _ => {}
            }
            if !state.ended[claim] {
                steps.push(Step::End(claim));
            }
            if self.kind == Kind::RwLock && known.is_some() {
                steps.push(Step::Downgrade(claim));
            }
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut next = before.clone();
        let (at, mut woken) = (at(before.now), Vec::new());
        let alive_until = Instant::from_nanos(before.now + ALIVE);
        let mut told = None;
        next.swept = true;
        match step {
            Step::TimePasses => {
                next.now += 1;
                next.swept = false;
            }
            Step::Ask(claim) | Step::Try(claim) => {
                let queue = matches!(step, Step::Ask(_)).then_some(alive_until);
                if self.sabotage == Sabotage::TokensStartOver && next.record.is_idle() {
                    next.record.last = Token::new(0);
                }
                next.record.sweep(at, &mut woken); // as the ask begins; apart, to see who was forgotten and asks again
                next.queue.retain(|waiting| next.record.line.iter().any(|ticket| ticket.id == id(*waiting)));
                let admission = next.record.ask_for(&self.claim(claim), 1, queue, at, &mut woken).ok()?;
                match admission {
                    Admission::Granted(token) => told = Some((claim, token)),
                    Admission::Queued if !next.queue.contains(&claim) => {
                        next.queue.push(claim);
                        if self.sabotage == Sabotage::JumpsTheLine {
                            let first = next.record.line.iter().position(|t| matches!(t.stage, Stage::Waiting { .. }))?;
                            let newcomer = next.record.line.pop_back()?;
                            next.record.line.insert(first, newcomer);
                        }
                    }
                    _ => {}
                }
            }
            Step::Touch(claim) => drop(next.record.touch(id(claim), alive_until, at, &mut woken)),
            Step::Renew(claim) => {
                let renewed = next.record.renew(id(claim), at).is_some();
                if renewed || self.sabotage == Sabotage::RenewsTheExpired {
                    next.trusted[claim] = before.now + TTL;
                }
                next.swept = before.swept;
            }
            Step::End(claim) => {
                next.ended[claim] = true;
                next.trusted[claim] = 0;
                next.queue.retain(|waiting| *waiting != claim);
                if self.sabotage == Sabotage::NoHandover {
                    next.record.line.retain(|ticket| ticket.id != id(claim));
                } else {
                    next.record.end(id(claim), Duration::ZERO, at, &mut woken);
                }
            }
            Step::Downgrade(claim) => {
                let ticket = next.record.line.iter_mut().find(|ticket| ticket.id == id(claim))?;
                let Stage::Held { .. } = ticket.stage else { return None };
                if self.sabotage == Sabotage::DowngradeLetsNobodyIn {
                    ticket.mode = Mode::Shared;
                } else {
                    next.record.downgrade(id(claim), at, &mut woken);
                }
            }
        }
        for Wake { id, token, .. } in &woken {
            next.granted(before, number(*id), *token);
        }
        if let Some((claim, token)) = told
            && !woken.iter().any(|wake| wake.id == id(claim))
            && !before.inside().iter().any(|(inside, _)| *inside == id(claim))
        {
            next.granted(before, claim, token);
        }
        let waits: Vec<usize> =
            next.queue.iter().copied().filter(|claim| next.record.line.iter().any(|t| t.id == id(*claim))).collect();
        next.queue = waits; // whoever was forgotten has no place any more
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing went wrong on the way", |_, state: &State| state.wrong.is_none()),
            Property::always("whoever is inside may be inside together", |_, state: &State| state.is_compatible()),
            Property::always("nobody waits who could enter", |_, state: &State| {
                let mut inside = state.inside();
                let first = state.record.line.iter().find(|ticket| matches!(ticket.stage, Stage::Waiting { .. }));
                first.is_none_or(|first| {
                    inside.push((first.id, first.mode));
                    !state.swept || admit(inside, first.id) != Entry::Enter
                })
            }),
            Property::always("whoever is trusted is inside", |model: &Line, state: &State| {
                let inside = state.inside();
                model
                    .claims()
                    .all(|claim| state.trusted[claim] <= state.now || inside.iter().any(|(id, _)| number(*id) == claim))
            }),
            Property::sometimes("a line forms", |model: &Line, state: &State| {
                state.queue.len() + 1 >= model.modes.len().min(3)
            }),
            Property::sometimes("somebody expires", |_, state: &State| {
                state
                    .record
                    .line
                    .iter()
                    .any(|t| matches!(t.stage, Stage::Held { expires, .. } if expires.as_nanos() <= state.now))
            }),
        ]
    }
}

fn permits(take: u32) -> Mode {
    Mode::Permits { take: NonZeroU32::new(take).unwrap(), of: NonZeroU32::new(3).unwrap() }
}

fn check(kind: Kind, modes: &[Mode], end_of_time: u64, sabotage: Sabotage) -> impl Checker<Line> {
    let checker = Line { kind, modes: modes.to_vec(), end_of_time, sabotage }.checker().threads(2);
    match sabotage {
        Sabotage::Nothing => checker.spawn_bfs().join(),
        _ => checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join(),
    }
}

#[test]
fn the_record_keeps_its_rules_in_every_interleaving() {
    use Mode::{Exclusive, Shared};
    let worlds: [(Kind, &[Mode], u64); 4] = [
        (Kind::FairMutex, &[Exclusive, Exclusive, Exclusive], 4),
        (Kind::RwLock, &[Exclusive, Shared, Shared], 3),
        (Kind::RwLock, &[Exclusive, Shared, Exclusive, Shared], 2),
        (Kind::Semaphore, &[permits(1), permits(2), permits(3)], 4),
    ];
    for (kind, modes, end_of_time) in worlds {
        let checked = check(kind, modes, end_of_time, Sabotage::Nothing);
        eprintln!("{kind}: {} states", checked.unique_state_count());
        checked.assert_properties();
    }
}

#[test]
fn every_rule_is_needed() {
    use Mode::{Exclusive, Shared};
    let wrong = "nothing went wrong on the way";
    let fair: (Kind, &[Mode]) = (Kind::FairMutex, &[Exclusive, Exclusive, Exclusive]);
    let cases = [
        (Sabotage::NoTombstones, fair, wrong),
        (Sabotage::JumpsTheLine, fair, wrong),
        (Sabotage::TokensStartOver, fair, wrong),
        (Sabotage::RenewsTheExpired, fair, "whoever is trusted is inside"),
        (Sabotage::NoHandover, fair, "nobody waits who could enter"),
        (Sabotage::DowngradeLetsNobodyIn, (Kind::RwLock, &[Exclusive, Shared][..]), "nobody waits who could enter"),
    ];
    for (sabotage, (kind, modes), property) in cases {
        let checked = check(kind, modes, 3, sabotage);
        assert!(checked.discovery(property).is_some(), "{sabotage:?} breaks nothing");
    }
}
