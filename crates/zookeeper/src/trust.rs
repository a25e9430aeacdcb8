//! Until when a session may be trusted: the proof that everything else here stands on.
//!
//! A session's life is counted by the **leader**: it ends a session that it has not heard of for the granted timeout, and then
//! all its nodes. A client talks to any member. What does an answer prove?
//!
//! - *A ping proves nothing.* The member answers it by itself, and one that was cut off from its leader goes on doing so for
//!   several ticks while the leader counts on.
//! - *A `sync` proves little.* It goes to whoever the member believes to lead, and a leader that was cut off answers it without
//!   asking anybody, while the others have elected another one.
//! - *A write proves the leader*, also one that changes nothing: it was answered because a quorum took it, so at that time no
//!   other leader had been established. Whoever leads later counts every session anew from its own start, which is after that.
//!   So a renewal here is a write that changes nothing: the deletion of a node that never exists. The leader refuses it in a
//!   transaction of its own, like any other.
//! - *The leader hears of a session late.* A member notes whom it has heard of and tells the leader with the answer to the
//!   leader's next ping, every half tick. A write does not carry the news: what this very write said about our being there may
//!   still be with the member, and is gone if the member crashes now. But what the member heard half a tick *before* it travelled on
//!   the same ordered stream ahead of it, so it has arrived.
//! - *A member hears late.* What we sent may have stood in a queue for as long as a connection may be silent, and have reached the
//!   member together with the write. That the member has heard it is known when its answer was read, and not before.
//!
//! So: after the answer to a write that was sent at `b`, the leader is known to have heard of whatever this connection sent and
//! had the answer to at `b − lag`; and of the connection itself, since going on with a session asks the leader about it. The session
//! may be trusted for the granted timeout from the *sending* of that, less a margin for clocks of different speed. A session that is
//! new is a transaction itself, and counts from the instant it was asked for.
//!
//! `lag` must be half a tick of the servers, which the protocol does not tell. The shortest timeout a server grants is two ticks
//! unless somebody configured less, so a quarter of any granted timeout is enough; and no more than five seconds, which is a
//! tick of ten. An operator who sets `minSessionTimeout` below two ticks breaks this, and `doctor` cannot see it; GUARANTEES
//! says so. What is left over is a leader that stands still between two of its own pings while our member dies: it would have to
//! stand still for less than a third of the timeout, since after that we leave the connection, and the rounding of its own count
//! (up to the next tick) works against that.
//!
//! Who can interleave: all of this is called by the one task that owns the connection.

use std::collections::VecDeque;
use std::time::Duration;

use tenure_core::{Instant, margin};

/// The longest that a leader may take to hear of a session from its member.
const LONGEST_LAG: Duration = Duration::from_secs(5);

/// How long the leader may not have heard of us although our member has.
pub(crate) fn lag(timeout: Duration) -> Duration {
    (timeout / 4).min(LONGEST_LAG)
}

/// How often the session is renewed by a write.
pub(crate) fn renewal_interval(timeout: Duration) -> Duration {
    (timeout / 6).min(LONGEST_LAG)
}

/// How often anything is sent at all, so that there is something old enough to count from.
pub(crate) fn sign_of_life_interval(timeout: Duration) -> Duration {
    renewal_interval(timeout) / 2
}

/// How long a request may go unanswered before its connection is left for the next member.
pub(crate) fn answer_limit(timeout: Duration) -> Duration {
    (timeout / 3).min(Duration::from_secs(5))
}

/// What one session's connections have proved so far.
#[derive(Debug)]
pub(crate) struct Trust {
    timeout: Duration,
    /// The leader has heard of the session at this instant or later.
    heard: Instant,
    /// When the connection was asked for; the leader hears of that before it hears anything else of it.
    opened: Option<Instant>,
    /// What this connection has sent and had an answer to: when it was sent, a step of `lag / 16` apart, and when its answer was read.
    answered: VecDeque<(Instant, Instant)>,
    /// When the pings were sent that have no answer yet.
    pings: VecDeque<Instant>,
}

impl Trust {
    /// A session that was asked for then, and is there.
    pub(crate) fn new(timeout: Duration, asked: Instant) -> Self {
        Trust { timeout, heard: asked, opened: Some(asked), answered: VecDeque::new(), pings: VecDeque::new() }
    }

