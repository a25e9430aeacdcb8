//! The keys that sequencers are signed with: from a text, a file, or the environment.
//!
//! Whoever has a key can sign as well as verify, so keys belong to those who lock and to the resources they protect, and to
//! nobody else. The secret bytes are written nowhere: not by `Debug`, not in errors; they are zeroed when the last clone goes.

use std::fmt;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::{Error, ErrorKind, Result};

/// The variable with the keys themselves.
const KEYS: &str = "TENURE_KEYS";
/// The variable with the path of a file of keys.
const KEYS_FILE: &str = "TENURE_KEYS_FILE";

/// The bytes of an HMAC-SHA256.
pub(super) const MAC_BYTES: usize = 32;

/// A small ring of secret keys: the first one signs, all of them verify.
///
/// As a text it is one key a line (or between commas), `ID:SECRET`, where the id is 1 to 32 letters, digits, `.`, `_` or `-`, and
/// the secret at least 32 bytes in hex or base64. What follows a `#` at the beginning of a line is a comment. `tenure sequencer
/// key` prints a fresh one.
///
/// To change keys without refusing anybody: add the new key *below* the old one everywhere, then put it first everywhere, and
/// remove the old one when no sequencer that it signed is in use any more.
///
/// ```
/// use tenure_core::{Client, Keys, Sequencer, memory::Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure_core::Result<()> {
/// let keys = Keys::parse("2026-11:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")?;
/// let client = Client::new(Memory::new().backend())?.signed_with(keys.clone());
/// let guard = client.mutex("invoices")?.lock().await?;
/// let text = guard.sequencer().to_string(); // … goes to the resource with the request …
/// let sequencer = Sequencer::parse_verified(&text, &keys)?;
/// assert_eq!(sequencer.token, guard.token());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Keys(Arc<[Key]>);

struct Key {
    id: String,
    secret: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")?;
        f.debug_list().entries(self.ids()).finish()
    }
}

impl Keys {
    /// So many keys at most: two are enough to change them.
    pub const MOST: usize = 8;
    /// A key has so many bytes at least.
    pub const LEAST_BYTES: usize = 32;
    /// A key has so many bytes at most: more would be hashed first, and add nothing.
    pub const MOST_BYTES: usize = 1024;
    /// A file of keys has so many bytes at most.
    pub const MOST_FILE_BYTES: u64 = 64 * 1024;

    /// Reads keys from a text. No error shows anything of a secret.
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        let entries = lines.flat_map(|line| line.split(',')).map(str::trim).filter(|entry| !entry.is_empty());
        let mut keys: Vec<Key> = Vec::new();
        for (place, entry) in entries.enumerate() {
            let key = Key::parse(entry).map_err(|why| bad(format!("key {} is none: {why}", place + 1)))?;
            if keys.iter().any(|other| other.id == key.id) {
                return Err(bad(format!("two keys have the id {:?}", key.id)));
            }
            if keys.len() == Self::MOST {
                return Err(bad(format!("more than {} keys", Self::MOST)));
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(bad("there is no key"));
        }
        Ok(Keys(keys.into()))
    }

