//! Each verb as a request and its answer.
//!
//! A request is a command ready to be sent, an answer is parsed at the door: what comes back is a typed value and the
//! server's time, or an error of kind `Backend` if the shape is none that the script gives. What a verb means is in
//! [`Record`](tenure_core::record::Record); its script, in `scripts/`, does the same.

use std::collections::HashMap;
use std::time::Duration;

use redis::{Cmd, Value};
use tenure_core::{Ask, Claim, ClaimId, Holder, Kind, LockName, Result, Token, Versioned, View, Waiter};

use crate::codec::{self, Garbled, NEVER, Secret, Stage, micros};
use crate::schema::{Bucket, Layout};
use crate::scripts;

/// When by the server's clock a script ran, in microseconds since 1970, and what it says.
pub(crate) type Answer<T> = (u64, T);

/// What came of [`ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Let in. `left` of its window was left when the server answered: a whole ttl, or less when the ask is a repeated one.
    Granted { token: Token, left: Duration },
    /// In line: whether at its head, and when time alone may next let somebody in.
    Queued { first: bool, change_in: Option<Duration> },
    /// Not let in, and not in line.
    Busy,
    /// The name is in use otherwise; [`mismatch`] says it in words.
    Mismatch { kind: Kind, of: u32 },
    /// The claim was ended before this request of its came, and stays so.
    Ended,
}

/// What a waiter learns from [`touch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Touched {
    /// It still waits.
    Waiting { first: bool, change_in: Option<Duration> },
    /// It was let in at `since`, by the server's clock in microseconds, and had `left` of its window.
    Granted { token: Token, since: u64, left: Duration },
    /// It is not in line any more: it was thought dead, or ended.
    Gone,
}

/// What came of renewing one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// Not held any more.
    Lost,
    /// Held for another ttl; somebody may have asked its holder to let go.
    Held(Option<Ask>),
}

/// Asks for a claim; `queue` is how long it may stand in line unheard, if at all. `inbox` is where its client hears of
/// it, and `secret` what a hand-over must know. Answer: [`asked`].
pub(crate) fn ask(
    layout: &Layout,
    publish: &str,
    claim: &Claim,
    inbox: &[u8],
    queue: Option<Duration>,
    secret: &Secret,
) -> Cmd {
    let body = codec::encode_claim(claim, inbox);
    let mut cmd = scripts::ASK.command(6, 7, 528 + 4 * claim.name.as_str().len() + body.len());
    keys(&mut cmd, layout, &claim.name);
    cmd.arg(layout.ended(layout.bucket(&claim.name), claim.id));
    words(&mut cmd, publish, &claim.name);
    let alone_ms = micros(claim.ttl + claim.lock_delay).div_ceil(1_000) + SLACK_MS;
    cmd.arg(claim.id.as_bytes()).arg(body).arg(alone_ms);
    cmd.arg(queue.map_or(0, |queue| micros(queue).max(1))).arg(secret);
    cmd
}

/// Ends a claim. A hold let go before `min_hold` is over keeps the name closed until then; for `mark` afterwards no ask
/// for this claim is granted. Answer: [`ended`].
pub(crate) fn end(layout: &Layout, publish: &str, name: &LockName, id: ClaimId, min_hold: Duration, mark: Duration) -> Cmd {
    let marked = !mark.is_zero();
    let mut cmd = scripts::END.command(6 + usize::from(marked), 5, 400 + 5 * name.as_str().len());
    keys(&mut cmd, layout, name);
    cmd.arg(layout.past(name));
    if marked {
        cmd.arg(layout.ended(layout.bucket(name), id));
    }
    words(&mut cmd, publish, name);
    cmd.arg(id.as_bytes());
    if marked || !min_hold.is_zero() {
        cmd.arg(micros(min_hold));
    }
    if marked {
        cmd.arg(u64::try_from(mark.as_millis()).unwrap_or(NEVER).clamp(1, NEVER));
    }
    cmd
}

/// Renews claims that are all in one bucket. Answer: [`renewed`], one for each in the same order.
pub(crate) fn renew(layout: &Layout, bucket: Bucket, claims: &[&Claim]) -> Cmd {
    let count = claims.len();
    let mut cmd = scripts::RENEW.command(1 + 3 * count, count, 200 * count);
    cmd.arg(layout.names(bucket));
    for claim in claims {
        record(&mut cmd, layout, &claim.name);
    }
    for claim in claims {
        cmd.arg(claim.id.as_bytes());
    }
    cmd
}

