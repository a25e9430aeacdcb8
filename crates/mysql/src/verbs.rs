//! Each verb as a statement, and its answer as a value.
//!
//! Nothing but numbers and hexadecimal digits ever goes into a statement: what a name or a note says cannot matter.

use std::fmt::Write as _;
use std::time::Duration;

use mysql_async::{Row, Value};
use tenure_core::lease::{Asked, Asking, Ending, Looked, Message, Renewed, Said, Touched};
use tenure_core::record::ClientKey;
use tenure_core::{Ask, ClaimId, Holder, Kind, LockName, Mode, Note, Origin, Token, Versioned, View, Waiter};

use crate::link::Rows;
use crate::schema::NOW;

/// An answer that is not what was asked for.
#[derive(Debug)]
pub(crate) struct Nonsense;

type Read<T> = Result<Said<T>, Nonsense>;

/// Asks, each a transaction of its own if it is `alone`.
pub(crate) fn ask(prefix: &str, client: ClientKey, asking: &Asking, alive: Duration, alone: bool) -> String {
    let Asking { claim, queue } = asking;
    let (mode, take, permits) = mode_numbers(claim.mode);
    format!(
        "CALL {prefix}ask({}, {}, {}, {}, {mode}, {take}, {permits}, {client}, {}, {}, {}, {}, {}, {}, {})",
        u8::from(alone),
        hex(claim.name.as_str().as_bytes()),
        hex(claim.id.as_bytes()),
        claim.kind.number(),
        micros(claim.ttl),
        micros(claim.handover_ttl),
        micros(claim.lock_delay),
        hex(claim.note.as_str().as_bytes()),
        hex(claim.origin.host.as_bytes()),
        claim.origin.pid,
        or_null(queue.then(|| micros(alive))),
    )
}

/// The short way: statements that write one row at once, or nothing. They come often, so the server parses them once for a
/// connection, and then only takes their values.
pub(crate) struct AtOnce {
    ask: String,
    end: String,
}

/// One of them, with its values.
pub(crate) struct Statement<'a> {
    pub(crate) text: &'a str,
    pub(crate) values: Vec<Value>,
}

impl AtOnce {
    pub(crate) fn new(prefix: &str) -> Self {
        // Nobody waits for whoever has the row.
        let update = format!("SET STATEMENT innodb_lock_wait_timeout = 0 FOR UPDATE {prefix}name");
        AtOnce {
            // Assignments are made from left to right.
            ask: format!(
                "{update} SET last = LAST_INSERT_ID({NOW}), used = last, ends = last + ?, kind = ?, permits = ?, \
                 seq = seq + 1, holds = 1, taken = ?, solo = ?, solo_mode = ?, solo_take = ?, solo_client = ?, solo_ttl = ?, \
                 solo_handover = ?, solo_delay = ?, solo_note = ?, solo_host = ?, solo_pid = ? \
                 WHERE name = ? AND holds = 0 AND waits = 0 AND {NOW} >= GREATEST(last + 1, marked)"
            ),
            end: format!("{update} SET holds = 0, taken = 0, solo = NULL, used = {NOW} WHERE name = ? AND solo = ?"),
        }
    }

    /// Takes a name that is there and that nobody holds or waits for. The number drawn is the token and the server's time;
    /// that is so if the clock is ahead of the last token.
    pub(crate) fn ask(&self, client: ClientKey, asking: &Asking) -> Statement<'_> {
        let Asking { claim, .. } = asking;
        let (mode, take, permits) = mode_numbers(claim.mode);
        let values = vec![
            (micros(claim.ttl) + micros(claim.lock_delay)).into(),
            claim.kind.number().into(),
            permits.into(),
            take.into(),
            claim.id.as_bytes().into(),
            mode.into(),
            take.into(),
            client.into(),
            micros(claim.ttl).into(),
            micros(claim.handover_ttl).into(),
            micros(claim.lock_delay).into(),
            claim.note.as_str().as_bytes().into(),
            claim.origin.host.as_bytes().into(),
            claim.origin.pid.into(),
            claim.name.as_str().as_bytes().into(),
        ];
        Statement { text: &self.ask, values }
    }

    /// Lets go of a name whose holder is alone and has no ticket.
    pub(crate) fn end(&self, ending: &Ending) -> Statement<'_> {
        let values = vec![ending.name.as_str().as_bytes().into(), ending.id.as_bytes().into()];
        Statement { text: &self.end, values }
    }
}

