//! The sequencer: a hold as one printable string, to hand to whatever the lock protects (Chubby's word).
//!
//! A token is a number, and whoever can write a number can write a huge one and lock everybody out of a resource that keeps the
//! highest it has seen. So a sequencer can be signed: `keys` is what signs, `signature` what comes of it. What the store
//! itself has to say about one is its `standing`.

pub(crate) mod keys;
pub(crate) mod signature;
pub(crate) mod standing;

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use self::keys::Keys;
use self::signature::Signature;
use crate::{Error, ErrorKind, Kind, LockName, Mode, Result, Token};

/// Which lock, which kind, which mode, which token, issued when: all that a protected resource needs to refuse a holder
/// that comes too late. Signed, if the client has [`Keys`], so that nobody else can make one.
///
/// ```
/// use tenure_core::Sequencer;
/// let text = "tenure1:mutex:exclusive:1731664000000001:1731664000000:invoices/2026";
/// let sequencer: Sequencer = text.parse()?;
/// assert_eq!(sequencer.token.get(), 1_731_664_000_000_001);
/// assert_eq!(sequencer.to_string(), text);
/// # Ok::<(), tenure_core::Error>(())
/// ```
///
/// Reading one proves nothing. A resource that has keys uses [`parse_verified`](Sequencer::parse_verified), which also refuses
/// those that are not signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequencer {
    /// What is locked.
    pub name: LockName,
    /// Its kind.
    pub kind: Kind,
    /// How it is held.
    pub mode: Mode,
    /// The fencing number.
    pub token: Token,
    /// When this string was made: milliseconds since 1970, to show, never to compare.
    pub issued_ms: u64,
    /// Who vouches for all of the above, and for nothing else; `None` if it is not signed.
    pub signature: Option<Signature>,
}

const VERSION: &str = "tenure1";
/// Every byte of the longest name escaped, the fields before it, and the signature.
const MAX_BYTES: usize = LockName::MAX_BYTES * 3 + 128 + keys::MAX_ID_BYTES + keys::MAC_LETTERS + 2;

impl Sequencer {
    /// A sequencer that nobody has signed.
    pub fn new(name: LockName, kind: Kind, mode: Mode, token: Token, issued_ms: u64) -> Self {
        Sequencer { name, kind, mode, token, issued_ms, signature: None }
    }

    /// The same, signed with the first of these keys.
    pub fn signed_with(self, keys: &Keys) -> Self {
        Sequencer { signature: Some(Signature::new(keys, &self.unsigned())), ..self }
    }

    /// The id of the key that it says it was signed with, good or not; `None` if it is not signed.
    pub fn signed_by(&self) -> Option<&str> {
        self.signature.as_ref().map(Signature::key_id)
    }

    /// `Ok` if it was signed with one of these keys and nothing in it was changed since; else
    /// [`BadSignature`](ErrorKind::BadSignature), whose text says what is wrong. Takes as long for a signature that is
    /// nearly right as for any other.
    pub fn verify(&self, keys: &Keys) -> Result<()> {
        let refuse = |what: String| Error::new(ErrorKind::BadSignature, what).with_name(&self.name);
        let Some(signature) = &self.signature else {
            return Err(refuse("the sequencer is not signed".to_owned())
                .with_hint("Give the holder a key: TENURE_KEYS_FILE, --keys, or Client::signed_with"));
        };
        match signature.verify(keys, &self.unsigned()) {
            Some(true) => Ok(()),
            Some(false) => Err(refuse(format!("the sequencer's signature with the key {:?} is wrong", signature.key_id()))
                .with_hint("It was changed, or made with another key of that id: do not trust it")),
            None => {
                let known: Vec<&str> = keys.ids().collect();
                Err(refuse(format!(
                    "the sequencer is signed with the key {:?}, which is not known here",
                    signature.key_id()
                ))
                .with_hint(format!(
                    "Known are: {}. Add the holder's key, or have it sign with one of these",
                    known.join(", ")
                )))
            }
        }
    }

