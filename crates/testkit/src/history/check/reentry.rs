//! P11: entries of one owner into one hold share its token.

use std::collections::HashMap;

use super::super::{Hold, Kind};
use super::Broken;

/// P11: an owner that enters while it is inside gets the token it has; one that enters after it was out gets a new one.
pub(super) fn same_token(holds: &[Hold], broken: &mut Broken<'_>) {
    let mut owners: HashMap<u64, Vec<&Hold>> = HashMap::new();
    for hold in holds.iter().filter(|hold| hold.kind == Kind::Reentrant) {
        if let Some(owner) = hold.owner {
            owners.entry(owner).or_default().push(hold);
        }
    }
    for entries in owners.values() {
        for (place, entry) in entries.iter().enumerate() {
            let before = &entries[..place];
            if let Some(held) = before.iter().find(|held| held.to > entry.from && held.token != entry.token) {
                let (ours, theirs) = (entry.token, held.token);
                broken
                    .because(format!("an entry at {} has token {ours} while its owner is inside with {theirs}", entry.from));
            }
            // Out is only who knows that it is out, and nobody else of that owner may have been inside meanwhile, whether
            // or not it had come to write that down.
            let same = |held: &&&Hold| held.token == entry.token && held.claim != entry.claim && held.invoked < entry.from;
            let is_out = |held: &&Hold| held.gone.is_some_and(|gone| gone < entry.invoked);
            if before.iter().any(|held| held.token == entry.token) && entries.iter().filter(same).all(is_out) {
                broken.because(format!("token {} came back at {} though its owner had been out", entry.token, entry.from));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use super::*;

    /// Two entries of owner 1 with these tokens, the second from `again` on; the first lasts from 10 to 20.
    fn twice(tokens: [u64; 2], again: u64) -> Vec<&'static str> {
        let mut sample = Sample::of(Kind::Reentrant).hold(1, tokens[0], 10, 20).hold(2, tokens[1], again, 30);
        sample.0.iter_mut().for_each(|event| event.owner = Some(1));
        sample.broken()
    }

    #[test]
    fn re_entry_has_the_same_token_and_a_new_entry_a_new_one() {
        assert!(twice([7, 7], 15).is_empty());
        assert!(twice([7, 8], 25).is_empty());
    }

    #[test]
    fn a_second_hold_of_an_owner_that_is_inside_is_found() {
        assert!(twice([7, 8], 15).contains(&"P11"));
    }

    #[test]
    fn a_hold_that_was_never_freed_is_found() {
        assert_eq!(twice([7, 7], 25), ["P11"]);
    }

    #[test]
    fn two_owners_are_not_one() {
        let mut sample = Sample::of(Kind::Reentrant).hold(1, 7, 10, 20).hold(2, 7, 15, 30);
        sample.0.iter_mut().for_each(|event| event.owner = event.claim);
        assert!(sample.broken().contains(&"P1"));
    }
}
