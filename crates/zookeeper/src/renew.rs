//! Renewals: none per lock, since a session keeps all its nodes.
//!
//! Each session renews itself, by a write every sixth of its timeout (see [`trust`](crate::trust)); what the keeper asks for is
//! mostly known already. Only where the connection is gone, or the last write is too old, is a write sent and waited for. That a
//! hold is still there is told by the watch on its own node.

use std::sync::Arc;

use tenure_core::{Claim, Error, Instant, Renewal, Result};

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
        let mut proved: Vec<(Arc<Session>, Option<Trouble>)> = Vec::new();
        for claim in claims {
            let Some(entry) = self.entry(claim.id).filter(|entry| entry.granted && !entry.lost) else { continue };
            if !proved.iter().any(|(session, _)| Arc::ptr_eq(session, &entry.user.0)) {
                proved.push((Arc::clone(&entry.user.0), None));
            }
        }
        // One after the other is as good as all at once: there are as many as ttls, and each has mostly renewed itself.
        for (session, trouble) in &mut proved {
            *trouble = self.prove(session).await.err();
        }
        claims.iter().for_each(|claim| self.shift_home(claim));
        let now = Instant::now();
        claims
            .iter()
            .map(|claim| {
                let Some(entry) = self.entry(claim.id).filter(|entry| entry.granted && !entry.lost) else {
                    return Ok(Renewal::Lost);
                };
                let session = &entry.user.0;
                match proved.iter().find(|(other, _)| Arc::ptr_eq(other, session)) {
                    Some((_, None)) if session.until() > now => {
                        Ok(Renewal::Held { until: self.until(session, claim, now), asked: entry.asked })
                    }
                    _ if session.is_over() => Ok(Renewal::Lost),
                    Some((_, Some(trouble))) => {
                        Err(self.explain(trouble.clone(), "renew a session at", &self.settings.root))
                    }
                    _ => Err(self.unproved()),
                }
            })
            .collect()
    }

    /// Sees to it that the session is known to be alive.
    async fn prove(&self, session: &Session) -> Result<(), Trouble> {
        let (timeout, now) = (session.timeout, Instant::now());
        let usual = trust::lag(timeout) + trust::sign_of_life_interval(timeout) * 2;
        let is_here = session.phase.borrow().is_here();
        if is_here && session.until() + usual > now + (timeout - tenure_core::margin(timeout)) {
            return Ok(());
        }
        let _leaves = Impatience { session, since: now };
        loop {
            session.here().await.map_err(Trouble::Over)?;
            match session.call(Request::Delete { path: self.settings.proof(), version: -1 }).await {
                Ok(_) | Err(Trouble::Refused(_)) => return Ok(()),
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
