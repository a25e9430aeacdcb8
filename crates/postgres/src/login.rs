//! Logging in without TLS: the password goes to nobody in clear.
//!
//! Whoever answers at the server's address, or stands in between, chooses how the password is asked for, and the driver gives it as it is
//! asked. SCRAM shows it to nobody; in clear, or as MD5 of a salt of their choice, it is theirs. So where nothing encrypts the connection,
//! and it leaves this host, such a question ends it before the driver has seen it.
//!
//! It is what the driver takes for TLS, begun without asking: a stream that is read along until the login is over.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready as until_ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::{SslMode, SslNegotiation};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

/// Makes streams on which nobody gets the password by asking for it.
#[derive(Clone, Copy)]
pub(crate) struct ScramOnly;

impl ScramOnly {
    /// Has the driver use such streams.
    pub(crate) fn prepare(config: &mut tokio_postgres::Config) {
        config.ssl_mode(SslMode::Require).ssl_negotiation(SslNegotiation::Direct);
    }
}

impl<S> MakeTlsConnect<S> for ScramOnly
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    type Stream = Watched<S>;
    type TlsConnect = ScramOnly;
    type Error = Infallible;

    fn make_tls_connect(&mut self, _: &str) -> Result<ScramOnly, Infallible> {
        Ok(ScramOnly)
    }
}

impl<S> TlsConnect<S> for ScramOnly
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    type Stream = Watched<S>;
    type Error = Infallible;
    type Future = Ready<Result<Watched<S>, Infallible>>;

    fn connect(self, stream: S) -> Self::Future {
        ready(Ok(Watched { stream, login: Login::default() }))
    }
}

/// A stream that is read along until the login is over.
pub(crate) struct Watched<S> {
    stream: S,
    login: Login,
}

/// As much of the server's messages as is needed to know how it wants the password.
#[derive(Default)]
struct Login {
    /// The beginning of a message.
    head: Vec<u8>,
    /// How much of it is of no interest.
    rest: usize,
    is_over: bool,
}

/// What the server sent was a question that must not be answered.
#[derive(Debug)]
pub(crate) struct AsksForPassword;

impl std::fmt::Display for AsksForPassword {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("it asks for the password itself, or for MD5 of it")
    }
}

impl std::error::Error for AsksForPassword {}

impl Login {
    fn sees(&mut self, bytes: &[u8]) -> Result<(), AsksForPassword> {
        for byte in bytes {
            if self.is_over {
                return Ok(());
            }
            if self.rest > 0 {
                self.rest -= 1;
                continue;
            }
            // A letter and a length, which counts itself; and of whatever is about the login four bytes that say what.
            self.head.push(*byte);
            let is_about_login = self.head[0] == b'R';
            let enough = if is_about_login { 9 } else { 5 };
            if self.head.len() < enough {
                continue;
            }
            let number =
                |at: usize| u32::from_be_bytes([self.head[at], self.head[at + 1], self.head[at + 2], self.head[at + 3]]);
            if is_about_login {
                match number(5) {
                    0 => self.is_over = true,
                    10..=12 => {} // SCRAM
                    _ => return Err(AsksForPassword),
                }
            }
            self.rest = (1 + number(1) as usize).saturating_sub(enough);
            self.head.clear();
        }
        Ok(())
    }
}

impl<S> TlsStream for Watched<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S> AsyncRead for Watched<S>
where
    S: AsyncRead + Unpin,
{
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        until_ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        Poll::Ready(self.login.sees(&buf.filled()[before..]).map_err(io::Error::other))
    }
}

impl<S> AsyncWrite for Watched<S>
where
    S: AsyncWrite + Unpin,
{
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However the network cuts it.
    #[test]
    fn only_scram_is_answered() {
        let message = |kind: u8, body: &[u8]| [&[kind][..], &(4 + body.len() as u32).to_be_bytes(), body].concat();
        let about_login = |what: u32, more: &[u8]| message(b'R', &[&what.to_be_bytes()[..], more].concat());
        let notice = message(b'N', b"SNOTICE\0\0");
        let scram = [about_login(10, b"SCRAM-SHA-256\0\0"), about_login(11, b"r=x"), about_login(12, b"v=x")].concat();
        let over = [about_login(0, b""), message(b'S', b"R\0\0\0\x08\0\0\0\x03")].concat();
        let right = [notice.clone(), scram.clone(), over].concat();
        for cut in 1..right.len() {
            let mut login = Login::default();
            assert!(right.chunks(cut).all(|part| login.sees(part).is_ok()), "in parts of {cut}");
            assert!(login.is_over);
        }
        for how in [2, 3, 5, 7, 9] {
            let wrong = [notice.clone(), about_login(how, b"salt")].concat();
            let mut login = Login::default();
            assert!(!wrong.chunks(2).all(|part| login.sees(part).is_ok()), "{how}");
        }
    }
}
