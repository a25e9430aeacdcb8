//! The sequencer: a hold as one printable string, to hand to whatever the lock protects (Chubby's word).

use std::fmt::{self, Write as _};
use std::num::NonZeroU32;
use std::str::FromStr;

use crate::{Error, ErrorKind, Kind, LockName, Mode, Result, Token};

/// Which lock, which kind, which mode, which token, issued when: all that a protected resource needs to refuse a holder
/// that comes too late.
///
/// ```
/// use tenure_core::Sequencer;
/// let text = "tenure1:mutex:exclusive:1731664000000001:1731664000000:invoices/2026";
/// let sequencer: Sequencer = text.parse()?;
/// assert_eq!(sequencer.token.get(), 1_731_664_000_000_001);
/// assert_eq!(sequencer.to_string(), text);
/// # Ok::<(), tenure_core::Error>(())
/// ```
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
}

const VERSION: &str = "tenure1";
/// Every byte of the longest name escaped, and the fields before it.
const MAX_BYTES: usize = LockName::MAX_BYTES * 3 + 128;

impl fmt::Display for Sequencer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sequencer { name, kind, mode, token, issued_ms } = self;
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

impl FromStr for Sequencer {
    type Err = Error;

    /// Strict: what was not printed by [`Display`](fmt::Display) to the letter is refused.
    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| Error::new(ErrorKind::BadOption, format!("not a sequencer: {why}"));
        if text.len() > MAX_BYTES {
            return Err(bad("too long"));
        }
        let fields: Vec<&str> = text.split(':').collect();
        let [VERSION, kind, mode, token, issued_ms, name] = fields[..] else {
            return Err(bad("expected tenure1:KIND:MODE:TOKEN:ISSUED:NAME"));
        };
        let kind = Kind::ALL.into_iter().find(|known| known.as_str().replace(' ', "-") == kind);
        let token = token.parse().ok().filter(|token| *token <= i64::MAX as u64);
        let sequencer = Sequencer {
            name: LockName::new(crate::url::decode(name).ok_or_else(|| bad("the name is not escaped rightly"))?)?,
            kind: kind.ok_or_else(|| bad("unknown kind"))?,
            mode: parse_mode(mode).ok_or_else(|| bad("unknown mode"))?,
            token: Token::new(token.ok_or_else(|| bad("the token is no number"))?),
            issued_ms: issued_ms.parse().map_err(|_| bad("the time of issue is no number"))?,
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_name_survives(name in "\\PC{1,80}", token in 0..=i64::MAX as u64, issued_ms: u64) {
            let Ok(name) = LockName::new(&name) else { return Ok(()) };
            let sequencer = Sequencer { name, kind: Kind::RwLock, mode: Mode::Shared, token: Token::new(token), issued_ms };
            prop_assert_eq!(sequencer.to_string().parse::<Sequencer>().unwrap(), sequencer);
        }

        #[test]
        fn rubbish_is_refused_and_never_panics(text in "(tenure1)?[:%a-z0-9/é-]{0,60}") {
            if let Ok(sequencer) = text.parse::<Sequencer>() {
                prop_assert_eq!(sequencer.to_string(), text);
            }
        }
    }

    #[test]
    fn near_misses_are_refused() {
        let good = "tenure1:semaphore:2/4:17:5:a%20b";
        assert!(good.parse::<Sequencer>().is_ok());
        for bad in [
            "",
            "tenure1",
            "tenure2:semaphore:2/4:17:5:a",
            "tenure1:semaphore:5/4:17:5:a",
            "tenure1:semaphore:0/4:17:5:a",
            "tenure1:mutex:exclusive:+17:5:a",
            "tenure1:mutex:exclusive:017:5:a",
            "tenure1:mutex:exclusive:17:5:a b",
            "tenure1:mutex:exclusive:17:5:%61",
            "tenure1:mutex:exclusive:17:5:",
            "tenure1:mutex:exclusive:9223372036854775808:5:a",
            "tenure1:mutex:exclusive:17:5:a:b",
            "tenure1:mutex:exclusive:17:5:%c3",
            "tenure1:mutex:exclusive:17:5:a%2",
        ] {
            assert!(bad.parse::<Sequencer>().is_err(), "{bad}");
        }
    }
}
