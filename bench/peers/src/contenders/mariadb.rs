//! What MariaDB itself can do: the bases without a lock, and its GET_LOCK by hand.
//!
//! A connection does one statement at a time and knows no pipelining, so tasks that share one wait for each other.

use std::future::Future;
use std::sync::Arc;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};
use tokio::sync::Mutex;

use super::{Contender, Failure, Lock};
use crate::server::UPSERT_MARIADB;

/// Two committed upserts on so many connections: what a lock by rows cannot be below.
pub(crate) struct Upsert<const CONNECTIONS: usize>(Arc<[Mutex<Conn>]>);

#[derive(Clone)]
pub(crate) struct UpsertPair(Arc<[Mutex<Conn>]>, String);

impl<const CONNECTIONS: usize> Contender for Upsert<CONNECTIONS> {
    type Lock = UpsertPair;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(Mutex::new(connect(url).await?));
        }
        Ok(Upsert(connections.into()))
    }

    async fn lock(&self, name: &str) -> Result<UpsertPair, Failure> {
        Ok(UpsertPair(Arc::clone(&self.0), name.to_owned()))
    }
}

impl UpsertPair {
    async fn write(&self, connection: usize) -> Result<(), Failure> {
        let mut connection = self.0[connection].lock().await;
        connection.exec_drop(UPSERT_MARIADB, (self.1.as_bytes(),)).await.map_err(Failure::broken)
    }
}

impl Lock for UpsertPair {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.write(0).await?;
        let output = inside.await;
        self.write(self.0.len() - 1).await?;
        Ok(output)
    }
}

/// GET_LOCK on one connection for all tasks: what a lock of a session cannot be below. Only where nobody waits.
pub(crate) struct TryGetLock(Arc<Mutex<Conn>>);

impl Contender for TryGetLock {
    type Lock = GetLock;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        connect(url).await.map(|connection| TryGetLock(Arc::new(Mutex::new(connection))))
    }

    async fn lock(&self, name: &str) -> Result<GetLock, Failure> {
        Ok(GetLock { connection: Arc::clone(&self.0), name: name.to_owned(), patience: 0 })
    }
}

/// GET_LOCK by hand: a connection a task, which waits in the server.
pub(crate) struct WaitGetLock(String);

impl Contender for WaitGetLock {
    type Lock = GetLock;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        Ok(WaitGetLock(url.to_owned()))
    }

    async fn lock(&self, name: &str) -> Result<GetLock, Failure> {
        let connection = Arc::new(Mutex::new(connect(&self.0).await?));
        Ok(GetLock { connection, name: name.to_owned(), patience: AN_HOUR })
    }
}

/// In seconds.
const AN_HOUR: u32 = 3600;

#[derive(Clone)]
pub(crate) struct GetLock {
    connection: Arc<Mutex<Conn>>,
    name: String,
    patience: u32,
}

impl Lock for GetLock {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let get = "SELECT GET_LOCK(?, ?)";
        let got = self.connection.lock().await.exec_first(get, (&self.name, self.patience)).await;
        if !is_yes(got)? {
            return Err(Failure::GaveUp);
        }
        let output = inside.await;
        let let_go = self.connection.lock().await.exec_first("SELECT RELEASE_LOCK(?)", (&self.name,)).await;
        if is_yes(let_go)? { Ok(output) } else { Err(Failure::Lost) }
    }
}

/// Whether the server says 1; it may also say 0, or NULL.
fn is_yes(answer: mysql_async::Result<Option<Option<i64>>>) -> Result<bool, Failure> {
    answer.map(|answer| answer == Some(Some(1))).map_err(Failure::broken)
}

/// By TCP, as everybody here: the driver would change to the server's Unix socket where it finds one.
async fn connect(url: &str) -> Result<Conn, Failure> {
    let options = Opts::from_url(url).map_err(Failure::broken)?;
    let options = OptsBuilder::from_opts(options).prefer_socket(false).tcp_nodelay(true);
    Conn::new(options).await.map_err(Failure::broken)
}
