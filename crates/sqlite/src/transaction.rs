//! One immediate transaction: what verbs run in, and what is left to do once it is committed.
//!
//! SQLite lets one writer in at a time, across all processes, from `BEGIN IMMEDIATE` to `COMMIT`; so a verb here
//! interleaves with nothing, and the clock is read inside, so that moments come in the order of commits. Nobody is told
//! anything before the commit: whom to wake is collected in [`After`].

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use tenure_core::record::{Admission, ClientKey, Moment, Record, Stage, Wake};
use tenure_core::{Claim, ClaimId, Clock, Error, ErrorKind, Grant, Instant, Kind, LockName, Token, margin};

use crate::codec;
use crate::death::{Process, Pulse};
use crate::error::{Fault, describe, garbled};
use crate::store::{Message, Store};

/// What to do once the transaction is committed.
#[derive(Default)]
pub(crate) struct After {
    pub(crate) woken: Vec<Wake>,
    pub(crate) messages: Vec<(ClientKey, Message)>,
    /// Names that are idle, or will be at that moment: rows to be removed some time.
    pub(crate) loose: Vec<(LockName, Instant)>,
    /// The ear should look at its plans again.
    pub(crate) poke_ear: bool,
    /// The client has just left its row in the file, or has no claim there any more.
    pub(crate) has_chores: bool,
    /// Claims of ours that are not in the file any more.
    pub(crate) ended: Vec<ClaimId>,
    /// Clients that were found dead, and may have left more than what was in the way.
    pub(crate) dead: Vec<ClientKey>,
}

/// One transaction, begun.
pub(crate) struct Transaction<'a> {
    pub(crate) store: &'a Store,
    pub(crate) connection: &'a Connection,
    pub(crate) at: Moment,
    pub(crate) after: After,
    /// Whether this client's identity is in the file.
    pub(crate) is_registered: bool,
    bytes: Vec<u8>,
}

/// The pidfds of the living who stand in somebody's way.
pub(crate) type InTheWay = Vec<(ClientKey, Arc<OwnedFd>)>;

/// How many holders one waiter keeps an eye on; a crowd of readers beyond that is left to the slow poll.
const MOST_WATCHED: usize = 64;

impl<'a> Transaction<'a> {
    pub(crate) fn new(store: &'a Store, connection: &'a Connection, is_registered: bool) -> Self {
        let at = Moment { now: Clock::Boot.now(), wall_micros: Clock::Boot.wall_micros() };
        Transaction { store, connection, at, after: After::default(), is_registered, bytes: Vec::with_capacity(256) }
    }

    /// Runs one verb on the record of a name, if it has one.
    pub(crate) fn with<T>(
        &mut self,
        name: &LockName,
        verb: impl FnOnce(&mut Self, &mut Record) -> Result<T, Fault>,
    ) -> Result<Option<T>, Fault> {
        match self.load(name)? {
            None => Ok(None),
            Some(record) => self.apply(name, record, true, verb).map(Some),
        }
    }

    /// Runs one verb on the record of a name, on a new record if it has none.
    fn with_new<T>(
        &mut self,
        name: &LockName,
        kind: Kind,
        verb: impl FnOnce(&mut Self, &mut Record) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        match self.load(name)? {
            Some(record) => self.apply(name, record, true, verb),
            None => {
                self.bytes.clear(); // what was there before: nothing
                let record = Record::new(kind, self.floor()?);
                self.apply(name, record, false, verb)
            }
        }
    }

