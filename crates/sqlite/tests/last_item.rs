//! Selling the last item: three locks that sell each item once, and no lock, which does not.

mod common;

use std::time::{Duration, Instant};

use common::Place;
use rusqlite::Connection;
use tenure_core::retry::Retries;
use tenure_core::{Client, Result};
use tenure_sqlite::{Settings, Sqlite, attach, begin, is_conflict};
use tenure_testkit::shops::{ITEMS, meet, order, sell, sold};

/// A database with the stock, which knows the file of locks beside it.
fn stock(directory: &str) -> Connection {
    let db = Connection::open(format!("{directory}/stock.db")).unwrap();
    db.busy_timeout(Duration::from_secs(60)).unwrap();
    db.pragma_update(None, "synchronous", "normal").unwrap();
    attach(&db, format!("{directory}/locks.db")).unwrap();
    db
}

fn pieces(db: &Connection) -> u32 {
    db.query_row("SELECT pieces FROM stock", [], |row| row.get(0)).unwrap()
}

fn write(db: &Connection, pieces: u32) {
    db.execute("UPDATE stock SET pieces = ?1", [pieces]).unwrap();
}

async fn in_one_way(way: &str) -> u32 {
    let place = Place::new();
    let directory = place.directory().to_str().unwrap().to_owned();
    let db = stock(&directory);
    db.pragma_update(None, "journal_mode", "wal").unwrap();
    db.execute_batch("CREATE TABLE stock (pieces INTEGER, version INTEGER)").unwrap();
    db.execute("INSERT INTO stock VALUES (?1, 1)", [ITEMS]).unwrap();
    place.client().cell("stock").unwrap().set_if(0, ITEMS.to_string()).await.unwrap().unwrap();
    let started = Instant::now();
    let sold = sell(way, &directory);
    eprintln!("SQLite, {way}: {sold} of {ITEMS} sold in {:?}", started.elapsed());
    if way != "cell" {
        assert_eq!(pieces(&db), 0);
    }
    sold
}

#[tokio::test]
async fn a_mutex_sells_each_item_once() {
    assert_eq!(in_one_way("mutex").await, ITEMS);
}

#[tokio::test]
async fn a_lock_in_the_transaction_sells_each_item_once() {
    assert_eq!(in_one_way("transaction").await, ITEMS);
}

#[tokio::test]
async fn a_cell_sells_each_item_once() {
    assert_eq!(in_one_way("cell").await, ITEMS);
}

#[tokio::test]
async fn a_version_column_sells_each_item_once() {
    assert_eq!(in_one_way("version column").await, ITEMS);
}

#[tokio::test]
async fn without_a_lock_items_are_sold_twice() {
    let sold = in_one_way("no lock").await;
    assert!(sold > ITEMS, "eight have read the same number before any of them wrote: {sold}");
}

/// One process: sells until nothing is left.
#[tokio::test]
async fn shop() {
    let Some((way, directory)) = order() else { return };
    let mut db = stock(&directory);
    let client = Client::new(Sqlite::open(format!("{directory}/locks.db"), Settings::default()).unwrap()).unwrap();
    if way != "no lock" {
        meet();
    }
    let mut count = 0;
    while sell_one(&way, &client, &mut db, count == 0).await.unwrap() {
        count += 1;
    }
    sold(count);
}

async fn sell_one(way: &str, client: &Client, db: &mut Connection, is_first: bool) -> Result<bool> {
    match way {
        "mutex" => {
            // Not kept, so that whoever waited has all of its ttl from the start.
            let guard = client.mutex("stock")?.keep(false).lock().await?;
            let left = pieces(db).checked_sub(1);
            if let Some(left) = left {
                write(db, left);
            }
            guard.release().await?;
            Ok(left.is_some())
        }
        "transaction" => {
            let (tx, _) = begin(db, "stock").lock()?;
            let left = pieces(&tx).checked_sub(1);
            if let Some(left) = left {
                write(&tx, left);
            }
            tx.commit().unwrap();
            Ok(left.is_some())
        }
        "cell" => loop {
            let one_less = |value: Option<&[u8]>| {
                let left: u32 = std::str::from_utf8(value?).unwrap().parse().unwrap();
                Some(left.checked_sub(1)?.to_string().into_bytes())
            };
            match client.cell("stock")?.update(one_less).await {
                Ok(updated) => return Ok(updated.is_some()),
                Err(error) => assert!(error.is_transient(), "{error}"), // too many contenders for once
            }
        },
        "version column" => {
            let mut retries = Retries::new();
            let again = |retries: &mut Retries| match retries.pause_blocking() {
                Ok(()) => {}
                Err(error) if error.is_transient() => *retries = Retries::new(), // too many contenders for once
                Err(error) => panic!("{error}"),
            };
            loop {
                let (left, version): (u32, i64) =
                    db.query_row("SELECT pieces, version FROM stock", [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
                let Some(left) = left.checked_sub(1) else { return Ok(false) };
                let sql = "UPDATE stock SET pieces = ?1, version = version + 1 WHERE version = ?2";
                match db.execute(sql, (left, version)) {
                    Ok(0) => again(&mut retries),
                    Ok(_) => return Ok(true),
                    Err(error) if is_conflict(&error) => again(&mut retries),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        _ => {
            let left = pieces(db).checked_sub(1);
            if is_first {
                meet(); // everybody has read, nobody has written
            }
            if let Some(left) = left {
                write(db, left);
            }
            Ok(left.is_some())
        }
    }
}
