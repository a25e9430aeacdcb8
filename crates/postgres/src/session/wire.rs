//! The connection of a session.
//!
//! It is never made anew: a session that is over is over, with everything it had. Its driver lives on the runtime that opened it,
//! which the engine chooses so that it outlives every caller's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure_core::lease::Failure;
use tenure_core::{Address, Error, ErrorKind};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::config::Settings;
use crate::error::{After, explain, explain_connect, refused};

/// A connection that is one session.
pub(super) struct Wire {
    pub(super) client: Client,
    settings: Arc<Settings>,
    address: Address,
    is_closed: AtomicBool,
    over: watch::Receiver<()>,
    driver: AbortHandle,
}

impl Wire {
    /// Connects to one server, whatever it is.
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
        let mut config = settings.driver(address);
        let (end, over) = watch::channel(());
        let (client, driver) = match &settings.tls {
            None => {
                config.ssl_mode(SslMode::Disable);
                let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
                let driving = tokio::spawn(async move {
                    let _end = end; // dropped with this, however it ends
                    drop(connection.await);
                });
                (client, driving.abort_handle())
            }
            Some(tls) => {
                config.ssl_mode(SslMode::Require);
                let rustls = MakeRustlsConnect::new((*tenure_tls::client_config(tls).map_err(refused)?).clone());
                let (client, connection) = config.connect(rustls).await.map_err(failed)?;
                let driving = tokio::spawn(async move {
                    let _end = end;
                    drop(connection.await);
                });
                (client, driving.abort_handle())
            }
        };
        let (settings, address) = (Arc::clone(settings), address.clone());
        Ok(Wire { client, settings, address, is_closed: AtomicBool::new(false), over, driver })
    }

    pub(super) fn is_open(&self) -> bool {
        !self.is_closed.load(Ordering::Acquire) && !self.client.is_closed()
    }

    /// Cuts the connection, whatever is under way on it.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.driver.abort();
    }

    /// Completes when it is over. Does not keep it.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut over = self.over.clone();
        async move { while over.changed().await.is_ok() {} }
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
