//! The connection of a session.
//!
//! It is never made anew: a session that is over is over, with everything it had. The protocol knows no request numbers, so
//! requests queue, in the order of asking, and each reads its whole answer. Whoever asked may be gone by then: what was begun is
//! then finished on the runtime that opened the session, so that nothing half-read is ever used again.
//!
//! Many tasks share a session, and a statement takes the server less time than its way there and back. So statements that wait
//! side by side go together, as one text: whoever gets the connection sends for all of them, up to the first that must go alone.
//! The server stops at the first error, so whatever stands behind that was not executed and goes with the next text.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use mysql_async::Conn;
use tenure_core::lease::{Failure, Fate};
use tenure_core::{Error, ErrorKind};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot, watch};

use crate::config::Settings;
use crate::error;
use crate::link::{Rows, read_some};

/// More would make the first wait for the last.
const TOGETHER: usize = 64;

/// A connection that is one session.
pub(super) struct Wire {
    settings: Arc<Settings>,
    conn: Arc<Mutex<Option<Conn>>>,
    queue: Arc<Queue>,
    /// Whether it is over.
    over: watch::Sender<bool>,
    home: Handle,
}

impl Wire {
    /// On the runtime that shall keep it.
    pub(super) fn new(settings: &Arc<Settings>, conn: Conn) -> Self {
        let conn = Arc::new(Mutex::new(Some(conn)));
        let queue = Arc::default();
        Wire { settings: Arc::clone(settings), conn, queue, over: watch::Sender::new(false), home: Handle::current() }
    }

    pub(super) fn is_open(&self) -> bool {
        !*self.over.borrow()
    }

    /// Cuts the connection, whatever is under way on it.
    pub(super) fn close(&self) {
        self.over.send_replace(true);
        if let Ok(mut conn) = self.conn.try_lock() {
            self.drop_conn(conn.take());
        }
    }

    /// A connection says good-bye when it is dropped, and needs a runtime for that.
    fn drop_conn(&self, conn: Option<Conn>) {
        let _home = self.home.enter();
        drop(conn);
    }

