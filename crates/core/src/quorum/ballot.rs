//! One question to several nodes at once.

use std::future::poll_fn;
use std::task::Poll;

use crate::backend::BoxFuture;

/// Answers that are still out, by node. They own what they need, so that they can be left to the background.
pub(super) struct Ballot<T> {
    open: Vec<Option<BoxFuture<'static, T>>>,
}

impl<T> Ballot<T> {
    /// Nobody is asked yet.
    pub(super) fn new(nodes: usize) -> Self {
        Ballot { open: (0..nodes).map(|_| None).collect() }
    }

    /// Asks everybody.
    pub(super) fn of(nodes: usize, mut question: impl FnMut(usize) -> BoxFuture<'static, T>) -> Self {
        Ballot { open: (0..nodes).map(|node| Some(question(node))).collect() }
    }

    /// Asks one node.
    pub(super) fn ask(&mut self, node: usize, question: BoxFuture<'static, T>) {
        self.open[node] = Some(question);
    }

    /// Whether everybody who was asked has answered.
    pub(super) fn is_complete(&self) -> bool {
        self.open.iter().all(Option::is_none)
    }

    /// Which nodes have not answered.
    pub(super) fn waiting_for(&self) -> impl Iterator<Item = usize> + '_ {
        self.open.iter().enumerate().filter(|(_, open)| open.is_some()).map(|(node, _)| node)
    }

    /// The next answers, at least one; none once everybody has answered. Nobody is kept waiting for anybody else: each look
    /// is at all of them, so the first one asks all.
    ///
    /// # Cancel safety
    /// Loses no answer.
    pub(super) async fn answers(&mut self) -> Vec<(usize, T)> {
        poll_fn(|context| {
            let mut answers = Vec::new();
            for (node, open) in self.open.iter_mut().enumerate() {
                if let Some(question) = open
                    && let Poll::Ready(answer) = question.as_mut().poll(context)
                {
                    *open = None;
                    answers.push((node, answer));
                }
            }
            if answers.is_empty() && !self.is_complete() { Poll::Pending } else { Poll::Ready(answers) }
        })
        .await
    }

    /// All answers.
    ///
    /// # Cancel safety
    /// Loses those that had come.
    pub(super) async fn all(mut self) -> Vec<(usize, T)> {
        let mut all = Vec::new();
        while !self.is_complete() {
            all.extend(self.answers().await);
        }
        all
    }
}
