//! The scripts are held to the entry rule: random histories of all verbs run on a real server and on core's [`Record`], and
//! every answer, token, message, view and key must be the same.
//!
//! The record runs at the moment that the script says it ran, so nothing depends on how fast anybody is: whatever time
//! passed between two scripts passed for both, and short ttls really end. One step is one script; after it the test looks
//! at everything there is to see.

mod histories;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redis::{Cmd, Connection, Value};
use tenure_core::record::{Admission, ClientKey, Moment, Record, Stage, Ticket, Touched as Stands, Wake};
use tenure_core::{Ask, Claim, ClaimId, Kind, LockName, Mode, Note, Origin, Token, View, random};
use tenure_testkit::histories::{CLIENTS, NAMES, Shape, Who, change_in, ends, histories, left, moment, waits};
use tenure_testkit::servers::redis::Redis;
use tenure_testkit::until_all_are_seen;

use self::histories::{Step, step};
use crate::codec::{Message, Secret};
use crate::schema::Layout;
use crate::scripts;
use crate::verbs::{self, Asked, Renewed, Touched};

/// Long enough that no test is so slow that it ends, so that whether it has ended is never in doubt.
const MARK: Duration = Duration::from_secs(3_600);

#[test]
fn every_answer_is_the_records() {
    let config = ProptestConfig {
        cases: 50,
        max_shrink_iters: 400,
        failure_persistence: None, // time is part of a history and cannot be kept
        ..ProptestConfig::default()
    };
    until_all_are_seen(EVERYTHING, |seen| {
        let seen = RefCell::new(seen);
        let mut runner = TestRunner::new(config.clone()); // it counts its cases for as long as it lives
        let outcome = runner.run(&histories(step()), |(shapes, steps)| {
            let mut pair = Pair::new(shapes);
            for step in &steps {
                pair.run(step)?;
                pair.look()?;
            }
            pair.finish()?;
            for (what, times) in pair.seen {
                *seen.borrow_mut().entry(what).or_insert(0) += times;
            }
            Ok(())
        });
        outcome.unwrap_or_else(|failure| panic!("{failure}"));
    });
}

/// What must have happened somewhere in the histories, or they show nothing.
const EVERYTHING: &[&str] = &[
    "asked: granted",
    "asked: queued",
    "asked: first in line",
    "asked: busy",
    "asked: mismatch",
    "asked: ended",
    "ended: nothing",
    "ended: something",
    "ended: closing",
    "renewed: held",
    "renewed: asked",
    "renewed: lost",
    "touched: waiting",
    "touched: granted",
    "touched: gone",
    "downgraded",
    "downgraded: not",
    "told: granted",
    "told: asked",
    "told: lost",
    "let in several at once",
    "cell written",
    "cell refused",
];

/// The server's side and the record's side, and what both have seen.
struct Pair {
    layout: Layout,
    prefix: String,
    server: Connection,
    inboxes: Connection,
    names: Vec<LockName>,
    shapes: Vec<Shape>,
    claims: Vec<Claim>,
    records: BTreeMap<usize, Record>,
    /// The highest token or version: one for all names, as the server has it.
    last: Token,
    tokens: HashMap<ClaimId, Token>,
    marks: BTreeSet<ClaimId>,
    cells: BTreeMap<usize, (Vec<u8>, u64)>,
    mail: Vec<(ClientKey, Message)>,
    /// The server's time when it was last heard.
    now: u64,
    seen: BTreeMap<&'static str, u32>,
}

