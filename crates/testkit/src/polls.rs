//! A future that is dropped after so many polls: cancelling at every await point there is.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// What became of a future that was given so many polls.
#[derive(Debug)]
pub enum Polled<T> {
    /// It was done after this many.
    Done(T, u32),
    /// It was not, and was dropped.
    Dropped,
}

/// Polls the future at most `polls` times, whenever it is woken, and drops it `linger` after the last: long enough for an
/// answer to be on its way that nobody will see.
pub async fn at_most<F: Future>(polls: u32, linger: Duration, future: F) -> Polled<F::Output> {
    let mut future = pin!(future);
    let mut polled = 0;
    if polls > 0 {
        let output = poll_fn(|context| {
            polled += 1;
            match future.as_mut().poll(context) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending if polled >= polls => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
        if let Some(output) = output {
            return Polled::Done(output, polled);
        }
    }
    if !linger.is_zero() {
        tokio::time::sleep(linger).await;
    }
    Polled::Dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_await_point_is_reached() {
        let three_awaits = || async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        };
        for polls in 0..4 {
            assert!(matches!(at_most(polls, Duration::ZERO, three_awaits()).await, Polled::Dropped), "{polls}");
        }
        assert!(matches!(at_most(9, Duration::ZERO, three_awaits()).await, Polled::Done((), 4)));
    }
}
