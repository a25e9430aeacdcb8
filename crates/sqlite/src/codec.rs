//! How a record looks as bytes.
//!
//! Written by hand, since there is one shape only, and read at every verb: fixed-width little-endian numbers, texts with
//! their length before them, and a version in front, so that a later format is told apart and never guessed at. Whatever
//! the bytes are, decoding gives a record or a [`Garbled`], and never panics: the file belongs to everybody who may write
//! to it. What decodes is also a record that could have come from a verb, as far as its shape goes.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use tenure_core::record::{Record, Stage, Ticket};
use tenure_core::{Ask, ClaimId, Instant, Kind, Mode, Note, Origin, Token};

/// Bytes that nobody here wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Garbled(&'static str);

impl fmt::Display for Garbled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "garbled: {}", self.0)
    }
}

impl std::error::Error for Garbled {}

/// The first byte of every record.
const RECORD_VERSION: u8 = 1;

/// Writes a record behind whatever is in `out`.
pub(crate) fn encode(record: &Record, out: &mut Vec<u8>) {
    out.push(RECORD_VERSION);
    out.push(record.kind.number());
    put_u64(out, record.last.get());
    put_u32(out, record.line.len() as u32);
    for ticket in &record.line {
        put_ticket(out, ticket);
    }
}

/// Reads a record.
pub(crate) fn decode(bytes: &[u8]) -> Result<Record, Garbled> {
    let mut input = Input(bytes);
    if input.u8()? != RECORD_VERSION {
        return Err(Garbled("the record's version is unknown"));
    }
    let kind = Kind::numbered(input.u8()?.into()).ok_or(Garbled("the kind is unknown"))?;
    let last = token(input.u64()?)?;
    let count = input.u32()? as usize;
    if count > bytes.len() / SMALLEST_TICKET {
        return Err(Garbled("the record is too short for its line"));
    }
    let mut line = VecDeque::with_capacity(count + 1); // most verbs that read a record add a ticket to it
    let mut waiters = false;
    for _ in 0..count {
        let ticket = input.ticket()?;
        let waits = matches!(ticket.stage, Stage::Waiting { .. });
        if waiters && !waits {
            return Err(Garbled("a holder stands behind a waiter"));
        }
        waiters = waits;
        line.push_back(ticket);
    }
    input.end()?;
    Ok(Record { kind, last, line })
}

/// The last token of a record, which is all that outlives a reboot.
pub(crate) fn decode_last(bytes: &[u8]) -> Result<Token, Garbled> {
    decode(bytes).map(|record| record.last)
}

/// No ticket takes fewer bytes; what keeps a garbled count from asking for all the memory there is.
const SMALLEST_TICKET: usize = 16 + 1 + 8 + 3 * 8 + 2 + 2 + 4 + 8 + 1 + 8;

fn put_ticket(out: &mut Vec<u8>, ticket: &Ticket) {
    out.extend_from_slice(ticket.id.as_bytes());
    match ticket.mode {
        Mode::Exclusive => out.push(0),
        Mode::Shared => out.push(1),
        Mode::Permits { take, of } => {
            out.push(2);
            put_u32(out, take.get());
            put_u32(out, of.get());
        }
    }
    put_u64(out, ticket.client);
    put_duration(out, ticket.ttl);
    put_duration(out, ticket.handover_ttl);
    put_duration(out, ticket.lock_delay);
    put_text(out, ticket.note.as_str());
    put_origin(out, &ticket.origin);
    put_u64(out, ticket.since.as_nanos());
    match &ticket.stage {
        Stage::Waiting { alive_until } => {
            out.push(0);
            put_u64(out, alive_until.as_nanos());
        }
        Stage::Held { token, expires, asked } => {
            out.push(if asked.is_some() { 2 } else { 1 });
            put_u64(out, token.get());
            put_u64(out, expires.as_nanos());
            if let Some(ask) = asked {
                put_ask(out, ask);
            }
        }
        Stage::Closing { token, expires } => {
            out.push(3);
            put_u64(out, token.get());
            put_u64(out, expires.as_nanos());
        }
    }
}

