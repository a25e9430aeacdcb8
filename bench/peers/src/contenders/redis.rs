//! What Redis itself can do, with no lock around it: the bases that everybody's figures are multiples of.

use std::future::Future;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, PushInfo, PushKind};
use tokio::sync::{Mutex, mpsc};

use super::{Contender, Failure, Lock};

/// Two calls of a script that does nothing: what a lock by scripts cannot be below.
pub(crate) struct Evalsha {
    connection: MultiplexedConnection,
    script: String,
}

#[derive(Clone)]
pub(crate) struct EvalshaPair {
    connection: MultiplexedConnection,
    call: redis::Cmd,
}

impl Contender for Evalsha {
    type Lock = EvalshaPair;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        let mut connection = connect(url, AsyncConnectionConfig::new()).await?;
        let mut load = redis::cmd("SCRIPT");
        let script = load.arg("LOAD").arg("return 0").query_async(&mut connection).await.map_err(Failure::broken)?;
        Ok(Evalsha { connection, script })
    }

    async fn lock(&self, name: &str) -> Result<EvalshaPair, Failure> {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.script).arg(1).arg(name);
        Ok(EvalshaPair { connection: self.connection.clone(), call })
    }
}

impl Lock for EvalshaPair {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let mut connection = self.connection.clone();
        self.call.query_async::<i64>(&mut connection).await.map_err(Failure::broken)?;
        let output = inside.await;
        self.call.query_async::<i64>(&mut connection).await.map_err(Failure::broken)?;
        Ok(output)
    }
}

/// A message to the other process's inbox: what a hand-over by notification cannot be below. Only for two processes.
pub(crate) struct Publish {
    client: Client,
    index: usize,
}

#[derive(Clone)]
pub(crate) struct Inbox {
    connection: MultiplexedConnection,
    own: String,
    other: String,
    pushes: Arc<Mutex<mpsc::UnboundedReceiver<PushInfo>>>,
}

impl Contender for Publish {
    type Lock = Inbox;

    async fn connect(url: &str, index: usize) -> Result<Self, Failure> {
        // Pushes come on the connection that also publishes, as RESP3 has it.
        let client = Client::open(format!("{url}?protocol=resp3")).map_err(Failure::broken)?;
        Ok(Publish { client, index })
    }

    async fn lock(&self, name: &str) -> Result<Inbox, Failure> {
        let (sender, pushes) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new().set_push_sender(sender);
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection = connection.map_err(Failure::broken)?;
        let inbox = |index: usize| format!("{name}/{index}");
        let (own, other) = (inbox(self.index), inbox(1 - self.index));
        connection.subscribe(&own).await.map_err(Failure::broken)?;
        Ok(Inbox { connection, own, other, pushes: Arc::new(Mutex::new(pushes)) })
    }

    async fn prime(&self, lock: &Inbox) -> Result<(), Failure> {
        lock.publish(&lock.own).await
    }
}

impl Inbox {
    async fn publish(&self, channel: &str) -> Result<(), Failure> {
        let mut connection = self.connection.clone();
        redis::cmd("PUBLISH").arg(channel).arg(1).query_async::<i64>(&mut connection).await.map_err(Failure::broken)?;
        Ok(())
    }
}

impl Lock for Inbox {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        loop {
            let push = self.pushes.lock().await.recv().await;
            match push.ok_or_else(|| Failure::broken("the subscription ended"))?.kind {
                PushKind::Message => break,
                _ => continue, // that the subscription began
            }
        }
        let output = inside.await;
        self.publish(&self.other).await?;
        Ok(output)
    }
}

/// A baton in a list: who pops it holds it, who pushes it back wakes the longest waiter. One connection a waiter, no expiry:
/// a holder that dies takes the baton with it.
pub(crate) struct Blpop(Client);

#[derive(Clone)]
pub(crate) struct Baton {
    connection: MultiplexedConnection,
    name: String,
}

impl Contender for Blpop {
    type Lock = Baton;

    async fn connect(url: &str, _index: usize) -> Result<Self, Failure> {
        Client::open(url).map(Blpop).map_err(Failure::broken)
    }

    async fn lock(&self, name: &str) -> Result<Baton, Failure> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None); // it blocks as long as it takes
        let connection = self.0.get_multiplexed_async_connection_with_config(&config).await;
        Ok(Baton { connection: connection.map_err(Failure::broken)?, name: name.to_owned() })
    }

    async fn prime(&self, lock: &Baton) -> Result<(), Failure> {
        lock.push().await
    }
}

impl Baton {
    async fn push(&self) -> Result<(), Failure> {
        let mut connection = self.connection.clone();
        redis::cmd("LPUSH").arg(&self.name).arg(1).query_async::<i64>(&mut connection).await.map_err(Failure::broken)?;
        Ok(())
    }
}

impl Lock for Baton {
    async fn with<F>(&self, inside: F) -> Result<F::Output, Failure>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let mut connection = self.connection.clone();
        let mut pop = redis::cmd("BLPOP");
        pop.arg(&self.name).arg(0).query_async::<(String, String)>(&mut connection).await.map_err(Failure::broken)?;
        let output = inside.await;
        self.push().await?;
        Ok(output)
    }
}

async fn connect(url: &str, config: AsyncConnectionConfig) -> Result<MultiplexedConnection, Failure> {
    let client = Client::open(url).map_err(Failure::broken)?;
    client.get_multiplexed_async_connection_with_config(&config).await.map_err(Failure::broken)
}
