//! Each verb as a request and its answer.
//!
//! A request is one call of one of the server's functions; an answer is parsed at the door: what comes back is a typed value and
//! the server's time, or [`Garbled`] if the shape is none that the function gives. What a verb means is in
//! [`Record`](tenure_core::record::Record); the functions, in `sql/`, do the same.

use std::error::Error as StdError;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use tenure_core::lease::{Asked, Asking, Ended, Ending, Looked, Message, Renewed, Said, Touched};
use tenure_core::record::ClientKey;
use tenure_core::{Ask, Claim, ClaimId, Holder, Kind, LockName, Mode, Note, Origin, Token, Versioned, View, Waiter};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use crate::schema::Layout;
use crate::seal::NotifyKey;

/// One statement and its parameters.
pub(crate) struct Request<'a> {
    pub(crate) sql: &'a str,
    params: Vec<(Box<dyn ToSql + Sync + Send + 'a>, Type)>,
    /// Nobody sends it again if it has no answer: it is waited for as long as an answer may take.
    pub(crate) is_sent_once: bool,
}

impl<'a> Request<'a> {
    pub(crate) fn new(sql: &'a str) -> Self {
        Request { sql, params: Vec::new(), is_sent_once: false }
    }

    pub(crate) fn once(self) -> Self {
        Request { is_sent_once: true, ..self }
    }

    pub(crate) fn arg(mut self, value: impl ToSql + Sync + Send + 'a, kind: Type) -> Self {
        self.params.push((Box::new(value), kind));
        self
    }

    /// The parameters as the driver wants them.
    pub(crate) fn params(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.params.iter().map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone())).collect()
    }
}

/// An answer that no function of ours gives.
#[derive(Debug)]
pub(crate) struct Garbled;

type Parsed<T> = Result<Said<T>, Garbled>;

/// The statements, with the tables' names in them.
pub(crate) struct Verbs {
    ask: String,
    ask_one: String,
    end: String,
    end_one: String,
    renew: String,
    touch: String,
    downgrade: String,
    view: String,
    list: String,
    request: String,
    break_holds: String,
    cell_get: String,
    cell_set: String,
    #[cfg(test)]
    tidy: String,
    tidy_after: String,
    leave: String,
    hear: String,
    outlast: String,
    probe: String,
}

impl Verbs {
    pub(crate) fn new(layout: &Layout) -> Self {
        let call = |function: &str, many: usize| {
            let places: Vec<String> = (1..=many).map(|place| format!("${place}")).collect();
            format!("{}({})", layout.full(function), places.join(","))
        };
        let select = |function, many| format!("SELECT {}", call(function, many));
        let from = |function, many| format!("SELECT * FROM {}", call(function, many));
        Verbs {
            ask: select("ask", 16),
            ask_one: select("ask_one", 16),
            end: select("end", 4),
            end_one: select("end_one", 4),
            renew: from("renew", 2),
            touch: from("touch", 6),
            downgrade: select("downgrade", 2),
            view: layout.fill(
                "SELECT v.*, n.last FROM {name} n LEFT JOIN {view}(ARRAY[$1]) WITH ORDINALITY v ON true \
                 WHERE n.name = $1 ORDER BY v.ordinality",
            ),
            list: layout.fill(
                "SELECT v.*, (SELECT n.last FROM {name} n WHERE n.name = v.name) \
                 FROM {view}(ARRAY(SELECT {list}($1, $2, $3))) WITH ORDINALITY v ORDER BY v.ordinality",
            ),
            request: select("request", 4),
            break_holds: select("break", 2),
            cell_get: layout.fill("SELECT {clock}(), version, value FROM (SELECT) u LEFT JOIN {cell} ON name = $1"),
            cell_set: select("cell_set", 3),
            #[cfg(test)]
            tidy: select("tidy", 2),
            tidy_after: from("tidy_after", 3),
            leave: select("leave", 1),
            hear: layout.fill(
                "WITH heard AS (UPDATE {client} SET listens = true WHERE client = $1 AND NOT listens RETURNING client) \
                 INSERT INTO {notify_key} (client, key) SELECT client, $2 FROM heard ON CONFLICT DO NOTHING",
            ),
            outlast: layout.fill(
                "SELECT FROM {name} WHERE name IN (\
                   SELECT name FROM (SELECT DISTINCT name FROM {ticket} WHERE client = $1 AND waiting LIMIT 256) mine \
                   WHERE pg_try_advisory_xact_lock_shared({key}(name))\
                 ) ORDER BY name FOR SHARE",
            ),
            probe: layout.fill(
                "INSERT INTO {floor} AS f (value) VALUES (0) \
                 ON CONFLICT (one) DO UPDATE SET value = greatest(f.value, excluded.value)",
            ),
        }
    }

