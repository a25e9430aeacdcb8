//! The line of one name: what must be read to know who gets in, and what comes of it.
//!
//! The line is the claims' keys by create revision, and whoever the entry rule ([`admit`]) lets in *holds*, whether it has heard of
//! it or not: nobody needs to write a grant. An ask reads only what its own answer depends on: the first and the one in front
//! for whoever wants to be alone, the first and the last writer for a reader, the whole line for permits. A property test holds
//! what comes of these few reads to the rule over the whole line.

use tenure_core::{ClaimId, Entry, Kind, Mode, Token, admit};

use crate::codec::Value;
use crate::proto::{KeyValue, RangeRequest, RangeResponse};
use crate::schema::{Parsed, Place, Range, Schema};

/// What a claim learns from its reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It is in.
    Enter,
    /// It waits behind this.
    Behind(Front),
    /// It is not in line.
    Gone,
}

/// What a waiter watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Front {
    /// A key, or the beginning of a range.
    pub(crate) key: Vec<u8>,
    /// The end of the range; empty for one key.
    pub(crate) to: Vec<u8>,
    /// The create revision of the key: it may be used again.
    pub(crate) revision: i64,
    /// Nothing else is ahead: when this is gone, nobody is.
    pub(crate) only: bool,
}

impl Front {
    fn one(kv: &KeyValue, only: bool) -> Self {
        Front { key: kv.key.clone(), to: Vec::new(), revision: kv.create_revision, only }
    }

    fn all(range: &Range) -> Self {
        Front { key: range.from.clone(), to: range.to.clone(), revision: 0, only: false }
    }
}

/// What a newcomer must read in the transaction that puts its key, which is the last in line then: one read, as the server says how many there
/// are.
pub(crate) fn first_read(place: &Place, mode: Mode) -> RangeRequest {
    match mode {
        Mode::Permits { .. } => RangeRequest::of(&place.kind).oldest(0).keys(),
        Mode::Shared => RangeRequest::of(&place.writers).newest(1),
        Mode::Exclusive => RangeRequest::of(&place.kind).newest(2).keys(),
    }
}

/// What that says.
pub(crate) fn first_seen(schema: &Schema, place: &Place, mode: Mode, key: &[u8], read: &RangeResponse) -> Seen {
    match (mode, read.kvs.as_slice()) {
        (Mode::Exclusive, [mine]) if mine.key == key => Seen::Enter,
        (Mode::Exclusive, [mine, front]) if mine.key == key => Seen::Behind(Front::one(front, read.count == 2)),
        (Mode::Exclusive, _) => Seen::Gone,
        (Mode::Shared, []) => Seen::Enter,
        (Mode::Shared, [last, ..]) if Value::decode(&last.value).shared => Seen::Enter,
        (Mode::Shared, [last, ..]) => Seen::Behind(Front::one(last, read.count == 1)),
        (Mode::Permits { .. }, line) => permits(schema, place, key, line),
    }
}

/// What a claim must read, as of the newest key that concerns it: its own, or 0 for all.
pub(crate) fn reads(place: &Place, kind: Kind, mode: Mode, up_to: i64) -> Vec<RangeRequest> {
    let line = |range: &Range| RangeRequest::of(range).up_to(up_to);
    match (kind, mode) {
        (_, Mode::Permits { .. }) => vec![line(&place.kind).oldest(0).keys()],
        // With their values: a writer that became a reader keeps its place and its key.
        (_, Mode::Shared) => vec![line(&place.writers).oldest(1), line(&place.writers).newest(1)],
        (_, Mode::Exclusive) => vec![line(&place.kind).oldest(1).keys(), line(&place.kind).newest(2).keys()],
    }
}

/// What the reads of the claim with this key say.
pub(crate) fn seen(schema: &Schema, place: &Place, mode: Mode, key: &[u8], reads: &[Vec<KeyValue>]) -> Seen {
    match (mode, reads) {
        (Mode::Exclusive, [oldest, newest]) => match (oldest.first(), newest.as_slice()) {
            (Some(first), _) if first.key == key => Seen::Enter,
            (Some(first), [mine, front]) if mine.key == key => Seen::Behind(Front::one(front, first.key == front.key)),
            _ => Seen::Gone,
        },
        (Mode::Shared, [oldest, newest]) => match (oldest.first(), newest.first()) {
            // Only who holds can become a reader, so nobody is before it; a writer after it would be the last.
            (Some(_), Some(last)) if Value::decode(&last.value).shared => Seen::Enter,
            (Some(first), Some(last)) => Seen::Behind(Front::one(last, first.key == last.key)),
            _ => Seen::Enter,
        },
        (Mode::Permits { .. }, [line]) => permits(schema, place, key, line),
        _ => Seen::Gone,
    }
}

/// The first who must wait watches everybody, the others watch the one before them.
fn permits(schema: &Schema, place: &Place, key: &[u8], line: &[KeyValue]) -> Seen {
    let tickets: Vec<_> = line.iter().filter_map(|kv| Some((kv, schema.parse(&kv.key)?))).collect();
    let rule = || tickets.iter().map(|(_, parsed)| (stand_in(&parsed.seat), parsed.mode));
    let Some(mine) = tickets.iter().position(|(kv, _)| kv.key == key) else { return Seen::Gone };
    let enters = |at: usize| admit(rule(), stand_in(&tickets[at].1.seat)) == Entry::Enter;
    if enters(mine) {
        return Seen::Enter;
    }
    if mine == 0 || enters(mine - 1) {
        return Seen::Behind(Front::all(&place.kind));
    }
    Seen::Behind(Front::one(tickets[mine - 1].0, false))
}

/// An id for the entry rule, which only compares them: the claim's own is not in the store.
pub(crate) fn stand_in(shown: &str) -> ClaimId {
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(shown.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(pair).unwrap_or_default();
        *byte = u8::from_str_radix(digits, 16).unwrap_or_default();
    }
    ClaimId::from_bytes(bytes)
}

/// One claim of a line that was read whole.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    pub(crate) kv: KeyValue,
    pub(crate) parsed: Parsed,
    pub(crate) value: Value,
    /// As the entry rule sees it now.
    pub(crate) mode: Mode,
    /// Whether it holds.
    pub(crate) holds: bool,
}

impl Ticket {
    /// Its fencing number, if it holds: the create revision of its key, which rises along the line.
    pub(crate) fn token(&self) -> Token {
        Token::new(self.kv.create_revision as u64)
    }
}

/// Puts together what a name's keys say, oldest first, and applies the rule.
pub(crate) fn line(schema: &Schema, kvs: Vec<KeyValue>) -> Vec<Ticket> {
    let mut tickets: Vec<Ticket> = Vec::new();
    for kv in kvs {
        let Some(parsed) = schema.parse(&kv.key) else { continue };
        let value = Value::decode(&kv.value);
        let mode = value.mode(parsed.mode);
        tickets.push(Ticket { kv, parsed, value, mode, holds: false });
    }
    tickets.sort_by_key(|ticket| ticket.kv.create_revision);
    let rule: Vec<_> = tickets.iter().map(|ticket| (stand_in(&ticket.parsed.seat), ticket.mode)).collect();
    for (place, ticket) in tickets.iter_mut().enumerate() {
        // Whoever is let in is a prefix of the line.
        ticket.holds = admit(rule[..=place].iter().copied(), rule[place].0) == Entry::Enter;
        if !ticket.holds {
            break;
        }
    }
    tickets
}

#[cfg(test)]
mod tests;
