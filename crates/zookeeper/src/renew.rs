//! Renewals: none per lock, since a session keeps all its nodes.
//!
//! Each session renews itself, by a write every sixth of its timeout (see [`trust`](crate::trust)); what the keeper asks for is
//! mostly known already. Only where the connection is gone, or the last write is too old, is a write sent and waited for. That a
//! hold is still there is told by the watch on its own node.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Claim, Error, Instant, Renewal, Result};
use tokio::task::JoinSet;

use crate::inner::Inner;
use crate::session::{Session, Trouble};
use crate::trust;
use crate::wire::Request;

impl Inner {
    /// Renews a batch of holds.
    ///
    /// # Cancel safety
    /// Dropped while a write has no answer, the session leaves that connection.
    pub(crate) async fn renew(self: &Arc<Self>, claims: &[Claim]) -> Vec<Result<Renewal>> {
        let mut sessions: Vec<Arc<Session>> = Vec::new();
        for claim in claims {
            let Some(entry) = self.entry(claim.id).filter(|entry| entry.granted && !entry.lost) else { continue };
            if !sessions.iter().any(|session| Arc::ptr_eq(session, &entry.user.0)) {
                sessions.push(Arc::clone(&entry.user.0));
            }
        }
        let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
        let proved = self.prove_all(sessions, shortest / 24).await;
        let now = Instant::now();
        claims
            .iter()
            .map(|claim| {
                let Some(entry) = self.entry(claim.id).filter(|entry| entry.granted && !entry.lost) else {
                    return Ok(Renewal::Lost);
                };
                let session = &entry.user.0;
                match proved.iter().find(|(other, _)| Arc::ptr_eq(other, session)) {
                    Some((_, Ok(()))) if session.until() > now => Ok(match self.give(claim) {
                        Some(until) => Renewal::Held { until, asked: entry.asked },
                        None => Renewal::Lost,
                    }),
                    _ if session.is_over() => Ok(Renewal::Lost),
                    Some((_, Err(trouble))) => Err(self.explain(trouble.clone(), "renew a session at", &self.settings.root)),
                    _ => Err(self.unproved()),
                }
            })
            .collect()
    }

    /// Sees to it that the sessions are known to be alive, all at once. Those that are not proved so long after the first one was
    /// are missing in the answer, and asked for again soon: one that finds no member must not use up the others' time.
    async fn prove_all(self: &Arc<Self>, sessions: Vec<Arc<Session>>, patience: Duration) -> Vec<Proved> {
        let (known, unknown): (Vec<_>, Vec<_>) = sessions.into_iter().partition(|session| is_proved(session));
        let mut proved: Vec<Proved> = known.into_iter().map(|session| (session, Ok(()))).collect();
        let mut proving = JoinSet::new();
        for session in unknown {
            let inner = Arc::clone(self);
            let prove = async move {
                let outcome = inner.prove(&session).await;
                (session, outcome)
            };
            proving.spawn_on(prove, &self.home);
        }
        while proved.iter().all(|(_, outcome)| outcome.is_err())
            && let Some(Ok(next)) = proving.join_next().await
        {
            proved.push(next);
        }
        let rest = async {
            while let Some(Ok(next)) = proving.join_next().await {
                proved.push(next);
            }
        };
        let _ = tokio::time::timeout(patience, rest).await;
        proved
    }

    /// Sees to it that the session is known to be alive.
    pub(crate) async fn prove(&self, session: &Session) -> Result<(), Trouble> {
        let _leaves = Impatience { session, since: Instant::now() };
        loop {
            session.here().await.map_err(Trouble::Over)?;
            let asked = Instant::now();
            match session.call(Request::Delete { path: self.settings.proof(), version: -1 }).await {
                Ok(_) => return Ok(()),
                // A member that refuses it by itself proves nothing, and whoever waits for the renewal should hear why.
                Err(Trouble::Refused(_)) if session.state().last_proof >= asked => return Ok(()),
                Err(Trouble::Unsure(_)) => {}
                Err(trouble) => return Err(trouble),
            }
        }
    }

    fn unproved(&self) -> Error {
        Error::new(tenure_core::ErrorKind::Unavailable, "the session could not be renewed in time")
            .with_hint("The servers are slow, or cannot be reached; the hold is lost by its own clock if that goes on")
    }
}

/// What came of proving a session.
type Proved = (Arc<Session>, Result<(), Trouble>);

/// Whether a session has renewed itself as it should.
fn is_proved(session: &Session) -> bool {
    let (timeout, now) = (session.timeout, Instant::now());
    let usual = trust::lag(timeout) + trust::sign_of_life_interval(timeout) * 2;
    let is_here = session.phase.borrow().is_here();
    is_here && session.until() + usual > now + (timeout - tenure_core::margin(timeout))
}

/// Leaves a connection over which nothing came back.
struct Impatience<'a> {
    session: &'a Session,
    since: Instant,
}

impl Drop for Impatience<'_> {
    fn drop(&mut self) {
        let long_ago = Instant::now() - trust::renewal_interval(self.session.timeout);
        if self.since <= long_ago {
            self.session.leave_if_silent_since(long_ago);
        }
    }
}
