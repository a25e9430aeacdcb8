//! Tickets, notes and messages as bytes.
//!
//! What the scripts must understand (tickets, messages) has the shape that Lua's `struct` library packs: little-endian,
//! and every time, duration and token a whole number of microseconds in a double, which is the only number Lua has. What
//! they only carry (who somebody is and what they say) is opaque to them. Whatever the bytes are, decoding gives a value or
//! a [`Garbled`] and never panics: the server belongs to everybody who may write to it.

use std::fmt;
use std::time::Duration;

use tenure_core::{Ask, Claim, ClaimId, Error, ErrorKind, Kind, Mode, Note, Origin, Token};

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
fn put_text(out: &mut Vec<u8>, says: &Note, who: &Origin) {
    // Hosts have 64 bytes or so; a longer one than a `u16` can say is cut, since it is only shown.
    let host = &who.host[..who.host.floor_char_boundary(u16::MAX as usize)];
    out.push(TEXT_VERSION);
    out.extend_from_slice(&who.pid.to_le_bytes());
    out.extend_from_slice(&(host.len() as u16).to_le_bytes());
    out.extend_from_slice(host.as_bytes());
    out.extend_from_slice(says.as_str().as_bytes());
}

/// Reads what [`put_text`] wrote.
fn decode_text(bytes: &[u8]) -> Result<(Note, Origin), Garbled> {
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
    let mut out = Vec::with_capacity(128);
    put_text(&mut out, &ask.reason, &ask.by);
    out
}

/// Reads what [`encode_ask`] wrote.
pub(crate) fn decode_ask(bytes: &[u8]) -> Result<Ask, Garbled> {
    let (reason, by) = decode_text(bytes)?;
    Ok(Ask { reason, by })
}

/// What a waiter's client draws for it and the server keeps where nobody reads it who may only look: a hand-over that knows it
/// was sent by the server. One claim has one, however often it is asked for.
pub(crate) type Secret = [u8; 16];

/// What a client is told in its inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A waiting claim was let in.
    Granted {
        /// Which.
        id: ClaimId,
        /// Its own, or nobody was let in.
        secret: Secret,
        /// Its token.
        token: Token,
        /// When, in microseconds of the server's clock.
        granted: u64,
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
                let (secret, token, granted) = (input.array().ok()?, input.token().ok()?, input.whole().ok()?);
                Message::Granted { id, secret, token, granted }
            }
            b'a' => return decode_ask(input.0).ok().map(|ask| Message::Asked(id, ask)),
            b'l' => Message::Lost(id),
            _ => return None,
        };
        input.0.is_empty().then_some(message)
    }
}

/// The part of a ticket that never changes, but for its mode: the claim as it is asked for.
pub(crate) fn encode_claim(claim: &Claim, inbox: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(96 + inbox.len() + claim.origin.host.len() + claim.note.as_str().len());
    let (mode, take, of) = mode_numbers(claim.mode);
    out.extend_from_slice(&[claim.kind.number(), mode]);
    out.extend_from_slice(&take.to_le_bytes());
    out.extend_from_slice(&of.to_le_bytes());
    for duration in [claim.ttl, claim.handover_ttl, claim.lock_delay] {
        out.extend_from_slice(&(micros(duration) as f64).to_le_bytes());
    }
    out.extend_from_slice(&u16::try_from(inbox.len()).expect("a channel's name is short").to_le_bytes());
    out.extend_from_slice(inbox);
    put_text(&mut out, &claim.note, &claim.origin);
    out
}

/// Microseconds, rounded up: a name stays closed for at least the time it was asked for.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX).min(NEVER)
}

/// A time that no server's clock reaches: the last whole number that a double tells from the one before. The year 2255.
pub(crate) const NEVER: u64 = 9_007_199_254_740_991;

/// A mode as the scripts know it: its number, and what it takes of how many. One rule lets everybody in: nobody has the
/// name exclusively, and what is taken and wanted is no more than there is.
pub(crate) fn mode_numbers(mode: Mode) -> (u8, u32, u32) {
    match mode {
        Mode::Exclusive => (0, 0, 0),
        Mode::Shared => (1, 1, u32::MAX),
        Mode::Permits { take, of } => (2, take.get(), of.get()),
    }
}

/// A ticket as the scripts keep it. Times are microseconds of the server's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) stage: Stage,
    /// Its number in line: the order of asking.
    pub(crate) number: u64,
    /// When it joined, or was granted.
    pub(crate) since: u64,
    /// When time alone ends it.
    pub(crate) ends: u64,
    /// 0 while it waits.
    pub(crate) token: Token,
    pub(crate) kind: Kind,
    pub(crate) mode: Mode,
    pub(crate) note: Note,
    pub(crate) origin: Origin,
}

/// Where a ticket stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Waiting,
    Held,
    Closing,
}