    fn apply<T>(
        &mut self,
        name: &LockName,
        mut record: Record,
        is_stored: bool,
        verb: impl FnOnce(&mut Self, &mut Record) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let (before, woken) = (std::mem::take(&mut self.bytes), self.after.woken.len());
        let answer = catch_unwind(AssertUnwindSafe(|| verb(self, &mut record)));
        self.bytes = before;
        let Ok(answer) = answer else {
            // The record checks itself. One that breaks its own rules came from a damaged file: it is left as it is.
            self.after.woken.truncate(woken);
            return Err(Error::new(ErrorKind::Backend, "the record of this name contradicts itself")
                .with_name(name)
                .with_store(describe(&self.store.file.path))
                .with_hint("Was the file written by something else? `tenure break` ends what it says about this name")
                .into());
        };
        if matches!(answer, Err(Fault::Store(_))) {
            return answer;
        }
        // Also after a refusal: on its way the verb may have let somebody in, who is about to be told so.
        self.save(name, &record, is_stored)?;
        answer
    }

    fn load(&mut self, name: &LockName) -> Result<Option<Record>, Fault> {
        let mut select = self.connection.prepare_cached("SELECT record FROM lock WHERE name = ?1")?;
        let mut rows = select.query([name.as_str()])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let bytes = row.get_ref(0)?.as_bytes().unwrap_or_default();
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        let record = codec::decode(bytes).map_err(|error| garbled(error, &self.store.file.path).with_name(name))?;
        Ok(Some(record))
    }

    /// Writes a record back if a verb changed it. `self.bytes` is how it was stored.
    fn save(&mut self, name: &LockName, record: &Record, is_stored: bool) -> Result<(), Fault> {
        let before = self.bytes.len();
        codec::encode(record, &mut self.bytes);
        let (old, new) = self.bytes.split_at(before);
        if old != new && (is_stored || !record.is_idle()) {
            let sql =
                if is_stored { "UPDATE lock SET record = ?2 WHERE name = ?1" } else { "INSERT INTO lock VALUES (?1, ?2)" };
            self.connection.prepare_cached(sql)?.execute(params![name.as_str(), new])?;
        }
        self.bytes.clear();
        if record.line.iter().all(|ticket| matches!(ticket.stage, Stage::Closing { .. })) {
            self.after.loose.push((name.clone(), record.next_change().unwrap_or(self.at.now)));
        }
        Ok(())
    }

    /// The highest token whose record was forgotten: what a new record starts from.
    pub(crate) fn floor(&self) -> Result<Token, Fault> {
        let mut select = self.connection.prepare_cached("SELECT value FROM meta WHERE what = 'floor'")?;
        let floor: i64 = select.query_row([], |row| row.get(0))?;
        Ok(Token::new(floor.max(0) as u64))
    }

    pub(crate) fn raise_floor(&self, to: Token) -> Result<(), Fault> {
        let sql = "UPDATE meta SET value = max(value, ?1) WHERE what = 'floor'";
        self.connection.prepare_cached(sql)?.execute([to.get() as i64])?;
        Ok(())
    }

    /// Remembers the last token of a name whose row goes.
    pub(crate) fn remember(&self, name: &LockName, last: Token) -> Result<(), Fault> {
        let past = [&last.get().to_le_bytes(), name.as_str().as_bytes()].concat();
        let sql = "INSERT OR REPLACE INTO meta VALUES (?1, ?2)";
        self.connection.prepare_cached(sql)?.execute(params![past_place(name), past])?;
        Ok(())
    }

    /// Leaves this client's identity in the file, so that others can see it die.
    fn register(&mut self) -> Result<(), Fault> {
        let Process { pid, start, namespace } = self.store.here;
        let since = self.at.now.as_nanos() as i64;
        let sql = "INSERT OR REPLACE INTO client VALUES (?1, ?2, ?3, ?4, ?5)";
        let values = params![self.store.me as i64, pid, start as i64, namespace as i64, since];
        self.connection.prepare_cached(sql)?.execute(values)?;
        self.is_registered = true;
        self.after.has_chores = true;
        Ok(())
    }

