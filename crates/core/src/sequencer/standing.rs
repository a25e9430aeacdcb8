//! What a store says about a sequencer (Chubby's CheckSequencer), derived from a view: pure, and the same for every store.

use crate::{Mode, Sequencer, Token, View};

/// How a sequencer stands with its store. From [`Client::check`](crate::Client::check).
///
/// Only [`Current`](Standing::Current) is a yes, and it was true when the store answered: a resource that must never go back
/// keeps the highest token it has seen as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Standing {
    /// Its hold is there, in the mode that it says.
    Current,
    /// Somebody got the name after it.
    Superseded {
        /// The highest token that the store knows of.
        by: Token,
    },
    /// Its hold is over, released, broken or run out, and the store knows of nobody who got the name after it. Also what is said
    /// of a writer's sequencer when its holder is a reader now.
    Released,
    /// The store cannot tell. It has forgotten the name, which stores do soon after its last use; or it never gave this token:
    /// then the sequencer is another store's, or forged, or the store has lost what it knew.
    Unknown,
}

impl Standing {
    /// Whether the hold is there.
    pub fn is_current(self) -> bool {
        self == Standing::Current
    }
}

impl View {
    /// How a sequencer of this name stands, as far as this view shows.
    ///
    /// ```
    /// use tenure_core::{LockName, Sequencer, Standing, View};
    /// let sequencer: Sequencer = "tenure1:mutex:exclusive:17:5:x".parse()?;
    /// assert_eq!(View::free(LockName::new("x")?).standing(&sequencer), Standing::Unknown);
    /// # Ok::<(), tenure_core::Error>(())
    /// ```
    pub fn standing(&self, sequencer: &Sequencer) -> Standing {
        let Sequencer { name, kind, mode, token, .. } = sequencer;
        if *name != self.name {
            return Standing::Unknown;
        }
        let held = self.holders.iter().find(|holder| holder.token == *token && !holder.closing);
        if let Some(held) = held {
            let is_of_this_kind = self.kind.is_none_or(|of| of == *kind);
            return match (mode, held.mode) {
                (said, is) if *said == is && is_of_this_kind => Standing::Current,
                (Mode::Exclusive, Mode::Shared) if is_of_this_kind => Standing::Released, // a downgrade keeps the token
                _ => Standing::Unknown, // the store gave this token for something else
            };
        }
        let highest = self.holders.iter().map(|holder| holder.token).chain(self.last).max();
        match highest {
            Some(by) if by > *token => Standing::Superseded { by },
            Some(last) if last == *token => Standing::Released,
            _ => Standing::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{ClaimId, Holder, Kind, LockName, Note, Origin};

    fn holder(token: u64, mode: Mode, closing: bool) -> Holder {
        Holder {
            claim: ClaimId::from_bytes([token as u8; 16]).fingerprint(),
            mode,
            token: Token::new(token),
            note: Note::none(),
            origin: Origin { host: "h".into(), pid: 1 },
            held_for: Duration::ZERO,
            expires_in: Duration::ZERO,
            closing,
            asked: None,
        }
    }

    fn view(holders: Vec<Holder>, last: Option<u64>) -> View {
        let free = View::free(LockName::new("x").unwrap());
        View { kind: Some(Kind::RwLock), holders, last: last.map(Token::new), ..free }
    }

    fn sequencer(token: u64, mode: Mode) -> Sequencer {
        Sequencer::new(LockName::new("x").unwrap(), Kind::RwLock, mode, Token::new(token), 0)
    }

    /// Every row: who holds (token, mode, closing), the last token remembered, what the sequencer of token 5 stands like.
    #[test]
    fn the_truth_table() {
        use Mode::{Exclusive, Shared};
        let by = |token| Standing::Superseded { by: Token::new(token) };
        let own = |mode, closing| holder(5, mode, closing);
        for (holders, last, said, expected) in [
            (vec![own(Exclusive, false)], Some(5), Exclusive, Standing::Current),
            (vec![own(Exclusive, false)], None, Exclusive, Standing::Current),
            (vec![own(Shared, false)], Some(5), Shared, Standing::Current),
            // One of several readers, whatever the others' tokens are.
            (
                vec![holder(3, Shared, false), own(Shared, false), holder(9, Shared, false)],
                Some(9),
                Shared,
                Standing::Current,
            ),
            // Downgraded, or given in another mode than the sequencer says.
            (vec![own(Shared, false)], Some(5), Exclusive, Standing::Released),
            (vec![own(Exclusive, false)], Some(5), Shared, Standing::Unknown),
            // Released before its minimum hold was over, or broken with a lock-delay.
            (vec![own(Exclusive, true)], Some(5), Exclusive, Standing::Released),
            (vec![own(Exclusive, true)], None, Exclusive, Standing::Released),
            // Followed.
            (vec![holder(9, Exclusive, false)], Some(9), Exclusive, by(9)),
            (vec![holder(9, Exclusive, true)], None, Exclusive, by(9)),
            (vec![holder(7, Shared, false), holder(8, Shared, false)], Some(9), Exclusive, by(9)),
            (vec![], Some(9), Exclusive, by(9)),
            // Over.
            (vec![], Some(5), Exclusive, Standing::Released),
            (vec![holder(3, Shared, false)], Some(5), Shared, Standing::Released),
            // Not known, or not yet given.
            (vec![], None, Exclusive, Standing::Unknown),
            (vec![], Some(4), Exclusive, Standing::Unknown),
            (vec![holder(3, Shared, false)], None, Shared, Standing::Unknown),
        ] {
            let view = view(holders, last);
            assert_eq!(view.standing(&sequencer(5, said)), expected, "{view:?}, {said}");
        }
    }

    #[test]
    fn another_name_kind_or_number_of_permits_is_not_what_was_given() {
        let view = view(vec![holder(5, Mode::Exclusive, false)], Some(5));
        assert_eq!(view.standing(&sequencer(5, Mode::Exclusive)), Standing::Current);
        let good = sequencer(5, Mode::Exclusive);
        let other = Sequencer { name: LockName::new("y").unwrap(), ..good.clone() };
        assert_eq!(view.standing(&other), Standing::Unknown);
        assert_eq!(view.standing(&Sequencer { kind: Kind::Mutex, ..good.clone() }), Standing::Unknown);
        let one = std::num::NonZeroU32::MIN;
        assert_eq!(view.standing(&Sequencer { mode: Mode::Permits { take: one, of: one }, ..good }), Standing::Unknown);
    }
}
