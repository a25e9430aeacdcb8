//! The decision, pure: which token is accepted, which comes too late, which is too high to be true.

use std::time::Duration;

use crate::{Clock, Token};

/// What a fence says to a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "whoever was refused must not write"]
pub enum Verdict {
    /// Nobody has shown a higher one, and from now on lower ones are refused.
    Accepted,
    /// Somebody has shown a higher one: whoever holds this one comes too late.
    Stale {
        /// The highest that was shown.
        highest: Token,
    },
    /// It is too far above what was shown to be true, by the [`Rule`] that was asked for. Nothing has changed.
    Implausible {
        /// The highest that was shown, if any was.
        highest: Option<Token>,
    },
}

impl Verdict {
    /// The rule to the letter: what a fence that remembers `highest` says to `token`.
    ///
    /// ```
    /// use tenure_core::Token;
    /// use tenure_core::fence::{Rule, Verdict};
    /// let say = |highest, token| Verdict::of(Some(Token::new(highest)), Token::new(token), Rule::ANY);
    /// assert_eq!(say(7, 8), Verdict::Accepted);
    /// assert_eq!(say(7, 7), Verdict::Accepted);
    /// assert_eq!(say(7, 6), Verdict::Stale { highest: Token::new(7) });
    /// ```
    pub fn of(highest: Option<Token>, token: Token, rule: Rule) -> Verdict {
        match highest {
            Some(highest) if highest > token => Verdict::Stale { highest },
            Some(highest) if highest == token => Verdict::Accepted,
            highest if rule.needs(token).is_some_and(|least| highest.is_none_or(|highest| highest < least)) => {
                Verdict::Implausible { highest }
            }
            _ => Verdict::Accepted,
        }
    }

    /// Whether it was accepted.
    pub fn is_accepted(self) -> bool {
        self == Verdict::Accepted
    }
}

/// Which tokens are too high to be true.
///
/// A token is a bare number. Whoever shows one that is far too high, by a mistake or by intent, locks everybody out for good,
/// since a fence never goes back. A signature on the sequencer is the answer to intent; a rule catches the mistake, and limits
/// the damage where there are no keys.
///
/// | tokens | rule | the first one of a name |
/// |---|---|---|
/// | follow the clock: `max(last + 1, microseconds since 1970)`, as on memory, SQLite, Redis, PostgreSQL, MySQL | [`max_ahead`](Rule::max_ahead) | the same: not further ahead of the clock |
/// | count: etcd's revisions, ZooKeeper's transaction ids, numbers of your own | [`max_step`](Rule::max_step) | at most the step. Numbers that begin higher are shown once by hand, without the rule |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule(Limit);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Limit {
    #[default]
    None,
    Step(u64),
    Ahead(u64),
}

impl Rule {
    /// Every token is plausible.
    pub const ANY: Rule = Rule(Limit::None);

    /// For tokens that count: one that is more than `step` above the highest that was shown is refused. Where none was shown
    /// yet, one above `step`.
    ///
    /// Not for tokens that follow the clock: a lock that nobody used for a day goes up by a day of microseconds.
    pub const fn max_step(step: u64) -> Rule {
        Rule(Limit::Step(step))
    }

    /// For tokens that follow the clock: one is refused that is further ahead of this process's wall clock than this, unless it
    /// is no further above the highest that was shown (a store whose clock was once ahead goes on from there).
    ///
    /// Choose more than the clocks of lock store and resource can differ: a resource whose clock is behind by more refuses
    /// everybody until it is put right, and nothing worse.
    pub fn max_ahead(ahead: Duration) -> Rule {
        Rule(Limit::Ahead(u64::try_from(ahead.as_micros()).unwrap_or(u64::MAX)))
    }

    /// What a [`Fence`](super::Fence) must have seen for this token to be plausible; `None` if it is in any case. Implementations
    /// need no more of a rule than this: `token` is accepted over a highest of at least so much.
    pub fn needs(self, token: Token) -> Option<Token> {
        let (floor, step) = match self.0 {
            Limit::None => return None,
            Limit::Step(step) => (0, step),
            Limit::Ahead(ahead) => (Clock::Boot.wall_micros(), ahead),
        };
        (token.get() > floor.saturating_add(step)).then(|| Token::new(token.get().saturating_sub(step)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(highest: Option<u64>, token: u64, rule: Rule) -> Verdict {
        Verdict::of(highest.map(Token::new), Token::new(token), rule)
    }

    #[test]
    fn lower_is_stale_whatever_the_rule() {
        for rule in [Rule::ANY, Rule::max_step(0), Rule::max_ahead(Duration::ZERO)] {
            assert_eq!(say(Some(5), 4, rule), Verdict::Stale { highest: Token::new(5) });
            assert_eq!(say(Some(u64::MAX), u64::MAX, rule), Verdict::Accepted, "an equal one is never implausible");
            assert_eq!(say(Some(0), 0, rule), Verdict::Accepted);
        }
    }

    #[test]
    fn a_step_is_counted_from_the_highest() {
        let rule = Rule::max_step(10);
        assert_eq!(say(Some(100), 110, rule), Verdict::Accepted);
        assert_eq!(say(Some(100), 111, rule), Verdict::Implausible { highest: Some(Token::new(100)) });
        assert_eq!(say(None, 10, rule), Verdict::Accepted);
        assert_eq!(say(None, 11, rule), Verdict::Implausible { highest: None });
        assert_eq!(say(Some(1), u64::MAX, Rule::max_step(u64::MAX)), Verdict::Accepted);
    }

    #[test]
    fn an_idle_lock_may_jump_as_far_as_the_clock() {
        let rule = Rule::max_ahead(Duration::from_secs(60));
        let now = Clock::Boot.wall_micros();
        assert_eq!(say(Some(1), now, rule), Verdict::Accepted);
        assert_eq!(say(None, now + 30_000_000, rule), Verdict::Accepted);
        assert_eq!(say(None, now + 600_000_000, rule), Verdict::Implausible { highest: None });
        let ahead = now + 900_000_000;
        assert_eq!(say(Some(ahead), ahead + 1, rule), Verdict::Accepted, "a store whose clock was ahead goes on from there");
    }

    #[test]
    fn what_is_needed_is_what_decides() {
        for rule in [Rule::ANY, Rule::max_step(3), Rule::max_step(0), Rule::max_step(u64::MAX)] {
            for highest in 0..12 {
                for token in highest + 1..14 {
                    let least = rule.needs(Token::new(token)).map_or(0, Token::get);
                    assert_eq!(
                        say(Some(highest), token, rule).is_accepted(),
                        highest >= least,
                        "{rule:?} {highest} {token}"
                    );
                }
            }
        }
    }
}
