//! What proves to a client that a notification was sent by somebody who may write the tables.
//!
//! Any role may notify any channel, and whoever may read the tables knows the ids of claims. So a client that waits leaves a key in a table
//! which shows itself only to those who may write; whoever lets it in seals the message with that, and never sends the key itself. Whoever
//! hears a sealed message has the proof of one grant, which proves no other.

use sha2::{Digest, Sha256};

/// How much of the digest is sent: so much nobody guesses, and what is left out keeps a seal from being extended.
const SEAL_BYTES: usize = 16;

/// With which messages to one client are sealed.
#[derive(Clone)]
pub(crate) struct NotifyKey([u8; 32]);

impl NotifyKey {
    pub(crate) fn draw() -> Self {
        NotifyKey(tenure_core::random())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether this is the seal of a message, as the function `announce` makes it.
    pub(crate) fn has_sealed(&self, message: &str, seal: &str) -> bool {
        let digest = Sha256::new().chain_update(self.0).chain_update(message).finalize();
        let right: String = digest[..SEAL_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
        right == seal
    }
}