    /// Asks for claims, in the order of their names. With a `key` the client listens, for what is sealed with that. Answer: [`asked`].
    pub(crate) fn ask<'a>(
        &'a self,
        me: ClientKey,
        key: Option<&'a NotifyKey>,
        alive: Duration,
        asks: &'a [Asking],
    ) -> Request<'a> {
        if let [ask] = asks {
            return self.ask_one(me, key, alive, ask);
        }
        let claims = || asks.iter().map(|ask| &ask.claim);
        let lengths = |of: fn(&Claim) -> Duration| claims().map(|claim| micros(of(claim))).collect::<Vec<i64>>();
        let parts = || claims().map(|claim| parts(claim.mode));
        Request::new(&self.ask)
            .arg(me as i64, Type::INT8)
            .arg(key.map(NotifyKey::as_bytes), Type::BYTEA)
            .arg(micros(alive), Type::INT8)
            .arg(claims().map(|claim| claim.name.as_str()).collect::<Vec<_>>(), Type::TEXT_ARRAY)
            .arg(claims().map(|claim| Id(claim.id)).collect::<Vec<_>>(), Type::UUID_ARRAY)
            .arg(claims().map(|claim| i16::from(claim.kind.number())).collect::<Vec<_>>(), Type::INT2_ARRAY)
            .arg(parts().map(|(mode, ..)| mode).collect::<Vec<_>>(), Type::INT2_ARRAY)
            .arg(parts().map(|(_, take, _)| take).collect::<Vec<_>>(), Type::INT8_ARRAY)
            .arg(parts().map(|(.., room)| room).collect::<Vec<_>>(), Type::INT8_ARRAY)
            .arg(lengths(|claim| claim.ttl), Type::INT8_ARRAY)
            .arg(lengths(|claim| claim.handover_ttl), Type::INT8_ARRAY)
            .arg(lengths(|claim| claim.lock_delay), Type::INT8_ARRAY)
            .arg(claims().map(|claim| claim.note.as_str()).collect::<Vec<_>>(), Type::TEXT_ARRAY)
            .arg(claims().map(|claim| &*claim.origin.host).collect::<Vec<_>>(), Type::TEXT_ARRAY)
            .arg(claims().map(|claim| i64::from(claim.origin.pid)).collect::<Vec<_>>(), Type::INT8_ARRAY)
            .arg(asks.iter().map(|ask| ask.queue).collect::<Vec<_>>(), Type::BOOL_ARRAY)
    }

    fn ask_one<'a>(&'a self, me: ClientKey, key: Option<&'a NotifyKey>, alive: Duration, ask: &'a Asking) -> Request<'a> {
        let claim = &ask.claim;
        let (mode, take, room) = parts(claim.mode);
        Request::new(&self.ask_one)
            .arg(me as i64, Type::INT8)
            .arg(key.map(NotifyKey::as_bytes), Type::BYTEA)
            .arg(micros(alive), Type::INT8)
            .arg(claim.name.as_str(), Type::TEXT)
            .arg(Id(claim.id), Type::UUID)
            .arg(i16::from(claim.kind.number()), Type::INT2)
            .arg(mode, Type::INT2)
            .arg(take, Type::INT8)
            .arg(room, Type::INT8)
            .arg(micros(claim.ttl), Type::INT8)
            .arg(micros(claim.handover_ttl), Type::INT8)
            .arg(micros(claim.lock_delay), Type::INT8)
            .arg(claim.note.as_str(), Type::TEXT)
            .arg(&*claim.origin.host, Type::TEXT)
            .arg(i64::from(claim.origin.pid), Type::INT8)
            .arg(ask.queue, Type::BOOL)
    }

    /// Ends claims, in the order of their names. Answer: [`ended`].
    pub(crate) fn end<'a>(&'a self, ends: &'a [Ending]) -> Request<'a> {
        if let [end] = ends {
            return Request::new(&self.end_one)
                .arg(end.name.as_str(), Type::TEXT)
                .arg(Id(end.id), Type::UUID)
                .arg(micros(end.min_hold), Type::INT8)
                .arg(micros(end.mark), Type::INT8);
        }
        Request::new(&self.end)
            .arg(ends.iter().map(|end| end.name.as_str()).collect::<Vec<_>>(), Type::TEXT_ARRAY)
            .arg(ends.iter().map(|end| Id(end.id)).collect::<Vec<_>>(), Type::UUID_ARRAY)
            .arg(ends.iter().map(|end| micros(end.min_hold)).collect::<Vec<_>>(), Type::INT8_ARRAY)
            .arg(ends.iter().map(|end| micros(end.mark)).collect::<Vec<_>>(), Type::INT8_ARRAY)
    }

    /// Renews holds. Answer: [`renewed`].
    pub(crate) fn renew<'a>(&'a self, claims: impl Iterator<Item = (&'a LockName, ClaimId)>) -> Request<'a> {
        let (names, ids) = names_and_ids(claims);
        Request::new(&self.renew).arg(names, Type::TEXT_ARRAY).arg(ids, Type::UUID_ARRAY)
    }

    /// Looks after waiters. Answer: [`touched`].
    pub(crate) fn touch<'a>(
        &'a self,
        me: ClientKey,
        beat: bool,
        key: Option<&'a NotifyKey>,
        alive: Duration,
        claims: impl Iterator<Item = (&'a LockName, ClaimId)>,
    ) -> Request<'a> {
        let (names, ids) = names_and_ids(claims);
        Request::new(&self.touch)
            .arg(me as i64, Type::INT8)
            .arg(beat, Type::BOOL)
            .arg(key.map(NotifyKey::as_bytes), Type::BYTEA)
            .arg(micros(alive), Type::INT8)
            .arg(names, Type::TEXT_ARRAY)
            .arg(ids, Type::UUID_ARRAY)
    }

    /// Makes a reader of the writer that holds an rw lock. Answer: [`counted`].
    pub(crate) fn downgrade<'a>(&'a self, name: &'a LockName, id: ClaimId) -> Request<'a> {
        Request::new(&self.downgrade).arg(name.as_str(), Type::TEXT).arg(Id(id), Type::UUID)
    }

    /// Who holds and who waits. Answer: [`viewed_alone`].
    pub(crate) fn view<'a>(&'a self, name: &'a LockName) -> Request<'a> {
        Request::new(&self.view).arg(name.as_str(), Type::TEXT)
    }

    /// The same of all names that begin so. Answer: [`viewed`].
    pub(crate) fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a LockName>, limit: usize) -> Request<'a> {
        Request::new(&self.list)
            .arg(prefix, Type::TEXT)
            .arg(after.map(LockName::as_str), Type::TEXT)
            .arg(i32::try_from(limit).unwrap_or(i32::MAX), Type::INT4)
    }

    /// Leaves a request with every holder. Answer: [`counted`].
    pub(crate) fn request<'a>(&'a self, name: &'a LockName, ask: &'a Ask) -> Request<'a> {
        Request::new(&self.request)
            .arg(name.as_str(), Type::TEXT)
            .arg(i64::from(ask.by.pid), Type::INT8)
            .arg(&*ask.by.host, Type::TEXT)
            .arg(ask.reason.as_str(), Type::TEXT)
            .once()
    }

    /// Ends holds by force. Answer: [`counted`].
    pub(crate) fn break_holds<'a>(&'a self, name: &'a LockName, only: Option<Token>) -> Request<'a> {
        Request::new(&self.break_holds)
            .arg(name.as_str(), Type::TEXT)
            .arg(only.map(|token| token.get() as i64), Type::INT8)
            .once()
    }

    /// Reads a cell. Answer: [`cell`].
    pub(crate) fn cell_get<'a>(&'a self, name: &'a LockName) -> Request<'a> {
        Request::new(&self.cell_get).arg(name.as_str(), Type::TEXT)
    }

    /// Writes or removes a cell. Answer: [`cell_written`].
    pub(crate) fn cell_set<'a>(&'a self, name: &'a LockName, expected: u64, value: Option<&'a [u8]>) -> Request<'a> {
        Request::new(&self.cell_set)
            .arg(name.as_str(), Type::TEXT)
            .arg(expected as i64, Type::INT8)
            .arg(value, Type::BYTEA)
            .once()
    }

    /// Removes names that are idle. Answer: [`done`].
    #[cfg(test)]
    pub(crate) fn tidy<'a>(&'a self, names: &'a [LockName], quiet: Duration) -> Request<'a> {
        Request::new(&self.tidy)
            .arg(names.iter().map(LockName::as_str).collect::<Vec<_>>(), Type::TEXT_ARRAY)
            .arg(micros(quiet), Type::INT8)
    }

    /// Removes what dead clients left. Answer: [`tidied`].
    pub(crate) fn tidy_after<'a>(&'a self, after: Option<&'a LockName>, limit: usize, quiet: Duration) -> Request<'a> {
        Request::new(&self.tidy_after)
            .arg(after.map(LockName::as_str), Type::TEXT)
            .arg(i32::try_from(limit).unwrap_or(i32::MAX), Type::INT4)
            .arg(micros(quiet), Type::INT8)
    }

    /// Removes what a client has besides claims. Answer: [`done`].
    pub(crate) fn leave(&self, me: ClientKey) -> Request<'_> {
        Request::new(&self.leave).arg(me as i64, Type::INT8)
    }

    /// Says that a client listens from now on, if it waits for anything. It answers nothing of interest.
    pub(crate) fn hear<'a>(&'a self, me: ClientKey, key: &'a NotifyKey) -> Request<'a> {
        Request::new(&self.hear).arg(me as i64, Type::INT8).arg(key.as_bytes(), Type::BYTEA)
    }

    /// Waits for every verb that is under way on a name that a client waits for, and for nobody's own transaction; of so many names as a
    /// transaction may have locks. It answers nothing of interest.
    pub(crate) fn outlast(&self, me: ClientKey) -> Request<'_> {
        Request::new(&self.outlast).arg(me as i64, Type::INT8)
    }

    /// One committed row: the smallest that a grant could cost. It answers nothing of interest.
    pub(crate) fn probe(&self) -> Request<'_> {
        Request::new(&self.probe)
    }
}

