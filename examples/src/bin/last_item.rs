//! Selling the last item in stock: eight shops, two hundred lamps, and a row that says how many are left. Each shop reads it,
//! waits for the bank, and writes one less. Without a lock several of them sell the same lamp. A mutex, a lock in the shop's
//! own transaction, and a cell, which locks nothing, sell each lamp once.

use std::thread;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tenure::{blocking, sqlite};
use tenure_examples::Store;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
const LAMPS: u8 = 200;

/// Right as long as nobody else is between its lines.
fn sell(db: &Connection) -> Result<bool> {
    let left: u8 = db.query_row("SELECT lamps FROM stock", [], |row| row.get(0))?;
    thread::sleep(Duration::from_micros(500)); // the bank
    let Some(left) = left.checked_sub(1) else { return Ok(false) };
    db.execute("UPDATE stock SET lamps = ?1", [left])?;
    Ok(true)
}

fn sell_one(way: &str, client: &blocking::Client, db: &mut Connection) -> Result<bool> {
    Ok(match way {
        "mutex" => {
            let guard = client.mutex("lamps")?.lock()?;
            let sold = sell(db)?;
            guard.release().map(|()| sold)? // an error if it was lost meanwhile
        }
        "transaction" => {
            let (tx, _held) = sqlite::begin(db, "lamps").lock()?;
            let sold = sell(&tx)?;
            tx.commit().map(|()| sold)? // and the lock is free
        }
        "cell" => client.cell("lamps left")?.update(|left| Some(vec![left?[0].checked_sub(1)?]))?.is_some(), // again if overtaken
        _ => sell(db)?,
    })
}

fn main() -> Result<()> {
    let store = Store::from_args();
    let open = || store.open_stock(&format!("CREATE TABLE IF NOT EXISTS stock AS SELECT {LAMPS} AS lamps"));
    let cell = blocking::connect(&store.url)?.cell("lamps left")?;
    cell.set_if(0, [LAMPS])?;
    for way in ["no lock", "mutex", "transaction", "cell"] {
        open().execute("UPDATE stock SET lamps = ?1", [LAMPS])?;
        let shop = || -> Result<usize> {
            let (client, mut db) = (blocking::connect(&store.url)?, open());
            std::iter::from_fn(|| sell_one(way, &client, &mut db).map(|sold| sold.then_some(1)).transpose()).sum()
        };
        let begun = Instant::now();
        let sold = thread::scope(|scope| {
            let shops: Vec<_> = (0..8).map(|_| scope.spawn(shop)).collect();
            shops.into_iter().map(|shop| shop.join().expect("no shop panics")).sum::<Result<usize>>()
        })?;
        println!("{way:12} sold {sold:4} of {LAMPS} lamps in {:.1?}", begun.elapsed());
    }
    Ok(())
}
