//! The functions are held to the entry rule: random histories of all verbs run on a real server and on core's [`Record`], and
//! every answer, token, message, view and row must be the same.
//!
//! The record runs at the moment that the function says it ran, so nothing depends on how fast anybody is: whatever time
//! passed between two calls passed for both, and short ttls really end. One step is one call; after it the test looks at
//! everything there is to see. A waiter is alive while its client is, so before each verb the record's waiters are given
//! the time of their clients.

mod histories;
mod tickets;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::poll_fn;
use std::sync::OnceLock;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tenure_core::lease::{Asked, Asking, Ended, Ending, Message, Renewed, Touched};
use tenure_core::record::{Admission, ClientKey, Moment, Record, Stage, Touched as Stands, Wake};
use tenure_core::{Ask, Claim, ClaimId, Instant, Kind, LockName, Note, Origin, Token, View, random};
use tenure_testkit::histories::{CLIENTS, NAMES, Shape, Who, ends, histories, left, moment, waits};
use tenure_testkit::servers::postgres::Postgres;
use tenure_testkit::until_all_are_seen;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls, Row};

use self::histories::{Step, step};
use self::tickets::{left_with_delay, room, set_alive, standing};
use crate::schema::Layout;
use crate::seal::NotifyKey;
use crate::verbs::{self, Request, Verbs};

/// Long enough that no test is so slow that it ends, so that whether it has ended is never in doubt.
const MARK: Duration = Duration::from_secs(3_600);