/// Hears from waiters that are all in one bucket: each keeps its place for `alive` from now on. Answer: [`touched`],
/// one for each in the same order.
pub(crate) fn touch(
    layout: &Layout,
    publish: &str,
    bucket: Bucket,
    alive: Duration,
    waiters: &[(&LockName, ClaimId, Secret)],
) -> Cmd {
    let count = waiters.len();
    let mut cmd = scripts::TOUCH.command(2 + 3 * count, 2 + 3 * count, 320 * count);
    cmd.arg(layout.names(bucket)).arg(layout.token(bucket));
    for (name, ..) in waiters {
        record(&mut cmd, layout, name);
    }
    cmd.arg(micros(alive)).arg(publish);
    for (name, id, secret) in waiters {
        cmd.arg(name.as_str()).arg(id.as_bytes()).arg(secret);
    }
    cmd
}

/// Makes a reader of the writer that holds an rw lock. Answer: [`counted`].
pub(crate) fn downgrade(layout: &Layout, publish: &str, name: &LockName, id: ClaimId) -> Cmd {
    let mut cmd = scripts::DOWNGRADE.command(5, 3, 400 + 4 * name.as_str().len());
    keys(&mut cmd, layout, name);
    words(&mut cmd, publish, name);
    cmd.arg(id.as_bytes());
    cmd
}

/// Leaves a request with every holder to let go. Answer: [`counted`].
pub(crate) fn request(layout: &Layout, publish: &str, name: &LockName, ask: &Ask) -> Cmd {
    let mut cmd = scripts::REQUEST.command(5, 3, 1024);
    keys(&mut cmd, layout, name);
    words(&mut cmd, publish, name);
    cmd.arg(codec::encode_ask(ask));
    cmd
}

/// Ends holds by force: all, or the one with this token. Answer: [`counted`].
pub(crate) fn break_holds(layout: &Layout, publish: &str, name: &LockName, only: Option<Token>) -> Cmd {
    let mut cmd = scripts::BREAK.command(6, 3, 1024);
    keys(&mut cmd, layout, name);
    cmd.arg(layout.past(name));
    words(&mut cmd, publish, name);
    match only {
        Some(token) => cmd.arg(token.get()),
        None => cmd.arg(""),
    };
    cmd
}

/// Reads the records of names that are all in one bucket. Answer: [`viewed`].
pub(crate) fn view(layout: &Layout, names: &[&LockName]) -> Cmd {
    let mut cmd = scripts::VIEW.command(2 * names.len(), 0, 128 * names.len());
    for name in names {
        cmd.arg(layout.lock(name)).arg(layout.past(name));
    }
    cmd
}

/// Reads a cell. Answer: [`cell`].
pub(crate) fn cell_get(layout: &Layout, name: &LockName) -> Cmd {
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(layout.cell(name)).arg("value").arg("version");
    cmd
}

/// Writes a cell, or removes it, if its version is still `expected`. Answer: [`cell_written`].
pub(crate) fn cell_set(layout: &Layout, name: &LockName, expected: u64, value: Option<&[u8]>) -> Cmd {
    let mut cmd = scripts::CELL_SET.command(3, 2, 256 + value.map_or(0, <[u8]>::len));
    let bucket = layout.bucket(name);
    cmd.arg(layout.cell(name)).arg(layout.token(bucket)).arg(layout.names(bucket)).arg(expected);
    if let Some(value) = value {
        cmd.arg(value);
    }
    cmd
}

/// Names in use of a bucket that begin with `prefix`, in byte order, after `after`. Answer: [`listed`].
pub(crate) fn list(layout: &Layout, bucket: Bucket, prefix: &str, after: Option<&LockName>, limit: usize) -> Cmd {
    let mut cmd = redis::cmd("ZRANGEBYLEX");
    cmd.arg(layout.names(bucket));
    match after {
        Some(after) if after.as_str() > prefix => cmd.arg(["(", after.as_str()].concat()),
        _ if prefix.is_empty() => cmd.arg("-"),
        _ => cmd.arg(["[", prefix].concat()),
    };
    // No UTF-8 text has the byte 255, so this is behind every name with the prefix and before all that follow.
    cmd.arg([b"(", prefix.as_bytes(), b"\xff"].concat()).arg("LIMIT").arg(0).arg(limit);
    cmd
}

/// Forgets those of these names, all in one bucket, whose records are gone. Answer: [`counted`].
pub(crate) fn tidy(layout: &Layout, bucket: Bucket, names: &[&LockName]) -> Cmd {
    let count = names.len();
    let mut cmd = scripts::TIDY.command(1 + count, count, 128 * count);
    cmd.arg(layout.names(bucket));
    for name in names {
        cmd.arg(layout.lock(name));
    }
    for name in names {
        cmd.arg(name.as_str());
    }
    cmd
}

