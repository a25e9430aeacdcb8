//! Combining: verbs of many tasks in one transaction, without a thread between them and SQLite.
//!
//! A commit costs about as much with one verb in it as with fifty. So an ask is put in a queue, and whoever then gets the
//! writing connection runs *everything* that is queued in one transaction, on its own thread, and hands the answers out.
//! A task alone never waits for another thread; tasks that come while somebody is writing find their work done by the next
//! one who writes. SQLite without fsync takes microseconds, which an executor's thread can spare; when another *process* is
//! writing, that may be longer, and the queue is left to a thread of our own, which waits.
//!
//! Who can interleave with what:
//!
//! - The queue is first in, first out, and a batch is its front. A release that is queued after its ask runs after it,
//!   also if the ask's future is long gone: release stays final.
//! - Whoever queues tries for the connection *after* queueing, and whoever lets go of the connection looks at the queue
//!   *after* letting go. So one of the two sees the other, and nothing stays in the queue unattended.
//! - A verb that is refused writes nothing that concerns its neighbours. If SQLite itself fails, the transaction is undone
//!   and each verb has one of its own, so that only those that cannot be stored fail. A verb may therefore run twice.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use rusqlite::Connection;
use tenure_core::{Clock, Error, ErrorKind, Instant, Result, jitter};
use tokio::sync::oneshot;

use crate::error::{Fault, explained, is_busy};
use crate::store::Store;
use crate::transaction::{After, Transaction};

/// How long an ask may wait for another process's transaction before it is an error. Transactions take microseconds; only
/// a process that was stopped inside one takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The queue, and the connection that empties it.
#[derive(Default)]
pub(crate) struct Batch {
    queue: Mutex<VecDeque<Box<dyn Job>>>,
    writer: Mutex<Writer>,
    crowd: Crowd,
    /// Whether this client's identity is in the file. Changed only by whoever has the writer.
    is_registered: AtomicBool,
}

#[derive(Default)]
struct Writer {
    connection: Option<Connection>,
    /// When the file was last seen to be in its place.
    seen: Option<Instant>,
}

/// An ask in the queue.
trait Job: Send {
    /// Does it, in a transaction. May be called again if that transaction is undone.
    fn run(&mut self, transaction: &mut Transaction<'_>) -> Result<(), rusqlite::Error>;
    /// The transaction is committed: hands out the answer.
    fn answer(self: Box<Self>);
    /// It could not be stored.
    fn fail(self: Box<Self>, error: Error);
    fn queued(&self) -> Instant;
}

struct Verb<T, F> {
    verb: F,
    outcome: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
    queued: Instant,
}

impl<T: Send, F: FnMut(&mut Transaction<'_>) -> Result<T, Fault> + Send> Job for Verb<T, F> {
    fn run(&mut self, transaction: &mut Transaction<'_>) -> Result<(), rusqlite::Error> {
        self.outcome = Some(match (self.verb)(transaction) {
            Ok(answer) => Ok(answer),
            Err(Fault::Verb(error)) => Err(error),
            Err(Fault::Store(error)) => return Err(error),
        });
        Ok(())
    }

    fn answer(self: Box<Self>) {
        let _ = self.reply.send(self.outcome.expect("it ran")); // nobody listens any more: fine
    }

    fn fail(self: Box<Self>, error: Error) {
        let _ = self.reply.send(Err(error));
    }

    fn queued(&self) -> Instant {
        self.queued
    }
}

/// Whether several tasks ask at once, in which case each lets the others queue before it writes.
///
/// Tasks on one thread would otherwise never meet: each would find the connection free. Letting others go first costs a
/// turn of the executor, so it is only done while it pays, and tried from time to time.
#[derive(Default)]
struct Crowd {
    last_batch: AtomicU32,
    asks: AtomicU64,
}

impl Crowd {
    fn is_expected(&self) -> bool {
        let asks = self.asks.fetch_add(1, Ordering::Relaxed);
        self.last_batch.load(Ordering::Relaxed) > 1 || asks % 64 == 63
    }