    /// Takes this client's identity out of the file, if it has nothing else there.
    pub(crate) fn unregister(&mut self) -> Result<(), Fault> {
        if self.is_registered && self.store.claims().is_empty() && !self.store.has_loose() {
            let sql = "DELETE FROM client WHERE key = ?1";
            self.connection.prepare_cached(sql)?.execute([self.store.me as i64])?;
            self.is_registered = false;
        }
        Ok(())
    }

    /// Asks for a claim: the grant, or a place in line and whom to watch from there, or neither.
    pub(crate) fn ask_for(&mut self, claim: &Claim, sent: Instant, queue_until: Option<Instant>) -> Result<Asked, Fault> {
        let me = self.store.me;
        self.with_new(&claim.name, claim.kind, |tx, record| {
            let mut woken = Vec::new();
            // Whoever is in the way may be dead; only then is anything more than the record looked at. A claim that asks a
            // second time with its id is answered as the first time, so asking twice in here is asking once.
            let mut admission = record.ask_for(claim, me, None, tx.at, &mut woken);
            if matches!(admission, Ok(Admission::Busy) | Err(_)) {
                let holders = holders_of(record);
                tx.bury_the_dead(record, holders, &mut woken)?;
                admission = record.ask_for(claim, me, queue_until, tx.at, &mut woken);
            }
            let asked = match admission {
                Ok(Admission::Granted(token)) => Asked::Granted(Grant { token, until: until(record, claim, sent) }),
                Ok(Admission::Busy) => Asked::Busy,
                Ok(Admission::Queued) => {
                    let in_the_way = tx.clear_the_way(record, claim.id, &mut woken)?;
                    Asked::Queued { in_the_way, changes: changes_for(record, claim.id) }
                }
                Err(error) => {
                    tx.after.woken.append(&mut woken);
                    return Err(error.into());
                }
            };
            tx.after.woken.append(&mut woken);
            if !matches!(asked, Asked::Busy) {
                tx.store.claims().insert(claim.id, claim.name.clone());
                if !tx.is_registered {
                    tx.register()?;
                }
            }
            Ok(asked)
        })
    }

    /// Ends a claim, says whether it was there, and tells whoever stood behind it in line that it has somebody else in front of it now.
    pub(crate) fn end(&mut self, name: &LockName, id: ClaimId, min_hold: Duration) -> Result<bool, Fault> {
        self.after.ended.push(id);
        let ended = self.with(name, |tx, record| {
            let place = record.line.iter().position(|ticket| ticket.id == id);
            if let Some(place) = place
                && matches!(record.line[place].stage, Stage::Waiting { .. })
                && let Some(behind) = record.line.get(place + 1)
            {
                tx.after.messages.push((behind.client, Message::Look(behind.id)));
            }
            Ok(record.end(id, min_hold, tx.at, &mut tx.after.woken))
        })?;
        Ok(ended.unwrap_or(false))
    }

    /// Buries whoever is dead among those in a waiter's way, until somebody living is there or it is let in. Gives the
    /// pidfds of those to watch: all holders for the first in line, the one in front for everybody else, so that a death
    /// wakes one waiter and not all.
    pub(crate) fn clear_the_way(
        &mut self,
        record: &mut Record,
        id: ClaimId,
        woken: &mut Vec<Wake>,
    ) -> Result<InTheWay, Fault> {
        loop {
            let Some(place) = record.line.iter().position(|ticket| ticket.id == id) else { return Ok(Vec::new()) };
            if !matches!(record.line[place].stage, Stage::Waiting { .. }) {
                return Ok(Vec::new());
            }
            let is_first = place == 0 || !matches!(record.line[place - 1].stage, Stage::Waiting { .. });
            let clients = if is_first { holders_of(record) } else { vec![record.line[place - 1].client] };
            let before = record.line.len();
            let living = self.bury_the_dead(record, clients, woken)?;
            // A dead holder with a lock-delay stays in line until that is over; then there is nothing more to do now.
            if record.line.len() == before {
                return Ok(living);
            }
        }
    }