/// Makes sure that every token given from now on is above this one. Answer: [`raised`].
pub(crate) fn raise(layout: &Layout, bucket: Bucket, at_least: Token) -> Cmd {
    let mut cmd = scripts::RAISE.command(2, 1, 128);
    cmd.arg(layout.token(bucket)).arg(layout.names(bucket)).arg(at_least.get());
    cmd
}

/// Does nothing, with as much to carry as the end of a claim has, which is the least that any verb on a lock could cost.
pub(crate) fn probe(layout: &Layout, bucket: Bucket) -> Cmd {
    let mut cmd = scripts::PROBE.command(5, 3, 256);
    for _ in 0..3 {
        cmd.arg(layout.inbox(bucket, "nobody"));
    }
    cmd.arg(layout.names(bucket)).arg(layout.token(bucket)).arg("nobody").arg("publish").arg(&[0_u8; 16]);
    cmd
}

/// The five keys that every verb on one name has.
fn keys(cmd: &mut Cmd, layout: &Layout, name: &LockName) {
    let bucket = layout.bucket(name);
    record(cmd, layout, name);
    cmd.arg(layout.names(bucket)).arg(layout.token(bucket));
}

/// The three keys of a record.
fn record(cmd: &mut Cmd, layout: &Layout, name: &LockName) {
    cmd.arg(layout.lock(name)).arg(layout.line(name)).arg(layout.held(name));
}

/// The two words that every verb on one name has.
fn words(cmd: &mut Cmd, publish: &str, name: &LockName) {
    cmd.arg(name.as_str()).arg(publish);
}

/// How much longer a record's keys stay than anything in them matters.
const SLACK_MS: u64 = 60_000;

/// The answer to [`ask`].
pub(crate) fn asked(answer: Value, claim: &Claim) -> Result<Answer<Asked>> {
    if let Value::Int(_) = answer {
        let now = number(answer)?;
        return Ok((now, Asked::Granted { token: Token::new(now), left: claim.ttl }));
    }
    let (now, mut rest) = opened(answer)?;
    let says = match &*rest.bytes()? {
        b"granted" => Asked::Granted { token: rest.token()?, left: rest.duration()? },
        b"queued" => Asked::Queued { first: rest.flag()?, change_in: rest.maybe_duration()? },
        b"busy" => Asked::Busy,
        b"mismatch" => {
            let kind = Kind::numbered(rest.number()? as i64).ok_or(Garbled("a kind is unknown"))?;
            Asked::Mismatch { kind, of: rest.number()?.try_into().unwrap_or(u32::MAX) }
        }
        b"ended" => Asked::Ended,
        _ => return Err(Garbled("the answer to an ask is none of those there are").into()),
    };
    Ok((now, says))
}

/// The answer to [`end`]: whether the claim was there, and the server's time if it mattered.
pub(crate) fn ended(answer: Value) -> Result<(Option<u64>, bool)> {
    match answer {
        Value::Int(1) => return Ok((None, true)),
        Value::Int(_) => return Ok((Some(number(answer)?), true)),
        _ => {}
    }
    let (now, mut rest) = opened(answer)?;
    Ok((Some(now), rest.flag()?))
}

/// The answer to [`renew`] of so many claims.
pub(crate) fn renewed(answer: Value, count: usize) -> Result<Answer<Vec<Renewed>>> {
    let (now, rest) = opened(answer)?;
    let says = rest.0.map(|value| match value {
        Value::Int(0) => Ok(Renewed::Lost),
        Value::Int(_) => Ok(Renewed::Held(None)),
        value => Ok(Renewed::Held(Some(codec::decode_ask(&bytes(value)?)?))),
    });
    counted_as(count, now, says.collect::<Result<_>>()?)
}

/// The answer to [`touch`] of so many waiters.
pub(crate) fn touched(answer: Value, count: usize) -> Result<Answer<Vec<Touched>>> {
    let (now, rest) = opened(answer)?;
    let says = rest.0.map(|value| {
        let mut rest = Rest::of(value)?;
        match rest.number()? {
            0 => Ok(Touched::Waiting { first: rest.flag()?, change_in: rest.maybe_duration()? }),
            1 => Ok(Touched::Granted { token: rest.token()?, since: rest.number()?, left: rest.duration()? }),
            _ => Ok(Touched::Gone),
        }
    });
    counted_as(count, now, says.collect::<Result<_>>()?)
}