fn names_and_ids<'a>(claims: impl Iterator<Item = (&'a LockName, ClaimId)>) -> (Vec<&'a str>, Vec<Id>) {
    claims.map(|(name, id)| (name.as_str(), Id(id))).unzip()
}

/// What came of each ask, and when it was handled; the time of the first is the answer's.
pub(crate) fn asked(rows: &[Row], many: usize) -> Parsed<Vec<(Asked, u64)>> {
    let numbers: Vec<i64> = only(rows)?;
    if numbers.len() != many * 4 {
        return Err(Garbled);
    }
    let parse = |says: &[i64]| {
        let asked = match says[0] {
            0 => Asked::Granted { token: token(says[1]), left: length(says[2]) },
            1 => Asked::Queued { first: says[1] == 1, change_in: maybe(says[2]) },
            2 => Asked::Busy,
            3 => Asked::Locked,
            4 => Asked::Mismatch { kind: kind(says[1] as i16)?, of: u32::try_from(says[2]).map_err(|_| Garbled)? },
            5 => Asked::Ended,
            _ => return Err(Garbled),
        };
        Ok((asked, says[3] as u64))
    };
    let value = numbers.chunks_exact(4).map(parse).collect::<Result<Vec<_>, _>>()?;
    let now = value.first().map_or(0, |(_, now)| *now);
    Ok(Said { now, value })
}

