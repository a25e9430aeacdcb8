//! What the quorum remembers of a claim: which round of asking is its latest, and which nodes hold it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

use crate::{Claim, ClaimId, Mode, Token};

/// As many as there are bits for votes.
pub(super) const MOST_NODES: usize = 63;

/// All claims that were asked for and not yet ended, by what all rounds of one have in common.
#[derive(Default)]
pub(super) struct Claims(Mutex<HashMap<Stem, Entry>>);

/// A claim's id without the four bytes that tell its rounds apart.
type Stem = [u8; 12];

struct Entry {
    caller: ClaimId,
    /// The id of its latest round.
    id: ClaimId,
    /// The nodes that hold it, as far as is known.
    held: u64,
    /// The nodes whose votes count. Where a reader became the writer it is the writer only at those that made it so.
    counts: u64,
    /// How often a conversion of it began or ended: odd while one is under way.
    conversions: u32,
    /// How it is held, as far as is known, and the token that was given for it.
    mode: Mode,
    token: Token,
    /// The newest token that each node is known to have given for it.
    tokens: HashMap<usize, Token>,
    filling: Option<Filling>,
}

/// Asking in the background those nodes that did not answer before the majority was complete.
pub(super) struct Filling {
    pub(super) task: AbortHandle,
    /// Locked while it runs.
    pub(super) runs: Arc<tokio::sync::Mutex<()>>,
}

/// A conversion under way.
pub(super) struct Converting<'a> {
    claims: &'a Claims,
    id: ClaimId,
    /// How often a conversion of this claim began or ended, this one included.
    pub(super) turn: u32,
}