    /// The session goes on over another connection, which was asked for then.
    pub(crate) fn reconnected(&mut self, asked: Instant) {
        self.opened = Some(asked);
        self.answered.clear();
        self.pings.clear();
    }

    /// A ping was sent.
    pub(crate) fn pinged(&mut self, at: Instant) {
        self.pings.push_back(at);
    }

    /// The answer to the oldest ping was read.
    pub(crate) fn ping_answered(&mut self, read: Instant) {
        if let Some(sent) = self.pings.pop_front() {
            self.answered(sent, read);
        }
    }

    /// The answer was read to something that was sent then.
    pub(crate) fn answered(&mut self, sent: Instant, read: Instant) {
        let step = lag(self.timeout) / 16;
        if self.answered.back().is_none_or(|(last, _)| sent.since(*last) >= step) {
            self.answered.push_back((sent, read));
        }
    }

    /// A write was answered that was sent then.
    pub(crate) fn written(&mut self, sent: Instant) {
        let known = sent - lag(self.timeout);
        let mut proved = self.opened.unwrap_or(self.heard);
        while let Some((earlier, _)) = self.answered.front().copied().filter(|(_, read)| *read <= known) {
            proved = proved.max(earlier);
            self.answered.pop_front();
        }
        self.heard = self.heard.max(proved);
        self.opened = Some(self.heard);
    }

    /// The instant from which the session may not be trusted.
    pub(crate) fn until(&self) -> Instant {
        self.heard + (self.timeout - margin(self.timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(8); // lag 2 s

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn window(trust: &Trust) -> Instant {
        trust.until() - (T - margin(T))
    }

    #[test]
    fn a_new_session_counts_from_the_ask() {
        assert_eq!(window(&Trust::new(T, at(100))), at(100));
    }

    #[test]
    fn a_write_proves_what_was_sent_long_enough_before_it_and_not_itself() {
        let mut trust = Trust::new(T, at(0));
        trust.answered(at(5_000), at(5_010));
        trust.answered(at(6_000), at(6_010));
        trust.written(at(6_000));
        assert_eq!(window(&trust), at(0), "nothing is two seconds older than it");
        trust.answered(at(7_500), at(7_510));
        trust.written(at(7_500));
        assert_eq!(window(&trust), at(5_000));
        trust.written(at(9_000));
        assert_eq!(window(&trust), at(6_000));
    }

    #[test]
    fn what_stood_in_a_queue_counts_only_once_its_answer_is_old_enough() {
        let mut trust = Trust::new(T, at(0));
        trust.pinged(at(1_000));
        trust.ping_answered(at(4_000));
        trust.written(at(4_000));
        trust.written(at(5_990));
        assert_eq!(window(&trust), at(0), "the member may have heard it with the write");
        trust.written(at(6_000));
        assert_eq!(window(&trust), at(1_000), "and it counts from when it was sent");
        trust.ping_answered(at(7_000));
        trust.written(at(20_000));
        assert_eq!(window(&trust), at(1_000), "nobody asked for that");
    }

    #[test]
    fn a_new_connection_proves_nothing_before_a_write_and_then_itself() {
        let mut trust = Trust::new(T, at(0));
        trust.answered(at(1_000), at(1_010));
        trust.pinged(at(1_500));
        trust.reconnected(at(4_000));
        assert_eq!(window(&trust), at(0));
        trust.answered(at(4_010), at(4_020));
        trust.written(at(4_010));
        assert_eq!(window(&trust), at(4_000), "and not what the old connection has sent");
    }

    #[test]
    fn trust_never_goes_back() {
        let mut trust = Trust::new(T, at(0));
        trust.answered(at(3_000), at(3_010));
        trust.written(at(6_000));
        let before = window(&trust);
        trust.written(at(1_000));
        assert_eq!(window(&trust), before);
    }

    #[test]
    fn it_is_renewed_long_before_it_ends() {
        for timeout in [Duration::from_millis(200), T, Duration::from_secs(86_400)] {
            let worst = lag(timeout) + sign_of_life_interval(timeout) + renewal_interval(timeout) + margin(timeout);
            assert!(worst * 10 <= timeout * 6, "{timeout:?}: {worst:?}");
        }
    }
}