#[test]
fn every_answer_is_the_records() {
    let config = ProptestConfig {
        cases: 50,
        max_shrink_iters: 200,
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
    "asked together",
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
    "in line behind a ticket in the name's row",
    "cell written",
    "cell refused",
    "a name removed",
];

/// The server's side and the record's side, and what both have seen.
struct Pair {
    layout: Layout,
    verbs: Verbs,
    notify_key: NotifyKey,
    server: Client,
    inboxes: mpsc::UnboundedReceiver<(String, String)>,
    names: Vec<LockName>,
    shapes: Vec<Shape>,
    claims: Vec<Claim>,
    /// One for each row of the table of names, idle ones too.
    records: BTreeMap<usize, Record>,
    /// The highest token or version of what was removed.
    floor: Token,
    /// Until when each client is alive.
    alive: HashMap<ClientKey, u64>,
    tokens: HashMap<ClaimId, Token>,
    marks: BTreeSet<ClaimId>,
    cells: BTreeMap<usize, (Vec<u8>, u64)>,
    mail: Vec<(ClientKey, Message)>,
    seen: BTreeMap<&'static str, u32>,
}

impl Pair {
    fn new(shapes: Vec<Shape>) -> Self {
        let prefix = format!("p{:x}_", u64::from_le_bytes(random()));
        let layout = Layout::new("public", &prefix).expect("it is a prefix");
        let (server, inboxes) = runtime().block_on(async {
            let (server, _) = open().await;
            server.batch_execute(&layout.ddl()).await.expect("it is SQL");
            let (ear, inboxes) = open().await;
            for client in 0..CLIENTS {
                ear.batch_execute(&format!("LISTEN \"{}\"", layout.channel(client))).await.expect("it listens");
            }
            std::mem::forget(ear); // it listens until the process ends
            (server, inboxes)
        });
        let names = ["rw/läuft {x}", "permits", "mutex"].map(|name| LockName::new(name).expect("it is a name")).to_vec();
        let claims = shapes.iter().map(|shape| claim(shape, &names)).collect();
        Pair {
            verbs: Verbs::new(&layout),
            notify_key: NotifyKey::draw(),
            layout,
            server,
            inboxes,
            names,
            shapes,
            claims,
            records: BTreeMap::new(),
            floor: Token::new(0),
            alive: HashMap::new(),
            tokens: HashMap::new(),
            marks: BTreeSet::new(),
            cells: BTreeMap::new(),
            mail: Vec::new(),
            seen: BTreeMap::new(),
        }
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_insert(0) += 1;
    }

    fn send(&self, request: Request<'_>) -> Vec<Row> {
        let params = request.params();
        runtime()
            .block_on(self.server.query_typed(request.sql, &params))
            .unwrap_or_else(|error| panic!("{error:?} from {}", request.sql))
    }

    fn sql(&self, sql: &str) -> Vec<Row> {
        runtime().block_on(self.server.query_typed(&self.layout.fill(sql), &[])).expect("it is SQL")
    }

    fn run(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Ask { claims, fresh, queue } => self.ask(claims, *fresh, *queue),
            Step::End { who, min_hold, mark } => self.end(self.find(*who), *min_hold, *mark),
            Step::Renew(whom) => self.renew(whom),
            Step::Touch { whom, client, beat } => self.touch(whom, *client, *beat),
            Step::Downgrade(who) => self.downgrade(self.find(*who)),
            Step::Request { name } => self.request(*name),
            Step::Break { name, only } => self.break_holds(*name, *only),
            Step::Cell { name, current, value } => self.cell(*name, *current, *value),
            Step::Raise { by } => self.raise(*by),
            Step::Tidy => (0..NAMES).try_for_each(|name| self.tidy(name)),
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
                let line = self.records.get(&name).map(|record| &record.line).filter(|line| !line.is_empty());
                let ticket = line.and_then(|line| line.get(place.min(line.len() - 1)));
                (name, ticket.map_or(ClaimId::from_bytes([0; 16]), |ticket| ticket.id))
            }
        }
    }

    /// Runs one of the record's verbs as the server's function ran. `heard` is alive, whatever is known of it.
    fn record<T>(
        &mut self,
        name: usize,
        now: u64,
        heard: Option<ClientKey>,
        verb: impl FnOnce(&mut Record, Moment, &mut Vec<Wake>) -> T,
    ) -> T {
        let floor = self.floor;
        let record = self.records.entry(name).or_insert_with(|| Record::new(Kind::Mutex, floor));
        set_alive(record, &self.alive, heard);
        let mut woken = Vec::new();
        let answer = verb(record, moment(now), &mut woken);
        if woken.len() > 1 {
            *self.seen.entry("let in several at once").or_insert(0) += 1;
        }
        for Wake { client, id, token, granted, .. } in woken {
            self.tokens.insert(id, token);
            self.mail.push((client, Message::Granted { id, token, granted: granted.as_nanos() / 1_000 }));
        }
        answer
    }

    /// The same for a verb that makes no row where there is none.
    fn existing<T: Default>(
        &mut self,
        name: usize,
        now: u64,
        verb: impl FnOnce(&mut Record, Moment, &mut Vec<Wake>) -> T,
    ) -> T {
        if self.records.contains_key(&name) { self.record(name, now, None, verb) } else { T::default() }
    }

    fn ask(&mut self, at: &[usize], fresh: bool, queue: Option<Duration>) -> Result<(), TestCaseError> {
        let client = self.shapes[at[0]].client;
        let mut at: Vec<usize> = at.iter().copied().filter(|at| self.shapes[*at].client == client).collect();
        at.sort_by_key(|at| (self.claims[*at].name.clone(), *at));
        at.dedup();
        if fresh {
            at.iter().for_each(|at| self.claims[*at].id = ClaimId::from_bytes(random()));
        }
        let asks: Vec<Asking> =
            at.iter().map(|at| Asking { claim: self.claims[*at].clone(), queue: queue.is_some() }).collect();
        let alive = queue.unwrap_or(Duration::from_secs(1));
        let said = verbs::asked(&self.send(self.verbs.ask(client, Some(&self.notify_key), alive, &asks)), asks.len())
            .expect("an answer");
        if asks.len() > 1 {
            self.saw("asked together");
        }
        let (mut waits, mut last) = (false, 0);
        for (at, (says, now)) in at.into_iter().zip(said.value) {
            last = now;
            self.saw(match says {
                Asked::Granted { .. } => "asked: granted",
                Asked::Queued { first: true, .. } => "asked: first in line",
                Asked::Queued { .. } => "asked: queued",
                Asked::Busy => "asked: busy",
                Asked::Locked => "asked: locked",
                Asked::Mismatch { .. } => "asked: mismatch",
                Asked::Ended => "asked: ended",
            });
            let (joined, expected) = self.expect_asked(at, queue.is_some(), now);
            waits |= joined;
            if let Asked::Granted { token, .. } = says {
                self.tokens.insert(self.claims[at].id, token);
            }
            prop_assert_eq!(says, expected);
        }
        if waits {
            // The client is heard once, when the last of them was handled.
            let whole = alive.as_micros() as u64;
            self.hear(client, last + whole, last + whole * 3 / 4);
        }
        Ok(())
    }

    /// A client is alive until then, if it is not for long `enough` already.
    fn hear(&mut self, client: ClientKey, until: u64, enough: u64) {
        if self.alive.get(&client).is_none_or(|alive| *alive < enough) {
            self.alive.insert(client, until);
        }
    }

    /// What the record says to an ask, and whether it joined the line.
    fn expect_asked(&mut self, at: usize, queue: bool, now: u64) -> (bool, Asked) {
        let (claim, client, name) = (self.claims[at].clone(), self.shapes[at].client, self.shapes[at].name);
        let is_marked = self.marks.contains(&claim.id);
        let is_new = !self.records.contains_key(&name);
        let heard = queue.then_some(client);
        let (joined, expected) = self.record(name, now, heard, |record, at, woken| {
            record.sweep(at, woken);
            let was_there = record.line.iter().any(|ticket| ticket.id == claim.id);
            let mut tried = record.clone();
            let admission = tried.ask_for(&claim, client, queue.then_some(Instant::NEVER), at, woken);
            let enters = matches!(admission, Ok(Admission::Granted(_) | Admission::Queued)) && !was_there;
            if enters && is_marked {
                return (false, Asked::Ended);
            }
            let of = record.line.front().map_or(0, |ticket| room(ticket.mode));
            let kind = record.kind;
            *record = tried;
            let expected = match admission {
                Ok(Admission::Granted(token)) => Asked::Granted { token, left: left(record, claim.id, at) },
                Ok(Admission::Queued) => {
                    let (first, change_in) = standing(record, claim.id, at);
                    Asked::Queued { first, change_in }
                }
                Ok(Admission::Busy) => Asked::Busy,
                Err(_) => Asked::Mismatch { kind, of },
            };
            (enters && matches!(expected, Asked::Queued { .. }), expected)
        });
        if is_new && matches!(expected, Asked::Ended | Asked::Busy) {
            self.records.remove(&name); // its row was made for nothing
        }
        (joined, expected)
    }

    fn end(&mut self, (name, id): (usize, ClaimId), min_hold: Duration, mark: bool) -> Result<(), TestCaseError> {
        let mark = if mark { MARK } else { Duration::ZERO };
        let ends = [Ending { name: self.names[name].clone(), id, min_hold, mark }];
        let said = verbs::ended(&self.send(self.verbs.end(&ends)), 1).expect("an answer");
        let was_there = if mark.is_zero() {
            self.existing(name, said.now, |record, at, woken| record.end(id, min_hold, at, woken))
        } else {
            self.marks.insert(id);
            self.record(name, said.now, None, |record, at, woken| record.end(id, min_hold, at, woken))
        };
        prop_assert_eq!(said.value[0].0, if was_there { Ended::Done } else { Ended::Nothing });
        let closing =
            |record: &Record| record.line.iter().any(|it| it.id == id && matches!(it.stage, Stage::Closing { .. }));
        self.saw(match was_there {
            true if self.records.get(&name).is_some_and(closing) => "ended: closing",
            true => "ended: something",
            false => "ended: nothing",
        });
        Ok(())
    }

    fn renew(&mut self, whom: &[Who]) -> Result<(), TestCaseError> {
        let whom: Vec<_> = whom.iter().map(|who| self.find(*who)).collect();
        let request = self.verbs.renew(whom.iter().map(|(name, id)| (&self.names[*name], *id)));
        let said = verbs::renewed(&self.send(request), whom.len()).expect("an answer");
        for ((name, id), says) in whom.into_iter().zip(said.value) {
            let expected = match self.existing(name, said.now, |record, at, _| record.renew(id, at)) {
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

    fn touch(&mut self, whom: &[Who], client: ClientKey, beat: Option<Duration>) -> Result<(), TestCaseError> {
        let whom: Vec<_> = whom.iter().map(|who| self.find(*who)).collect();
        let name = whom[0].0;
        let ids: Vec<ClaimId> = whom.into_iter().filter(|(of, _)| *of == name).map(|(_, id)| id).collect();
        let alive = beat.unwrap_or_default();
        let claims = ids.iter().map(|id| (&self.names[name], *id));
        let request = self.verbs.touch(client, beat.is_some(), Some(&self.notify_key), alive, claims);
        let said = verbs::touched(&self.send(request), ids.len()).expect("an answer");
        let waits = |record: &Record| record.line.iter().any(|ticket| ids.contains(&ticket.id) && waits(ticket));
        if self.records.get(&name).is_some_and(waits) {
            let heard = beat.is_some().then_some(client);
            self.record(name, said.now, heard, |record, at, woken| record.sweep(at, woken));
        }
        if beat.is_some() {
            let until = said.now + alive.as_micros() as u64;
            self.hear(client, until, until);
        }
        for (id, says) in ids.into_iter().zip(said.value.waiters) {
            let at = moment(said.now);
            let expected = match self.records.get(&name) {
                None => Touched::Gone,
                Some(record) => match record.standing(id) {
                    Stands::Waiting => {
                        let (first, change_in) = standing(record, id, at);
                        Touched::Waiting { first, change_in }
                    }
                    Stands::Granted(_) if left_with_delay(record, id, at).is_zero() => Touched::Gone,
                    Stands::Granted(Wake { token, granted, .. }) => {
                        Touched::Granted { token, since: granted.as_nanos() / 1_000, left: left(record, id, at) }
                    }
                    Stands::Gone => Touched::Gone,
                },
            };
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
        let said = verbs::counted(&self.send(self.verbs.downgrade(&self.names[name], id))).expect("an answer");
        let held = said.value;
        let expected = self.existing(name, said.now, |record, at, woken| record.downgrade(id, at, woken));
        self.saw(if held > 0 { "downgraded" } else { "downgraded: not" });
        prop_assert_eq!(held > 0, expected);
        Ok(())
    }

    fn request(&mut self, name: usize) -> Result<(), TestCaseError> {
        let ask = Ask { reason: note("please"), by: Origin { host: "elsewhere".into(), pid: 7 } };
        let said = verbs::counted(&self.send(self.verbs.request(&self.names[name], &ask))).expect("an answer");
        let told = self.existing(name, said.now, |record, _, _| record.ask(&ask));
        prop_assert_eq!(said.value, told.len());
        self.mail.extend(told.into_iter().map(|(client, id)| (client, Message::Asked(id, ask.clone()))));
        Ok(())
    }

    fn break_holds(&mut self, name: usize, only: Option<usize>) -> Result<(), TestCaseError> {
        let only = only.map(|at| self.tokens.get(&self.claims[at].id).copied().unwrap_or(Token::new(1)));
        let said = verbs::counted(&self.send(self.verbs.break_holds(&self.names[name], only))).expect("an answer");
        let broken = self.existing(name, said.now, |record, at, woken| record.break_holds(only, at, woken));
        prop_assert_eq!(said.value, broken.len());
        self.mail.extend(broken.into_iter().map(|(client, id)| (client, Message::Lost(id))));
        Ok(())
    }

    fn cell(&mut self, name: usize, current: bool, value: Option<u8>) -> Result<(), TestCaseError> {
        let (known, version) = match self.cells.get(&name) {
            Some((value, version)) => (Some(value.clone()), *version),
            None => (None, 0),
        };
        let said = verbs::cell(&self.send(self.verbs.cell_get(&self.names[name]))).expect("an answer");
        prop_assert_eq!(said.value, (known, version));
        let expected = if current { version } else { version + 1 };
        let value = value.map(|byte| vec![byte; usize::from(byte)]);
        let request = self.verbs.cell_set(&self.names[name], expected, value.as_deref());
        let said = verbs::cell_written(&self.send(request)).expect("an answer");
        if !current {
            prop_assert_eq!(said.value, None);
            self.saw("cell refused");
            return Ok(());
        }
        let next = (version + 1).max(self.floor.get() + 1).max(said.now);
        prop_assert_eq!(said.value, Some(next));
        self.saw("cell written");
        match value {
            Some(value) => drop(self.cells.insert(name, (value, next))),
            None => {
                self.cells.remove(&name);
                self.floor = self.floor.max(Token::new(next));
            }
        }
        Ok(())
    }

    /// As if the clock had been further ahead once: tokens go on from there.
    fn raise(&mut self, by: u64) -> Result<(), TestCaseError> {
        let rows = self.sql(&format!("UPDATE {{floor}} SET value = greatest(value, {{clock}}() + {by}) RETURNING value"));
        self.floor = Token::new(rows[0].get::<_, i64>(0) as u64);
        Ok(())
    }

    fn tidy(&mut self, name: usize) -> Result<(), TestCaseError> {
        let names = [self.names[name].clone()];
        let said = verbs::done(&self.send(self.verbs.tidy(&names, Duration::ZERO))).expect("an answer");
        self.existing(name, said.now, |record, at, woken| record.sweep(at, woken));
        if self.records.get(&name).is_some_and(Record::is_idle) {
            let record = self.records.remove(&name).expect("it is there");
            self.floor = self.floor.max(record.last);
            self.saw("a name removed");
        }
        Ok(())
    }

    /// Looks at everything: the messages, the views, the list, and what is in the tables.
    fn look(&mut self) -> Result<(), TestCaseError> {
        let mut mail = self.letters();
        for (_, message) in &mail {
            self.saw(match message {
                Message::Granted { .. } | Message::MaybeGranted(_) => "told: granted",
                Message::Asked(..) => "told: asked",
                Message::Lost(_) => "told: lost",
            });
        }
        let order = |letter: &(ClientKey, Message)| format!("{letter:?}");
        mail.sort_by_key(order);
        self.mail.sort_by_key(order);
        prop_assert_eq!(mail, std::mem::take(&mut self.mail));
        self.look_at_views()?;
        self.look_at_rows()
    }

    fn look_at_views(&mut self) -> Result<(), TestCaseError> {
        for at in 0..NAMES {
            let name = self.names[at].clone();
            let said = verbs::viewed_alone(&self.send(self.verbs.view(&name)), &name).expect("an answer");
            let clock = self.sql("SELECT {clock}()")[0].get::<_, i64>(0) as u64;
            let now = if said.value.is_free() { clock } else { said.now };
            let expected = self.records.get_mut(&at).map(|record| {
                set_alive(record, &self.alive, None);
                record.view(&name, moment(now).now)
            });
            let mut expected = expected.unwrap_or_else(|| View::free(name.clone()));
            if expected.is_free() {
                expected.kind = None; // only the dead are left
                // A name that was never let in has a record here as soon as somebody speaks of it, and no row there.
                expected.last = expected.last.filter(|_| said.value.last.is_some());
            }
            prop_assert_eq!(said.value, expected);
        }
        let said = verbs::viewed(&self.send(self.verbs.list("", None, 100))).expect("an answer");
        let listed: BTreeSet<LockName> = said.value.into_iter().map(|view| view.name).collect();
        let in_use = |record: &Record, now: u64| record.line.iter().any(|ticket| ends(&ticket.stage) > moment(now).now);
        let clock = self.sql("SELECT {clock}()")[0].get::<_, i64>(0) as u64;
        for (at, record) in &self.records {
            // Time may have ended it between the two looks; else both say the same.
            if in_use(record, clock) || record.line.is_empty() {
                prop_assert_eq!(listed.contains(&self.names[*at]), !record.line.is_empty());
            }
        }
        Ok(())
    }

    /// What the rows of names say about their tickets, and that there are no others.
    fn look_at_rows(&mut self) -> Result<(), TestCaseError> {
        let rows = self.sql(
            "SELECT n.name, n.last, n.taken, n.held, n.line,
                    coalesce((n.solo).take, 0)
                    + (SELECT coalesce(sum(take), 0)::bigint FROM {ticket} t WHERE t.name = n.name AND NOT waiting),
                    NOT EXISTS (SELECT FROM {ticket} t WHERE t.name = n.name AND (
                      CASE WHEN waiting THEN seq < n.front ELSE seq < n.oldest OR expires < n.opens END)),
                    (n.solo).id IS NULL OR ((n.solo).name, (n.solo).expires, (n.solo).token, n.held) = (n.name, n.opens, n.last, 1)
                                           AND (n.solo).seq BETWEEN n.oldest AND n.number,
                    (n.solo).id IS NOT NULL AND n.line > 0
               FROM {name} n ORDER BY n.name",
        );
        let found: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
        let mut expected: Vec<&str> = self.records.keys().map(|at| self.names[*at].as_str()).collect();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
        for row in &rows {
            let at = self.names.iter().position(|name| name.as_str() == row.get::<_, &str>(0)).expect("it is ours");
            let record = &self.records[&at];
            let waiting = record.line.iter().filter(|ticket| waits(ticket)).count();
            prop_assert_eq!(row.get::<_, i64>(1) as u64, record.last.get());
            prop_assert_eq!(row.get::<_, i64>(2), row.get::<_, i64>(5), "taken");
            prop_assert_eq!(row.get::<_, i32>(3) as usize, record.line.len() - waiting);
            prop_assert_eq!(row.get::<_, i32>(4) as usize, waiting);
            prop_assert!(row.get::<_, bool>(6), "oldest, front or opens is too late");
            prop_assert!(row.get::<_, bool>(7), "the ticket in the name's row is another");
            if row.get(8) {
                self.saw("in line behind a ticket in the name's row");
            }
        }
        let tickets: usize = self.records.values().map(|record| record.line.len()).sum();
        let counts = self.sql(
            "SELECT (SELECT count(*) FROM {ticket}) + (SELECT count(*) FROM {name} WHERE (solo).id IS NOT NULL),
                    (SELECT count(*) FROM {mark})",
        );
        prop_assert_eq!(counts[0].get::<_, i64>(0) as usize, tickets);
        prop_assert_eq!(counts[0].get::<_, i64>(1) as usize, self.marks.len());
        Ok(())
    }

    /// What was told: all of it, since a message to ourselves comes after all that was sent before it.
    fn letters(&mut self) -> Vec<(ClientKey, Message)> {
        let first = self.layout.channel(0);
        runtime().block_on(self.server.batch_execute(&format!("NOTIFY \"{first}\", 'that is all'"))).expect("it is sent");
        let mut letters = Vec::new();
        let mut rung = BTreeSet::new();
        loop {
            let (channel, payload) = runtime().block_on(self.inboxes.recv()).expect("it is heard");
            if payload == "that is all" {
                break;
            }
            let client = (0..CLIENTS).find(|client| self.layout.channel(*client) == channel).expect("one of ours");
            match verbs::told(&payload, &self.notify_key).expect("it is a message") {
                // A client that asks for several at once may be let in before it has left its key.
                Some(Message::MaybeGranted(maybe)) => {
                    let is_it =
                        |known: &&(ClientKey, Message)| matches!(known.1, Message::Granted { id, .. } if id == maybe);
                    letters.push(self.mail.iter().find(is_it).expect("it was let in").clone());
                }
                Some(message) => letters.push((client, message)),
                None => drop(rung.insert(client)),
            }
        }
        for client in rung {
            let request = self.verbs.touch(client, false, Some(&self.notify_key), Duration::ZERO, std::iter::empty());
            let said = verbs::touched(&self.send(request), 0).expect("an answer");
            letters.extend(said.value.mail.into_iter().map(|message| (client, message)));
        }
        letters
    }

    /// Ends all that is left, and sees that nothing is.
    fn finish(&mut self) -> Result<(), TestCaseError> {
        for name in 0..NAMES {
            while self.records.contains_key(&name) {
                let ids: Vec<ClaimId> = self.records[&name].line.iter().map(|ticket| ticket.id).collect();
                for id in ids {
                    self.end((name, id), Duration::ZERO, false)?;
                }
                self.break_holds(name, None)?; // what is closing
                self.tidy(name)?;
                self.look()?;
            }
        }
        let left = self.sql("SELECT (SELECT count(*) FROM {name}) + (SELECT count(*) FROM {mail})");
        prop_assert_eq!(left[0].get::<_, i64>(0), 0);
        Ok(())
    }
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().expect("a runtime"))
}

/// A connection to the server, and what it says unasked.
async fn open() -> (Client, mpsc::UnboundedReceiver<(String, String)>) {
    let config: tokio_postgres::Config = Postgres::shared().url().parse().expect("it is a URL");
    let (client, mut connection) = config.connect(NoTls).await.expect("the server is there");
    let (sender, inbox) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let AsyncMessage::Notification(said) = message {
                let _ = sender.send((said.channel().to_owned(), said.payload().to_owned()));
            }
        }
    });
    (client, inbox)
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
