//! Who asks what of a session, in order.
//!
//! Many tasks share a session, and a statement takes the server less time than its way there and back. So statements that wait
//! side by side go together, as one text, up to the first that must go alone. The server stops at the first error, so whatever
//! stands behind that was not executed and goes with the next text.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use tokio::sync::oneshot;

use super::reply::Reply;
use crate::link::Rows;

/// More would make the first wait for the last.
const TOGETHER: usize = 64;

/// What is sent.
pub(super) enum Request {
    /// Any statements.
    Alone(String),
    /// One that answers with rows.
    One(String),
}

/// Rows, or an error; dropped where it may have been executed and nobody will know.
type Answer = mysql_async::Result<Rows>;

pub(super) struct Asker {
    number: u64,
    request: Request,
    answer: oneshot::Sender<Answer>,
}

/// Who asks, in order.
#[derive(Default)]
pub(super) struct Queue(Mutex<Line>);

#[derive(Default)]
struct Line {
    last: u64,
    askers: VecDeque<Asker>,
    /// Whoever sends them.
    sender: Option<Waker>,
    is_closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stands in line. The answer is dropped if there is none.
    pub(super) fn push(self: &Arc<Self>, request: Request) -> (Queued, oneshot::Receiver<Answer>) {
        let (answer, answered) = oneshot::channel();
        let mut line = self.lock();
        line.last += 1;
        let number = line.last;
        if !line.is_closed {
            line.askers.push_back(Asker { number, request, answer });
        }
        let sender = line.sender.take();
        drop(line);
        if let Some(sender) = sender {
            sender.wake();
        }
        (Queued { queue: Arc::clone(self), number, is_answered: false }, answered)
    }

    /// The first, and those behind it that go with it; as one text. If there are none, whoever asks for them is woken by the
    /// next.
    pub(super) fn take(&self, cx: &Context<'_>) -> Option<(String, Vec<Asker>)> {
        let mut line = self.lock();
        if line.askers.is_empty() {
            line.sender = Some(cx.waker().clone());
            return None;
        }
        let is_one = |asker: &&Asker| matches!(asker.request, Request::One(_));
        let together = line.askers.iter().take(TOGETHER).take_while(is_one).count();
        let askers: Vec<Asker> = line.askers.drain(..together.max(1)).collect();
        let texts: Vec<&str> = askers
            .iter()
            .map(|asker| match &asker.request {
                Request::Alone(text) | Request::One(text) => text.as_str(),
            })
            .collect();
        Some((texts.join("; "), askers))
    }

    /// Tells those who went together what came of it.
    pub(super) fn answer(&self, askers: Vec<Asker>, reply: Reply) {
        let (mut sets, mut failure) = (reply.sets.into_iter(), reply.failure.map(mysql_async::Error::Server));
        let mut not_executed = Vec::new();
        for asker in askers {
            let answer = match (&asker.request, sets.len(), failure.take()) {
                (Request::Alone(_), _, Some(failure)) => Err(failure),
                (Request::Alone(_), _, None) => Ok(sets.by_ref().collect()),
                (Request::One(_), 1.., later) => {
                    failure = later;
                    Ok(sets.by_ref().take(1).collect())
                }
                (Request::One(_), 0, Some(failure)) => Err(failure),
                (Request::One(_), 0, None) => {
                    not_executed.push(asker);
                    continue;
                }
            };
            let _ = asker.answer.send(answer); // it may have gone
        }
        let mut line = self.lock();
        for asker in not_executed.into_iter().rev() {
            line.askers.push_front(asker);
        }
    }

    /// Nobody is answered any more.
    pub(super) fn close(&self) {
        let mut line = self.lock();
        line.is_closed = true;
        let (_askers, _sender) = (std::mem::take(&mut line.askers), line.sender.take());
        drop(line); // before they are told
    }

    /// How many wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().askers.len()
    }

    /// How many have come.
    #[cfg(test)]
    pub(super) fn last(&self) -> u64 {
        self.lock().last
    }
}

/// A place in the queue, which is given up with it.
pub(super) struct Queued {
    queue: Arc<Queue>,
    number: u64,
    /// Then there is no place any more.
    pub(super) is_answered: bool,
}

impl Drop for Queued {
    fn drop(&mut self) {
        if !self.is_answered {
            self.queue.lock().askers.retain(|asker| asker.number != self.number);
        }
    }
}