/// What came of each ending, and when it was handled.
pub(crate) fn ended(rows: &[Row], many: usize) -> Parsed<Vec<(Ended, u64)>> {
    let numbers: Vec<i64> = only(rows)?;
    if numbers.len() != many * 2 {
        return Err(Garbled);
    }
    let parse = |says: &[i64]| match says[0] {
        0 => Ok((Ended::Done, says[1] as u64)),
        1 => Ok((Ended::Locked, says[1] as u64)),
        2 => Ok((Ended::Nothing, says[1] as u64)),
        _ => Err(Garbled),
    };
    let value = numbers.chunks_exact(2).map(parse).collect::<Result<Vec<_>, _>>()?;
    let now = value.first().map_or(0, |(_, now)| *now);
    Ok(Said { now, value })
}

/// What came of each renewal.
pub(crate) fn renewed(rows: &[Row], many: usize) -> Parsed<Vec<Renewed>> {
    if rows.len() != many {
        return Err(Garbled);
    }
    let parse = |row: &Row| {
        Ok(match get::<i16>(row, 0)? {
            0 => Renewed::Held(ask(get(row, 1)?, get(row, 2)?, get(row, 3)?)?),
            1 => Renewed::Lost,
            2 => Renewed::Unknown,
            _ => return Err(Garbled),
        })
    };
    let now: i64 = rows.first().map_or(Ok(0), |row| get(row, 4))?;
    Ok(Said { now: now as u64, value: rows.iter().map(parse).collect::<Result<_, _>>()? })
}

