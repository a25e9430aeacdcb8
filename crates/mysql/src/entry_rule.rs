//! The procedures are held to the entry rule: random histories of all verbs run on a real server and on core's [`Record`],
//! and every answer, token, message, view and count must be the same.
//!
//! The record runs at the moment that the procedure says it ran, so nothing depends on how fast anybody is: whatever time
//! passed between two calls passed for both, and short ttls really end. After each request the test looks at everything
//! there is to see.

mod histories;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Value};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tenure_core::lease::{Asked, Asking, Ended, Ending, Message, Renewed, Touched};
use tenure_core::record::{Admission, ClientKey, Moment, Record, Stage, Ticket, Touched as Stands, Wake};
use tenure_core::{Ask, Claim, ClaimId, Kind, LockName, Mode, Note, Origin, Token, View, random};
use tenure_testkit::histories::{NAMES, Shape, Who, change_in, histories, left, moment, waits};
use tenure_testkit::servers::mariadb::MariaDb;
use tenure_testkit::until_all_are_seen;
use tokio::runtime::Runtime;

use self::histories::{Asks, Step, step};
use crate::config::Settings;
use crate::link::{Rows, read_all};
use crate::verbs::{Answered, AtOnce, Statement};
use crate::{examine, schema, verbs};

/// Long enough that no test is so slow that it ends, so that whether it has ended is never in doubt.
const MARK: Duration = Duration::from_secs(3_600);

#[test]
fn every_answer_is_the_records() {
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        histories_agree_at(level);
    }
}