impl Pair {
    fn new(shapes: Vec<Shape>) -> Self {
        let prefix = format!("t{:x}", u64::from_le_bytes(random()));
        let layout = Layout::single(&prefix);
        let client = redis::Client::open(Redis::shared().url()).expect("it is a URL");
        let mut server = client.get_connection().expect("the server is there");
        for script in scripts::ALL {
            let sha: String = script.load().query(&mut server).expect("it is Lua");
            assert_eq!(sha, script.sha());
        }
        let mut inboxes = client.get_connection().expect("the server is there");
        for client in 0..CLIENTS {
            let mut subscribe = redis::cmd("SUBSCRIBE");
            subscribe.arg(layout.inbox(0, &client.to_string()));
            inboxes.send_packed_command(&subscribe.get_packed_command()).expect("it is subscribed");
            inboxes.recv_response().expect("it is subscribed");
        }
        let names = ["rw/läuft {x}", "permits", "mutex"].map(|name| LockName::new(name).expect("it is a name")).to_vec();
        let claims = shapes.iter().map(|shape| claim(shape, &names)).collect();
        Pair {
            layout,
            prefix,
            server,
            inboxes,
            names,
            shapes,
            claims,
            records: BTreeMap::new(),
            last: Token::new(0),
            tokens: HashMap::new(),
            marks: BTreeSet::new(),
            cells: BTreeMap::new(),
            mail: Vec::new(),
            now: 0,
            seen: BTreeMap::new(),
        }
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_insert(0) += 1;
    }

    fn send(&mut self, command: &Cmd) -> Value {
        command.query(&mut self.server).expect("the script runs")
    }