/// How each waiter stands, and what others had to say.
pub(crate) fn touched(rows: &[Row], many: usize) -> Parsed<Looked> {
    let [row] = rows else { return Err(Garbled) };
    let (now, numbers, letters): (i64, Vec<i64>, Option<Vec<Option<String>>>) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
    if numbers.len() != many * 4 {
        return Err(Garbled);
    }
    let parse = |says: &[i64]| {
        Ok(match says[0] {
            0 => Touched::Waiting { first: says[1] == 1, change_in: maybe(says[2]) },
            1 => Touched::Granted { token: token(says[1]), since: says[2] as u64, left: length(says[3]) },
            2 => Touched::Gone,
            _ => return Err(Garbled),
        })
    };
    let waiters = numbers.chunks_exact(4).map(parse).collect::<Result<_, _>>()?;
    let letters = letters.unwrap_or_default();
    let mail = letters.chunks(5).map(letter).collect::<Result<_, _>>()?;
    Ok(Said { now: now as u64, value: Looked { waiters, mail } })
}

/// The view of one name, if anything is known of it.
pub(crate) fn viewed_alone(rows: &[Row], name: &LockName) -> Parsed<View> {
    match rows {
        // Nobody is there, and it is not forgotten yet.
        [row] if get::<Option<i64>>(row, 0)?.is_none() => {
            Ok(Said { now: 0, value: View { last: last(row)?, ..View::free(name.clone()) } })
        }
        rows => {
            let Said { now, value } = viewed(rows)?;
            Ok(Said { now, value: value.into_iter().next().unwrap_or_else(|| View::free(name.clone())) })
        }
    }
}

fn last(row: &Row) -> Result<Option<Token>, Garbled> {
    Ok(get::<Option<i64>>(row, 19)?.map(token))
}

/// The views of the names that are in use, in order.
pub(crate) fn viewed(rows: &[Row]) -> Parsed<Vec<View>> {
    let mut views: Vec<View> = Vec::new();
    for row in rows {
        let name: &str = get(row, 1)?;
        if views.last().is_none_or(|view| view.name.as_str() != name) {
            let name = LockName::new(name).map_err(|_| Garbled)?;
            views.push(View { kind: Some(kind(get(row, 2)?)?), last: last(row)?, ..View::free(name) });
        }
        let view = views.last_mut().ok_or(Garbled)?;
        let claim = get::<Id>(row, 5)?.0.fingerprint();
        let mode = Mode::numbered(get::<i16>(row, 6)?.into(), get(row, 7)?, get(row, 8)?).ok_or(Garbled)?;
        let (host, pid): (&str, i64) = (get(row, 11)?, get(row, 10)?);
        let (note, origin) = (note(get(row, 12)?)?, Origin { host: host.into(), pid: pid as u32 });
        let age = length(get(row, 13)?);
        if get(row, 3)? {
            view.line.push(Waiter { claim, mode, note, origin, waiting_for: age });
            continue;
        }
        view.holders.push(Holder {
            claim,
            mode,
            token: token(get(row, 9)?),
            note,
            origin,
            held_for: age,
            expires_in: length(get(row, 14)?),
            closing: get(row, 4)?,
            asked: ask(get(row, 15)?, get(row, 16)?, get(row, 17)?)?,
        });
    }
    let now: i64 = rows.first().map_or(Ok(0), |row| get(row, 0))?;
    Ok(Said { now: now as u64, value: views })
}

/// How many there were.
pub(crate) fn counted(rows: &[Row]) -> Parsed<usize> {
    let numbers: Vec<i64> = only(rows)?;
    let [now, many] = numbers[..] else { return Err(Garbled) };
    Ok(Said { now: now as u64, value: many as usize })
}

/// A cell's value and version.
pub(crate) fn cell(rows: &[Row]) -> Parsed<Versioned> {
    let [row] = rows else { return Err(Garbled) };
    let (now, version, value): (i64, Option<i64>, Option<Vec<u8>>) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
    Ok(Said { now: now as u64, value: (value, version.unwrap_or(0) as u64) })
}

/// A cell's new version, if it was written.
pub(crate) fn cell_written(rows: &[Row]) -> Parsed<Option<u64>> {
    let numbers: Vec<i64> = only(rows)?;
    match numbers[..] {
        [now] => Ok(Said { now: now as u64, value: None }),
        [now, version] => Ok(Said { now: now as u64, value: Some(version as u64) }),
        _ => Err(Garbled),
    }
}