/// Whether a claim can be let in so: it is not too large for its semaphore.
pub(crate) fn fits(mode: Mode) -> bool {
    !matches!(mode, Mode::Permits { take, of } if take > of)
}

/// What came of an ask, when, and whether it was let in without a ticket.
pub(crate) struct Answered {
    pub(crate) asked: Asked,
    pub(crate) now: u64,
    pub(crate) solo: bool,
}

pub(crate) fn asked(sets: &Rows) -> Result<Vec<Answered>, Nonsense> {
    let mut answers = Vec::with_capacity(sets.len());
    for row in sets.iter().filter_map(|rows| rows.first()) {
        let now = number(row, 0).ok_or(Nonsense)? as u64;
        let solo = number(row, 4) == Some(1);
        let (one, other) = (number(row, 2), number(row, 3));
        let asked = match text(row, 1).as_str() {
            "granted" => Asked::Granted { token: token(one)?, left: span(other).ok_or(Nonsense)? },
            "queued" => Asked::Queued { first: one == Some(1), change_in: span(other) },
            "busy" => Asked::Busy,
            "locked" => Asked::Locked,
            "mismatch" => {
                Asked::Mismatch { kind: one.and_then(Kind::numbered).ok_or(Nonsense)?, of: other.ok_or(Nonsense)? as u32 }
            }
            "ended" => Asked::Ended,
            _ => return Err(Nonsense),
        };
        answers.push(Answered { asked, now, solo });
    }
    Ok(answers)
}

pub(crate) fn end(prefix: &str, ending: &Ending, alone: bool) -> String {
    format!(
        "CALL {prefix}end({}, {}, {}, {}, {})",
        u8::from(alone),
        hex(ending.name.as_str().as_bytes()),
        hex(ending.id.as_bytes()),
        micros(ending.min_hold),
        micros(ending.mark),
    )
}

pub(crate) fn ended(sets: &Rows) -> Read<Vec<tenure_core::lease::Ended>> {
    use tenure_core::lease::Ended;
    let mut answers = Vec::with_capacity(sets.len());
    let mut now = 0;
    for row in sets.iter().filter_map(|rows| rows.first()) {
        now = number(row, 0).ok_or(Nonsense)? as u64;
        answers.push(match text(row, 1).as_str() {
            "done" => Ended::Done,
            "locked" => Ended::Locked,
            "nothing" => Ended::Nothing,
            _ => return Err(Nonsense),
        });
    }
    Ok(Said { now, value: answers })
}

pub(crate) fn renew<'a>(prefix: &str, claims: impl Iterator<Item = (&'a LockName, ClaimId)>) -> String {
    let mut bytes = Vec::new();
    for (name, id) in claims {
        let name = name.as_str().as_bytes();
        bytes.extend(id.as_bytes());
        bytes.extend((name.len() as u16).to_be_bytes()); // at most 512
        bytes.extend(name);
    }
    format!("CALL {prefix}renew({})", hex(&bytes))
}

pub(crate) fn renewed(sets: &Rows, count: usize) -> Read<Vec<Renewed>> {
    let (last, asks) = sets.split_last().ok_or(Nonsense)?;
    let row = last.first().ok_or(Nonsense)?;
    let says = text(row, 1);
    if says.len() != count {
        return Err(Nonsense);
    }
    let mut answers = Vec::with_capacity(count);
    for letter in says.bytes() {
        answers.push(match letter {
            b'h' => Renewed::Held(None),
            b'l' => Renewed::Lost,
            b'u' => Renewed::Unknown,
            _ => return Err(Nonsense),
        });
    }
    for row in asks.iter().filter_map(|rows| rows.first()) {
        let place = number(row, 0).ok_or(Nonsense)? as usize;
        *answers.get_mut(place).ok_or(Nonsense)? = Renewed::Held(Some(ask_of(row, 1)));
    }
    Ok(Said { now: number(row, 0).ok_or(Nonsense)? as u64, value: answers })
}

pub(crate) fn touch(prefix: &str, client: ClientKey, alive: Option<Duration>, ids: impl Iterator<Item = ClaimId>) -> String {
    format!("CALL {prefix}touch({client}, {}, {})", or_null(alive.map(micros)), hex_of_all(ids))
}

