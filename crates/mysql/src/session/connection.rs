//! What sends for all who stand in a session's queue, and reads what the server answers.
//!
//! The protocol knows no request numbers, so one text is under way at a time, and its whole answer is read, whether or not
//! whoever asked is still there: nothing half-read is ever used again. Between two it listens all the same: a server that ends
//! the session is heard at once.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use mysql_async::consts::Command;
use tenure_core::session::Drive;
use tokio::io::{AsyncRead, AsyncWrite};

use super::packets::{Packets, nonsense};
use super::queue::{Asker, Queue};
use super::reply::Reply;

/// The session ends with these: a shutdown, a kill.
const ENDS: &[u16] = &[1053, 1927, 1152, 1159, 1161, 4031];

/// A connection that the server has let in.
pub(super) struct Connection<S: AsyncRead + AsyncWrite + Unpin + Send> {
    packets: Packets<S>,
    queue: Arc<Queue>,
    /// Whose text is being answered.
    under_way: Option<(Vec<Asker>, Reply)>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Connection<S> {
    pub(super) fn new(packets: Packets<S>, queue: &Arc<Queue>) -> Self {
        Connection { packets, queue: Arc::clone(queue), under_way: None }
    }

    /// Errors end it.
    fn poll_exchange(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        loop {
            if self.under_way.is_none()
                && let Some((text, askers)) = self.queue.take(cx)
            {
                let packet = [&[Command::COM_QUERY as u8], text.as_bytes()].concat();
                self.under_way = Some((askers, Reply::default()));
                self.packets.begin(&packet)?;
            }
            if let Poll::Ready(sent) = self.packets.poll_send(cx) {
                sent?;
            }
            let Poll::Ready(packet) = self.packets.poll_next(cx) else { return Poll::Pending };
            let packet = packet?;
            let Some((_, reply)) = &mut self.under_way else { return Poll::Ready(Err(nonsense("it was not asked"))) };
            if reply.take(&packet)?
                && let Some((askers, reply)) = self.under_way.take()
            {
                let ends = reply.failure.as_ref().is_some_and(|failure| ENDS.contains(&failure.code));
                self.queue.answer(askers, reply);
                if ends {
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Drive for Connection<S> {
    fn poll_drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_exchange(cx).map(drop) // whoever asked hears that nobody answers
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Drop for Connection<S> {
    fn drop(&mut self) {
        self.queue.close();
        // Else the server's log complains of whoever left without a word.
        if self.under_way.is_none() && self.packets.is_sent() && self.packets.begin(&[Command::COM_QUIT as u8]).is_ok() {
            let _ = self.packets.poll_send(&mut Context::from_waker(Waker::noop()));
        }
    }
}
