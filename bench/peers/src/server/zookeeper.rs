//! ZooKeeper: three members on loopback, each of which waits for the disk at every write.

use std::time::Duration;

use tenure_testkit::servers::zookeeper as kit;
use tokio::runtime::Runtime;
use zookeeper_client::{Client, Error};

use super::{Calls, Server};

pub(super) struct ZooKeeper {
    ensemble: kit::Ensemble,
    url: String,
    /// How often we have asked each member ourselves: what is asked in four letters is counted too.
    asked: u64,
    runtime: Runtime,
}

/// What belongs to the server itself.
const ITS_OWN: &str = "zookeeper";

impl ZooKeeper {
    pub(super) fn start() -> Result<Self, String> {
        // Its Java is to learn as it would in production, where the tests only want it to begin soon.
        let options = kit::ZooKeeperOptions::new().loopback().disk().tick(Duration::from_millis(2000));
        let ensemble = kit::Ensemble::start_with(options.java("-XX:TieredStopAtLevel=4"));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| format!("starting a runtime: {error}"))?;
        Ok(ZooKeeper { url: ensemble.url(), ensemble, asked: 0, runtime })
    }
}

impl Server for ZooKeeper {
    fn url(&self) -> &str {
        &self.url
    }

    fn what(&self) -> String {
        let version = self.ensemble.mntr(0).remove("zk_version").unwrap_or_default();
        let version = version.split('-').next().unwrap_or_default().to_owned();
        format!("ZooKeeper {version}, three members on loopback, fsync")
    }

    /// Requests of clients, their pings included.
    fn calls(&mut self) -> Result<Calls, String> {
        let (all, asked) = (self.ensemble.count("zk_packets_received"), self.asked);
        self.asked += self.ensemble.members().len() as u64;
        Ok(Calls::from([("requests".to_owned(), all.saturating_sub(asked))]))
    }

    /// A client that was killed leaves its nodes until its session ends; they are removed like all others.
    fn clear(&mut self) -> Result<(), String> {
        let hosts = self.ensemble.hosts();
        let cleared = self.runtime.block_on(async {
            let client = Client::connect(&hosts).await?;
            for child in client.list_children("/").await? {
                if child != ITS_OWN {
                    remove(&client, format!("/{child}")).await?;
                }
            }
            Ok::<_, Error>(())
        });
        cleared.map_err(|error| format!("removing what is there: {error}"))
    }
}

async fn remove(client: &Client, path: String) -> Result<(), Error> {
    loop {
        match client.list_children(&path).await {
            Ok(children) => {
                for child in children {
                    Box::pin(remove(client, format!("{path}/{child}"))).await?;
                }
            }
            Err(Error::NoNode) => return Ok(()),
            Err(error) => return Err(error),
        }
        match client.delete(&path, None).await {
            Ok(()) | Err(Error::NoNode) => return Ok(()),
            Err(Error::NotEmpty) => {} // a request of one that was killed came in late
            Err(error) => return Err(error),
        }
    }
}