impl Drop for Converting<'_> {
    fn drop(&mut self) {
        self.claims.lock().get_mut(&stem(self.id)).into_iter().for_each(|entry| entry.conversions += 1);
    }
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashMap<Stem, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that this round of the claim begins, and gives the claim as nodes shall know it.
    pub(super) fn begin(&self, claim: &Claim, round: u32) -> Claim {
        let id = id_of_round(claim.id, round);
        let (mode, token, tokens) = (claim.mode, Token::new(0), HashMap::new());
        let (caller, held, counts, conversions, filling) = (claim.id, 0, EVERY_NODE, 0, None);
        let entry = Entry { caller, id, held, counts, conversions, mode, token, tokens, filling };
        self.lock().insert(stem(claim.id), entry);
        Claim { id, ..claim.clone() }
    }

    /// The claim as nodes know it.
    pub(super) fn latest(&self, claim: &Claim) -> Claim {
        let id = self.lock().get(&stem(claim.id)).map_or(claim.id, |entry| entry.id);
        Claim { id, ..claim.clone() }
    }

    /// Whose round this is, if it is the latest.
    pub(super) fn caller(&self, id: ClaimId) -> Option<ClaimId> {
        self.lock().get(&stem(id)).filter(|entry| entry.id == id).map(|entry| entry.caller)
    }

    /// A majority granted it, each node with a token of its own.
    pub(super) fn granted(&self, id: ClaimId, votes: impl IntoIterator<Item = (usize, Token)>, token: Token) {
        if let Some(entry) = self.lock().get_mut(&stem(id)).filter(|entry| entry.id == id) {
            entry.tokens = votes.into_iter().collect();
            entry.held = bits(entry.tokens.keys().copied());
            entry.token = token;
        }
    }

    /// A node granted it after the majority was complete.
    pub(super) fn granted_late(&self, id: ClaimId, node: usize, token: Token) {
        if let Some(entry) = self.lock().get_mut(&stem(id)).filter(|entry| entry.id == id) {
            entry.tokens.entry(node).or_insert(token);
        }
    }

    /// Whether a conversion is of this hold, or asks for what it is already: the entry rule's, for the caller's token.
    pub(super) fn is_convertible(&self, id: ClaimId, to: Mode, token: Token) -> bool {
        self.lock().get(&stem(id)).is_some_and(|entry| entry.mode == to || entry.token == token)
    }

    /// The token that a conversion at this node must carry. `None` if the node is not known to have granted it.
    pub(super) fn token_at(&self, id: ClaimId, node: usize) -> Option<Token> {
        self.lock().get(&stem(id)).filter(|entry| entry.id == id)?.tokens.get(&node).copied()
    }

    /// A node said with which token it holds it. To be noted before anything is sent that carries it: an upgrade that begins
    /// then carries it too, and so has a newer one. `false`, and nothing is noted, if another conversion has begun or ended
    /// since that turn: then nothing that carries it may be sent any more.
    pub(super) fn learned(&self, id: ClaimId, node: usize, token: Token, turn: u32) -> bool {
        let mut claims = self.lock();
        let Some(entry) = claims.get_mut(&stem(id)).filter(|entry| entry.id == id && entry.conversions == turn) else {
            return false;
        };
        entry.tokens.insert(node, token);
        true
    }

    /// Its mode was changed, by these nodes: only theirs count if it is the writer now, and anybody's if it reads. The token
    /// it has from now on: at least `token`.
    pub(super) fn converted(&self, id: ClaimId, to: Mode, nodes: impl IntoIterator<Item = usize>, token: Token) -> Token {
        let mut claims = self.lock();
        let Some(entry) = claims.get_mut(&stem(id)) else { return token };
        entry.counts = if to == Mode::Exclusive { bits(nodes) } else { EVERY_NODE };
        entry.mode = to;
        // A majority's tokens need not rise where they are no fence, but an upgrade has another one.
        let next = if to == Mode::Exclusive { Token::next(entry.token, 0) } else { entry.token };
        entry.token = next.max(token);
        entry.token
    }

    /// A conversion begins; it ends when what is given is dropped.
    pub(super) fn converts(&self, id: ClaimId) -> Converting<'_> {
        let mut claims = self.lock();
        let entry = claims.get_mut(&stem(id));
        let turn = entry.map_or(0, |entry| {
            entry.conversions += 1;
            entry.conversions
        });
        Converting { claims: self, id, turn }
    }

    /// How often a conversion of it began or ended: odd while one is under way.
    pub(super) fn conversions(&self, id: ClaimId) -> u32 {
        self.lock().get(&stem(id)).map_or(0, |entry| entry.conversions)
    }

    /// Whether this node's vote counts.
    pub(super) fn counts(&self, id: ClaimId, node: usize) -> bool {
        self.lock().get(&stem(id)).is_none_or(|entry| entry.counts & (1 << node) != 0)
    }

    /// A node says whether it holds it. The caller's id and how many votes it has now; `None` if nothing is known of this claim, or
    /// not yet whether it is granted.
    pub(super) fn vote(&self, id: ClaimId, node: usize, holds: bool) -> Option<(ClaimId, usize)> {
        let mut claims = self.lock();
        let entry = claims.get_mut(&stem(id)).filter(|entry| entry.id == id && entry.held != 0)?;
        entry.held = if holds { entry.held | 1 << node } else { entry.held & !(1 << node) };
        Some((entry.caller, (entry.held & entry.counts).count_ones() as usize))
    }

    /// Asks go on in the background. Refused, and stopped, if the claim was ended meanwhile.
    pub(super) fn fills(&self, id: ClaimId, filling: Filling) {
        match self.lock().get_mut(&stem(id)).filter(|entry| entry.id == id) {
            Some(entry) => entry.filling = Some(filling),
            None => filling.task.abort(),
        }
    }

    /// Stops asking in the background. What is given is locked until it has stopped.
    pub(super) fn stop_filling(&self, id: ClaimId) -> Option<Arc<tokio::sync::Mutex<()>>> {
        let claims = self.lock();
        let filling = claims.get(&stem(id))?.filling.as_ref()?;
        filling.task.abort();
        Some(Arc::clone(&filling.runs))
    }

    /// The claim is over, unless it is in another round by now.
    pub(super) fn forget(&self, id: ClaimId) {
        let mut claims = self.lock();
        if claims.get(&stem(id)).is_some_and(|entry| entry.id == id) {
            claims.remove(&stem(id));
        }
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }
}

const EVERY_NODE: u64 = u64::MAX;

fn bits(nodes: impl IntoIterator<Item = usize>) -> u64 {
    nodes.into_iter().fold(0, |bits, node| bits | 1 << node)
}

fn stem(id: ClaimId) -> Stem {
    *id.as_bytes().first_chunk().expect("an id has 16 bytes")
}

/// Round 0 is the claim's own id; every other differs in its last four bytes.
fn id_of_round(id: ClaimId, round: u32) -> ClaimId {
    let mut bytes = *id.as_bytes();
    for (byte, mask) in bytes[12..].iter_mut().zip(round.to_be_bytes()) {
        *byte ^= mask;
    }
    ClaimId::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_have_ids_of_their_own_and_a_stem_in_common() {
        let id = ClaimId::from_bytes(*b"sixteen  secrets");
        assert_eq!(id_of_round(id, 0), id);
        let mut ids: Vec<ClaimId> = (0..1_000).map(|round| id_of_round(id, round * 77_777)).collect();
        assert!(ids.iter().all(|round| stem(*round) == stem(id)));
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 1_000);
    }
}
