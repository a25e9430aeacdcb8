//! Selling the last item in stock: eight shops, a hundred lamps, and a number that says how many are left.
//!
//! Without a lock several shops sell the same lamp. A mutex, a read-write lock and an optimistic cell sell exactly a
//! hundred. Each shop has a client of its own, as a process of its own would.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use tenure::{Client, Result};
use tenure_examples::Store;

/// Stands for a row of a database: it can be read, and it can be written, and in between is everybody else.
static STOCK: AtomicU32 = AtomicU32::new(0);

/// Sells for as long as there is something to sell.
async fn shop(way: &str, client: Client) -> Result<u32> {
    let (mutex, rw_lock, cell) = (client.mutex("lamps/mutex")?, client.rw_lock("lamps/rw")?, client.cell("lamps/cell")?);
    for sold in 0.. {
        let sold_one = match way {
            "mutex" => mutex.lock().await?.run(sell()).await?, // a guard that is dropped lets go
            "read-write lock" => {
                let looking = rw_lock.read().await?; // any number of shops may look at once
                let any_left = STOCK.load(SeqCst) > 0;
                looking.release().await?;
                // Another may sell before this one is let in to write, so `sell` looks again.
                any_left && rw_lock.write().await?.run(sell()).await?
            }
            // Nothing is locked: whoever was overtaken between reading and writing does it again.
            "cell" => cell.update(|left| Some(vec![left?[0].checked_sub(1)?])).await?.is_some(),
            _ => sell().await,
        };
        if !sold_one {
            return Ok(sold);
        }
    }
    unreachable!("the stock is finite")
}

/// Reads, waits for the bank, writes: right as long as nobody else is between these lines.
async fn sell() -> bool {
    let left = STOCK.load(SeqCst);
    tokio::time::sleep(Duration::from_millis(1)).await; // the bank
    left.checked_sub(1).map(|left| STOCK.store(left, SeqCst)).is_some()
}

#[tokio::main]
async fn main() -> Result<()> {
    let store = Store::from_args();
    let client = store.connect().await?;
    client.cell("lamps/cell")?.set_if(0, [100]).await?;
    for way in ["no lock", "mutex", "read-write lock", "cell"] {
        STOCK.store(100, SeqCst);
        let mut shops = tokio::task::JoinSet::new();
        for _ in 0..8 {
            shops.spawn(shop(way, store.connect().await?));
        }
        println!("{way}: sold {} of 100", shops.join_all().await.into_iter().sum::<Result<u32>>()?);
    }
    Ok(())
}