/// Reads a ticket. The durations and the inbox in it are the scripts' business alone.
pub(crate) fn decode_ticket(bytes: &[u8]) -> Result<Ticket, Garbled> {
    let mut input = Input(bytes);
    let stage = match input.u8()? {
        0 => Stage::Waiting,
        1 => Stage::Held,
        2 => Stage::Closing,
        _ => return Err(Garbled("a ticket's stage is unknown")),
    };
    let (number, since, ends, token) = (input.whole()?, input.whole()?, input.whole()?, input.token()?);
    let kind = Kind::numbered(input.u8()?.into()).ok_or(Garbled("a kind is unknown"))?;
    let mode = input.u8()?.into();
    let mut count = || input.array().map(|bytes| u32::from_le_bytes(bytes).into());
    let mode = Mode::numbered(mode, count()?, count()?).ok_or(Garbled("a ticket's mode is unknown"))?;
    let _durations: [u8; 24] = input.array()?;
    let inbox = u16::from_le_bytes(input.array()?);
    input.bytes(inbox.into())?;
    let (note, origin) = decode_text(input.0)?;
    Ok(Ticket { stage, number, since, ends, token, kind, mode, note, origin })
}

/// A token by itself: what is remembered of a hold that is over.
pub(crate) fn decode_token(bytes: &[u8]) -> Result<Token, Garbled> {
    Input(bytes).token()
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
        if number.fract() == 0.0 && (0.0..=NEVER as f64).contains(&number) {
            Ok(number as u64)
        } else {
            Err(Garbled("a number is not a whole one"))
        }
    }

    fn token(&mut self) -> Result<Token, Garbled> {
        self.whole().map(Token::new)
    }
}

fn text(bytes: &[u8]) -> Result<&str, Garbled> {
    std::str::from_utf8(bytes).map_err(|_| Garbled("a text is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;
    use tenure_core::LockName;

    use super::*;

    fn modes() -> impl Strategy<Value = Mode> {
        let permits = (1u32.., 1u32..).prop_map(|(take, of)| Mode::Permits {
            take: NonZeroU32::new(take).expect("not 0"),
            of: NonZeroU32::new(of).expect("not 0"),
        });
        prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared), permits]
    }

    fn text() -> impl Strategy<Value = (Note, Origin)> {
        ("[^\\p{C}]{0,40}", "[^\\p{C}]{0,20}", any::<u32>()).prop_map(|(note, host, pid)| {
            (Note::new(note).expect("nothing unprintable is in it"), Origin { host: host.as_str().into(), pid })
        })
    }

    proptest! {
        #[test]
        fn a_claim_is_read_as_it_was_written(
            mode in modes(), kind in prop::sample::select(&Kind::ALL[..]), (note, origin) in text(),
            inbox in prop::collection::vec(any::<u8>(), 0..80), numbers in prop::array::uniform4(0..=NEVER), stage in 0u8..3,
        ) {
            let claim = Claim {
                name: LockName::new("x").expect("it is a name"), kind, mode, id: ClaimId::from_bytes([7; 16]),
                ttl: Duration::from_nanos(1), handover_ttl: Duration::from_secs(2), lock_delay: Duration::MAX,
                min_hold: Duration::ZERO, note, origin,
            };
            // What `struct.pack('<Bdddd', …)` puts before it.
            let mut bytes = vec![stage];
            numbers.iter().for_each(|number| bytes.extend_from_slice(&(*number as f64).to_le_bytes()));
            bytes.extend(encode_claim(&claim, &inbox));
            let stage = [Stage::Waiting, Stage::Held, Stage::Closing][usize::from(stage)];
            let [number, since, ends, token] = numbers;
            let token = Token::new(token);
            let Claim { note, origin, .. } = claim;
            prop_assert_eq!(decode_ticket(&bytes), Ok(Ticket { stage, number, since, ends, token, kind, mode, note, origin }));
            for end in 0..bytes.len() {
                let _ = decode_ticket(&bytes[..end]); // cut short: anything but a panic
            }
        }

        #[test]
        fn an_ask_is_read_as_it_was_written((reason, by) in text()) {
            let ask = Ask { reason, by };
            prop_assert_eq!(decode_ask(&encode_ask(&ask)), Ok(ask.clone()));
            let letter = [b"a", &[7; 16][..], &encode_ask(&ask)].concat();
            prop_assert_eq!(Message::decode(&letter), Some(Message::Asked(ClaimId::from_bytes([7; 16]), ask)));
        }

        #[test]
        fn rubbish_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), first in prop::sample::select(&b"gal\0\x01\x02"[..])) {
            let bytes = [&[first], &bytes[..]].concat();
            let _ = (decode_ticket(&bytes), decode_ask(&bytes), Message::decode(&bytes));
        }
    }

    #[test]
    fn whole_numbers_only() {
        let whole = |number: f64| Input(&number.to_le_bytes()).whole();
        assert_eq!(whole(0.0), Ok(0));
        assert_eq!(whole(NEVER as f64), Ok(NEVER));
        for bad in [-1.0, 0.5, f64::NAN, f64::INFINITY, NEVER as f64 + 1.0] {
            assert!(whole(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_are_rounded_up() {
        assert_eq!(micros(Duration::from_nanos(1)), 1);
        assert_eq!(micros(Duration::from_micros(5)), 5);
        assert_eq!(micros(Duration::MAX), NEVER);
    }
}
