//! Whether anybody still reads what we print.

use std::io;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use tokio::sync::oneshot;

use crate::failure::Failure;

/// Goes on until the work ends, or until the reader of our stdout has gone: what prints only when something changes would not
/// notice before that.
///
/// # Cancel safety
/// As the work's.
pub(crate) async fn while_read<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::select! {
        biased;
        done = work => done,
        Ok(()) = reader_gone() => Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
    }
}

/// Completes when the other end of stdout is closed. A file has none.
fn reader_gone() -> oneshot::Receiver<()> {
    let (tell, gone) = oneshot::channel();
    // The thread ends with the process: nothing but an end wakes it.
    std::thread::spawn(move || {
        let stdout = io::stdout();
        let mut stream = [PollFd::new(&stdout, PollFlags::empty())];
        let polled = retry_on_intr(|| poll(&mut stream, None));
        if polled.is_ok() && stream[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            let _ = tell.send(());
        }
    });
    gone
}
