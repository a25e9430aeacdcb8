//! A worker's process: it takes the lock, looks whether it still holds it, and writes. Worker 1 is stopped between the two.
//!
//! It does everything right that a holder of a lock can do. It says what it does on its standard output, one event a line, and lets go
//! of the lock when its standard input ends.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use tenure::Guard;
use tenure::http::BuilderExt;
use tokio::io::{AsyncReadExt, stdin};
use tokio::net::TcpStream;

use crate::Result;
use crate::history::{Event, What, worker_text};

/// What a worker is told, in its environment: a URL may have a password in it, which everybody can read in a command line.
pub const NUMBER: &str = "LATE_WRITER_NUMBER";
pub const LOCKS: &str = "LATE_WRITER_LOCKS";
pub const LOCK: &str = "LATE_WRITER_LOCK";
pub const STORE: &str = "LATE_WRITER_STORE";

/// Of worker 1, whose lease ends while it is stopped. Long enough for a busy machine, short enough to watch.
const SHORT_TTL: Duration = Duration::from_secs(2);
/// Of worker 2, whose lease does not end, however busy the machine is.
const TTL: Duration = Duration::from_secs(30);

pub async fn work() -> Result<()> {
    let number: u8 = std::env::var(NUMBER)?.parse()?;
    let store: SocketAddr = std::env::var(STORE)?.parse()?;
    let client = tenure::connect(std::env::var(LOCKS)?).await?;

    say(number, What::Asked);
    let ttl = if number == 1 { SHORT_TTL } else { TTL };
    // Who is let in after a wait has two seconds until it is renewed, or all of its ttl if it is not renewed at all.
    let guard = client.mutex(std::env::var(LOCK)?)?.ttl(ttl)?.keep(number == 1).lock().await?;
    say(number, What::Held { token: guard.token().get() });

    guard.check()?;
    say(number, What::Checked { left: guard.remaining() });
    if number == 1 {
        // A debugger, a hypervisor that moves this machine, a disk that hangs, a collector of garbage: here it happens. It is
        // stopped, and when it goes on it has something to read.
        stdin().read_u8().await?;
    }
    say(number, put(store, &guard).await?);

    if number == 1 {
        guard.lost().await;
        say(number, What::Lost);
    } else {
        stdin().read_to_end(&mut Vec::new()).await?;
        guard.release().await?;
        say(number, What::Released);
    }
    Ok(client.close().await?)
}

async fn put(store: SocketAddr, guard: &Guard) -> Result<What> {
    let text = worker_text(std::env::var(NUMBER)?.parse()?);
    let request = Request::put("/report").header("host", "store").fenced(guard).body(Full::<Bytes>::from(text.clone()))?;
    let stream = TokioIo::new(TcpStream::connect(store).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    tokio::spawn(connection);
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    let why = match status.is_success() {
        true => None,
        false => Some(serde_json::from_slice::<serde_json::Value>(&body)?["detail"].as_str().unwrap_or_default().to_owned()),
    };
    Ok(What::Wrote { text, status: status.as_u16(), why })
}

fn say(number: u8, what: What) {
    println!("{}", serde_json::to_string(&Event::now(number, what)).expect("an event is plain data"));
}
