//! Messages that never make their sender wait.
//!
//! A full pipe blocks its writer, and `tenure run` has one thread: the one that stops the command when its lock is lost. That
//! thread only queues its messages; each outlet has a thread of its own that writes them. When the reader falls far behind,
//! messages are dropped and counted, and the next message that fits is preceded by their number.
//!
//! `O_NONBLOCK` is no alternative: it belongs to the open file, which the command and the shell share.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A file to write to, with the messages that are queued for it.
pub(super) struct Outlet {
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    messages: VecDeque<String>,
    /// How many messages found the queue full since one fitted.
    dropped: u64,
    /// Whether a message has left the queue and is not written yet.
    is_writing: bool,
}

impl Outlet {
    pub(super) fn new(mut to: impl Write + Send + 'static) -> Self {
        let queue = Arc::<Queue>::default();
        let writer = Arc::clone(&queue);
        // Without a thread nothing is written; a client needs one too, and its error is the one that matters.
        let _ = thread::Builder::new().name("tenure-messages".to_owned()).spawn(move || {
            loop {
                let message = writer.take();
                // A closed pipe is no reason to stop what we do.
                let _ = to.write_all(message.as_bytes());
                writer.written();
            }
        });
        Outlet { queue }
    }

    /// Queues a message, and before it the words for how many were dropped.
    pub(super) fn say(&self, message: String, dropped: impl FnOnce(u64) -> String) {
        let mut state = self.queue.lock();
        if state.messages.len() >= MAX_QUEUED {
            state.dropped += 1;
            return;
        }
        if state.dropped > 0 {
            let count = std::mem::take(&mut state.dropped);
            state.messages.push_back(dropped(count));
        }
        state.messages.push_back(message);
        self.queue.changed.notify_all();
    }

    /// Waits until everything is written, at most so long.
    pub(super) fn flush(&self, limit: Duration) {
        let is_busy = |state: &mut State| state.is_writing || !state.messages.is_empty();
        drop(self.queue.changed.wait_timeout_while(self.queue.lock(), limit, is_busy));
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next message.
    fn take(&self) -> String {
        let mut state = self.lock();
        loop {
            if let Some(message) = state.messages.pop_front() {
                state.is_writing = true;
                return message;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn written(&self) {
        self.lock().is_writing = false;
        self.changed.notify_all();
    }
}

/// More messages than this wait for no reader.
const MAX_QUEUED: usize = 256;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Writes one message for every permit it gets.
    struct Slow(Receiver<()>, Sender<String>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.recv().map_err(std::io::Error::other)?;
            self.1.send(String::from_utf8_lossy(bytes).into_owned()).map_err(std::io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_does_not_fit_is_counted_and_told() {
        let ((permit, permits), (sender, written)) = (channel(), channel());
        let outlet = Outlet::new(Slow(permits, sender));
        let say = |message: usize| outlet.say(message.to_string(), |count| format!("{count} dropped"));
        say(0);
        while !outlet.queue.lock().is_writing {
            thread::yield_now();
        }
        (1..=MAX_QUEUED + 3).for_each(say);
        outlet.flush(Duration::from_millis(1)); // does not wait for the reader
        (0..=MAX_QUEUED).for_each(|expected| {
            permit.send(()).unwrap();
            assert_eq!(written.recv().unwrap(), expected.to_string());
        });
        say(7);
        permit.send(()).unwrap();
        permit.send(()).unwrap();
        outlet.flush(Duration::from_secs(60));
        assert_eq!(written.try_iter().collect::<Vec<_>>(), ["3 dropped", "7"]);
    }
}
