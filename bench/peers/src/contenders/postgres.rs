//! What PostgreSQL itself can do: the bases without a lock, and its advisory locks by hand.

use std::future::{Future, poll_fn};
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};
use tokio_postgres::{AsyncMessage, Client, NoTls, Statement};

use super::{Contender, Failure, Lock};
use crate::server::UPSERT_POSTGRES;

/// Two committed upserts on so many connections: what a lock by rows cannot be below.
pub(crate) struct Upsert<const CONNECTIONS: usize>(Arc<[(Client, Statement)]>);

#[derive(Clone)]
pub(crate) struct UpsertPair(Arc<[(Client, Statement)]>, String);

impl<const CONNECTIONS: usize> Contender for Upsert<CONNECTIONS> {
    type Lock = UpsertPair;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            let client = connect(url, None).await?;
            let upsert = client.prepare(UPSERT_POSTGRES).await.map_err(Failure::broken)?;
            connections.push((client, upsert));
        }
        Ok(Upsert(connections.into()))
    }

    async fn lock(&self, name: &str) -> Result<UpsertPair, Failure> {
        Ok(UpsertPair(Arc::clone(&self.0), name.to_owned()))
    }
}

impl Lock for UpsertPair {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let UpsertPair(connections, name) = self;
        let ((first, upsert), (last, again)) = (&connections[0], &connections[connections.len() - 1]);
        first.execute(upsert, &[name]).await.map_err(Failure::broken)?;
        let output = inside.await;
        last.execute(again, &[name]).await.map_err(Failure::broken)?;
        Ok(output)
    }
}

/// A committed upsert and a notification of the other process: what a hand-over by rows cannot be below. Only for two
/// processes. Each has a connection to write on and one to listen on.
pub(crate) struct Notify {
    url: String,
    index: usize,
}

#[derive(Clone)]
pub(crate) struct Inbox {
    writer: Arc<(Client, Statement)>,
    /// Listens as long as it is there.
    _ear: Arc<Client>,
    heard: Arc<Mutex<mpsc::UnboundedReceiver<()>>>,
    name: String,
    own: String,
    other: String,
}

impl Contender for Notify {
    type Lock = Inbox;

    async fn connect(url: &str, index: usize) -> Result<Self, Failure> {
        Ok(Notify { url: url.to_owned(), index })
    }

    async fn lock(&self, name: &str) -> Result<Inbox, Failure> {
        let (sender, heard) = mpsc::unbounded_channel();
        let ear = connect(&self.url, Some(sender)).await?;
        let inbox = |index: usize| format!("peers_{index}");
        let (own, other) = (inbox(self.index), inbox(1 - self.index));
        ear.batch_execute(&format!("LISTEN {own}")).await.map_err(Failure::broken)?;
        let writer = connect(&self.url, None).await?;
        let write = format!("WITH written AS ({UPSERT_POSTGRES} RETURNING 1) SELECT pg_notify($2, '') FROM written");
        let write = writer.prepare(&write).await.map_err(Failure::broken)?;
        let (heard, writer) = (Arc::new(Mutex::new(heard)), Arc::new((writer, write)));
        Ok(Inbox { writer, _ear: Arc::new(ear), heard, name: name.to_owned(), own, other })
    }

    async fn prime(&self, lock: &Inbox) -> Result<(), Failure> {
        lock.tell(&lock.own).await
    }
}

impl Inbox {
    async fn tell(&self, channel: &String) -> Result<(), Failure> {
        let (client, write) = &*self.writer;
        client.execute(write, &[&self.name, channel]).await.map(drop).map_err(Failure::broken)
    }
}

impl Lock for Inbox {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let heard = self.heard.lock().await.recv().await;
        heard.ok_or_else(|| Failure::broken("the connection that listens has ended"))?;
        let output = inside.await;
        self.tell(&self.other).await?;
        Ok(output)
    }
}

/// Advisory locks on one connection for all tasks: what a lock of a session cannot be below. Only where nobody waits.
pub(crate) struct TryAdvisory(Advisory);

impl Contender for TryAdvisory {
    type Lock = AdvisoryLock;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        Session::open(url, "SELECT pg_try_advisory_lock($1)").await.map(|session| TryAdvisory(Advisory::Shared(session)))
    }

    async fn lock(&self, name: &str) -> Result<AdvisoryLock, Failure> {
        self.0.lock(name).await
    }
}

/// Advisory locks by hand: a connection a task, which waits in the server.
pub(crate) struct WaitAdvisory(Advisory);

impl Contender for WaitAdvisory {
    type Lock = AdvisoryLock;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        Ok(WaitAdvisory(Advisory::Own(url.to_owned())))
    }

    async fn lock(&self, name: &str) -> Result<AdvisoryLock, Failure> {
        self.0.lock(name).await
    }
}

/// Which connection a task has.
enum Advisory {
    Shared(Arc<Session>),
    Own(String),
}

struct Session {
    client: Client,
    lock: Statement,
    unlock: Statement,
}

#[derive(Clone)]
pub(crate) struct AdvisoryLock {
    session: Arc<Session>,
    key: i64,
}

impl Session {
    async fn open(url: &str, lock: &str) -> Result<Arc<Self>, Failure> {
        let client = connect(url, None).await?;
        let lock = client.prepare(lock).await.map_err(Failure::broken)?;
        let unlock = client.prepare("SELECT pg_advisory_unlock($1)").await.map_err(Failure::broken)?;
        Ok(Arc::new(Session { client, lock, unlock }))
    }
}

impl Advisory {
    async fn lock(&self, name: &str) -> Result<AdvisoryLock, Failure> {
        let session = match self {
            Advisory::Shared(session) => Arc::clone(session),
            Advisory::Own(url) => Session::open(url, "SELECT pg_advisory_lock($1)").await?,
        };
        let row = session.client.query_one("SELECT hashtextextended($1, 0)", &[&name]).await.map_err(Failure::broken)?;
        Ok(AdvisoryLock { session, key: row.get(0) })
    }
}

impl Lock for AdvisoryLock {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let Session { client, lock, unlock } = &*self.session;
        client.query_one(lock, &[&self.key]).await.map_err(Failure::broken)?;
        let output = inside.await;
        let unlocked = client.query_one(unlock, &[&self.key]).await.map_err(Failure::broken)?;
        if unlocked.get(0) { Ok(output) } else { Err(Failure::Lost) }
    }
}

/// A connection, driven by a task of its own, which passes on that it was notified.
async fn connect(url: &str, notified: Option<mpsc::UnboundedSender<()>>) -> Result<Client, Failure> {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.map_err(Failure::broken)?;
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
            if let (AsyncMessage::Notification(_), Some(notified)) = (message, &notified) {
                let _ = notified.send(());
            }
        }
    });
    Ok(client)
}