/// Nothing but the time.
pub(crate) fn done(rows: &[Row]) -> Parsed<()> {
    let now: i64 = only(rows)?;
    Ok(Said { now: now as u64, value: () })
}

/// The last name that was looked at, unless that was the last of all.
pub(crate) fn tidied(rows: &[Row]) -> Parsed<Option<LockName>> {
    let [row] = rows else { return Err(Garbled) };
    let (now, came_by): (i64, Option<&str>) = (get(row, 0)?, get(row, 1)?);
    let value = came_by.map(LockName::new).transpose().map_err(|_| Garbled)?;
    Ok(Said { now: now as u64, value })
}

/// What a notification says to whoever has this key. `None` if there is something to be fetched.
pub(crate) fn told(payload: &str, key: &NotifyKey) -> Result<Option<Message>, Garbled> {
    let mut words = payload.split(' ');
    let number = |word: Option<&str>| word.and_then(|word| word.parse::<u64>().ok()).ok_or(Garbled);
    match words.next() {
        Some("mail") => Ok(None),
        Some("granted") => {
            let id = id(words.next().ok_or(Garbled)?)?;
            let (token, granted) = (Token::new(number(words.next())?), number(words.next())?);
            let is_sealed = payload.rsplit_once(' ').is_some_and(|(said, seal)| key.has_sealed(said, seal));
            Ok(Some(if is_sealed { Message::Granted { id, token, granted } } else { Message::MaybeGranted(id) }))
        }
        _ => Err(Garbled),
    }
}

fn letter(texts: &[Option<String>]) -> Result<Message, Garbled> {
    let [Some(says), Some(about), pid, host, reason] = texts else { return Err(Garbled) };
    let id = id(about)?;
    match says.as_str() {
        "0" => {
            let pid = pid.as_deref().and_then(|pid| pid.parse().ok());
            let ask = ask(pid, host.as_deref(), reason.as_deref())?.ok_or(Garbled)?;
            Ok(Message::Asked(id, ask))
        }
        "1" => Ok(Message::Lost(id)),
        _ => Err(Garbled),
    }
}

/// A claim's id: a uuid for the server.
#[derive(Debug)]
struct Id(ClaimId);

impl ToSql for Id {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        out.put_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }

    to_sql_checked!();
}

impl FromSql<'_> for Id {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        Ok(Id(ClaimId::from_bytes(raw.try_into()?)))
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }
}

/// A uuid as text, with its hyphens.
fn id(text: &str) -> Result<ClaimId, Garbled> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let number = u128::from_str_radix(&digits, 16).map_err(|_| Garbled)?;
    Ok(ClaimId::from_bytes(number.to_be_bytes()))
}

fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, Garbled> {
    row.try_get(column).map_err(|_| Garbled)
}

/// The one value of the one row.
fn only<'a, T: FromSql<'a>>(rows: &'a [Row]) -> Result<T, Garbled> {
    let [row] = rows else { return Err(Garbled) };
    get(row, 0)
}

pub(crate) fn ask(pid: Option<i64>, host: Option<&str>, reason: Option<&str>) -> Result<Option<Ask>, Garbled> {
    let (Some(pid), Some(host), Some(reason)) = (pid, host, reason) else { return Ok(None) };
    Ok(Some(Ask { reason: note(reason)?, by: Origin { host: host.into(), pid: pid as u32 } }))
}

pub(crate) fn note(text: &str) -> Result<Note, Garbled> {
    Note::new(text).map_err(|_| Garbled)
}

fn token(number: i64) -> Token {
    Token::new(number as u64)
}

pub(crate) fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX / 4)
}

pub(crate) fn length(micros: i64) -> Duration {
    Duration::from_micros(micros.max(0) as u64)
}

fn maybe(micros: i64) -> Option<Duration> {
    (micros >= 0).then(|| length(micros))
}

/// All there is to take of a name that is not a semaphore.
const ALL: i64 = i32::MAX as i64;

/// A mode as the tables have it: its number, what it takes, and of how much. One rule then lets everybody in: there is room.
fn parts(mode: Mode) -> (i16, i64, i64) {
    match mode {
        Mode::Exclusive => (0, ALL, ALL),
        Mode::Shared => (1, 1, ALL),
        Mode::Permits { take, of } => (2, i64::from(take.get()), i64::from(of.get())),
    }
}

pub(crate) fn kind(code: i16) -> Result<Kind, Garbled> {
    Kind::numbered(code.into()).ok_or(Garbled)
}
