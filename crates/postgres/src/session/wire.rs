//! The connection of a session.
//!
//! It is never made anew: a session that is over is over, with everything it had. It is made on a runtime that outlives every
//! caller's, and its driver goes where it is used; see `moving`.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rustix::net::sockopt;
use tenure_core::lease::Failure;
use tenure_core::{Address, Error, ErrorKind};
use tokio::net::TcpStream;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::moving::{Drive, Mover, MovingStream};
use crate::config::Settings;
use crate::error::{After, explain, explain_connect, refused};

/// How soon a server is probed that is silent, and how often.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// A connection that is one session.
pub(super) struct Wire {
    client: Client,
    settings: Arc<Settings>,
    address: Address,
    mover: Arc<Mover>,
}

impl Wire {
    /// Connects to one server, whatever it is. On the runtime that shall keep it.
    ///
    /// # Cancel safety
    /// Dropped, a half-made connection is closed.
    pub(super) async fn connect(settings: &Arc<Settings>, address: &Address) -> Result<Wire, Failure> {
        let limit = settings.connect_limit;
        let connecting = Self::connect_to(settings, address);
        tokio::time::timeout(limit, connecting).await.unwrap_or_else(|_| {
            let what = format!("{address} did not let us in within {limit:?}");
            let hint = "Is it reachable from here, and is nothing keeping it busy?";
            Err(refused(Error::new(ErrorKind::Unavailable, what).with_store(settings.describe()).with_hint(hint)))
        })
    }

    async fn connect_to(settings: &Arc<Settings>, address: &Address) -> Result<Wire, Failure> {
        let failed = |error| explain_connect(error, address, settings);
        let place = Arc::new(AtomicU64::new(0));
        let stream =
            dial(address, settings, &place).await.map_err(|error| refused(unreachable(address, settings, error)))?;
        let mut config = settings.driver(address);
        let (client, connection): (Client, Box<dyn Drive>) = match &settings.tls {
            None => {
                config.ssl_mode(SslMode::Disable);
                let (client, connection) = config.connect_raw(stream, NoTls).await.map_err(failed)?;
                (client, Box::new(connection))
            }
            Some(tls) => {
                config.ssl_mode(SslMode::Require);
                let mut rustls = MakeRustlsConnect::new((*tenure_tls::client_config(tls).map_err(refused)?).clone());
                // The certificate is checked against this name.
                let name = tls.server_name.as_deref().unwrap_or(&address.host);
                let rustls = match MakeTlsConnect::<MovingStream>::make_tls_connect(&mut rustls, name) {
                    Ok(rustls) => rustls,
                    Err(never) => match never {},
                };
                let (client, connection) = config.connect_raw(stream, rustls).await.map_err(failed)?;
                (client, Box::new(connection))
            }
        };
        let mover = Mover::start(connection, place);
        Ok(Wire { client, settings: Arc::clone(settings), address: address.clone(), mover })
    }

    /// To send requests that are used from wherever the caller is.
    pub(super) fn used(&self) -> &Client {
        self.mover.is_used();
        &self.client
    }

    /// To send requests from anywhere.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// It has not answered in good time: where it is driven may stand still.
    pub(super) fn go_home(&self) {
        self.mover.go_home();
    }

    pub(super) fn is_open(&self) -> bool {
        !self.mover.is_over() && !self.client.is_closed()
    }

    /// Cuts the connection, whatever is under way on it.
    pub(super) fn close(&self) {
        self.mover.close();
    }

    /// Completes when it is over. Does not keep it.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        self.mover.ended()
    }

    /// What an error on it means; `doing` completes "while …".
    pub(super) fn failed(&self, error: tokio_postgres::Error, doing: &str) -> Failure {
        let (failure, after) = explain(error, Some(&self.address), &self.settings, doing);
        if after == After::Over {
            self.close();
        }
        failure
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.close();
    }
}

/// A socket on which a peer that vanished without a word is found out by probes, and by what it does not acknowledge.
async fn dial(address: &Address, settings: &Settings, place: &Arc<AtomicU64>) -> std::io::Result<MovingStream> {
    let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(&stream, KEEPALIVE)?;
    sockopt::set_tcp_keepcnt(&stream, 3)?;
    #[cfg(target_os = "linux")]
    {
        let limit = settings.answer_limit.max(KEEPALIVE * 2).as_millis();
        sockopt::set_tcp_user_timeout(&stream, u32::try_from(limit).unwrap_or(u32::MAX))?;
    }
    MovingStream::new(stream, place)
}

fn unreachable(address: &Address, settings: &Settings, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{address} could not be reached"))
        .with_store(settings.describe())
        .with_source(error)
        .with_hint("Is the server running, and are host and port right?")
}