    fn run(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Ask { claim, fresh, queue } => self.ask(*claim, *fresh, *queue),
            Step::End { who, min_hold, mark } => self.end(self.find(*who), *min_hold, *mark),
            Step::Renew(whom) => self.renew(whom),
            Step::Touch(whom, alive) => self.touch(whom, *alive),
            Step::Downgrade(who) => self.downgrade(self.find(*who)),
            Step::Request { name } => self.request(*name),
            Step::Break { name, only } => self.break_holds(*name, *only),
            Step::Cell { name, current, value } => self.cell(*name, *current, *value),
            Step::Raise { by } => self.raise(*by),
            Step::Tidy => self.tidy(),
            Step::Wait(time) => {
                std::thread::sleep(*time);
                Ok(())
            }
        }
    }

    /// The name and the id of whom a verb is about.
    fn find(&self, who: Who) -> (usize, ClaimId) {
        match who {
            Who::Claim(at) => (self.shapes[at].name, self.claims[at].id),
            Who::InLine { name, place } => {
                let line = self.records.get(&name).map(|record| &record.line);
                let ticket = line.and_then(|line| line.get(place.min(line.len() - 1)));
                (name, ticket.map_or(ClaimId::from_bytes([0; 16]), |ticket| ticket.id))
            }
        }
    }

    /// Runs one of the record's verbs as the server's script ran; an absent record is an empty one.
    fn record<T>(&mut self, name: usize, now: u64, verb: impl FnOnce(&mut Record, Moment, &mut Vec<Wake>) -> T) -> T {
        self.now = now;
        let record = self.records.entry(name).or_insert_with(|| Record::new(Kind::Mutex, self.last));
        record.last = self.last;
        let mut woken = Vec::new();
        let answer = verb(record, moment(now), &mut woken);
        self.last = record.last;
        if record.is_idle() {
            self.records.remove(&name);
        }
        if woken.len() > 1 {
            *self.seen.entry("let in several at once").or_insert(0) += 1;
        }
        for Wake { client, id, token, granted, .. } in woken {
            self.tokens.insert(id, token);
            let (secret, granted) = (secret(id), granted.as_nanos() / 1_000);
            self.mail.push((client, Message::Granted { id, secret, token, granted }));
        }
        answer
    }

    fn ask(&mut self, at: usize, fresh: bool, queue: Option<Duration>) -> Result<(), TestCaseError> {
        if fresh {
            self.claims[at].id = ClaimId::from_bytes(random());
        }
        let (claim, client, name) = (self.claims[at].clone(), self.shapes[at].client, self.shapes[at].name);
        let inbox = self.layout.inbox(0, &client.to_string());
        let command = verbs::ask(&self.layout, "publish", &claim, &inbox, queue, &secret(claim.id));
        let (now, says) = verbs::asked(self.send(&command), &claim).expect("it is an answer");
        self.saw(match says {
            Asked::Granted { .. } => "asked: granted",
            Asked::Queued { first: true, .. } => "asked: first in line",
            Asked::Queued { .. } => "asked: queued",
            Asked::Busy => "asked: busy",
            Asked::Mismatch { .. } => "asked: mismatch",
            Asked::Ended => "asked: ended",
        });
        if self.marks.contains(&claim.id) {
            prop_assert_eq!(says, Asked::Ended);
            return Ok(());
        }
        let expected = self.record(name, now, |record, at, woken| {
            let admission = record.ask_for(&claim, client, queue.map(|queue| at.now + queue), at, woken);
            match admission {
                Ok(Admission::Granted(token)) => Ok(Asked::Granted { token, left: left(record, claim.id, at) }),
                Ok(Admission::Queued) => {
                    let first = record.first_waiter() == Some(claim.id);
                    Ok(Asked::Queued { first, change_in: change_in(record, at) })
                }
                Ok(Admission::Busy) => Ok(Asked::Busy),
                Err(error) => Err(error.to_string()),
            }
        });
        if let Asked::Granted { token, .. } = says {
            self.tokens.insert(claim.id, token);
        }
        let says = match says {
            Asked::Mismatch { kind, of } => Err(claim.mismatch(kind, of).to_string()),
            says => Ok(says),
        };
        prop_assert_eq!(says, expected);
        Ok(())
    }

    fn end(&mut self, (name, id): (usize, ClaimId), min_hold: Duration, mark: bool) -> Result<(), TestCaseError> {
        let mark = if mark { MARK } else { Duration::ZERO };
        let command = verbs::end(&self.layout, "publish", &self.names[name], id, min_hold, mark);
        let (now, says) = verbs::ended(self.send(&command)).expect("it is an answer");
        if !mark.is_zero() {
            self.marks.insert(id);
        }
        // Where the script did not look at the clock, time does not matter: it was there alone.
        prop_assert!(now.is_some() || self.records.get(&name).is_some_and(|record| record.line.len() == 1));
        let now = now.unwrap_or(self.now);
        let expected = self.record(name, now, |record, at, woken| record.end(id, min_hold, at, woken));
        prop_assert_eq!(says, expected);
        let record = self.records.get(&name);
        let closing =
            |record: &Record| record.line.iter().any(|it| it.id == id && matches!(it.stage, Stage::Closing { .. }));
        self.saw(match says {
            true if record.is_some_and(closing) => "ended: closing",
            true => "ended: something",
            false => "ended: nothing",
        });
        Ok(())
    }

    fn renew(&mut self, whom: &[Who]) -> Result<(), TestCaseError> {
        let whom: Vec<_> = whom.iter().map(|who| self.find(*who)).collect();
        let claim =
            |(name, id): &(usize, ClaimId)| Claim { id: *id, name: self.names[*name].clone(), ..self.claims[0].clone() };
        let claims: Vec<Claim> = whom.iter().map(claim).collect();
        let command = verbs::renew(&self.layout, 0, &claims.iter().collect::<Vec<_>>());
        let (now, says) = verbs::renewed(self.send(&command), claims.len()).expect("it is an answer");
        for ((name, id), says) in whom.into_iter().zip(says) {
            let expected = match self.record(name, now, |record, at, _| record.renew(id, at)) {
                Some(asked) => Renewed::Held(asked),
                None => Renewed::Lost,
            };
            self.saw(match says {
                Renewed::Held(None) => "renewed: held",
                Renewed::Held(Some(_)) => "renewed: asked",
                Renewed::Lost => "renewed: lost",
            });
            prop_assert_eq!(says, expected);
        }
        Ok(())
    }

    fn touch(&mut self, whom: &[Who], alive: Duration) -> Result<(), TestCaseError> {
        let whom: Vec<_> = whom.iter().map(|who| self.find(*who)).collect();
        let waiters: Vec<_> = whom.iter().map(|(name, id)| (&self.names[*name], *id, secret(*id))).collect();
        let command = verbs::touch(&self.layout, "publish", 0, alive, &waiters);
        let (now, says) = verbs::touched(self.send(&command), whom.len()).expect("it is an answer");
        for ((name, id), says) in whom.into_iter().zip(says) {
            let expected = self.record(name, now, |record, at, woken| match record.touch(id, at.now + alive, at, woken) {
                Stands::Waiting => {
                    let first = record.first_waiter() == Some(id);
                    Touched::Waiting { first, change_in: change_in(record, at) }
                }
                Stands::Granted(Wake { token, granted, .. }) => {
                    Touched::Granted { token, since: granted.as_nanos() / 1_000, left: left(record, id, at) }
                }
                Stands::Gone => Touched::Gone,
            });
            self.saw(match says {
                Touched::Waiting { .. } => "touched: waiting",
                Touched::Granted { .. } => "touched: granted",
                Touched::Gone => "touched: gone",
            });
            prop_assert_eq!(says, expected);
        }
        Ok(())
    }

    fn downgrade(&mut self, (name, id): (usize, ClaimId)) -> Result<(), TestCaseError> {
        let command = verbs::downgrade(&self.layout, "publish", &self.names[name], id);
        let (now, held) = verbs::counted(self.send(&command)).expect("it is an answer");
        let expected = self.record(name, now, |record, at, woken| record.downgrade(id, at, woken));
        self.saw(if held > 0 { "downgraded" } else { "downgraded: not" });
        prop_assert_eq!(held > 0, expected);
        Ok(())
    }

    fn request(&mut self, name: usize) -> Result<(), TestCaseError> {
        let ask = Ask { reason: note("please"), by: Origin { host: "elsewhere".into(), pid: 7 } };
        let command = verbs::request(&self.layout, "publish", &self.names[name], &ask);
        let (now, says) = verbs::counted(self.send(&command)).expect("it is an answer");
        let told = self.record(name, now, |record, _, _| record.ask(&ask));
        prop_assert_eq!(says, told.len());
        self.mail.extend(told.into_iter().map(|(client, id)| (client, Message::Asked(id, ask.clone()))));
        Ok(())
    }

    fn break_holds(&mut self, name: usize, only: Option<usize>) -> Result<(), TestCaseError> {
        let only = only.map(|at| self.tokens.get(&self.claims[at].id).copied().unwrap_or(Token::new(1)));
        let command = verbs::break_holds(&self.layout, "publish", &self.names[name], only);
        let (now, says) = verbs::counted(self.send(&command)).expect("it is an answer");
        let broken = self.record(name, now, |record, at, woken| record.break_holds(only, at, woken));
        prop_assert_eq!(says, broken.len());
        self.mail.extend(broken.into_iter().map(|(client, id)| (client, Message::Lost(id))));
        Ok(())
    }

    fn cell(&mut self, name: usize, current: bool, value: Option<u8>) -> Result<(), TestCaseError> {
        let version = self.cells.get(&name).map_or(0, |(_, version)| *version);
        let expected = if current { version } else { version + 1 };
        let value = value.map(|byte| vec![byte; byte as usize]);
        let command = verbs::cell_set(&self.layout, &self.names[name], expected, value.as_deref());
        let (now, says) = verbs::cell_written(self.send(&command)).expect("it is an answer");
        if current {
            self.last = Token::next(self.last, now);
            match value {
                Some(value) => drop(self.cells.insert(name, (value, self.last.get()))),
                None => drop(self.cells.remove(&name)),
            }
        }
        prop_assert_eq!(says, current.then_some(self.last.get()));
        self.saw(if current { "cell written" } else { "cell refused" });
        let read = verbs::cell(self.send(&verbs::cell_get(&self.layout, &self.names[name]))).expect("it is a cell");
        let expected = self.cells.get(&name).map_or((None, 0), |(value, version)| (Some(value.clone()), *version));
        prop_assert_eq!(read, expected);
        Ok(())
    }

    fn raise(&mut self, by: u64) -> Result<(), TestCaseError> {
        let to = Token::new((self.last.get() + by).saturating_sub(1_000));
        let (_, says) = verbs::raised(self.send(&verbs::raise(&self.layout, 0, to))).expect("it is an answer");
        self.last = self.last.max(to);
        prop_assert_eq!(says, self.last);
        Ok(())
    }

    fn tidy(&mut self) -> Result<(), TestCaseError> {
        let stray = LockName::new("stray").expect("it is a name");
        let _: u32 =
            redis::cmd("ZADD").arg(self.layout.names(0)).arg(0).arg("stray").query(&mut self.server).expect("added");
        let names: Vec<&LockName> = self.names.iter().chain([&stray]).collect();
        let command = verbs::tidy(&self.layout, 0, &names);
        let (_, says) = verbs::counted(self.send(&command)).expect("it is an answer");
        prop_assert_eq!(says, 1, "the names in use stay");
        Ok(())
    }

    /// Looks at everything: the messages, the views, the index, and which keys there are and for how long.
    fn look(&mut self) -> Result<(), TestCaseError> {
        let mut mail = self.letters();
        for (_, message) in &mail {
            self.saw(match message {
                Message::Granted { .. } => "told: granted",
                Message::Asked(..) => "told: asked",
                Message::Lost(_) => "told: lost",
            });
        }
        let order = |letter: &(ClientKey, Message)| format!("{letter:?}");
        mail.sort_by_key(order);
        self.mail.sort_by_key(order);
        prop_assert_eq!(mail, std::mem::take(&mut self.mail));

        let names: Vec<&LockName> = self.names.iter().collect();
        let command = verbs::view(&self.layout, &names);
        let answer: Value = command.query(&mut self.server).expect("the script runs");
        let (now, views) = verbs::viewed(answer, &names).expect("it is an answer");
        for (at, (name, view)) in names.iter().zip(views).enumerate() {
            let expected = self.records.get(&at).map(|record| record.view(name, moment(now).now));
            let expected = expected.unwrap_or_else(|| View::free((*name).clone()));
            // What the server remembers of those who are over goes after a while, and is never more than it gave.
            prop_assert!(view.last <= Some(self.last) && view.holders.iter().all(|holder| view.last >= Some(holder.token)));
            prop_assert_eq!(View { last: expected.last, ..view }, expected);
        }

        let used: BTreeSet<&LockName> = self.records.keys().map(|at| &self.names[*at]).collect();
        let listed: Value = verbs::list(&self.layout, 0, "", None, 100).query(&mut self.server).expect("it is listed");
        let listed = verbs::listed(listed).expect("they are names");
        prop_assert_eq!(listed.iter().collect::<Vec<_>>(), used.into_iter().collect::<Vec<_>>());
        self.look_at_keys(now)
    }

    /// Which keys there are, and that each stays as long as it matters and not much longer.
    fn look_at_keys(&mut self, now: u64) -> Result<(), TestCaseError> {
        let text = |key: Vec<u8>| String::from_utf8(key).expect("names are text");
        let found: BTreeSet<String> =
            redis::cmd("KEYS").arg(format!("{}:*", self.prefix)).query(&mut self.server).expect("they are listed");
        // What is remembered of names for a few seconds is there or not, whatever the record is like.
        let found: BTreeSet<String> = found.into_iter().filter(|key| !key.contains(":past:")).collect();
        let mut expected: BTreeMap<String, Option<u64>> = BTreeMap::new(); // until when it must stay, unless for ever
        if self.last > Token::new(0) {
            // Not before the clock is past it, or tokens would go back.
            expected.insert(text(self.layout.token(0)), Some(self.last.get().max(now) + 24 * 3_600_000_000));
        }
        if !self.records.is_empty() {
            expected.insert(text(self.layout.names(0)), Some(0));
        }
        expected.extend(self.marks.iter().map(|id| (text(self.layout.ended(0, *id)), Some(0))));
        expected.extend(self.cells.keys().map(|at| (text(self.layout.cell(&self.names[*at])), None)));
        for (at, record) in &self.records {
            let name = &self.names[*at];
            let last = record.line.iter().map(|ticket| ends(&ticket.stage).as_nanos() / 1_000).max();
            expected.insert(text(self.layout.lock(name)), last);
            if record.line.iter().any(waits) {
                expected.insert(text(self.layout.line(name)), last);
            }
            // A reader or a permit that is there alone is in the lock itself.
            let held = text(self.layout.held(name));
            if record.line.iter().any(holds_with_others) && found.contains(&held) {
                expected.insert(held, last);
            }
        }
        prop_assert_eq!(found, expected.keys().cloned().collect::<BTreeSet<_>>());
        self.look_into_records()?;
        for (key, until) in expected {
            let expires: i64 = redis::cmd("PEXPIRETIME").arg(&key).query(&mut self.server).expect("it is there");
            match until {
                None => prop_assert_eq!(expires, -1, "{} stays", key),
                Some(until) => {
                    prop_assert!(expires > 0, "{} would stay for ever", key);
                    prop_assert!(expires as u64 * 1_000 >= until, "{} goes too early", key);
                }
            }
        }
        Ok(())
    }

    /// That a record's parts have as much in them as they should, and nothing of anybody who has gone.
    fn look_into_records(&mut self) -> Result<(), TestCaseError> {
        for (at, record) in &self.records {
            let (lock, line, held) =
                (self.layout.lock(&self.names[*at]), self.layout.line(&self.names[*at]), self.layout.held(&self.names[*at]));
            let tickets = |of: &dyn Fn(&Ticket) -> bool| record.line.iter().filter(|ticket| of(ticket)).count();
            let shape: String = redis::cmd("TYPE").arg(&lock).query(&mut self.server).expect("it is there");
            if shape == "string" {
                prop_assert_eq!(tickets(&|ticket| !waits(ticket)), 1);
                prop_assert_eq!(record.line.len(), 1);
                continue;
            }
            let mut count =
                |what, key| -> usize { redis::cmd(what).arg(key).query(&mut self.server).expect("it is counted") };
            let asked = tickets(&|ticket| matches!(ticket.stage, Stage::Held { asked: Some(_), .. }));
            prop_assert_eq!(count("HLEN", &lock), 1 + record.line.len() + asked);
            prop_assert_eq!(count("ZCARD", &line), tickets(&waits));
            prop_assert_eq!(count("ZCARD", &held), tickets(&holds_with_others));
        }
        Ok(())
    }

    /// What is in the inboxes: all of it, since a message to ourselves comes after all that was sent before it.
    fn letters(&mut self) -> Vec<(ClientKey, Message)> {
        let inbox = |client: ClientKey| self.layout.inbox(0, &client.to_string());
        let _: u32 = redis::cmd("PUBLISH").arg(inbox(0)).arg("that is all").query(&mut self.server).expect("it is sent");
        let mut letters = Vec::new();
        loop {
            let push: Vec<Vec<u8>> =
                redis::from_redis_value(self.inboxes.recv_response().expect("it is heard")).expect("a push");
            let [_, channel, payload] = &push[..] else { panic!("not a message: {push:?}") };
            if payload == b"that is all" {
                return letters;
            }
            let client = (0..CLIENTS).find(|client| inbox(*client) == *channel).expect("an inbox of ours");
            letters.push((client, Message::decode(payload).expect("it is a message")));
        }
    }

    /// Ends all that is left, and sees that nothing is.
    fn finish(&mut self) -> Result<(), TestCaseError> {
        for name in 0..NAMES {
            while let Some(record) = self.records.get(&name) {
                let ids: Vec<ClaimId> = record.line.iter().map(|ticket| ticket.id).collect();
                for id in ids {
                    self.end((name, id), Duration::ZERO, false)?;
                }
                self.break_holds(name, None)?; // what is closing
                self.look()?;
            }
        }
        prop_assert!(self.records.is_empty());
        self.look()
    }
}

/// A waiter's secret: another one for each claim.
fn secret(id: ClaimId) -> Secret {
    id.as_bytes().map(|byte| !byte)
}

fn note(text: &str) -> Note {
    Note::new(text).expect("it is a note")
}

fn claim(shape: &Shape, names: &[LockName]) -> Claim {
    Claim {
        name: names[shape.name].clone(),
        kind: shape.kind,
        mode: shape.mode,
        id: ClaimId::from_bytes(random()),
        ttl: shape.ttl,
        handover_ttl: shape.handover_ttl,
        lock_delay: shape.lock_delay,
        min_hold: Duration::ZERO,
        note: note("für alle"),
        origin: Origin { host: "here".into(), pid: shape.client as u32 },
    }
}

fn holds_with_others(ticket: &Ticket) -> bool {
    !waits(ticket) && ticket.mode != Mode::Exclusive
}