    fn met(&self, batch: usize) {
        self.last_batch.store(batch as u32, Ordering::Relaxed);
    }
}

/// More than this in one transaction, and others would wait too long for theirs.
const LARGEST_BATCH: usize = 256;
/// After so many batches for others a task has done its share; the rest is left to the worker.
const MOST_ROUNDS: usize = 8;
/// A log of this many bytes is shortened at once; SQLite lets about 4 MB come together before it copies them.
pub(crate) const LONG_LOG: u64 = 16 << 20;
/// How often it is looked whether the file is still in its place.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How long to try for the right to write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Microseconds: on somebody else's thread.
    Inline,
    /// [`PATIENCE`]: on a thread of our own.
    Thread,
    /// The same, but in a hurry: a renewal that comes too late is a lost lock.
    Renewal,
}

enum Led {
    Done,
    Busy,
}

impl Store {
    /// Runs a verb in a transaction, together with whatever else is queued.
    ///
    /// # Cancel safety
    /// Once first polled, the verb runs, whether or not anybody waits for its answer.
    pub(crate) async fn ask<T, F>(self: &Arc<Self>, verb: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Transaction<'_>) -> Result<T, Fault> + Send + 'static,
    {
        self.check_process()?;
        let mut answer = self.enqueue(verb);
        if self.batch.crowd.is_expected() {
            let unattended = Unattended(self);
            tokio::task::yield_now().await;
            std::mem::forget(unattended);
        }
        if let Some(answer) = taken(&mut answer) {
            return answer;
        }
        self.lead(Patience::Inline);
        match taken(&mut answer) {
            Some(answer) => answer,
            None => answer.await.unwrap_or_else(|_| Err(left_alone())),
        }
    }

    /// The same, on a thread that may wait.
    pub(crate) fn ask_blocking<T, F>(self: &Arc<Self>, verb: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Transaction<'_>) -> Result<T, Fault> + Send + 'static,
    {
        self.check_process()?;
        let mut answer = self.enqueue(verb);
        loop {
            self.lead(Patience::Thread);
            if let Some(answer) = taken(&mut answer) {
                return answer;
            }
            // Somebody else took it into their batch and is about to hand out its answer.
            std::thread::yield_now();
        }
    }

    /// The same, from a destructor: nobody waits for it.
    pub(crate) fn ask_and_forget<F>(self: &Arc<Self>, verb: F)
    where
        F: FnMut(&mut Transaction<'_>) -> Result<(), Fault> + Send + 'static,
    {
        if self.check_process().is_ok() {
            drop(self.enqueue(verb));
            self.lead(Patience::Inline);
        }
    }

    fn enqueue<T, F>(&self, verb: F) -> oneshot::Receiver<Result<T>>
    where
        T: Send + 'static,
        F: FnMut(&mut Transaction<'_>) -> Result<T, Fault> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let verb = Verb { verb, outcome: None, reply, queued: Instant::now() };
        self.queue().push_back(Box::new(verb));
        answer
    }

    /// Empties the queue, unless somebody else is about to.
    pub(crate) fn lead(self: &Arc<Self>, patience: Patience) {
        for _ in 0..MOST_ROUNDS {
            let mut writer = match (self.batch.writer.try_lock(), patience) {
                (Ok(writer), _) => writer,
                (Err(TryLockError::Poisoned(poisoned)), _) => poisoned.into_inner(),
                (Err(TryLockError::WouldBlock), Patience::Inline) => return, // they will look at the queue
                (Err(TryLockError::WouldBlock), Patience::Thread | Patience::Renewal) => {
                    self.batch.writer.lock().unwrap_or_else(PoisonError::into_inner)
                }
            };
            if self.queue().is_empty() {
                return;
            }
            let (led, finished) = self.lead_once(&mut writer, patience);
            drop(writer);
            self.finish(finished);
            if let Led::Busy = led {
                break;
            }
            if self.queue().is_empty() {
                return;
            }
        }
        self.call_worker();
    }

    /// One transaction with everything that is queued. What is left to do after it is handed back, to be done without the
    /// connection.
    fn lead_once(self: &Arc<Self>, writer: &mut Writer, patience: Patience) -> (Led, Finished) {
        if let Err(error) = self.check_place(writer).and_then(|()| self.make_ready(writer)) {
            let jobs = self.take_jobs();
            return (Led::Done, Finished::Failed(jobs, error));
        }
        let connection = writer.connection.as_ref().expect("it was just made");
        match self.begin(connection, patience) {
            Ok(()) => {}
            Err(error) if is_busy(&error) && patience == Patience::Inline => return (Led::Busy, Finished::Nothing),
            Err(error) => {
                let jobs = if is_busy(&error) { self.take_old_jobs() } else { self.take_jobs() };
                return (Led::Done, Finished::Failed(jobs, explained(error, &self.file.path, "waiting to write")));
            }
        }
        let mut jobs = self.take_jobs();
        self.batch.crowd.met(jobs.len());
        match self.run(connection, &mut jobs) {
            Ok(after) => (Led::Done, Finished::Committed(jobs, after)),
            Err(error) if jobs.len() == 1 => {
                (Led::Done, Finished::Failed(jobs, explained(error, &self.file.path, "writing")))
            }
            Err(_) => (Led::Done, Finished::Each(jobs.into_iter().map(|job| self.run_alone(writer, job)).collect())),
        }
    }

    /// Runs the verbs and commits, in a transaction that was begun; or undoes it all.
    fn run(&self, connection: &Connection, jobs: &mut [Box<dyn Job>]) -> rusqlite::Result<After> {
        let mut transaction = Transaction::new(self, connection, self.is_registered());
        let result = (|| {
            jobs.iter_mut().try_for_each(|job| job.run(&mut transaction))?;
            connection.prepare_cached("COMMIT")?.execute([]).map(drop)
        })();
        if let Err(error) = result {
            undo(connection);
            return Err(error);
        }
        self.batch.is_registered.store(transaction.is_registered, Ordering::Release);
        Ok(transaction.after)
    }

    fn run_alone(&self, writer: &mut Writer, job: Box<dyn Job>) -> Finished {
        let connection = writer.connection.as_ref().expect("it carried the batch");
        let mut jobs = vec![job];
        let ran = self.begin(connection, Patience::Inline).and_then(|()| self.run(connection, &mut jobs));
        match ran {
            Ok(after) => Finished::Committed(jobs, after),
            Err(error) => Finished::Failed(jobs, explained(error, &self.file.path, "writing")),
        }
    }

    /// Hands out answers, wakes and messages. Nobody's connection is held up by it.
    fn finish(self: &Arc<Self>, finished: Finished) {
        match finished {
            Finished::Nothing => {}
            Finished::Committed(jobs, after) => {
                // In this order: whoever has the answer to a break or a release can count on others having been told.
                self.announce(after);
                jobs.into_iter().for_each(Job::answer);
            }
            Finished::Failed(jobs, error) => jobs.into_iter().for_each(|job| job.fail(error.clone())),
            Finished::Each(each) => each.into_iter().for_each(|finished| self.finish(finished)),
        }
    }

    /// `BEGIN IMMEDIATE`, tried for as long as it is worth.
    pub(crate) fn begin(&self, connection: &Connection, patience: Patience) -> rusqlite::Result<()> {
        if !connection.is_autocommit() {
            undo(connection); // a verb panicked in the last one
        }
        let started = Instant::now();
        loop {
            match connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]) {
                Err(error) if is_busy(&error) => {
                    let waited = Instant::now().since(started);
                    match patience {
                        Patience::Inline if waited < INLINE => spin(INLINE / 6),
                        Patience::Thread if waited < PATIENCE => std::thread::sleep(pause(waited)),
                        Patience::Renewal if waited < PATIENCE => std::thread::sleep(RENEWAL_PAUSE),
                        _ => return Err(error),
                    }
                }
                answer => return answer.map(drop),
            }
        }
    }

    /// One raw write of one row, the way a careful program without this library would do it.
    pub(crate) fn probe(self: &Arc<Self>) -> Result<()> {
        let mut writer = self.batch.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.make_ready(&mut writer)?;
        let connection = writer.connection.as_ref().expect("it was just made");
        let started = Instant::now();
        let wrote = loop {
            let update = connection.prepare_cached("UPDATE probe SET count = count + 1 WHERE id = ?1");
            match update.and_then(|mut update| update.execute([1])) {
                Err(error) if is_busy(&error) && Instant::now().since(started) < PATIENCE => spin(INLINE),
                answer => break answer,
            }
        };
        drop(writer);
        if !self.queue().is_empty() {
            self.lead(Patience::Inline);
        }
        wrote.map(drop).map_err(|error| explained(error, &self.file.path, "probing"))
    }

    /// Adopts the connection that opened the file.
    pub(crate) fn adopt(&self, connection: Connection) -> rusqlite::Result<()> {
        connection.busy_timeout(Duration::ZERO)?; // we do our own waiting
        self.batch.writer.lock().unwrap_or_else(PoisonError::into_inner).connection = Some(connection);
        Ok(())
    }

    /// Lets go of the connection: the client is gone, and nobody asks through it any more.
    pub(crate) fn disconnect(&self) {
        // Whoever has it now is the last: it goes with the client.
        if let Ok(mut writer) = self.batch.writer.try_lock() {
            *writer = Writer::default();
        }
    }

    /// Whether this client's identity is in the file.
    pub(crate) fn is_registered(&self) -> bool {
        self.batch.is_registered.load(Ordering::Acquire)
    }

    fn make_ready(&self, writer: &mut Writer) -> Result<()> {
        if writer.connection.is_none() {
            let connection = self.file.connect()?;
            connection.busy_timeout(Duration::ZERO).map_err(|error| explained(error, &self.file.path, "opening it"))?;
            writer.connection = Some(connection);
        }
        Ok(())
    }

    /// Somebody may have removed the file, or put another in its place: then others lock there, and nothing here counts.
    fn check_place(self: &Arc<Self>, writer: &mut Writer) -> Result<()> {
        let now = Clock::Boot.now();
        if writer.seen.is_none_or(|seen| now.since(seen) >= LOOK_EVERY) {
            self.check_file()?;
            writer.seen = Some(now);
            if self.file.log_length() > LONG_LOG {
                self.call_worker_to_shorten();
            }
        }
        Ok(())
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Box<dyn Job>>> {
        self.batch.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_jobs(&self) -> Vec<Box<dyn Job>> {
        let mut queue = self.queue();
        let count = queue.len().min(LARGEST_BATCH);
        queue.drain(..count).collect()
    }

    fn take_old_jobs(&self) -> Vec<Box<dyn Job>> {
        let now = Instant::now();
        let mut queue = self.queue();
        let count = queue.iter().take_while(|job| now.since(job.queued()) >= PATIENCE).count();
        queue.drain(..count).collect()
    }
}

/// What is left to do after a transaction.
enum Finished {
    Nothing,
    Committed(Vec<Box<dyn Job>>, After),
    /// Why, for each of them.
    Failed(Vec<Box<dyn Job>>, Error),
    Each(Vec<Finished>),
}

/// A queued ask whose future was dropped before anybody took care of the queue.
struct Unattended<'a>(&'a Arc<Store>);

impl Drop for Unattended<'_> {
    fn drop(&mut self) {
        self.0.call_worker();
    }
}

/// How long a thread that is not ours may wait for another process.
const INLINE: Duration = Duration::from_micros(40);

fn spin(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

const RENEWAL_PAUSE: Duration = Duration::from_micros(150);

/// How long to sleep before trying again to write. SQLite has no queue for that: whoever tries at the right moment is next.
/// So the longer somebody has waited the more often they try, and those who come later, less often, cannot starve them. Trying
/// more often than this costs more than it gains: 64 processes on 2 cores got 11,000 pairs a second through like this, and
/// 2,700 with pauses of 60 to 300 µs.
pub(crate) fn pause(waited: Duration) -> Duration {
    let longest = match waited.as_millis() {
        0..2 => 400,
        2..40 => 4_000,
        40..100 => 2_000,
        100..2_000 => 1_000,
        _ => 4_000, // nobody writes for so long: somebody is stopped, and trying often does not help
    };
    let half = Duration::from_micros(longest / 2);
    half + jitter(half)
}

fn undo(connection: &Connection) {
    if !connection.is_autocommit() {
        let _ = connection.execute_batch("ROLLBACK");
    }
}

fn taken<T>(answer: &mut oneshot::Receiver<Result<T>>) -> Option<Result<T>> {
    match answer.try_recv() {
        Ok(answer) => Some(answer),
        Err(oneshot::error::TryRecvError::Empty) => None,
        Err(oneshot::error::TryRecvError::Closed) => Some(Err(left_alone())),
    }
}

fn left_alone() -> Error {
    Error::new(ErrorKind::Unavailable, "the thread that wrote for this ask panicked; nothing is known about it")
}
