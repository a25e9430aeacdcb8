//! Ending because a signal said so, while there is no command to pass it on to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::process::Signal;
use tenure::Client;

use crate::child::{self, Ending, Outcome, Signals};
use crate::failure::Failure;
use crate::guarded;

/// Goes on until the work fails or a signal comes; then nothing of ours stays in the store.
pub(crate) async fn until_quit(client: &Client, work: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
    let mut signals = Signals::new()?;
    tokio::select! {
        biased;
        signal = signals.quit() => {
            guarded::close(client).await;
            child::leave(outcome(signal))
        }
        done = work => done,
    }
}

/// How we end when this signal came: as a command would have that it ended.
///
/// A Ctrl-C must look like one to the shell, or the loop it stands in goes on; see [`leave`](child::leave()).
pub(crate) fn outcome(signal: Signal) -> Outcome {
    let ours = |fd: BorrowedFd<'_>| rustix::termios::tcgetpgrp(fd) == Ok(rustix::process::getpgrp());
    let at_the_keyboard = ours(io::stdin().as_fd()) || ours(io::stderr().as_fd());
    let interrupted = signal == Signal::INT && at_the_keyboard;
    Outcome { ending: Ending::Signaled(signal.as_raw()), stopped_for_loss: false, interrupted }
}
