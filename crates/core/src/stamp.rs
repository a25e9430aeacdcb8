//! Which text the functions in a database were made of, so that a repaired one reaches the databases that have them already.

use crate::backend::{Finding, Level};

/// What is stamped into a database with the functions that were made there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The release that made them: 1.2.3 is 1002003.
    pub release: u32,
    /// A hash of their text.
    pub text: u32,
}

impl Stamp {
    /// That of this release and these texts.
    pub fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Stamp {
        // FNV-1a, which is the same everywhere and for ever. Nobody gains anything by two texts with one hash.
        let bytes = texts.into_iter().flat_map(str::bytes);
        let text = bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let parts = env!("CARGO_PKG_VERSION").split(['.', '-', '+']).take(3).filter_map(|part| part.parse::<u32>().ok());
        Stamp { release: parts.fold(0, |release, part| release * 1_000 + part), text }
    }

    /// Whether functions with this stamp are to be made anew by a program with ours: they have another text, and that is not of a
    /// newer release. Programs of several releases use one database, and the older ones must not take the repair back.
    pub fn replaces(self, found: Option<Stamp>) -> bool {
        found.is_none_or(|found| found.text != self.text && found.release <= self.release)
    }

    /// What `doctor` says of functions with this stamp.
    pub fn finding(self, found: Option<Stamp>) -> Finding {
        let words = |release: u32| format!("{}.{}.{}", release / 1_000_000, release / 1_000 % 1_000, release % 1_000);
        let (level, says) = match found {
            Some(found) if found.text == self.text => (Level::Good, "those of this program".to_owned()),
            Some(found) if !self.replaces(Some(found)) => {
                (Level::Good, format!("of release {}, which is newer", words(found.release)))
            }
            _ => {
                let of = found.map_or(String::new(), |found| format!(", but of release {},", words(found.release)));
                let says = format!(
                    "not those of this program{of} and this user may not, or should not, make them anew: have their owner run \
                     `tenure migrate`"
                );
                (Level::Warning, says)
            }
        };
        Finding { level, what: "functions".to_owned(), says }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_text_replaces_that_of_the_same_and_of_older_releases() {
        let (ours, same) = (Stamp::of(["a", "b"]), Stamp::of(["ab"]));
        assert_eq!(ours, same);
        let other = Stamp { text: ours.text + 1, ..ours };
        let [newer, older] = [1, -1].map(|by| Stamp { release: other.release.saturating_add_signed(by), ..other });
        assert!(ours.replaces(None) && ours.replaces(Some(other)) && ours.replaces(Some(older)));
        assert!(!ours.replaces(Some(ours)) && !ours.replaces(Some(newer)));
        let says = |found| ours.finding(found).level;
        assert_eq!([says(Some(ours)), says(Some(newer))], [Level::Good; 2]);
        assert_eq!([says(Some(other)), says(Some(older)), says(None)], [Level::Warning; 3]);
        assert_ne!(Stamp::of(["ac"]).text, ours.text);
    }
}