    /// Completes when it is over. Does not keep it.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut over = self.over.subscribe();
        async move {
            let _ = over.wait_for(|over| *over).await;
        }
    }

    /// Sends statements and reads all that they answer; `doing` completes "while …".
    ///
    /// # Cancel safety
    /// Dropped while it queues, nothing is sent; later, the statements are executed and their answer is read.
    pub(super) async fn send(&self, doing: &str, text: String) -> Result<Rows, Failure> {
        self.queue_and_wait(doing, Request::Alone(text)).await
    }

    /// The same for a single statement that answers with rows: it may go together with others.
    ///
    /// # Cancel safety
    /// As of [`send`](Wire::send).
    pub(super) async fn send_one(&self, doing: &str, text: String) -> Result<Rows, Failure> {
        self.queue_and_wait(doing, Request::One(text)).await
    }

    async fn queue_and_wait(&self, doing: &str, request: Request) -> Result<Rows, Failure> {
        let (mut queued, mut answer) = self.queue.push(request);
        let answered = loop {
            tokio::select! {
                biased;
                answered = &mut answer => break answered.ok().flatten(),
                conn = Arc::clone(&self.conn).lock_owned() => {
                    let asking = Box::pin(self.send_the_next(conn));
                    Finishing { asking: Some(asking), home: self.home.clone() }.await;
                }
            }
        };
        queued.is_answered = true;
        match answered {
            Some(answer) => answer.map_err(|failure| error::explain(failure, &self.settings, doing)),
            None => Err(self.is_over(doing)),
        }
    }

    /// Sends what is first in the queue, and what goes with it; answers all of them.
    fn send_the_next(&self, mut conn: OwnedMutexGuard<Option<Conn>>) -> impl Future<Output = ()> + Send + use<> {
        let (queue, over, mut cut) = (Arc::clone(&self.queue), self.over.clone(), self.over.subscribe());
        let home = self.home.clone();
        async move {
            let (text, askers) = queue.take();
            let Some(open) = conn.as_mut().filter(|_| !*over.borrow()) else { return }; // whoever asked hears that nobody answers
            let (sets, failure) = tokio::select! {
                biased;
                read = read_some(open, &text) => read,
                _ = cut.wait_for(|over| *over) => (Vec::new(), None),
            };
            let goes_on = match &failure {
                Some(failure) => error::code(failure).is_some_and(|code| !ENDS.contains(&code)),
                None => !*over.borrow(),
            };
            if !goes_on {
                let gone = conn.take();
                over.send_replace(true);
                let _home = home.enter();
                drop(gone);
            }
            answer(&queue, askers, sets, failure, goes_on);
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

/// What is sent.
enum Request {
    /// Any statements.
    Alone(String),
    /// One that answers with rows.
    One(String),
}

/// Rows, or an error; nothing when it may have been executed and nobody will know.
type Answer = Option<mysql_async::Result<Rows>>;

struct Asker {
    number: u64,
    request: Request,
    answer: oneshot::Sender<Answer>,
}

/// Who asks, in order.
#[derive(Default)]
struct Queue(std::sync::Mutex<(u64, VecDeque<Asker>)>);

impl Queue {
    fn lock(&self) -> std::sync::MutexGuard<'_, (u64, VecDeque<Asker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(self: &Arc<Self>, request: Request) -> (Queued, oneshot::Receiver<Answer>) {
        let (answer, answered) = oneshot::channel();
        let mut queue = self.lock();
        queue.0 += 1;
        let number = queue.0;
        queue.1.push_back(Asker { number, request, answer });
        (Queued { queue: Arc::clone(self), number, is_answered: false }, answered)
    }

    /// The first, and those behind it that go with it; as one text.
    fn take(&self) -> (String, Vec<Asker>) {
        let queue = &mut self.lock().1;
        let together = queue.iter().take(TOGETHER).take_while(|asker| matches!(asker.request, Request::One(_))).count();
        let askers: Vec<Asker> = queue.drain(..together.max(1).min(queue.len())).collect();
        let texts: Vec<&str> = askers
            .iter()
            .map(|asker| match &asker.request {
                Request::Alone(text) | Request::One(text) => text.as_str(),
            })
            .collect();
        (texts.join("; "), askers)
    }
}

/// A place in the queue, which is given up with it.
struct Queued {
    queue: Arc<Queue>,
    number: u64,
    is_answered: bool,
}

impl Drop for Queued {
    fn drop(&mut self) {
        if !self.is_answered {
            self.queue.lock().1.retain(|asker| asker.number != self.number);
        }
    }
}

/// Tells those who went together what came of it.
fn answer(queue: &Queue, askers: Vec<Asker>, sets: Rows, failure: Option<mysql_async::Error>, goes_on: bool) {
    let (mut sets, mut failure) = (sets.into_iter(), failure);
    let mut not_executed = Vec::new();
    for asker in askers {
        let answer = match (&asker.request, sets.len(), failure.take()) {
            (Request::Alone(_), _, Some(failure)) => Some(Err(failure)),
            (Request::Alone(_), _, None) => goes_on.then(|| Ok(sets.by_ref().collect())),
            (Request::One(_), 1.., later) => {
                failure = later;
                Some(Ok(sets.by_ref().take(1).collect()))
            }
            (Request::One(_), 0, Some(failure)) => Some(Err(failure)),
            (Request::One(_), 0, None) if goes_on => {
                not_executed.push(asker);
                continue;
            }
            (Request::One(_), 0, None) => None,
        };
        let _ = asker.answer.send(answer); // it may have gone
    }
    let mut queue = queue.lock();
    for asker in not_executed.into_iter().rev() {
        queue.1.push_front(asker);
    }
}

/// The session ends with these: a shutdown, a kill.
const ENDS: &[u16] = &[1053, 1927, 1152, 1159, 1161, 4031];

/// A request that is finished in the background if its asker goes.
struct Finishing<T: Send + 'static> {
    asking: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    home: Handle,
}

impl<T: Send + 'static> Future for Finishing<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(asking) = &mut self.asking else { return Poll::Pending };
        let polled = asking.as_mut().poll(cx);
        if polled.is_ready() {
            self.asking = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Finishing<T> {
    fn drop(&mut self) {
        if let Some(asking) = self.asking.take() {
            self.home.spawn(asking);
        }
    }
}

#[cfg(test)]
mod tests;
