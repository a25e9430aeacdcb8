//! Questions to a server that may be dead, paused or cut off: each has a limit, and no answer is an answer.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long one question may take. A server that is merely slow is asked again by whoever waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sends some bytes on a connection of its own and reads until the server closes it; nothing if that does not go well.
pub(crate) fn ask(at: SocketAddr, question: &[u8]) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&at, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(question).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer).into_owned())
}

/// Whether somebody listens there.
pub(crate) fn is_open(at: SocketAddr) -> bool {
    TcpStream::connect_timeout(&at, PATIENCE).is_ok()
}

/// The body of what plain HTTP gives for a path; nothing unless the status is 200.
pub(crate) fn http_get(at: SocketAddr, path: &str) -> Option<String> {
    http(at, &format!("GET {path} HTTP/1.0\r\nHost: {at}\r\n\r\n"))
}

/// The same for what is posted there.
pub(crate) fn http_post(at: SocketAddr, path: &str, body: &str) -> Option<String> {
    let length = body.len();
    http(at, &format!("POST {path} HTTP/1.0\r\nHost: {at}\r\nContent-Length: {length}\r\n\r\n{body}"))
}

/// In 1.0 the body is not cut into chunks, and ends with the connection.
fn http(at: SocketAddr, request: &str) -> Option<String> {
    let answer = ask(at, request.as_bytes())?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    (head.split(' ').nth(1) == Some("200")).then(|| body.to_owned())
}
