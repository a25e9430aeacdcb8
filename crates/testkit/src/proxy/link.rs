//! One connection through the proxy: bytes are read, cut into messages, and each message meets its fate.

use std::future::pending;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use super::Shared;
use super::fault::{Cut, Fate, Way};

/// Carries a connection until both sides have closed, or somebody cuts it.
pub(super) async fn carry(mut client: TcpStream, id: u64, shared: &Shared) {
    let link = Link { id, shared };
    let target = shared.state().target;
    let end = match TcpStream::connect(target).await {
        Ok(mut server) => {
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let end = link.join(&mut client, &mut server).await;
            finish(&mut server, end).await;
            end
        }
        Err(_) if shared.state().is_silent(id, Way::ToClient) => Some(link.doomed().await),
        // As if nobody listened, as well as a proxy can: it has accepted already.
        Err(_) => Some(Cut::Reset),
    };
    finish(&mut client, end).await;
    drop(client);
    shared.state().closed(id);
}

async fn finish(stream: &mut TcpStream, end: Option<Cut>) {
    // The peer may have gone before; then there is nobody to tell.
    let _ = match end {
        Some(Cut::Reset) => stream.set_zero_linger(),
        Some(Cut::Fin) | None => stream.shutdown().await,
    };
}

struct Link<'a> {
    id: u64,
    shared: &'a Shared,
}

/// A message, and when it is to be delivered.
type Due = (Instant, Vec<u8>);

impl Link<'_> {
    /// Carries both ways; says how it must end if it does not end by itself.
    async fn join(&self, client: &mut TcpStream, server: &mut TcpStream) -> Option<Cut> {
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        let (requests, to_be_sent) = unbounded_channel();
        let (replies, to_be_heard) = unbounded_channel();
        tokio::select! {
            biased;
            cut = self.doomed() => Some(cut),
            end = async {
                tokio::try_join!(
                    self.read(Way::ToServer, from_client, requests),
                    self.write(Way::ToServer, to_server, to_be_sent),
                    self.read(Way::ToClient, from_server, replies),
                    self.write(Way::ToClient, to_client, to_be_heard),
                )
            } => end.err(),
        }
    }

    async fn read(&self, way: Way, mut from: ReadHalf<'_>, queue: UnboundedSender<Due>) -> Result<(), Cut> {
        let mut chunk = vec![0; 16 * 1024];
        let mut buffer = Vec::new();
        // A peer that resets has said its last word like one that closes: what it sent before still arrives, late perhaps.
        while let Ok(size @ 1..) = from.read(&mut chunk).await {
            buffer.extend_from_slice(&chunk[..size]);
            self.shared.state().read(self.id, way, &chunk[..size]);
            while let Some((message, fate)) = self.next(way, &mut buffer) {
                match fate {
                    Fate::Pass { times, delay } => {
                        let message = message.repeat(times.into());
                        let _ = queue.send((Instant::now() + delay, message));
                    }
                    Fate::Swallow => {}
                    Fate::Reset => return Err(Cut::Reset),
                }
            }
        }
        if self.shared.state().is_silent(self.id, way) {
            return pending().await;
        }
        let _ = queue.send((Instant::now(), buffer)); // the part of a message that a peer ended in
        Ok(())
    }

    /// Takes a whole message from the buffer, with its fate.
    fn next(&self, way: Way, buffer: &mut Vec<u8>) -> Option<(Vec<u8>, Fate)> {
        let mut state = self.shared.state();
        let size = state.next_message(self.id, buffer)?;
        let message: Vec<u8> = buffer.drain(..size).collect();
        let fate = state.decide(self.id, way, &message);
        Some((message, fate))
    }

    async fn write(&self, way: Way, mut to: WriteHalf<'_>, mut queue: UnboundedReceiver<Due>) -> Result<(), Cut> {
        while let Some((due, message)) = queue.recv().await {
            // Even a sleep that is over takes a millisecond, and nobody asked for one.
            if due > Instant::now() {
                sleep_until(due).await;
            }
            self.released(way).await;
            // Replies to a client that has gone are nobody's loss, and what it asked for before is still on its way. But a
            // client whose server has gone hears of it.
            let failed = to.write_all(&message).await.is_err();
            if failed && way == Way::ToServer && !self.shared.state().is_silent(self.id, Way::ToClient) {
                return Err(Cut::Reset);
            }
        }
        self.released(way).await;
        let _ = to.shutdown().await;
        Ok(())
    }

    /// Waits until nothing is held back.
    async fn released(&self, way: Way) {
        let mut changes = self.shared.changes();
        while self.shared.state().is_held(self.id, way) {
            changes.changed().await.expect("the proxy outlives its connections");
        }
    }

    /// Waits until the connection must be cut.
    async fn doomed(&self) -> Cut {
        let mut changes = self.shared.changes();
        loop {
            if let Some(cut) = self.shared.state().doomed(self.id) {
                return cut;
            }
            changes.changed().await.expect("the proxy outlives its connections");
        }
    }
}