/// What a look brought; and for each waiter, when that was so.
pub(crate) fn touched(sets: &Rows) -> Result<(Said<Looked>, Vec<u64>), Nonsense> {
    let mut looked = Looked::default();
    let (mut now, mut times) = (None, Vec::new());
    for row in sets.iter().flatten() {
        match row.len() {
            6 => {
                times.push(number(row, 1).ok_or(Nonsense)? as u64);
                let (one, two, three) = (number(row, 3), number(row, 4), number(row, 5));
                looked.waiters.push(match text(row, 2).as_str() {
                    "waiting" => Touched::Waiting { first: one == Some(1), change_in: span(two) },
                    "granted" => Touched::Granted {
                        token: token(one)?,
                        since: two.ok_or(Nonsense)? as u64,
                        left: span(three).ok_or(Nonsense)?,
                    },
                    "gone" => Touched::Gone,
                    _ => return Err(Nonsense),
                });
            }
            5 => {
                let id = id(row, 0).ok_or(Nonsense)?;
                looked.mail.push(match number(row, 1) {
                    Some(1) => Message::Lost(id),
                    _ => Message::Asked(id, ask_of(row, 2)),
                });
            }
            1 => now = number(row, 0),
            _ => return Err(Nonsense),
        }
    }
    Ok((Said { now: now.ok_or(Nonsense)? as u64, value: looked }, times))
}

pub(crate) fn downgrade(prefix: &str, name: &LockName, id: ClaimId) -> String {
    format!("CALL {prefix}downgrade({}, {})", hex(name.as_str().as_bytes()), hex(id.as_bytes()))
}

pub(crate) fn request(prefix: &str, name: &LockName, ask: &Ask) -> String {
    let (name, reason) = (hex(name.as_str().as_bytes()), hex(ask.reason.as_str().as_bytes()));
    format!("CALL {prefix}request({name}, {reason}, {}, {})", hex(ask.by.host.as_bytes()), ask.by.pid)
}

pub(crate) fn break_holds(prefix: &str, name: &LockName, only: Option<Token>) -> String {
    format!("CALL {prefix}break({}, {})", hex(name.as_str().as_bytes()), or_null(only))
}

pub(crate) fn counted(sets: &Rows) -> Read<usize> {
    let row = only(sets)?;
    Ok(Said { now: number(row, 0).ok_or(Nonsense)? as u64, value: number(row, 1).ok_or(Nonsense)? as usize })
}

pub(crate) fn cell_get(prefix: &str, name: &LockName) -> String {
    format!("SELECT {NOW}; SELECT version, value FROM {prefix}cell WHERE name = {}", hex(name.as_str().as_bytes()))
}

pub(crate) fn cell(sets: &Rows) -> Read<Versioned> {
    let now = sets.first().and_then(|rows| rows.first()).and_then(|row| number(row, 0)).ok_or(Nonsense)? as u64;
    let value = match sets.get(1).and_then(|rows| rows.first()) {
        None => (None, 0),
        Some(row) => (Some(bytes(row, 1).to_vec()), number(row, 0).ok_or(Nonsense)? as u64),
    };
    Ok(Said { now, value })
}

pub(crate) fn cell_set(prefix: &str, name: &LockName, expected: u64, value: Option<&[u8]>) -> String {
    format!("CALL {prefix}cell_set({}, {expected}, {})", hex(name.as_str().as_bytes()), or_null(value.map(hex)))
}

pub(crate) fn cell_written(sets: &Rows) -> Read<Option<u64>> {
    let row = only(sets)?;
    let value = number(row, 1).map(|version| version as u64);
    Ok(Said { now: number(row, 0).ok_or(Nonsense)? as u64, value })
}

/// Everybody in the line of one name, with or without a ticket.
pub(crate) fn view(prefix: &str, name: &LockName) -> String {
    let which = format!("(SELECT * FROM {prefix}name WHERE name = {})", hex(name.as_str().as_bytes()));
    lines(prefix, &which, "TRUE")
}

