//! Several requests under way at once, on one task.

use std::future::poll_fn;
use std::task::Poll;

use tenure_core::backend::BoxFuture;

/// Completes with all answers, in order, once the last one is there.
///
/// # Cancel safety
/// Dropped, all of them are dropped.
pub(crate) async fn all<T>(mut futures: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let mut answers: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut missing = false;
        for (future, answer) in futures.iter_mut().zip(&mut answers) {
            if answer.is_none() {
                match future.as_mut().poll(cx) {
                    Poll::Ready(done) => *answer = Some(done),
                    Poll::Pending => missing = true,
                }
            }
        }
        if missing { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    answers.into_iter().map(|answer| answer.expect("all are there")).collect()
}