    /// Buries the dead among these clients; gives the pidfds of the others.
    fn bury_the_dead(
        &mut self,
        record: &mut Record,
        clients: Vec<ClientKey>,
        woken: &mut Vec<Wake>,
    ) -> Result<InTheWay, Fault> {
        let mut living = Vec::new();
        for client in clients {
            match self.pulse(client)? {
                Pulse::Dead => {
                    record.bury(client, self.at, woken);
                    self.after.dead.push(client);
                }
                Pulse::Watched(fd) => living.push((client, fd)),
                Pulse::Unknown => {}
            }
        }
        Ok(living)
    }

    fn pulse(&self, client: ClientKey) -> Result<Pulse, Fault> {
        if client == self.store.me || Store::in_this_process(client).is_some() {
            return Ok(Pulse::Unknown); // alive: it is us
        }
        let pulse = self.store.deaths.pulse(client, || {
            let sql = "SELECT pid, start, namespace FROM client WHERE key = ?1";
            self.connection
                .prepare_cached(sql)?
                .query_row([client as i64], |row| {
                    let (start, namespace): (i64, i64) = (row.get(1)?, row.get(2)?);
                    Ok(Process { pid: row.get(0)?, start: start as u64, namespace: namespace as u64 })
                })
                .optional()
        })?;
        Ok(pulse)
    }
}

/// Where the last token of a removed name is remembered: one of [`PAST_NAMES`] rows of `meta`, which it shares with others.
pub(crate) fn past_place(name: &LockName) -> String {
    // FNV-1a: the same in every program that uses the file.
    let hash = name.as_str().bytes().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("past {}", hash % PAST_NAMES)
}

/// The token in what [`Transaction::remember`] wrote, if it is about this name.
pub(crate) fn past_token(name: &LockName, past: &[u8]) -> Option<Token> {
    let (token, of) = past.split_first_chunk()?;
    (of == name.as_str().as_bytes()).then(|| Token::new(u64::from_le_bytes(*token).min(i64::MAX as u64)))
}

/// How many names are remembered at most after their rows were removed.
pub(crate) const PAST_NAMES: u32 = 1024;

/// What came of asking.
pub(crate) enum Asked {
    Granted(Grant),
    Queued { in_the_way: InTheWay, changes: Instant },
    Busy,
}

/// When time alone may next let this waiter in. Only the first in line is concerned: if everybody looked when a holder's
/// time is up, a lapse would wake them all.
pub(crate) fn changes_for(record: &Record, id: ClaimId) -> Instant {
    let first = record.line.iter().find(|ticket| matches!(ticket.stage, Stage::Waiting { .. }));
    if first.is_none_or(|first| first.id != id) {
        return Instant::NEVER;
    }
    let ends = record.line.iter().map_while(|ticket| match ticket.stage {
        Stage::Held { expires, .. } | Stage::Closing { expires, .. } => Some(expires),
        Stage::Waiting { .. } => None,
    });
    ends.min().unwrap_or(Instant::NEVER)
}

/// Until when a grant may be trusted: counted from sending, and never beyond what the store will keep. The two differ when
/// a claim that was granted before asks again.
fn until(record: &Record, claim: &Claim, sent: Instant) -> Instant {
    let kept = record.line.iter().find(|ticket| ticket.id == claim.id).and_then(|ticket| match ticket.stage {
        Stage::Held { expires, .. } => Some(expires - ticket.lock_delay - margin(ticket.ttl)),
        _ => None,
    });
    claim.window(sent).min(kept.unwrap_or(Instant::NEVER))
}

fn holders_of(record: &Record) -> Vec<ClientKey> {
    let mut clients: Vec<ClientKey> = Vec::new();
    for ticket in record.line.iter().take_while(|ticket| !matches!(ticket.stage, Stage::Waiting { .. })) {
        if clients.len() < MOST_WATCHED && !clients.contains(&ticket.client) {
            clients.push(ticket.client);
        }
    }
    clients
}