fn put_ask(out: &mut Vec<u8>, ask: &Ask) {
    put_text(out, ask.reason.as_str());
    put_origin(out, &ask.by);
}

fn put_origin(out: &mut Vec<u8>, origin: &Origin) {
    put_text(out, &origin.host);
    put_u32(out, origin.pid);
}

/// Notes have at most 1,024 bytes and hosts 64 or so; a longer host than a `u16` can say is cut, since it is only shown.
fn put_text(out: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary(u16::MAX as usize)];
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn put_duration(out: &mut Vec<u8>, duration: Duration) {
    put_u64(out, u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Tokens fit `i64`; one that does not was never given.
fn token(number: u64) -> Result<Token, Garbled> {
    if number > i64::MAX as u64 { Err(Garbled("the token is too large")) } else { Ok(Token::new(number)) }
}

/// What is left to read.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Garbled> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Garbled("it ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Garbled> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Garbled("it ends too early"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Garbled> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, Garbled> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Garbled> {
        self.array().map(u64::from_le_bytes)
    }

    fn duration(&mut self) -> Result<Duration, Garbled> {
        self.u64().map(Duration::from_nanos)
    }

    fn id(&mut self) -> Result<ClaimId, Garbled> {
        self.array().map(ClaimId::from_bytes)
    }

    fn text(&mut self) -> Result<&'a str, Garbled> {
        let length = u16::from_le_bytes(self.array()?);
        std::str::from_utf8(self.bytes(length as usize)?).map_err(|_| Garbled("a text is not UTF-8"))
    }

    fn note(&mut self) -> Result<Note, Garbled> {
        Note::new(self.text()?).map_err(|_| Garbled("a note is not one"))
    }

    fn origin(&mut self) -> Result<Origin, Garbled> {
        Ok(Origin { host: self.text()?.into(), pid: self.u32()? })
    }

    fn ask(&mut self) -> Result<Ask, Garbled> {
        Ok(Ask { reason: self.note()?, by: self.origin()? })
    }

    fn ticket(&mut self) -> Result<Ticket, Garbled> {
        Ok(Ticket {
            id: self.id()?,
            mode: self.mode()?,
            client: self.u64()?,
            ttl: self.duration()?,
            handover_ttl: self.duration()?,
            lock_delay: self.duration()?,
            note: self.note()?,
            origin: self.origin()?,
            since: Instant::from_nanos(self.u64()?),
            stage: self.stage()?,
        })
    }

    fn mode(&mut self) -> Result<Mode, Garbled> {
        let mode = self.u8()?;
        let (take, of) = if mode == 2 { (self.u32()?, self.u32()?) } else { (0, 0) };
        Mode::numbered(mode.into(), take.into(), of.into()).ok_or(Garbled("the mode is unknown"))
    }

    fn stage(&mut self) -> Result<Stage, Garbled> {
        let stage = self.u8()?;
        if stage == 0 {
            return Ok(Stage::Waiting { alive_until: Instant::from_nanos(self.u64()?) });
        }
        let (token, expires) = (token(self.u64()?)?, Instant::from_nanos(self.u64()?));
        match stage {
            1 => Ok(Stage::Held { token, expires, asked: None }),
            2 => Ok(Stage::Held { token, expires, asked: Some(self.ask()?) }),
            3 => Ok(Stage::Closing { token, expires }),
            _ => Err(Garbled("the stage is unknown")),
        }
    }

    fn end(&self) -> Result<(), Garbled> {
        if self.0.is_empty() { Ok(()) } else { Err(Garbled("something stands behind its end")) }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn origins() -> impl Strategy<Value = Origin> {
        ("\\PC{0,12}", any::<u32>()).prop_map(|(host, pid)| Origin { host: host.as_str().into(), pid })
    }

    fn notes() -> impl Strategy<Value = Note> {
        "\\PC{0,20}".prop_map(|text| Note::new(text).unwrap_or_else(|_| Note::none()))
    }

    fn asks() -> impl Strategy<Value = Ask> {
        (notes(), origins()).prop_map(|(reason, by)| Ask { reason, by })
    }

    fn modes() -> impl Strategy<Value = Mode> {
        let permits = || (1..=u32::MAX).prop_map(|number| NonZeroU32::new(number).unwrap());
        prop_oneof![
            Just(Mode::Exclusive),
            Just(Mode::Shared),
            (permits(), permits()).prop_map(|(take, of)| Mode::Permits { take, of }),
        ]
    }

    fn tokens() -> impl Strategy<Value = Token> {
        (0..=i64::MAX as u64).prop_map(Token::new)
    }

    fn stages() -> impl Strategy<Value = Stage> {
        let instant = || any::<u64>().prop_map(Instant::from_nanos);
        prop_oneof![
            instant().prop_map(|alive_until| Stage::Waiting { alive_until }),
            (tokens(), instant(), proptest::option::of(asks())).prop_map(|(token, expires, asked)| Stage::Held {
                token,
                expires,
                asked
            }),
            (tokens(), instant()).prop_map(|(token, expires)| Stage::Closing { token, expires }),
        ]
    }

    fn tickets() -> impl Strategy<Value = Ticket> {
        let durations = proptest::array::uniform3(any::<u64>().prop_map(Duration::from_nanos));
        (any::<[u8; 16]>(), modes(), any::<u64>(), durations, notes(), origins(), any::<u64>(), stages()).prop_map(
            |(id, mode, client, [ttl, handover_ttl, lock_delay], note, origin, since, stage)| Ticket {
                id: ClaimId::from_bytes(id),
                mode,
                client,
                ttl,
                handover_ttl,
                lock_delay,
                note,
                origin,
                since: Instant::from_nanos(since),
                stage,
            },
        )
    }

    fn records() -> impl Strategy<Value = Record> {
        (0..5u8, tokens(), vec(tickets(), 0..6)).prop_map(|(kind, last, mut line)| {
            line.sort_by_key(|ticket| matches!(ticket.stage, Stage::Waiting { .. }));
            Record { kind: Kind::numbered(kind.into()).unwrap(), last, line: line.into() }
        })
    }

    fn bytes_of(record: &Record) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(record, &mut bytes);
        bytes
    }

    proptest! {
        #[test]
        fn a_record_survives_the_trip(record in records()) {
            let bytes = bytes_of(&record);
            prop_assert_eq!(decode(&bytes), Ok(record.clone()));
            prop_assert_eq!(decode_last(&bytes), Ok(record.last));
        }

        #[test]
        fn garbage_is_an_error_and_never_a_panic(bytes in vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn a_damaged_record_never_panics(record in records(), at in any::<prop::sample::Index>(), with in any::<u8>()) {
            let mut bytes = bytes_of(&record);
            let at = at.index(bytes.len());
            bytes[at] = with;
            let _ = decode(&bytes);
            prop_assert!(decode(&bytes[..at]).is_err(), "a record that was cut short is not one");
        }
    }

    #[test]
    fn a_line_of_the_smallest_tickets_is_still_a_line() {
        let nobody = Origin { host: "".into(), pid: 0 };
        let ticket = Ticket {
            id: ClaimId::from_bytes([0; 16]),
            mode: Mode::Exclusive,
            client: 0,
            ttl: Duration::ZERO,
            handover_ttl: Duration::ZERO,
            lock_delay: Duration::ZERO,
            note: Note::none(),
            origin: nobody,
            since: Instant::from_nanos(0),
            stage: Stage::Waiting { alive_until: Instant::from_nanos(0) },
        };
        let line: VecDeque<Ticket> = std::iter::repeat_n(ticket, 1000).collect();
        let record = Record { kind: Kind::Mutex, last: Token::new(0), line };
        assert_eq!(decode(&bytes_of(&record)), Ok(record));
    }

    #[test]
    fn a_count_from_nowhere_does_not_take_the_memory() {
        let mut bytes = bytes_of(&Record::new(Kind::Mutex, Token::new(1)));
        bytes[10..14].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(decode(&bytes).is_err());
    }
}
