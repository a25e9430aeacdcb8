//! Tickets, notes and messages as bytes.
//!
//! What the scripts must understand (tickets, messages) has the shape that Lua's `struct` library packs: little-endian,
//! and every time, duration and token a whole number of microseconds in a double, which is the only number Lua has. What
//! they only carry (who somebody is and what they say) is opaque to them. Whatever the bytes are, decoding gives a value or
//! a [`Garbled`] and never panics: the server belongs to everybody who may write to it.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use tenure_core::{Ask, ClaimId, Error, ErrorKind, Mode, Note, Origin, Token};

/// Bytes that nobody here wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Garbled(pub(crate) &'static str);

impl fmt::Display for Garbled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "garbled: {}", self.0)
    }
}

impl std::error::Error for Garbled {}

impl From<Garbled> for Error {
    fn from(garbled: Garbled) -> Self {
        Error::new(ErrorKind::Backend, "what the server has or answered was not written by this library")
            .with_source(garbled)
            .with_hint("Does another program, or another version of this one, use the same prefix?")
    }
}

/// The first byte of every text that the scripts carry.
const TEXT_VERSION: u8 = 1;

/// Who somebody is and what they say: a claim's origin and note, or an ask's.
pub(crate) fn encode_text(says: &Note, who: &Origin) -> Vec<u8> {
    // Hosts have 64 bytes or so; a longer one than a `u16` can say is cut, since it is only shown.
    let host = &who.host[..who.host.floor_char_boundary(u16::MAX as usize)];
    let mut out = Vec::with_capacity(7 + host.len() + says.as_str().len());
    out.push(TEXT_VERSION);
    out.extend_from_slice(&who.pid.to_le_bytes());
    out.extend_from_slice(&(host.len() as u16).to_le_bytes());
    out.extend_from_slice(host.as_bytes());
    out.extend_from_slice(says.as_str().as_bytes());
    out
}

/// Reads what [`encode_text`] wrote.
pub(crate) fn decode_text(bytes: &[u8]) -> Result<(Note, Origin), Garbled> {
    let mut input = Input(bytes);
    if input.u8()? != TEXT_VERSION {
        return Err(Garbled("a text's version is unknown"));
    }
    let pid = u32::from_le_bytes(input.array()?);
    let host = u16::from_le_bytes(input.array()?);
    let host = text(input.bytes(host.into())?)?.into();
    let says = Note::new(text(input.0)?).map_err(|_| Garbled("a note is too long or has control characters"))?;
    Ok((says, Origin { host, pid }))
}

/// Somebody's request to let go.
pub(crate) fn encode_ask(ask: &Ask) -> Vec<u8> {
    encode_text(&ask.reason, &ask.by)
}

/// Reads what [`encode_ask`] wrote.
pub(crate) fn decode_ask(bytes: &[u8]) -> Result<Ask, Garbled> {
    let (reason, by) = decode_text(bytes)?;
    Ok(Ask { reason, by })
}

/// What a client is told in its inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A waiting claim was let in.
    Granted {
        /// Which.
        id: ClaimId,
        /// Its token.
        token: Token,
        /// When, in microseconds of the server's clock.
        granted: u64,
        /// How long the grant stands from then on unless it is renewed.
        left: Duration,
    },
    /// Somebody asks the holder of this claim to let go.
    Asked(ClaimId, Ask),
    /// This claim was ended by force.
    Lost(ClaimId),
}

impl Message {
    /// Reads a message; `None` if it is not one of ours.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = Input(bytes);
        let (what, id) = (input.u8().ok()?, ClaimId::from_bytes(input.array().ok()?));
        let message = match what {
            b'g' => {
                let (token, granted, left) = (input.token().ok()?, input.whole().ok()?, input.duration().ok()?);
                Message::Granted { id, token, granted, left }
            }
            b'a' => return decode_ask(input.0).ok().map(|ask| Message::Asked(id, ask)),
            b'l' => Message::Lost(id),
            _ => return None,
        };
        input.0.is_empty().then_some(message)
    }
}

/// A ticket as the scripts keep it. Times are microseconds of the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) stage: Stage,
    pub(crate) mode: Mode,
    /// Its number in line: the order of asking.
    pub(crate) number: u64,
    /// When it joined, or was granted.
    pub(crate) since: u64,
    /// When time alone ends it.
    pub(crate) ends: u64,
    /// 0 while it waits.
    pub(crate) token: Token,
}

/// Where a ticket stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Waiting,
    Held,
    Closing,
}

/// Reads a ticket: what `struct.pack` made of it in `line.lua`. The durations in it are the scripts' business alone.
pub(crate) fn decode_ticket(bytes: &[u8]) -> Result<Ticket, Garbled> {
    let mut input = Input(bytes);
    let stage = match input.u8()? {
        0 => Stage::Waiting,
        1 => Stage::Held,
        2 => Stage::Closing,
        _ => return Err(Garbled("a ticket's stage is unknown")),
    };
    let mode = input.u8()?;
    let mut count = || input.array().map(|bytes| NonZeroU32::new(u32::from_le_bytes(bytes)));
    let mode = match (mode, count()?, count()?) {
        (0, ..) => Mode::Exclusive,
        (1, ..) => Mode::Shared,
        (2, Some(take), Some(of)) => Mode::Permits { take, of },
        _ => return Err(Garbled("a ticket's mode is unknown")),
    };
    let number = input.whole()?;
    let [_ttl, _handover, _delay] = [input.duration()?, input.duration()?, input.duration()?];
    let (since, ends, token) = (input.whole()?, input.whole()?, input.token()?);
    Ok(Ticket { stage, mode, number, since, ends, token })
}

/// What is left to read.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Garbled> {
        let (head, tail) = self.0.split_at_checked(count).ok_or(Garbled("it ends too early"))?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Garbled> {
        let (head, tail) = self.0.split_first_chunk().ok_or(Garbled("it ends too early"))?;
        self.0 = tail;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, Garbled> {
        self.array().map(|[byte]| byte)
    }

    /// A whole number in a double.
    fn whole(&mut self) -> Result<u64, Garbled> {
        let number = f64::from_le_bytes(self.array()?);
        if number.fract() == 0.0 && (0.0..=LARGEST).contains(&number) {
            Ok(number as u64)
        } else {
            Err(Garbled("a number is not a whole one"))
        }
    }

    fn duration(&mut self) -> Result<Duration, Garbled> {
        self.whole().map(Duration::from_micros)
    }

    fn token(&mut self) -> Result<Token, Garbled> {
        self.whole().map(Token::new)
    }
}

/// The largest whole number that a double tells from its neighbours: microseconds until the year 2255.
const LARGEST: f64 = 9_007_199_254_740_991.0;

fn text(bytes: &[u8]) -> Result<&str, Garbled> {
    std::str::from_utf8(bytes).map_err(|_| Garbled("a text is not UTF-8"))
}
