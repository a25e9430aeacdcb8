//! Making a connection: TCP or TLS, who we are, and the session's first message.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{Address, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::{Login, Settings};
use crate::error::Fault;
use crate::wire::{self, Connected};
use crate::{sasl, wire::Reader};

/// A connection, whatever carries it.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The session that a connection is for.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    /// Its number; 0 for a new one.
    pub(crate) session: i64,
    /// What proves that it is ours.
    pub(crate) password: Vec<u8>,
    /// The timeout to ask for.
    pub(crate) timeout: Duration,
    /// The last transaction that was seen: a member that is behind it is of no use.
    pub(crate) last_zxid: i64,
}

/// What carries a session.
pub(crate) enum Carrier {
    /// Plain TCP: whoever sends writes at once, on its own thread, which saves a hop to the driver's.
    Plain(Arc<TcpStream>),
    /// Anything else, which only the driver writes to.
    Other(Box<dyn Stream>),
}

impl Carrier {
    /// What others may write to.
    pub(crate) fn door(&self) -> Option<Arc<TcpStream>> {
        match self {
            Carrier::Plain(tcp) => Some(Arc::clone(tcp)),
            Carrier::Other(_) => None,
        }
    }

    /// Reads what there is.
    ///
    /// # Cancel safety
    /// Dropped, nothing was read.
    pub(crate) async fn read(&mut self, into: &mut Vec<u8>) -> std::io::Result<usize> {
        let tcp = match self {
            Carrier::Other(stream) => return stream.read_buf(into).await,
            Carrier::Plain(tcp) => tcp,
        };
        loop {
            tcp.readable().await?;
            match tcp.try_read_buf(into) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

/// A connection with a session on it.
pub(crate) struct Dialed {
    pub(crate) carrier: Carrier,
    /// When the first message was sent.
    pub(crate) asked: Instant,
    /// What the server said to it.
    pub(crate) connected: Connected,
    /// The next number of a request.
    pub(crate) next_xid: i32,
}

/// The longest answer that is read: a list of names, or a cell.
const LONGEST: usize = 64 * 1024 * 1024;

/// Connects to one member.
///
/// # Cancel safety
/// Dropped, the connection is closed; a session that was being made lapses by itself, and has nothing.
pub(crate) async fn dial(settings: &Settings, address: &Address, ticket: &Ticket) -> Result<Dialed, Fault> {
    match open(settings, address).await? {
        Opened::Tcp(mut tcp) => {
            let begun = begin(settings, ticket, &mut tcp).await?;
            Ok(begun.over(Carrier::Plain(Arc::new(tcp))))
        }
        Opened::Tls(mut tls) => {
            let begun = begin(settings, ticket, &mut *tls).await?;
            Ok(begun.over(Carrier::Other(tls)))
        }
    }
}

/// What the first messages said.
struct Begun {
    asked: Instant,
    connected: Connected,
    next_xid: i32,
}

impl Begun {
    fn over(self, carrier: Carrier) -> Dialed {
        let Begun { asked, connected, next_xid } = self;
        Dialed { carrier, asked, connected, next_xid }
    }
}

async fn begin(settings: &Settings, ticket: &Ticket, mut stream: &mut dyn Stream) -> Result<Begun, Fault> {
    let mut out = Vec::new();
    let asked = Instant::now();
    let timeout = i32::try_from(ticket.timeout.as_millis()).unwrap_or(i32::MAX);
    wire::connect(ticket.last_zxid, timeout, ticket.session, &ticket.password, &mut out);
    if let Some(Login::Digest { user, password }) = &settings.login {
        wire::digest_login(user, password.reveal(), &mut out); // in the same flight; its answer comes after the first
    }
    stream.write_all(&out).await.map_err(Fault::io)?;
    let first = frame(&mut stream).await?;
    let connected = wire::connected(&first).ok_or_else(|| Fault::nonsense("its first answer"))?;
    let mut next_xid = 1;
    if connected.timeout_ms > 0 && connected.session != 0 {
        match &settings.login {
            None => {}
            Some(Login::Digest { .. }) => {
                let answer = frame(&mut stream).await?;
                let header = wire::answer(&mut Reader(&answer)).ok_or_else(|| Fault::nonsense("the answer to a login"))?;
                if header.error != 0 {
                    return Err(Fault::login());
                }
            }
            Some(Login::Sasl { user, password }) => {
                converse(&mut stream, user, password.reveal(), &mut next_xid).await?;
            }
        }
    }
    Ok(Begun { asked, connected, next_xid })
}

enum Opened {
    Tcp(TcpStream),
    Tls(Box<dyn Stream>),
}

async fn open(settings: &Settings, address: &Address) -> Result<Opened, Fault> {
    let tcp = TcpStream::connect((address.host.as_str(), address.port)).await.map_err(Fault::io)?;
    tcp.set_nodelay(true).map_err(Fault::io)?;
    let Some(tls) = &settings.tls else { return Ok(Opened::Tcp(tcp)) };
    let config = tenure_tls::client_config(tls).map_err(Fault::settings)?;
    let name = tenure_tls::server_name(tls, &address.host).map_err(Fault::settings)?;
    let connector = tokio_rustls::TlsConnector::from(config);
    Ok(Opened::Tls(Box::new(connector.connect(name, tcp).await.map_err(Fault::io)?)))
}

/// The dialogue of SASL DIGEST-MD5: nothing, a challenge, an answer to it, and the server's own proof.
async fn converse(stream: &mut dyn Stream, user: &str, password: &str, xid: &mut i32) -> Result<(), Fault> {
    let challenge = sasl_step(stream, xid, &[]).await?;
    let answer = sasl::answer(&challenge, user, password).ok_or_else(|| Fault::nonsense("its SASL challenge"))?;
    let proof = sasl_step(stream, xid, answer.response.as_bytes()).await?;
    if !answer.is_proved_by(&proof) {
        return Err(Fault::nonsense("its proof that it knows the password"));
    }
    Ok(())
}

async fn sasl_step(stream: &mut dyn Stream, xid: &mut i32, token: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut out = Vec::new();
    wire::sasl(*xid, token, &mut out);
    *xid += 1;
    stream.write_all(&out).await.map_err(Fault::io)?;
    let answer = frame(stream).await?;
    let mut body = Reader(&answer);
    let header = wire::answer(&mut body).ok_or_else(|| Fault::nonsense("a SASL answer"))?;
    match header.error {
        0 => body.buffer().ok_or_else(|| Fault::nonsense("a SASL answer")),
        _ => Err(Fault::login()),
    }
}

async fn frame(stream: &mut dyn Stream) -> Result<Vec<u8>, Fault> {
    let length = stream.read_i32().await.map_err(Fault::io)?;
    let length = length_of(length).ok_or_else(|| Fault::nonsense("the length of its first answer"))?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.map_err(Fault::io)?;
    Ok(body)
}

/// A length that a message can have.
pub(crate) fn length_of(length: i32) -> Option<usize> {
    usize::try_from(length).ok().filter(|length| *length <= LONGEST)
}
