//! Leaving nothing: names that nobody uses any more, sessions that nobody needs, holds whose time is over, claims that could not be
//! ended at once.
//!
//! A name is a container, which the leader takes away a minute or so after it became empty, if there ever was anything in it. Whoever
//! made a name and let it go does not wait for that: a few seconds later it deletes the container, if it is still empty; the server
//! refuses to delete one that is not. Who asks in that very moment finds no container, and makes it again. A name may also be a node
//! that somebody made to stay, as Curator's users do, and servers do not say which of the two it is: so what was there before is left alone.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure_core::Instant;

use crate::inner::{Inner, lock};
use crate::wire::Request;

/// How long a name stays after it was let go of, so that one in steady use is not made again and again.
const QUIET: Duration = Duration::from_secs(3);
/// How often it is looked for what can go.
const EVERY: Duration = Duration::from_secs(1);
/// How many names one flight removes.
const AT_ONCE: usize = 128;

/// Tidies up for as long as the client lives.
pub(crate) async fn tidy(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(EVERY).await;
        let Some(inner) = inner.upgrade() else { return };
        inner.tidy_names(QUIET).await;
        inner.tidy_sessions();
        inner.end_overdue();
        inner.end_abandoned();
    }
}

impl Inner {
    /// Removes the containers of names that nobody here has used for so long.
    ///
    /// # Cancel safety
    /// Dropped, the servers remove them in their own time.
    pub(crate) async fn tidy_names(self: &Arc<Self>, quiet: Duration) {
        let names = self.take_idle(quiet);
        if names.is_empty() {
            return;
        }
        let Ok(user) = self.any_session().await else { return };
        for names in names.chunks(AT_ONCE) {
            let delete = |path: &String| Request::Delete { path: path.clone(), version: -1 };
            // Refused where somebody else uses it; and if the connection fails, the servers do it later.
            let _ = self.flight(&user.0, "tidying up", names.iter().map(delete).collect()).await;
        }
    }

    /// The names that this client has made, and that nobody here has used for so long.
    fn take_idle(&self, quiet: Duration) -> Vec<String> {
        let now = Instant::now();
        let in_use: HashSet<String> = self.book().values().map(|entry| entry.parent.clone()).collect();
        let (mut names, mut made) = (Vec::new(), lock(&self.made));
        lock(&self.idle).retain(|name, since| {
            let goes = now.since(*since) >= quiet;
            if goes && !in_use.contains(name) && made.remove(name) {
                names.push(name.clone());
            }
            !goes
        });
        names
    }
}