/// The answer to [`downgrade`], [`request`], [`break_holds`] and [`tidy`]: how many.
pub(crate) fn counted(answer: Value) -> Result<Answer<usize>> {
    let (now, mut rest) = opened(answer)?;
    Ok((now, rest.number()? as usize))
}

/// The answer to [`view`] of these names.
pub(crate) fn viewed(answer: Value, names: &[&LockName]) -> Result<Answer<Vec<View>>> {
    let (now, mut rest) = opened(answer)?;
    let mut views = Vec::new();
    for name in names {
        views.push(view_of(name, now, rest.next()?, rest.next()?)?);
    }
    Ok((now, views))
}

/// The answer to [`cell_get`].
pub(crate) fn cell(answer: Value) -> Result<Versioned> {
    let mut rest = Rest::of(answer)?;
    match (rest.next()?, rest.next()?) {
        (_, Value::Nil) => Ok((None, 0)),
        (value, version) => Ok((Some(bytes(value)?), number(version)?)),
    }
}

/// The answer to [`cell_set`]: the new version, or `None` if it was not the expected one.
pub(crate) fn cell_written(answer: Value) -> Result<Answer<Option<u64>>> {
    let (now, mut rest) = opened(answer)?;
    let says = if rest.0.len() == 0 { None } else { Some(rest.number()?) };
    Ok((now, says))
}

/// The answer to [`list`].
pub(crate) fn listed(answer: Value) -> Result<Vec<LockName>> {
    let name = |value| LockName::new(utf8(value)?).map_err(|_| Garbled("a name is none").into());
    Rest::of(answer)?.0.map(name).collect()
}

/// The answer to [`raise`]: the last token now.
pub(crate) fn raised(answer: Value) -> Result<Answer<Token>> {
    let (now, mut rest) = opened(answer)?;
    Ok((now, rest.token()?))
}

/// One record as people see it, from what is in its lock: see `scripts/line.lua`.
fn view_of(name: &LockName, now: u64, record: Value, past: Value) -> Result<View> {
    let past = match past {
        Value::Nil => None,
        past => Some(codec::decode_token(&bytes(past)?)?),
    };
    let (mut tickets, mut asks) = (Vec::new(), HashMap::new());
    if let Value::BulkString(alone) = record {
        let (id, ticket) = alone.split_first_chunk().ok_or(Garbled("a record is too short"))?;
        tickets.push((*id, codec::decode_ticket(ticket)?));
    } else {
        let mut fields = Rest::of(record)?;
        while fields.0.len() > 0 {
            let (field, value) = (fields.bytes()?, fields.bytes()?);
            // Nothing but a claim's id has 16 bytes, and nothing but what was asked of its holder one more.
            if let Ok(id) = <[u8; 16]>::try_from(&*field) {
                tickets.push((id, codec::decode_ticket(&value)?));
            } else if let Some(id) = field.last_chunk::<16>().filter(|_| field.len() == 17) {
                asks.insert(*id, codec::decode_ask(&value)?);
            }
        }
    }
    tickets.sort_unstable_by_key(|(_, ticket)| ticket.number);
    let mut view = View { kind: tickets.first().map(|(_, ticket)| ticket.kind), ..View::free(name.clone()) };
    // Those who are over and not swept count too, and those who wait have none.
    let given = tickets.iter().map(|(_, ticket)| ticket.token).filter(|token| *token > Token::new(0));
    view.last = given.chain(past).max();
    for (id, ticket) in tickets {
        let codec::Ticket { stage, since, ends, token, mode, note, origin, .. } = ticket;
        if ends <= now {
            continue; // ended by time, not yet swept
        }
        let (claim, age) = (ClaimId::from_bytes(id).fingerprint(), Duration::from_micros(now.saturating_sub(since)));
        if stage == Stage::Waiting {
            view.line.push(Waiter { claim, mode, note, origin, waiting_for: age });
        } else {
            let (closing, asked) = (stage == Stage::Closing, asks.remove(&id));
            let expires_in = Duration::from_micros(ends - now);
            view.holders.push(Holder { claim, mode, token, note, origin, held_for: age, expires_in, closing, asked });
        }
    }
    Ok(view)
}

/// An answer's time, and the rest of it.
fn opened(answer: Value) -> Result<(u64, Rest)> {
    let mut rest = Rest::of(answer)?;
    Ok((rest.number()?, rest))
}