/// Everybody in the lines of the next names in use.
pub(crate) fn list(prefix: &str, begins: &str, after: Option<&LockName>, limit: usize) -> String {
    let mut which = format!("(SELECT * FROM {prefix}name WHERE (holds > 0 OR waits > 0)");
    if let Some((last, rest)) = begins.as_bytes().split_last() {
        // No byte of a text is 255, so there is a next one.
        let beyond = [rest, &[*last + 1]].concat();
        let _ = write!(which, " AND name >= {} AND name < {}", hex(begins.as_bytes()), hex(&beyond));
    }
    if let Some(after) = after {
        let _ = write!(which, " AND name > {}", hex(after.as_str().as_bytes()));
    }
    let _ = write!(which, " ORDER BY name LIMIT {limit})");
    lines(prefix, &which, "t.id IS NOT NULL OR n.solo IS NOT NULL")
}

fn lines(prefix: &str, which: &str, who: &str) -> String {
    format!(
        "SELECT {NOW}; \
         SELECT n.name, n.kind, IFNULL(t.id, n.solo), t.waiting, t.closing, IFNULL(t.mode, n.solo_mode), \
         IFNULL(t.take, n.solo_take), n.permits, IFNULL(t.note, n.solo_note), IFNULL(t.host, n.solo_host), \
         IFNULL(t.pid, n.solo_pid), IFNULL(t.since, n.used), IFNULL(t.token, n.last), \
         IF(t.waiting, GREATEST(t.ends, IFNULL(c.alive, 0)), IFNULL(t.ends, n.ends)), t.asked_reason IS NOT NULL, \
         t.asked_reason, t.asked_host, t.asked_pid, n.last \
         FROM {which} n LEFT JOIN {prefix}ticket t ON t.name = n.name LEFT JOIN {prefix}client c ON t.waiting AND c.id = t.client \
         WHERE {who} ORDER BY n.name, t.waiting, t.seq"
    )
}

/// The views of the names that have anybody in their lines, alive or not, or are not forgotten yet.
pub(crate) fn viewed(sets: &Rows) -> Read<Vec<View>> {
    let now = sets.first().and_then(|rows| rows.first()).and_then(|row| number(row, 0)).ok_or(Nonsense)?;
    let mut views: Vec<View> = Vec::new();
    for row in sets.get(1).ok_or(Nonsense)? {
        let name = LockName::new(text(row, 0)).map_err(|_| Nonsense)?;
        if views.last().is_none_or(|view| view.name != name) {
            let last = Some(token(number(row, 18))?);
            views.push(View { last, ..View::free(name) });
        }
        let Some(view) = views.last_mut() else { return Err(Nonsense) };
        if id(row, 2).is_some() {
            view.kind = number(row, 1).and_then(Kind::numbered);
            add(view, row, now)?;
        }
    }
    Ok(Said { now: now as u64, value: views })
}

/// Adds a ticket to a view, unless time has ended it.
fn add(view: &mut View, row: &Row, now: i64) -> Result<(), Nonsense> {
    let ends = number(row, 13).ok_or(Nonsense)?;
    if ends <= now {
        return Ok(());
    }
    let claim = id(row, 2).ok_or(Nonsense)?.fingerprint();
    let [mode, take, permits] = [5, 6, 7].map(|column| number(row, column).unwrap_or(-1));
    let mode = Mode::numbered(mode, take, permits).ok_or(Nonsense)?;
    let note = Note::new(text(row, 8)).unwrap_or_else(|_| Note::none());
    let origin = Origin { host: text(row, 9).as_str().into(), pid: number(row, 10).unwrap_or(0) as u32 };
    let age = span(Some(now - number(row, 11).ok_or(Nonsense)?)).ok_or(Nonsense)?;
    if number(row, 3) == Some(1) {
        view.line.push(Waiter { claim, mode, note, origin, waiting_for: age });
        return Ok(());
    }
    let token = token(number(row, 12))?;
    let asked = (number(row, 14) == Some(1)).then(|| ask_of(row, 15));
    let closing = number(row, 4) == Some(1);
    let expires_in = span(Some(ends - now)).ok_or(Nonsense)?;
    view.holders.push(Holder { claim, mode, token, note, origin, held_for: age, expires_in, closing, asked });
    Ok(())
}

pub(crate) fn tidy(prefix: &str, name: &LockName, quiet: Duration) -> String {
    format!("CALL {prefix}tidy(0, {}, {})", hex(name.as_str().as_bytes()), micros(quiet))
}

