//! The connection of a session.
//!
//! It is never made anew: a session that is over is over, with everything it had. It is made on a runtime that outlives every
//! caller's, and its driver goes where it is used; see [`Mover`].

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tenure_core::lease::Failure;
use tenure_core::{Address, Error, ErrorKind};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Connection, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::moving::{Drive, Mover, MovingStream, Place};
use crate::config::Settings;
use crate::error::{After, explain, explain_connect, refused};
use crate::login::ScramOnly;

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
        let place = Place::default();
        let stream = MovingStream::dial(address, settings.answer_limit, &place)
            .await
            .map_err(|error| refused(unreachable(address, settings, error)))?;
        let mut config = settings.driver(address);
        let (client, connection): (Client, Box<dyn Drive>) = match &settings.tls {
            None if settings.is_scram_only(address) => {
                ScramOnly::prepare(&mut config);
                let (client, connection) = config.connect_raw(stream, ScramOnly).await.map_err(failed)?;
                (client, Box::new(Driver(connection)))
            }
            None => {
                config.ssl_mode(SslMode::Disable);
                let (client, connection) = config.connect_raw(stream, NoTls).await.map_err(failed)?;
                (client, Box::new(Driver(connection)))
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
                (client, Box::new(Driver(connection)))
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

    /// To send what takes as long as somebody else likes.
    pub(super) fn waited_for(&self) -> &Client {
        self.mover.is_waited_for();
        &self.client
    }

    /// To send requests from anywhere.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// What a request answers that takes no time; `doing` completes "while …".
    pub(super) async fn answered<T>(
        &self,
        asking: impl Future<Output = Result<T, tokio_postgres::Error>>,
        doing: &str,
    ) -> Result<T, Failure> {
        self.mover.answered(asking).await.map_err(|error| self.failed(error, doing))
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
        // What was prepared is there as long as the session is: this is another one.
        let is_another = error.code() == Some(&SqlState::INVALID_SQL_STATEMENT_NAME);
        let (failure, after) = explain(error, Some(&self.address), &self.settings, doing);
        if after == After::Over || is_another {
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

/// What reads and writes for the client.
struct Driver<T>(Connection<MovingStream, T>);

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Drive for Driver<T> {
    fn poll_drive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match ready!(self.0.poll_message(cx)) {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Poll::Ready(()), // each request has its own error
            }
        }
    }
}

fn unreachable(address: &Address, settings: &Settings, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{address} could not be reached"))
        .with_store(settings.describe())
        .with_source(error)
        .with_hint("Is the server running, and are host and port right?")
}
