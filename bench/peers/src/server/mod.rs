//! The servers that contenders share: started here in temporary directories, emptied after each visit, gone when dropped; and
//! what they count.
//!
//! Databases wait for their disk at every commit, as they do in production, so what they write goes to a real one: the
//! temporary directory should not be in memory.

mod etcd;
mod mariadb;
mod postgres;
mod redis;
mod zookeeper;

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::Instant;

use crate::store::Store;

pub(crate) use mariadb::UPSERT as UPSERT_MARIADB;
pub(crate) use postgres::UPSERT as UPSERT_POSTGRES;

/// How often each request was made.
pub(crate) type Calls = BTreeMap<String, u64>;

pub(crate) trait Server {
    fn url(&self) -> &str;

    /// Its version, and what it does with a write.
    fn what(&self) -> String;

    /// Whether [`calls`](Server::calls) will be asked for, said before clients connect: counting may cost something.
    fn count(&mut self, _counts: bool) -> Result<(), String> {
        Ok(())
    }

    /// What clients have asked for so far, our own questions left out.
    fn calls(&mut self) -> Result<Calls, String>;

    /// So that nobody starts among the data, or the connections, of the one before.
    fn clear(&mut self) -> Result<(), String>;
}

pub(crate) fn start(store: Store) -> Result<Box<dyn Server>, String> {
    Ok(match store {
        Store::Redis => Box::new(redis::Redis::start()?),
        Store::Postgres => Box::new(postgres::Postgres::start()?),
        Store::MariaDb => Box::new(mariadb::MariaDb::start()?),
        Store::Etcd => Box::new(etcd::Etcd::start()),
        Store::ZooKeeper => Box::new(zookeeper::ZooKeeper::start()?),
    })
}

/// As many as anybody needs: two hundred wait on one connection each.
const CONNECTIONS: u32 = 500;

/// Waits until nobody is connected any more, whom `look` counts.
fn until_alone(mut look: impl FnMut() -> Result<u64, String>) -> Result<(), String> {
    let started = Instant::now();
    loop {
        match look()? {
            0 => return Ok(()),
            some if Instant::now().since(started) > PATIENCE => return Err(format!("{some} connections do not end")),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(20);
