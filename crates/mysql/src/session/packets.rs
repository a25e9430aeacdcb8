//! The server's packets, to and fro on a stream.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use mysql_common::proto::codec::PacketCodec;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The server knows what is too large for it, and says so.
const LARGEST: usize = 1 << 30;
/// What is read at a time: most answers are smaller.
const AT_A_TIME: usize = 4_096;

/// A stream of packets.
pub(super) struct Packets<S> {
    stream: S,
    codec: PacketCodec,
    incoming: BytesMut,
    /// What is there of the next packet, which may come in parts.
    packet: Vec<u8>,
    outgoing: BytesMut,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Packets<S> {
    pub(super) fn new(stream: S) -> Self {
        let mut codec = PacketCodec::default();
        codec.max_allowed_packet = LARGEST;
        Packets { stream, codec, incoming: BytesMut::new(), packet: Vec::new(), outgoing: BytesMut::new() }
    }

    /// The same packets by another stream, which is made of this one.
    pub(super) async fn by<T, F: Future<Output = io::Result<T>>>(self, make: impl FnOnce(S) -> F) -> io::Result<Packets<T>> {
        if !self.incoming.is_empty() {
            return Err(nonsense("it spoke out of turn")); // and in clear what was to be encrypted
        }
        let Packets { stream, codec, incoming, packet, outgoing } = self;
        Ok(Packets { stream: make(stream).await?, codec, incoming, packet, outgoing })
    }

    /// Puts a packet that begins a new exchange behind what is to be written.
    pub(super) fn begin(&mut self, packet: &[u8]) -> io::Result<()> {
        self.codec.reset_seq_id();
        self.put(packet)
    }

    /// Puts a packet behind what is to be written.
    pub(super) fn put(&mut self, mut packet: &[u8]) -> io::Result<()> {
        self.codec.encode(&mut packet, &mut self.outgoing).map_err(io::Error::other)
    }

    /// Whether everything is written.
    pub(super) fn is_sent(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Writes what there is.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outgoing.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.outgoing))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outgoing.advance(written);
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// The next packet.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        loop {
            let is_whole = !self.incoming.is_empty()
                && self.codec.decode(&mut self.incoming, &mut self.packet).map_err(io::Error::other)?;
            if is_whole {
                return Poll::Ready(Ok(std::mem::take(&mut self.packet)));
            }
            let mut room = [0; AT_A_TIME];
            let mut room = ReadBuf::new(&mut room);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut room))?;
            if room.filled().is_empty() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            self.incoming.extend_from_slice(room.filled());
        }
    }

    /// Writes a packet.
    ///
    /// # Cancel safety
    /// Dropped, it may be half written: throw the stream away.
    pub(super) async fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        self.put(packet)?;
        poll_fn(|cx| self.poll_send(cx)).await
    }

    /// The next packet.
    ///
    /// # Cancel safety
    /// Dropped, nothing is lost.
    pub(super) async fn next(&mut self) -> io::Result<Vec<u8>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }
}

/// What a server said that it may not say.
pub(super) fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("this is not what a MySQL server says: {what}"))
}