/// The next names that may have something to tidy: idle ones, and those where time has ended somebody.
pub(crate) fn names_after(prefix: &str, after: Option<&LockName>, limit: usize, quiet: Duration) -> String {
    let after = after.map_or(String::new(), |after| format!("name > {} AND ", hex(after.as_str().as_bytes())));
    format!(
        "SELECT {NOW}; SELECT name FROM {prefix}name WHERE {after}(waits > 0 OR IF(holds = 0, used + {}, ends) <= {NOW}) \
         ORDER BY name LIMIT {limit}",
        micros(quiet)
    )
}

pub(crate) fn names(sets: &Rows) -> Read<Vec<LockName>> {
    let now = sets.first().and_then(|rows| rows.first()).and_then(|row| number(row, 0)).ok_or(Nonsense)? as u64;
    let rows = sets.get(1).ok_or(Nonsense)?;
    let value = rows.iter().map(|row| LockName::new(text(row, 0)).map_err(|_| Nonsense)).collect::<Result<_, _>>()?;
    Ok(Said { now, value })
}

/// The server's clock, last of all that was answered.
#[cfg(test)]
pub(crate) fn clock(sets: &Rows) -> Read<()> {
    let row = sets.last().and_then(|rows| rows.first()).ok_or(Nonsense)?;
    Ok(Said { now: number(row, 0).ok_or(Nonsense)? as u64, value: () })
}

/// How many names and claims there are, and how many bytes of the tables' files are empty.
pub(crate) fn sizes(prefix: &str) -> String {
    format!(
        "SELECT (SELECT COUNT(*) FROM {prefix}name), (SELECT CAST(IFNULL(SUM(holds + waits), 0) AS SIGNED) FROM {prefix}name), \
         (SELECT CAST(IFNULL(SUM(DATA_FREE), 0) AS SIGNED) FROM information_schema.TABLES \
         WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ('{prefix}name', '{prefix}ticket'))"
    )
}

fn only(sets: &Rows) -> Result<&Row, Nonsense> {
    sets.last().and_then(|rows| rows.first()).ok_or(Nonsense)
}

/// `x'…'`: bytes as the server reads them, whatever they are.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2 + 3);
    text.push_str("x'");
    push_hex(&mut text, bytes);
    text.push('\'');
    text
}

fn hex_of_all(ids: impl Iterator<Item = ClaimId>) -> String {
    let mut text = "x'".to_owned();
    ids.for_each(|id| push_hex(&mut text, id.as_bytes()));
    text.push('\'');
    text
}

fn push_hex(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)].into());
        text.push(DIGITS[usize::from(byte & 15)].into());
    }
}

fn or_null(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "NULL".to_owned(), |value| value.to_string())
}

/// As the tables have it. Nothing here lasts for thousands of years.
pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX / 4)
}

/// A time that may be over already, and is then none at all.
fn span(micros: Option<i64>) -> Option<Duration> {
    micros.map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
}

pub(crate) fn number(row: &Row, column: usize) -> Option<i64> {
    match row.as_ref(column)? {
        Value::Bytes(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        Value::Int(number) => Some(*number),
        Value::UInt(number) => i64::try_from(*number).ok(),
        _ => None,
    }
}

fn bytes(row: &Row, column: usize) -> &[u8] {
    match row.as_ref(column) {
        Some(Value::Bytes(bytes)) => bytes,
        _ => &[],
    }
}

pub(crate) fn text(row: &Row, column: usize) -> String {
    String::from_utf8_lossy(bytes(row, column)).into_owned()
}

fn id(row: &Row, column: usize) -> Option<ClaimId> {
    bytes(row, column).try_into().ok().map(ClaimId::from_bytes)
}

fn token(number: Option<i64>) -> Result<Token, Nonsense> {
    number.and_then(|number| u64::try_from(number).ok()).map(Token::new).ok_or(Nonsense)
}

fn ask_of(row: &Row, column: usize) -> Ask {
    let reason = Note::new(text(row, column)).unwrap_or_else(|_| Note::none());
    let by = Origin { host: text(row, column + 1).as_str().into(), pid: number(row, column + 2).unwrap_or(0) as u32 };
    Ask { reason, by }
}

/// Mode, how many it takes, and of how many: an exclusive one takes none and a shared one takes one, of any number.
fn mode_numbers(mode: Mode) -> (u8, u32, u32) {
    match mode {
        Mode::Exclusive => (0, 0, 0),
        Mode::Shared => (1, 1, 0),
        Mode::Permits { take, of } => (2, take.get(), of.get()),
    }
}
