//! A connection limit: ten workers, an archive that bears three connections, and a semaphore between them.
//!
//! The permits are in the store, so the limit holds over all processes that use the same name, and a worker that dies
//! gives its permit back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::{Client, Result};
use tenure_examples::Store;
use tokio::task::JoinSet;

const LIMIT: u32 = 3;
static CONNECTED: AtomicUsize = AtomicUsize::new(0);

async fn worker(number: u32, client: Client) -> Result<usize> {
    // Everybody must say the same limit; another number is an error, not a second semaphore.
    let permits = client.semaphore("connections/archive", LIMIT)?.note(format!("worker {number}"))?;
    let permit = permits.acquire(1).await?;
    let connected = permit.run(fetch()).await?;
    permit.release().await?;
    Ok(connected)
}

/// Fetches something from the archive, and says how many were connected meanwhile.
async fn fetch() -> usize {
    let connected = CONNECTED.fetch_add(1, Ordering::SeqCst) + 1;
    tokio::time::sleep(Duration::from_millis(20)).await; // the archive is slow
    CONNECTED.fetch_sub(1, Ordering::SeqCst);
    connected
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = Store::from_args();
    let mut workers = JoinSet::new();
    for number in 1..=10 {
        workers.spawn(worker(number, store.connect().await?));
    }
    let connected: Vec<usize> = workers.join_all().await.into_iter().collect::<Result<_>>()?;
    let most = connected.iter().max().expect("there are workers");
    println!("{} workers, never more than {most} connected at once, {LIMIT} allowed", connected.len());
    Ok(())
}
