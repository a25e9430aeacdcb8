//! A sequencer's signature: which key made it, and an HMAC-SHA256 of everything that is printed before it, the key's id included.

use std::fmt;

use super::keys::{self, Keys};

/// Who vouches for a sequencer: the id of a key, and what that key made of everything that is printed before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    key_id: String,
    mac: [u8; keys::MAC_BYTES],
}

impl Signature {
    /// Signs the text with the first of the keys.
    pub(super) fn new(keys: &Keys, unsigned: &str) -> Self {
        let key_id = keys.signer().to_owned();
        let mac = keys.mac(&format!("{unsigned}:{key_id}"));
        Signature { key_id, mac }
    }

    pub(super) fn parse(key_id: &str, mac: &str) -> Option<Self> {
        keys::check_id(key_id).ok()?;
        Some(Signature { key_id: key_id.to_owned(), mac: keys::decode_mac(mac)? })
    }

    /// Whether it is right; `None` if its key is not here.
    pub(super) fn verify(&self, keys: &Keys, unsigned: &str) -> Option<bool> {
        keys.made(&self.key_id, &format!("{unsigned}:{}", self.key_id), &self.mac)
    }

    /// The id of the key, good or not.
    pub fn key_id(&self) -> &str {
        &self.key_id
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.key_id, keys::encode_mac(&self.mac))
    }
}