    /// Reads a sequencer and verifies it: what a resource with keys does.
    pub fn parse_verified(text: &str, keys: &Keys) -> Result<Self> {
        let sequencer: Sequencer = text.parse()?;
        sequencer.verify(keys)?;
        Ok(sequencer)
    }

    /// The text without the signature, which is what the signature is about.
    fn unsigned(&self) -> String {
        let mut text = String::new();
        self.write_unsigned(&mut text).expect("a string takes everything");
        text
    }

    fn write_unsigned(&self, f: &mut impl fmt::Write) -> fmt::Result {
        let Sequencer { name, kind, mode, token, issued_ms, .. } = self;
        let kind = kind.as_str().replace(' ', "-");
        let mode = match mode {
            Mode::Exclusive => "exclusive".to_owned(),
            Mode::Shared => "shared".to_owned(),
            Mode::Permits { take, of } => format!("{take}/{of}"),
        };
        write!(f, "{VERSION}:{kind}:{mode}:{token}:{issued_ms}:")?;
        name.as_str().bytes().try_for_each(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => f.write_char(byte as char),
            _ => write!(f, "%{byte:02X}"),
        })
    }
}

impl fmt::Display for Sequencer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_unsigned(f)?;
        self.signature.as_ref().map_or(Ok(()), |signature| write!(f, ":{signature}"))
    }
}

impl From<&Sequencer> for Sequencer {
    fn from(sequencer: &Sequencer) -> Self {
        sequencer.clone()
    }
}

impl FromStr for Sequencer {
    type Err = Error;

    /// Strict: what was not printed by [`Display`](fmt::Display) to the letter is refused. It does not verify a signature.
    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| Error::new(ErrorKind::BadOption, format!("not a sequencer: {why}"));
        if text.len() > MAX_BYTES {
            return Err(bad("too long"));
        }
        let fields: Vec<&str> = text.splitn(9, ':').collect();
        let (kind, mode, token, issued_ms, name, signature) = match fields[..] {
            [VERSION, kind, mode, token, issued_ms, name] => (kind, mode, token, issued_ms, name, None),
            [VERSION, kind, mode, token, issued_ms, name, key, mac] => {
                let signature = Signature::parse(key, mac).ok_or_else(|| bad("its signature cannot be read"))?;
                (kind, mode, token, issued_ms, name, Some(signature))
            }
            _ => return Err(bad("expected tenure1:KIND:MODE:TOKEN:ISSUED:NAME, and :KEY:SIGNATURE if it is signed")),
        };
        let kind = Kind::ALL.into_iter().find(|known| known.as_str().replace(' ', "-") == kind);
        let token = token.parse().ok().filter(|token| *token <= i64::MAX as u64);
        let sequencer = Sequencer {
            name: LockName::new(crate::url::decode(name).ok_or_else(|| bad("the name is not escaped rightly"))?)?,
            kind: kind.ok_or_else(|| bad("unknown kind"))?,
            mode: parse_mode(mode).ok_or_else(|| bad("unknown mode"))?,
            token: Token::new(token.ok_or_else(|| bad("the token is no number"))?),
            issued_ms: issued_ms.parse().map_err(|_| bad("the time of issue is no number"))?,
            signature,
        };
        if sequencer.to_string() == text {
            Ok(sequencer)
        } else {
            Err(bad("it is written in another way than tenure writes it"))
        }
    }
}

fn parse_mode(text: &str) -> Option<Mode> {
    match text {
        "exclusive" => Some(Mode::Exclusive),
        "shared" => Some(Mode::Shared),
        _ => {
            let (take, of) = text.split_once('/')?;
            let (take, of): (NonZeroU32, NonZeroU32) = (take.parse().ok()?, of.parse().ok()?);
            (take <= of).then_some(Mode::Permits { take, of })
        }
    }
}

#[cfg(test)]
mod tests;