fn counted_as<T>(count: usize, now: u64, says: Vec<T>) -> Result<Answer<Vec<T>>> {
    if says.len() != count {
        return Err(Garbled("an answer does not have as many parts as were asked for").into());
    }
    Ok((now, says))
}

/// What is left of an answer.
struct Rest(std::vec::IntoIter<Value>);

impl Rest {
    fn of(answer: Value) -> Result<Self> {
        match answer {
            Value::Array(values) => Ok(Rest(values.into_iter())),
            _ => Err(Garbled("an answer is not a list").into()),
        }
    }

    fn next(&mut self) -> Result<Value> {
        self.0.next().ok_or_else(|| Garbled("an answer ends too early").into())
    }

    fn bytes(&mut self) -> Result<Vec<u8>> {
        bytes(self.next()?)
    }

    fn number(&mut self) -> Result<u64> {
        number(self.next()?)
    }

    fn flag(&mut self) -> Result<bool> {
        self.number().map(|number| number != 0)
    }

    fn token(&mut self) -> Result<Token> {
        self.number().map(Token::new)
    }

    fn duration(&mut self) -> Result<Duration> {
        self.number().map(Duration::from_micros)
    }

    /// A duration, or -1 if there is none.
    fn maybe_duration(&mut self) -> Result<Option<Duration>> {
        match self.next()? {
            Value::Int(-1) => Ok(None),
            value => number(value).map(Duration::from_micros).map(Some),
        }
    }
}

fn bytes(value: Value) -> Result<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        _ => Err(Garbled("a part of an answer is not a string").into()),
    }
}

fn utf8(value: Value) -> Result<String> {
    String::from_utf8(bytes(value)?).map_err(|_| Garbled("a part of an answer is not UTF-8").into())
}

fn number(value: Value) -> Result<u64> {
    let number = match value {
        Value::Int(number) => u64::try_from(number).ok(),
        Value::BulkString(digits) => std::str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok()),
        _ => None,
    };
    number.ok_or_else(|| Garbled("a part of an answer is not a number").into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tenure_core::{ErrorKind, Mode, Note, Origin};

    use super::*;

    fn claim() -> Claim {
        Claim {
            name: LockName::new("x").expect("it is a name"),
            kind: Kind::Mutex,
            mode: Mode::Exclusive,
            id: ClaimId::from_bytes([7; 16]),
            ttl: Duration::from_secs(30),
            handover_ttl: Duration::from_secs(2),
            lock_delay: Duration::ZERO,
            min_hold: Duration::ZERO,
            note: Note::none(),
            origin: Origin { host: "here".into(), pid: 1 },
        }
    }

    fn rubbish() -> impl Strategy<Value = Value> {
        let words: &'static [&'static str] = &["granted", "queued", "busy", "mismatch", "ended", "m", "1"];
        let leaf = prop_oneof![
            Just(Value::Nil),
            (-2i64..8).prop_map(Value::Int),
            any::<i64>().prop_map(Value::Int),
            prop::sample::select(words).prop_map(|word| Value::BulkString(word.into())),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::BulkString),
            Just(Value::Okay),
        ];
        leaf.prop_recursive(3, 32, 6, |inner| prop::collection::vec(inner, 0..6).prop_map(Value::Array))
    }

    proptest! {
        #[test]
        fn rubbish_is_an_error_of_the_backend(answer in rubbish()) {
            let name = LockName::new("x").expect("it is a name");
            let errors = [
                asked(answer.clone(), &claim()).err(),
                ended(answer.clone()).err(),
                renewed(answer.clone(), 2).err(),
                touched(answer.clone(), 2).err(),
                counted(answer.clone()).err(),
                viewed(answer.clone(), &[&name]).err(),
                cell(answer.clone()).err(),
                cell_written(answer.clone()).err(),
                listed(answer.clone()).err(),
                raised(answer).err(),
            ];
            prop_assert!(errors.into_iter().flatten().all(|error| error.kind() == ErrorKind::Backend));
        }
    }

    #[test]
    fn what_is_zero_is_not_sent() {
        let (layout, claim) = (Layout::single("t"), claim());
        let args = |min_hold, mark| end(&layout, "publish", &claim.name, claim.id, min_hold, mark).args_iter().count();
        let some = Duration::from_millis(1);
        assert_eq!(args(Duration::ZERO, Duration::ZERO), 3 + 6 + 3);
        assert_eq!(args(some, Duration::ZERO), 3 + 6 + 4);
        assert_eq!(args(Duration::ZERO, some), 3 + 7 + 5);
    }
}
