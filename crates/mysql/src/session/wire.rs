//! The connection of a session.
//!
//! It is never made anew: a session that is over is over, with everything it had. It is made on a runtime that outlives every
//! caller's, and is driven where it is used; see [`Mover`]. That is why it is not one of the driver's, which stay where they were
//! made: each answer would wake two threads instead of one, and that costs more than the server does.
//!
//! - `queue`: who asks what; `connection`: what sends and reads; `packets` and `reply`: what that looks like; `login`: how it
//!   begins

use std::future::Future;
use std::sync::Arc;

use tenure_core::lease::{Failure, Fate};
use tenure_core::session::{Mover, MovingStream, Place};
use tenure_core::{Error, ErrorKind};

use super::login::{Encryption, log_in};
use super::queue::{Queue, Request};
use crate::config::Settings;
use crate::error;
use crate::link::Rows;

/// A connection that is one session.
pub(super) struct Wire {
    settings: Arc<Settings>,
    queue: Arc<Queue>,
    mover: Arc<Mover>,
}

impl Wire {
    /// On the runtime that shall keep it. Whoever calls limits the time.
    ///
    /// # Cancel safety
    /// Dropped, a half-made connection is closed.
    pub(super) async fn connect(settings: &Arc<Settings>) -> Result<Wire, Failure> {
        let tls = Encryption::wanted(settings).map_err(error::refused)?;
        let (place, queue) = (Place::default(), Arc::new(Queue::default()));
        let failed = |failure| error::explain_connect(failure, settings);
        let stream = MovingStream::dial(&settings.address, settings.answer_limit, &place).await;
        let stream = stream.map_err(|failure| failed(failure.into()))?;
        let connection = log_in(stream, tls, settings, &queue).await.map_err(failed)?;
        Ok(Wire { settings: Arc::clone(settings), queue, mover: Mover::start(connection, place) })
    }

    pub(super) fn is_open(&self) -> bool {
        !self.mover.is_over()
    }

    /// Cuts the connection, whatever is under way on it.
    pub(super) fn close(&self) {
        self.mover.close();
    }

    /// Completes when it is over. Does not keep it.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        self.mover.ended()
    }

    /// It is used from here: whatever is sent next had better be answered here.
    pub(super) fn used(&self) -> &Self {
        self.mover.is_used();
        self
    }

    /// Sends statements and reads all that they answer; `doing` completes "while …".
    ///
    /// # Cancel safety
    /// Dropped while it queues, nothing is sent; later, the statements are executed and their answer is read.
    pub(super) async fn send(&self, doing: &str, text: String) -> Result<Rows, Failure> {
        self.mover.answered(self.queue_and_wait(doing, Request::Alone(text))).await
    }

    /// The same for what takes as long as somebody else likes.
    ///
    /// # Cancel safety
    /// As of [`send`](Wire::send).
    pub(super) async fn wait(&self, doing: &str, text: String) -> Result<Rows, Failure> {
        self.mover.is_waited_for();
        self.queue_and_wait(doing, Request::Alone(text)).await
    }

    /// The same for a single statement that answers with rows: it may go together with others.
    ///
    /// # Cancel safety
    /// As of [`send`](Wire::send).
    pub(super) async fn send_one(&self, doing: &str, text: String) -> Result<Rows, Failure> {
        self.mover.answered(self.queue_and_wait(doing, Request::One(text))).await
    }

    async fn queue_and_wait(&self, doing: &str, request: Request) -> Result<Rows, Failure> {
        let (mut queued, answer) = self.queue.push(request);
        let answered = answer.await;
        queued.is_answered = true;
        match answered {
            Ok(answer) => answer.map_err(|failure| error::explain(failure, &self.settings, doing)),
            Err(_) => Err(self.is_over(doing)),
        }
    }

    fn is_over(&self, doing: &str) -> Failure {
        let error = Error::new(ErrorKind::Unavailable, format!("the session was over while {doing}"))
            .with_store(self.settings.describe())
            .with_hint("Was the server restarted, or the connection killed?");
        Failure { error, fate: Fate::Unknown, again: true }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
