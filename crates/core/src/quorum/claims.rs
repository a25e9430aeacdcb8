//! What the quorum remembers of a claim: which round of asking is its latest, and which nodes hold it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

use crate::{Claim, ClaimId};

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
    filling: Option<Filling>,
}

/// Asking in the background those nodes that did not answer before the majority was complete.
pub(super) struct Filling {
    pub(super) task: AbortHandle,
    /// Locked while it runs.
    pub(super) runs: Arc<tokio::sync::Mutex<()>>,
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashMap<Stem, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that this round of the claim begins, and gives the claim as nodes shall know it.
    pub(super) fn begin(&self, claim: &Claim, round: u32) -> Claim {
        let id = id_of_round(claim.id, round);
        let entry = Entry { caller: claim.id, id, held: 0, filling: None };
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

    /// These nodes, a majority, granted it.
    pub(super) fn granted(&self, id: ClaimId, nodes: impl IntoIterator<Item = usize>) {
        if let Some(entry) = self.lock().get_mut(&stem(id)).filter(|entry| entry.id == id) {
            entry.held = nodes.into_iter().fold(0, |bits, node| bits | 1 << node);
        }
    }

    /// A node says whether it holds it. The caller's id and how many votes it has now; `None` if nothing is known of this claim, or
    /// not yet whether it is granted.
    pub(super) fn vote(&self, id: ClaimId, node: usize, holds: bool) -> Option<(ClaimId, usize)> {
        let mut claims = self.lock();
        let entry = claims.get_mut(&stem(id)).filter(|entry| entry.id == id && entry.held != 0)?;
        entry.held = if holds { entry.held | 1 << node } else { entry.held & !(1 << node) };
        Some((entry.caller, entry.held.count_ones() as usize))
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