    /// Reads keys from a file, which must not be readable by everybody, nor writable by anybody but its owner.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let about = |error: Error| Error::new(ErrorKind::BadOption, format!("the keys in {}: {error}", path.display()));
        let failed = |error| about(Error::new(ErrorKind::BadOption, "it cannot be read").with_source(error));
        let file = std::fs::File::open(path).map_err(failed)?;
        // Of the file that was opened, not of whatever has its name by now.
        let metadata = file.metadata().map_err(failed)?;
        if is_open_to_others(&metadata) {
            let what = format!("the keys in {}: others may read or change them", path.display());
            return Err(Error::new(ErrorKind::BadOption, what)
                .with_hint(format!("Run chmod 600 {}, and use new keys if others may have seen these", path.display())));
        }
        let mut text = Zeroizing::new(Vec::new());
        file.take(Self::MOST_FILE_BYTES + 1).read_to_end(&mut text).map_err(failed)?;
        if text.len() as u64 > Self::MOST_FILE_BYTES {
            return Err(about(bad("the file is too long")));
        }
        let text = std::str::from_utf8(&text).map_err(|_| about(bad("it is not UTF-8 text")))?;
        Keys::parse(text).map_err(about)
    }

    /// Reads keys from the environment: `TENURE_KEYS` has the keys themselves, `TENURE_KEYS_FILE` the path of a file of them.
    /// `None` if neither is set.
    pub fn from_env() -> Result<Option<Self>> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self::from_variables(set(KEYS), set(KEYS_FILE))
    }

    fn from_variables(keys: Option<std::ffi::OsString>, file: Option<std::ffi::OsString>) -> Result<Option<Self>> {
        match (keys, file) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => Err(Error::new(ErrorKind::BadOption, format!("both {KEYS} and {KEYS_FILE} are set"))
                .with_hint("Set one of them, so that it is clear which keys are meant")),
            (None, Some(path)) => Self::from_file(path).map(Some),
            (Some(text), None) => {
                let text = text.into_string().map_err(|_| bad(format!("{KEYS} is not UTF-8 text")))?;
                let text = Zeroizing::new(text);
                let about = |error| Error::new(ErrorKind::BadOption, format!("the keys in {KEYS}: {error}"));
                Keys::parse(&text).map(Some).map_err(about)
            }
        }
    }

    /// A fresh key of 32 random bytes, alone in its ring.
    ///
    /// ```
    /// use tenure_core::Keys;
    /// let keys = Keys::generate("2026-11")?;
    /// assert_eq!(keys.ids().collect::<Vec<_>>(), ["2026-11"]);
    /// assert!(Keys::parse(&keys.reveal()).is_ok());
    /// # Ok::<(), tenure_core::Error>(())
    /// ```
    pub fn generate(id: &str) -> Result<Self> {
        check_id(id).map_err(bad)?;
        let mut secret = Zeroizing::new(vec![0; Self::LEAST_BYTES]);
        getrandom::fill(&mut secret).map_err(|error| bad("the kernel has no random numbers").with_source(error))?;
        Ok(Keys([Key { id: id.to_owned(), secret }].into()))
    }

    /// The keys as a text that [`parse`](Keys::parse) reads, secrets and all: for the one place that keeps them.
    pub fn reveal(&self) -> String {
        self.0.iter().map(|key| format!("{}:{}\n", key.id, URL_SAFE_NO_PAD.encode(&key.secret))).collect()
    }

    /// The ids, in order: the first one signs.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|key| &*key.id)
    }

    /// The id of the key that signs.
    pub(super) fn signer(&self) -> &str {
        &self.0[0].id
    }

    /// What the key that signs makes of a text.
    pub(super) fn mac(&self, text: &str) -> [u8; MAC_BYTES] {
        self.0[0].hash(text).finalize().into_bytes().into()
    }

    /// Whether the key of this id made that of the text, in a time that does not tell how nearly; `None` if it is not here.
    pub(super) fn made(&self, id: &str, text: &str, mac: &[u8; MAC_BYTES]) -> Option<bool> {
        let key = self.0.iter().find(|key| key.id == id)?;
        Some(key.hash(text).verify_slice(mac).is_ok())
    }
}

impl Key {
    /// Says why not, and nothing of the secret. Nor of the id, before it is known to be one: it may be the secret.
    fn parse(entry: &str) -> Result<Self, &'static str> {
        let (id, secret) = entry.split_once(':').ok_or("expected ID:SECRET, with the secret in hex or base64")?;
        let (id, secret) = (id.trim(), secret.trim());
        check_id(id)?;
        let secret = decode(secret).ok_or("its secret is neither hex nor base64")?;
        if secret.len() < Keys::LEAST_BYTES {
            return Err("its secret has fewer than 32 bytes");
        }
        if secret.len() > Keys::MOST_BYTES {
            return Err("its secret has more than 1024 bytes");
        }
        Ok(Key { id: id.to_owned(), secret })
    }

    fn hash(&self, text: &str) -> Hmac<Sha256> {
        let mut hash = Hmac::<Sha256>::new_from_slice(&self.secret).expect("a key of any length will do");
        hash.update(text.as_bytes());
        hash
    }
}

/// `Ok` if this can be a key's id.
pub(super) fn check_id(id: &str) -> Result<(), &'static str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if (1..=MAX_ID_BYTES).contains(&id.len()) && id.bytes().all(is_plain) {
        Ok(())
    } else {
        Err("its id is not 1 to 32 letters, digits, '.', '_' or '-'")
    }
}

/// The longest id.
pub(super) const MAX_ID_BYTES: usize = 32;

/// Hex if it can be, else base64 of either alphabet, with or without padding.
fn decode(secret: &str) -> Option<Zeroizing<Vec<u8>>> {
    if secret.len().is_multiple_of(2) && secret.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or_default() as u8;
        let bytes = secret.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1]));
        return Some(Zeroizing::new(bytes.collect()));
    }
    let bare = secret.trim_end_matches('=');
    URL_SAFE_NO_PAD.decode(bare).or_else(|_| STANDARD_NO_PAD.decode(bare)).ok().map(Zeroizing::new)
}

/// How a MAC is written.
pub(super) fn encode_mac(mac: &[u8; MAC_BYTES]) -> String {
    URL_SAFE_NO_PAD.encode(mac)
}

/// Reads a MAC.
pub(super) fn decode_mac(text: &str) -> Option<[u8; MAC_BYTES]> {
    if text.len() != MAC_LETTERS {
        return None;
    }
    URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()
}

/// How many letters a MAC has.
pub(super) const MAC_LETTERS: usize = 43;

fn bad(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadOption, what)
}

#[cfg(unix)]
fn is_open_to_others(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    // A group may share the right to read: that is how a service's keys are handed to it.
    metadata.permissions().mode() & 0o026 != 0
}

#[cfg(not(unix))]
fn is_open_to_others(_: &std::fs::Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests;
