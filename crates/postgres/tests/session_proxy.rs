//! Session mode behind a proxy that logs in anew: the connection goes on, and leads to another session, without its locks.

use std::net::SocketAddr;
use std::time::Duration;

use tenure_core::{Client, Environment, ErrorKind};
use tenure_testkit::servers::postgres::{Postgres, PostgresOptions};
use tenure_testkit::{eventually_async, in_time};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

async fn client(url: &str) -> Client {
    let backend = tenure_postgres::connect(&url.parse().unwrap()).await.expect("the server is there");
    Client::with_environment(backend, Environment::real()).unwrap()
}

/// Forwards to a server, and when it is told to replaces every session there by a new one, with all that its client has prepared.
struct Relogin {
    address: SocketAddr,
    times: watch::Sender<u32>,
}

impl Relogin {
    async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (times, told) = watch::channel(0);
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(forward(stream, server, told.clone()));
            }
        });
        Relogin { address, times }
    }

    /// Logs in anew for everybody.
    fn replace(&self) {
        self.times.send_modify(|times| *times += 1);
    }
}

async fn forward(mut client: TcpStream, address: SocketAddr, mut told: watch::Receiver<u32>) -> Option<()> {
    told.mark_unchanged();
    let mut hello = client.read_u32().await.ok()?.to_be_bytes().to_vec();
    let length = u32::from_be_bytes(hello[..4].try_into().ok()?) as usize;
    hello.resize(length, 0);
    client.read_exact(&mut hello[4..]).await.ok()?;
    let mut server = TcpStream::connect(address).await.ok()?;
    server.write_all(&hello).await.ok()?;
    let (mut prepared, mut begun) = (Vec::new(), Vec::new());
    let (mut question, mut answer) = ([0; 8192], [0; 8192]);
    loop {
        tokio::select! {
            many = client.read(&mut question) => {
                let part = &question[..many.ok().filter(|many| *many > 0)?];
                server.write_all(part).await.ok()?;
                begun.extend_from_slice(part);
                while let Some(message) = take_message(&mut begun) {
                    // A name, and not none, for a statement.
                    if message[0] == b'P' && message[5] != 0 {
                        prepared.extend(message);
                    }
                }
            }
            many = server.read(&mut answer) => {
                client.write_all(&answer[..many.ok().filter(|many| *many > 0)?]).await.ok()?;
            }
            changed = told.changed() => {
                changed.ok()?;
                server = TcpStream::connect(address).await.ok()?;
                server.write_all(&hello).await.ok()?;
                until_ready(&mut server).await?;
                server.write_all(&[&prepared[..], b"S\0\0\0\x04"].concat()).await.ok()?;
                until_ready(&mut server).await?;
            }
        }
    }
}

/// The first whole message.
fn take_message(bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = 1 + u32::from_be_bytes(bytes.get(1..5)?.try_into().ok()?) as usize;
    (bytes.len() >= length).then(|| bytes.drain(..length).collect())
}

/// Reads to the end of what the server has to say.
async fn until_ready(server: &mut TcpStream) -> Option<()> {
    loop {
        let kind = server.read_u8().await.ok()?;
        let mut body = vec![0; server.read_u32().await.ok()? as usize - 4];
        server.read_exact(&mut body).await.ok()?;
        match kind {
            b'Z' => return Some(()),
            b'E' => panic!("{}", String::from_utf8_lossy(&body)),
            _ => {}
        }
    }
}

/// Somebody else is let in when the old session ends. Its holder learns it by its next renewal, and is never told that all is well after
/// that; and whoever lets go before is told then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_is_lost_with_its_session() {
    let server = Postgres::start(PostgresOptions::new());
    let proxy = Relogin::start(server.address()).await;
    let url = |address: &str| {
        format!("postgres://postgres@{address}/postgres?liveness=session&assume_direct=yes&answer_limit=20s")
    };
    let (holder, other) =
        (client(&url(&proxy.address.to_string())).await, client(&url(&server.address().to_string())).await);
    for (is_renewed, shared) in [(true, false), (true, true), (false, false), (false, true)] {
        let ttl = if is_renewed { Duration::from_secs(3) } else { Duration::from_secs(600) };
        let (theirs, ours) = (holder.rw_lock("x").unwrap().ttl(ttl).unwrap(), other.rw_lock("x").unwrap());
        let held = if shared { theirs.read().await } else { theirs.write().await }.unwrap();
        // Shown, it is known that nothing is under way.
        eventually_async("it is shown", async || {
            other.view("x").await.unwrap().holders.iter().any(|hold| hold.token == held.token())
        })
        .await;
        proxy.replace();
        let second = in_time("the lock is free", ours.write()).await.unwrap();
        if is_renewed {
            in_time("its loss is told", held.lost()).await;
            assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
        }
        let released = held.release().await.map_err(|error| error.kind());
        assert_eq!(released, Err(ErrorKind::Lost), "renewed: {is_renewed}, shared: {shared}");
        second.check().unwrap();
        second.release().await.unwrap();
        // And goes on with a session of its own.
        theirs.write().await.unwrap().release().await.unwrap();
    }
}
