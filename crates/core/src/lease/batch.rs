//! Requests that wait for the same connection travel, and are committed, together.
//!
//! A commit costs a flush of the server's log, and commits on one connection do not share it. So at most one request of a sort
//! is under way; whoever comes meanwhile queues, and all of them are the next request.
//!
//! Who can interleave: a caller that finds the lane empty sends its own request, on its own task, without a detour. It may be
//! dropped at any await; its [`Turn`] then passes the lane on all the same. Those who queued are served by a task of its own,
//! so that nobody's answer depends on whether somebody else is still interested in theirs.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use super::{Answer, Asked, Asking, Desk, Ended, Ending, Failure, Fate, Inner, Said};
use crate::backend::BoxFuture;
use crate::{Error, ErrorKind, Instant, LockName};

/// How many travel together: a few milliseconds in which the server does nothing else for us.
const AT_MOST: usize = 64;

/// One sort of request.
pub(crate) trait Load: Clone + Send + Sync + 'static {
    type Reply: Send + 'static;

    fn name(&self) -> &LockName;
    fn lane<D: Desk>(inner: &Inner<D>) -> &Lane<Self>;
    fn send<'a, D: Desk>(desk: &'a D, loads: &'a [Self]) -> BoxFuture<'a, Answer<Vec<Self::Reply>>>;

    /// They leave now, in this order, after all that left before.
    fn leave<D: Desk>(inner: &Inner<D>, loads: &[Self]) {
        let _ = (inner, loads);
    }
}

impl Load for Asking {
    type Reply = Asked;

    fn name(&self) -> &LockName {
        &self.claim.name
    }

    fn lane<D: Desk>(inner: &Inner<D>) -> &Lane<Self> {
        &inner.asks
    }

    fn send<'a, D: Desk>(desk: &'a D, loads: &'a [Self]) -> BoxFuture<'a, Answer<Vec<Asked>>> {
        desk.ask(loads)
    }

    fn leave<D: Desk>(inner: &Inner<D>, loads: &[Self]) {
        inner.ear.asked(loads.iter().map(|asking| asking.claim.id));
    }
}

impl Load for Ending {
    type Reply = Ended;

    fn name(&self) -> &LockName {
        &self.name
    }

    fn lane<D: Desk>(inner: &Inner<D>) -> &Lane<Self> {
        &inner.ends
    }

    fn send<'a, D: Desk>(desk: &'a D, loads: &'a [Self]) -> BoxFuture<'a, Answer<Vec<Ended>>> {
        desk.end(loads)
    }
}

/// An answer to one of several: when the request left, and what the server said.
pub(crate) struct Reply<T> {
    pub(crate) sent: Instant,
    pub(crate) said: Said<T>,
}

type Outcome<T> = Result<Reply<T>, Failure>;

/// Everybody who has a request of one sort.
pub(crate) struct Lane<L: Load>(Mutex<Waiting<L>>);

struct Waiting<L: Load> {
    /// Somebody's request is under way.
    is_taken: bool,
    queue: Vec<(L, oneshot::Sender<Outcome<L::Reply>>)>,
}

impl<L: Load> Default for Lane<L> {
    fn default() -> Self {
        Lane(Mutex::new(Waiting { is_taken: false, queue: Vec::new() }))
    }
}

impl<L: Load> Lane<L> {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting<L>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next who travel together, in the order of their names, so that two such journeys cannot block each other; or
    /// nobody, and the lane is free.
    fn next(&self) -> Vec<(L, oneshot::Sender<Outcome<L::Reply>>)> {
        let mut waiting = self.lock();
        waiting.queue.retain(|(_, answer)| !answer.is_closed()); // its asker has gone: it ends the claim by its id
        let many = waiting.queue.len().min(AT_MOST);
        let mut next: Vec<_> = waiting.queue.drain(..many).collect();
        waiting.is_taken = !next.is_empty();
        next.sort_by(|(one, _), (other, _)| one.name().cmp(other.name()));
        next
    }
}

/// The lane is ours until this is dropped.
struct Turn<'a, D: Desk, L: Load> {
    inner: &'a Arc<Inner<D>>,
    sort: std::marker::PhantomData<L>,
}

impl<D: Desk, L: Load> Drop for Turn<'_, D, L> {
    fn drop(&mut self) {
        let next = L::lane(self.inner).next();
        if next.is_empty() {
            return;
        }
        let inner = Arc::clone(self.inner);
        if !self.inner.spawn(async move { inner.serve(next).await }) {
            // No runtime is left: whoever queued learns so from its answer that will not come.
            L::lane(self.inner).lock().is_taken = false;
        }
    }
}

impl<D: Desk> Inner<D> {
    /// Sends one request, alone or with others.
    ///
    /// # Cancel safety
    /// Dropped, the request may have been executed.
    pub(crate) async fn send<L: Load>(self: &Arc<Self>, load: &L) -> Outcome<L::Reply> {
        let answer = {
            let mut waiting = L::lane(self).lock();
            if std::mem::replace(&mut waiting.is_taken, true) {
                let (sender, answer) = oneshot::channel();
                waiting.queue.push((load.clone(), sender));
                Some(answer)
            } else {
                None
            }
        };
        if let Some(answer) = answer {
            return answer.await.unwrap_or_else(|_| Err(abandoned()));
        }
        let _turn = Turn::<D, L> { inner: self, sort: std::marker::PhantomData };
        let sent = Instant::now();
        L::leave(self, std::slice::from_ref(load));
        let Said { now, value } = L::send(&self.desk, std::slice::from_ref(load)).await?;
        let value = value.into_iter().next().ok_or_else(too_few)?;
        Ok(Reply { sent, said: Said { now, value } })
    }

    /// Sends what has queued, until nothing has.
    async fn serve<L: Load>(self: Arc<Self>, mut next: Vec<(L, oneshot::Sender<Outcome<L::Reply>>)>) {
        let mut turn = Some(Turn::<D, L> { inner: &self, sort: std::marker::PhantomData });
        while !next.is_empty() {
            let (loads, askers): (Vec<L>, Vec<_>) = next.into_iter().unzip();
            let sent = Instant::now();
            L::leave(&self, &loads);
            match L::send(&self.desk, &loads).await {
                Ok(Said { now, value }) => {
                    let mut values = value.into_iter();
                    for asker in askers {
                        let value = values.next().ok_or_else(too_few);
                        let _ = asker.send(value.map(|value| Reply { sent, said: Said { now, value } }));
                    }
                }
                Err(failure) => askers.into_iter().for_each(|asker| drop(asker.send(Err(failure.clone())))),
            }
            next = L::lane(&self).next();
        }
        std::mem::forget(turn.take()); // it was passed on already: nobody was left
    }
}

fn abandoned() -> Failure {
    let error = Error::new(ErrorKind::Unavailable, "the runtime that carried the request has ended")
        .with_hint("Ask again from a runtime that goes on");
    Failure { error, fate: Fate::Unknown, again: true }
}

fn too_few() -> Failure {
    let error = Error::new(ErrorKind::Backend, "the server answered fewer requests than were sent");
    Failure { error, fate: Fate::Unknown, again: false }
}
