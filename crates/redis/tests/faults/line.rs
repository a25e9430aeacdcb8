//! Waiters that come one behind the other, and the order in which they are let in.

use std::sync::{Arc, Mutex};

use tenure_core::{Client, Instant, Token};
use tenure_testkit::{Silence, in_time};
use tokio::task::JoinSet;

use crate::stage::{ALIVE, LONG, line_is};

/// The line for `x`, which somebody holds.
pub(crate) struct Line {
    observer: Client,
    /// How many were in line before these.
    before: usize,
    waiting: JoinSet<()>,
    entered: Arc<Mutex<Vec<Entered>>>,
    silence: Silence,
}

/// Who was let in.
struct Entered {
    /// Its number among those who came.
    number: usize,
    token: Token,
    /// When.
    at: Instant,
}

impl Line {
    /// Behind those who are in line already.
    pub(crate) fn behind(before: usize, observer: &Client) -> Self {
        let (waiting, entered, silence) = (JoinSet::new(), Arc::default(), Silence::watched_by(observer));
        Line { observer: observer.clone(), before, waiting, entered, silence }
    }

    /// One more comes. Let in, it lets go.
    pub(crate) async fn comes(&mut self, client: &Client) {
        // Not kept, so that a hand-over stands until it is found, however slow the machine is.
        let mutex = client.fair_mutex("x").unwrap().ttl(LONG).unwrap().keep(false);
        let (number, entered) = (self.waiting.len(), Arc::clone(&self.entered));
        self.waiting.spawn(async move {
            let held = mutex.lock().await.unwrap();
            entered.lock().unwrap().push(Entered { number, token: held.token(), at: Instant::now() });
            held.check().unwrap();
            held.release().await.unwrap();
        });
        line_is(&self.observer, "x", self.before + self.waiting.len()).await;
    }

    /// Waits until everybody was let in, each after the one who came before and with a higher token. Says when the first one was.
    pub(crate) async fn served_in_order(mut self, mut last: Token) -> Instant {
        let all = self.waiting.len();
        while let Some(served) = in_time("the next one gets in", self.waiting.join_next()).await {
            served.unwrap();
        }
        let (silence, entered) = (self.silence.longest().await, std::mem::take(&mut *self.entered.lock().unwrap()));
        assert_eq!(entered.len(), all);
        for (place, Entered { number, token, .. }) in entered.iter().enumerate() {
            assert!(*token > last, "number {number}: {token} after {last}");
            last = *token;
            // Whoever lives is heard every second. Unless the machine stood still, nobody thought it dead.
            assert!(*number == place || silence > ALIVE / 4, "number {number} came in as {place}, after {silence:?}");
        }
        entered[0].at
    }
}