fn histories_agree_at(level: &str) {
    let config = ProptestConfig {
        cases: 20,
        max_shrink_iters: 100,
        failure_persistence: None, // time is part of a history and cannot be kept
        ..ProptestConfig::default()
    };
    let server = RefCell::new(TestServer::new(level));
    until_all_are_seen(EVERYTHING, |seen| {
        let seen = RefCell::new(seen);
        let mut runner = TestRunner::new(config.clone()); // it counts its cases for as long as it lives
        let outcome = runner.run(&histories(step()), |(shapes, steps)| {
            let mut pair = Pair::new(&server, shapes);
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
        outcome.unwrap_or_else(|failure| panic!("{level}: {failure}"));
    });
}

/// A renewal moves the end of its hold and leaves the name's row as it is, which only promises that no hold ends earlier. So a
/// holder that looks after its first ttl finds that a hold may be over, and nothing is: it must do what the record does, which
/// is to leave the line alone, dead waiters included.
#[test]
fn a_renewed_holder_that_looks_leaves_the_line_alone() {
    let server = RefCell::new(TestServer::new("READ COMMITTED"));
    let shape = |ttl| Shape {
        name: 0,
        kind: Kind::FairMutex,
        mode: Mode::Exclusive,
        ttl,
        handover_ttl: ttl,
        lock_delay: Duration::ZERO,
        client: 0,
    };
    let (day, moment) = (Duration::from_secs(86_400), Duration::from_millis(1));
    let mut pair = Pair::new(&server, vec![shape(day), shape(day)]);
    let ask = |claim, queue| Step::Ask(vec![Asks { claim, fresh: true, queue, short: false }]);
    let steps = [ask(0, None), ask(1, Some(moment)), Step::Renew(vec![Who::Claim(0)]), Step::Wait(moment)];
    for step in &steps {
        pair.run(step).and_then(|()| pair.look()).expect("both agree");
    }
    let first_ttl_is_over = format!("UPDATE {}name SET ends = ends - {}", pair.prefix, 2 * day.as_micros());
    pair.send(&first_ttl_is_over);
    let touch = Step::Touch { client: 0, alive: None, whom: vec![Who::Claim(0)] };
    pair.run(&touch).and_then(|()| pair.look()).expect("both agree");
    assert_eq!(pair.seen.get("touched: granted"), Some(&1));
    assert_eq!(pair.records[&0].line.len(), 2, "the dead waiter is left for whoever next changes the line");
}

/// What must have happened somewhere in the histories, or they show nothing.
const EVERYTHING: &[&str] = &[
    "asked: granted",
    "asked: at once",
    "asked: queued",
    "asked: first in line",
    "asked: busy",
    "asked: mismatch",
    "asked: ended",
    "ended: nothing",
    "ended: at once",
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
    "told: asked",
    "told: lost",
    "let in several at once",
    "let in by a look",
    "cell written",
    "cell refused",
    "tidied",
];

/// A session of the server, with tables of its own, at one isolation level.
struct TestServer {
    runtime: Runtime,
    conn: Conn,
    prefix: String,
}

impl TestServer {
    fn new(level: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let prefix = format!("r{:x}_", u64::from_le_bytes(random()));
        let url = format!("{}?prefix={prefix}", MariaDb::shared().url());
        let conn = runtime.block_on(async {
            let settings = Settings::from_url(&url.parse().expect("a URL")).expect("a good URL");
            let mut conn = Conn::new(settings.options().expect("options")).await.expect("the server is there");
            for statement in schema::statements(&prefix) {
                conn.query_drop(&statement).await.unwrap_or_else(|error| panic!("{error}: {statement}"));
            }
            let (server, _) = examine::look(&mut conn, &examine::Runs::default()).await.expect("it answers");
            conn.query_drop(server.setup()).await.expect("it is set up");
            conn.query_drop(format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).await.expect("a level");
            conn
        });
        TestServer { runtime, conn, prefix }
    }

    fn send(&mut self, text: &str) -> Rows {
        self.runtime.block_on(read_all(&mut self.conn, text)).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn execute(&mut self, text: &str, values: Vec<Value>) {
        let done = self.runtime.block_on(self.conn.exec_drop(text, values));
        done.unwrap_or_else(|error| panic!("{error}: {text}"));
    }

    fn number(&mut self, text: &str) -> Option<i64> {
        self.send(text).first()?.first().and_then(|row| verbs::number(row, 0))
    }
}

/// The server's side and the record's side, and what both have seen.
struct Pair<'a> {
    server: &'a RefCell<TestServer>,
    prefix: String,
    names: Vec<LockName>,
    shapes: Vec<Shape>,
    claims: Vec<Claim>,
    /// Those of which the server has a row.
    records: BTreeMap<usize, Record>,
    floor: Token,
    tokens: HashMap<ClaimId, Token>,
    marks: BTreeSet<ClaimId>,
    alive: BTreeMap<ClientKey, u64>,
    cells: BTreeMap<usize, (Vec<u8>, u64)>,
    mail: Vec<(ClientKey, Message)>,
    seen: BTreeMap<&'static str, u32>,
}

impl<'a> Pair<'a> {
    fn new(server: &'a RefCell<TestServer>, shapes: Vec<Shape>) -> Self {
        let names = ["rw/läuft {x}", "permits' \\", "mutex"].map(|name| LockName::new(name).expect("it is a name")).to_vec();
        let claims = shapes.iter().map(|shape| claim(shape, &names)).collect();
        let prefix = server.borrow().prefix.clone();
        let mut this = server.borrow_mut();
        for table in ["name", "ticket", "client", "mail", "mark", "cell"] {
            this.send(&format!("DELETE FROM {prefix}{table}")); // what a history that failed has left
        }
        let floor = this.number(&format!("SELECT token FROM {prefix}floor")).expect("there is one");
        drop(this);
        Pair {
            server,
            prefix,
            names,
            shapes,
            claims,
            records: BTreeMap::new(),
            floor: Token::new(floor as u64),
            tokens: HashMap::new(),
            marks: BTreeSet::new(),
            alive: BTreeMap::new(),
            cells: BTreeMap::new(),
            mail: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_insert(0) += 1;
    }

    fn send(&mut self, text: &str) -> Rows {
        self.server.borrow_mut().send(text)
    }

    /// How many rows a statement changed, and the number it drew.
    fn write(&mut self, Statement { text, values }: Statement<'_>) -> (u64, u64) {
        let mut server = self.server.borrow_mut();
        server.execute(text, values);
        (server.conn.affected_rows(), server.conn.last_insert_id().unwrap_or(0))
    }

    fn run(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Ask(asks) => self.ask(asks),
            Step::End(ends) => self.end(ends),
            Step::Renew(whom) => self.renew(whom),
            Step::Touch { client, alive, whom } => self.touch(*client, *alive, whom),
            Step::Downgrade(who) => self.downgrade(self.find(*who)),
            Step::Request { name } => self.request(*name),
            Step::Break { name, only } => self.break_holds(*name, *only),
            Step::Cell { name, current, value } => self.cell(*name, *current, *value),
            Step::Tidy { name, quiet } => self.tidy(*name, *quiet),
            Step::Leftovers => {
                let text = format!("CALL {}leftovers(10, {})", self.prefix, verbs::micros(MARK));
                self.send(&text);
                Ok(())
            }
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
                let ticket = self.records.get(&name).and_then(|record| record.line.get(place));
                (name, ticket.map_or(ClaimId::from_bytes([0; 16]), |ticket| ticket.id))
            }
        }
    }

    /// Runs one of the record's verbs as the server's procedure ran. An absent record is an empty one, and stays so if the
    /// verb lets nobody in.
    fn record<T>(&mut self, name: usize, now: u64, verb: impl FnOnce(&mut Record, Moment, &mut Vec<Wake>) -> T) -> T {
        let existed = self.records.contains_key(&name);
        let record = self.records.entry(name).or_insert_with(|| Record::new(Kind::Mutex, self.floor));
        let mut woken = Vec::new();
        let answer = verb(record, moment(now), &mut woken);
        if !existed && record.is_idle() {
            self.records.remove(&name);
        }
        if woken.len() > 1 {
            self.saw("let in several at once");
        }
        for Wake { id, token, .. } in woken {
            self.tokens.insert(id, token);
        }
        answer
    }

    fn ask(&mut self, asks: &[Asks]) -> Result<(), TestCaseError> {
        let mut calls = Vec::new();
        for Asks { claim, fresh, queue, .. } in asks {
            if *fresh {
                self.claims[*claim].id = ClaimId::from_bytes(random());
            }
            let asking = Asking { claim: self.claims[*claim].clone(), queue: queue.is_some() };
            let (client, alone) = (self.shapes[*claim].client, asks.len() == 1);
            let call = verbs::ask(&self.prefix, client, &asking, queue.unwrap_or_default(), alone);
            calls.push((asking.claim, client, self.shapes[*claim].name, *queue, call));
        }
        if let ([Asks { short: true, queue, .. }], [(claim, client, name, ..)]) = (asks, &calls[..])
            && verbs::fits(claim.mode)
        {
            let asking = Asking { claim: claim.clone(), queue: queue.is_some() };
            let (changed, drawn) = self.write(AtOnce::new(&self.prefix).ask(*client, &asking));
            if changed == 1 {
                self.saw("asked: at once");
                let granted = Asked::Granted { token: Token::new(drawn), left: claim.ttl };
                return self.one_ask(&claim.clone(), *client, *name, *queue, granted, drawn);
            }
        }
        let texts: Vec<&str> = calls.iter().map(|(.., call)| call.as_str()).collect();
        let sets = self.send(&together(&texts));
        let answers = verbs::asked(&sets).expect("they are answers");
        prop_assert_eq!(answers.len(), asks.len());
        for ((claim, client, name, queue, _), Answered { asked, now, .. }) in calls.into_iter().zip(answers) {
            self.one_ask(&claim, client, name, queue, asked, now)?;
        }
        Ok(())
    }

    fn one_ask(
        &mut self,
        claim: &Claim,
        client: ClientKey,
        name: usize,
        queue: Option<Duration>,
        says: Asked,
        now: u64,
    ) -> Result<(), TestCaseError> {
        self.saw(match says {
            Asked::Granted { .. } => "asked: granted",
            Asked::Queued { first: true, .. } => "asked: first in line",
            Asked::Queued { .. } => "asked: queued",
            Asked::Busy => "asked: busy",
            Asked::Locked => "asked: locked",
            Asked::Mismatch { .. } => "asked: mismatch",
            Asked::Ended => "asked: ended",
        });
        if self.marks.contains(&claim.id) {
            prop_assert_eq!(says, Asked::Ended);
            return Ok(());
        }
        let alive = self.alive.get(&client).copied().unwrap_or(0);
        let expected = self.record(name, now, |record, at, woken| {
            let queue_until = queue.map(|queue| (at.now + queue).max(moment(alive).now));
            match record.ask_for(claim, client, queue_until, at, woken) {
                Ok(Admission::Granted(token)) => Ok(Asked::Granted { token, left: left(record, claim.id, at) }),
                Ok(Admission::Queued) => {
                    let first = record.first_waiter() == Some(claim.id);
                    Ok(Asked::Queued { first, change_in: change_in(record, at) })
                }
                Ok(Admission::Busy) => Ok(Asked::Busy),
                Err(_) => Err(match record.line[0].mode {
                    Mode::Permits { of, .. } => (record.kind, of.get()),
                    _ => (record.kind, 0),
                }),
            }
        });
        if let Asked::Granted { token, .. } = says {
            self.tokens.insert(claim.id, token);
        }
        let says = match says {
            Asked::Mismatch { kind, of } => Err((kind, of)),
            says => Ok(says),
        };
        prop_assert_eq!(says, expected);
        Ok(())
    }

    fn end(&mut self, ends: &[(Who, Duration, bool)]) -> Result<(), TestCaseError> {
        let ends: Vec<(usize, Ending)> = ends
            .iter()
            .map(|(who, min_hold, mark)| {
                let (name, id) = self.find(*who);
                let mark = if *mark { MARK } else { Duration::ZERO };
                (name, Ending { name: self.names[name].clone(), id, min_hold: *min_hold, mark })
            })
            .collect();
        if let [(name, end)] = &ends[..]
            && end.min_hold.is_zero()
            && end.mark.is_zero()
            && self.write(AtOnce::new(&self.prefix).end(end)).0 == 1
        {
            let which = verbs::hex(self.names[*name].as_str().as_bytes());
            let text = format!("SELECT used FROM {}name WHERE name = {which}", self.prefix);
            let now = self.server.borrow_mut().number(&text).expect("it is there") as u64;
            prop_assert!(self.record(*name, now, |record, at, woken| record.end(end.id, Duration::ZERO, at, woken)));
            self.saw("ended: at once");
            return Ok(());
        }
        let calls: Vec<String> = ends.iter().map(|(_, end)| verbs::end(&self.prefix, end, ends.len() == 1)).collect();
        let sets = self.send(&together(&calls.iter().map(String::as_str).collect::<Vec<_>>()));
        let answers = verbs::ended(&sets).expect("they are answers").value;
        let times: Vec<i64> = sets.iter().filter_map(|rows| verbs::number(&rows[0], 0)).collect();
        prop_assert_eq!(answers.len(), ends.len());
        for (((name, Ending { id, min_hold, mark, .. }), now), answer) in ends.into_iter().zip(times).zip(answers) {
            if !mark.is_zero() {
                self.marks.insert(id);
            }
            let was_there = self.record(name, now as u64, |record, at, woken| record.end(id, min_hold, at, woken));
            prop_assert_eq!(answer, if was_there { Ended::Done } else { Ended::Nothing });
            let closes = |it: &Ticket| it.id == id && matches!(it.stage, Stage::Closing { .. });
            let closing = self.records.get(&name).is_some_and(|record| record.line.iter().any(closes));
            self.saw(match was_there {
                true if closing => "ended: closing",
                true => "ended: something",
                false => "ended: nothing",
            });
        }
        Ok(())
    }

    fn renew(&mut self, whom: &[Who]) -> Result<(), TestCaseError> {
        let whom: Vec<_> = whom.iter().map(|who| self.find(*who)).collect();
        let text = verbs::renew(&self.prefix, whom.iter().map(|(name, id)| (&self.names[*name], *id)));
        let said = verbs::renewed(&self.send(&text), whom.len()).expect("it is an answer");
        for ((name, id), says) in whom.into_iter().zip(said.value) {
            let expected = match self.record(name, said.now, |record, at, _| record.renew(id, at)) {
                Some(asked) => Renewed::Held(asked),
                None => Renewed::Lost,
            };
            self.saw(match says {
                Renewed::Held(None) => "renewed: held",
                Renewed::Held(Some(_)) => "renewed: asked",
                Renewed::Lost => "renewed: lost",
                Renewed::Unknown => "renewed: unknown",
            });
            prop_assert_eq!(says, expected);
        }
        Ok(())
    }

    fn touch(&mut self, client: ClientKey, alive: Option<Duration>, whom: &[Who]) -> Result<(), TestCaseError> {
        let whom: Vec<_> = whom.iter().map(|who| self.find(*who)).collect();
        let text = verbs::touch(&self.prefix, client, alive, whom.iter().map(|(_, id)| *id));
        let (said, times) = verbs::touched(&self.send(&text)).expect("it is an answer");
        prop_assert_eq!(said.value.waiters.len(), whom.len());
        self.mail.retain(|(to, _)| *to != client); // it was fetched along, and looked at before
        if alive.is_some() {
            let text = format!("SELECT alive FROM {}client WHERE id = {client}", self.prefix);
            let alive = self.server.borrow_mut().number(&text).expect("it was heard of") as u64;
            self.alive.insert(client, alive);
            for ticket in self.records.values_mut().flat_map(|record| &mut record.line) {
                if let Stage::Waiting { alive_until } = &mut ticket.stage
                    && ticket.client == client
                {
                    *alive_until = (*alive_until).max(moment(alive).now);
                }
            }
        }
        for (((name, id), says), now) in whom.into_iter().zip(said.value.waiters).zip(times) {
            // Nobody who waits is without a ticket, so whoever is, is not looked for.
            if self.is_solo(id) {
                prop_assert_eq!(says, Touched::Gone);
                continue;
            }
            let mut let_in = false;
            let expected = self.record(name, now, |record, at, woken| {
                // Whoever is inside has nothing to wait for: only its own end makes it look further.
                let looks = |ticket: &Ticket| match ticket.stage {
                    Stage::Waiting { .. } => true,
                    Stage::Held { expires, .. } => expires <= at.now,
                    Stage::Closing { .. } => false,
                };
                if record.line.iter().any(|ticket| ticket.id == id && looks(ticket)) {
                    record.sweep(at, woken);
                    let_in = !woken.is_empty();
                }
                match record.standing(id) {
                    Stands::Waiting => {
                        let first = record.first_waiter() == Some(id);
                        Touched::Waiting { first, change_in: change_in(record, at) }
                    }
                    Stands::Granted(Wake { token, granted, .. }) => {
                        Touched::Granted { token, since: granted.as_nanos() / 1_000, left: left(record, id, at) }
                    }
                    Stands::Gone => Touched::Gone,
                }
            });
            if let_in {
                self.saw("let in by a look");
            }
            self.saw(match says {
                Touched::Waiting { .. } => "touched: waiting",
                Touched::Granted { .. } => "touched: granted",
                Touched::Gone => "touched: gone",
            });
            prop_assert_eq!(says, expected);
        }
        Ok(())
    }

    fn is_solo(&mut self, id: ClaimId) -> bool {
        let text = format!("SELECT COUNT(*) FROM {}name WHERE solo = {}", self.prefix, verbs::hex(id.as_bytes()));
        self.server.borrow_mut().number(&text) == Some(1)
    }

    fn downgrade(&mut self, (name, id): (usize, ClaimId)) -> Result<(), TestCaseError> {
        let said =
            verbs::counted(&self.send(&verbs::downgrade(&self.prefix, &self.names[name], id))).expect("it is an answer");
        let held = said.value;
        let expected = self.record(name, said.now, |record, at, woken| record.downgrade(id, at, woken));
        self.saw(if held > 0 { "downgraded" } else { "downgraded: not" });
        prop_assert_eq!(held > 0, expected);
        Ok(())
    }

    fn request(&mut self, name: usize) -> Result<(), TestCaseError> {
        let ask = Ask { reason: note("please"), by: Origin { host: "elsewhere".into(), pid: 7 } };
        let text = verbs::request(&self.prefix, &self.names[name], &ask);
        let said = verbs::counted(&self.send(&text)).expect("it is an answer");
        let told = self.record(name, said.now, |record, _, _| record.ask(&ask));
        prop_assert_eq!(said.value, told.len());
        self.mail.extend(told.into_iter().map(|(client, id)| (client, Message::Asked(id, ask.clone()))));
        Ok(())
    }

    fn break_holds(&mut self, name: usize, only: Option<usize>) -> Result<(), TestCaseError> {
        let only = only.map(|at| self.tokens.get(&self.claims[at].id).copied().unwrap_or(Token::new(1)));
        let text = verbs::break_holds(&self.prefix, &self.names[name], only);
        let said = verbs::counted(&self.send(&text)).expect("it is an answer");
        let broken = self.record(name, said.now, |record, at, woken| record.break_holds(only, at, woken));
        prop_assert_eq!(said.value, broken.len());
        self.mail.extend(broken.into_iter().map(|(client, id)| (client, Message::Lost(id))));
        Ok(())
    }

    fn cell(&mut self, name: usize, current: bool, value: Option<u8>) -> Result<(), TestCaseError> {
        let version = self.cells.get(&name).map_or(0, |(_, version)| *version);
        let expected = if current { version } else { version + 1 };
        let value = value.map(|byte| vec![byte; byte as usize]);
        let text = verbs::cell_set(&self.prefix, &self.names[name], expected, value.as_deref());
        let said = verbs::cell_written(&self.send(&text)).expect("it is an answer");
        let next = Token::next(self.floor.max(Token::new(version)), said.now);
        prop_assert_eq!(said.value, current.then_some(next.get()));
        if current {
            match value {
                Some(value) => drop(self.cells.insert(name, (value, next.get()))),
                None => {
                    self.cells.remove(&name);
                    self.floor = self.floor.max(next);
                }
            }
        }
        self.saw(if current { "cell written" } else { "cell refused" });
        let text = verbs::cell_get(&self.prefix, &self.names[name]);
        let read = verbs::cell(&self.send(&text)).expect("it is a cell").value;
        let expected = self.cells.get(&name).map_or((None, 0), |(value, version)| (Some(value.clone()), *version));
        prop_assert_eq!(read, expected);
        Ok(())
    }

    fn tidy(&mut self, name: usize, quiet: Duration) -> Result<(), TestCaseError> {
        let text = verbs::tidy(&self.prefix, &self.names[name], quiet);
        let said = verbs::clock(&self.send(&text)).expect("it is an answer");
        self.record(name, said.now, |record, at, woken| record.sweep(at, woken));
        // No history lasts for the longer time, an hour, so whether it was used meanwhile is never in doubt.
        if quiet.is_zero()
            && let Some(record) = self.records.get(&name).filter(|record| record.is_idle())
        {
            self.floor = self.floor.max(record.last);
            self.records.remove(&name);
            self.saw("tidied");
        }
        Ok(())
    }

    /// Looks at everything: the messages, the views, the list, and what the rows of the names say of their lines.
    fn look(&mut self) -> Result<(), TestCaseError> {
        let prefix = self.prefix.clone();
        let letters = format!("SELECT client, id, lost, reason, host, pid FROM {prefix}mail ORDER BY number");
        let mut mail = Vec::new();
        for row in self.send(&letters).into_iter().flatten() {
            let client = verbs::number(&row, 0).expect("a client") as ClientKey;
            let bytes: Vec<u8> = row.get(1).expect("an id");
            let id = ClaimId::from_bytes(bytes.try_into().expect("16 bytes"));
            let by =
                Origin { host: verbs::text(&row, 4).as_str().into(), pid: verbs::number(&row, 5).expect("a pid") as u32 };
            let lost = verbs::number(&row, 2) == Some(1);
            self.saw(if lost { "told: lost" } else { "told: asked" });
            let asked = Ask { reason: note(&verbs::text(&row, 3)), by };
            mail.push((client, if lost { Message::Lost(id) } else { Message::Asked(id, asked) }));
        }
        prop_assert_eq!(&mail, &self.mail);

        for at in 0..NAMES {
            let text = verbs::view(&prefix, &self.names[at]);
            let said = verbs::viewed(&self.send(&text)).expect("it is an answer");
            let view = said.value.into_iter().next().unwrap_or_else(|| View::free(self.names[at].clone()));
            let expected = self.records.get(&at).map(|record| record.view(&self.names[at], moment(said.now).now));
            prop_assert_eq!(view, expected.unwrap_or_else(|| View::free(self.names[at].clone())));
        }
        let in_use = self.records.iter().filter(|(_, record)| !record.is_idle()).map(|(at, _)| &self.names[*at]);
        let in_use: BTreeSet<LockName> = in_use.cloned().collect();
        let listed = verbs::viewed(&self.send(&verbs::list(&prefix, "", None, 100))).expect("it is an answer").value;
        prop_assert_eq!(
            listed.into_iter().map(|view| view.name).collect::<Vec<_>>(),
            in_use.into_iter().collect::<Vec<_>>()
        );
        self.look_at_rows()
    }

    /// That there is a row for every record and no other, with the same numbers.
    fn look_at_rows(&mut self) -> Result<(), TestCaseError> {
        let text = format!(
            "SELECT n.name, n.last, n.holds, n.waits, n.taken, n.holds = 0 OR n.ends <= IFNULL(MIN(IF(t.waiting, {far}, t.ends)), {far}), \
             n.waits = 0 OR n.head <= MIN(IF(t.waiting, t.seq, {far})) \
             FROM {prefix}name n LEFT JOIN {prefix}ticket t ON t.name = n.name GROUP BY n.name ORDER BY n.name",
            far = i64::MAX,
            prefix = self.prefix
        );
        let rows = self.send(&text).into_iter().flatten().map(|row| {
            let number = |column| verbs::number(&row, column).expect("a number");
            (verbs::text(&row, 0), [1, 2, 3, 4, 5, 6].map(number))
        });
        let rows: BTreeMap<String, [i64; 6]> = rows.collect();
        let expected: BTreeMap<String, [i64; 6]> = self
            .records
            .iter()
            .map(|(at, record)| {
                let inside = record.line.iter().filter(|ticket| !waits(ticket));
                let taken = inside.clone().map(|ticket| match ticket.mode {
                    Mode::Exclusive => 0,
                    Mode::Shared => 1,
                    Mode::Permits { take, .. } => i64::from(take.get()),
                });
                let (holds, taken) = (inside.clone().count() as i64, taken.sum());
                let line = record.line.len() as i64;
                (self.names[*at].to_string(), [record.last.get() as i64, holds, line - holds, taken, 1, 1])
            })
            .collect();
        prop_assert_eq!(rows, expected);
        let tickets = self.records.values().map(|record| record.line.len() as i64).sum();
        let text = format!("SELECT (SELECT COUNT(*) FROM {0}ticket) + (SELECT COUNT(solo) FROM {0}name)", self.prefix);
        prop_assert_eq!(self.server.borrow_mut().number(&text), Some(tickets));
        Ok(())
    }

    /// Ends all that is left, and sees that nothing is.
    fn finish(&mut self) -> Result<(), TestCaseError> {
        for name in 0..NAMES {
            while let Some(record) = self.records.get(&name) {
                let ids: Vec<ClaimId> = record.line.iter().map(|ticket| ticket.id).collect();
                for id in ids {
                    let place = |record: &Record| record.line.iter().position(|ticket| ticket.id == id);
                    if let Some(place) = self.records.get(&name).and_then(place) {
                        self.end(&[(Who::InLine { name, place }, Duration::ZERO, false)])?;
                    }
                }
                self.break_holds(name, None)?; // what is closing
                self.tidy(name, Duration::ZERO)?;
                self.look()?;
            }
        }
        self.look()
    }
}

/// One alone, or several in a transaction.
fn together(calls: &[&str]) -> String {
    if calls.len() == 1 { calls[0].to_owned() } else { format!("START TRANSACTION; {}; COMMIT", calls.join("; ")) }
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
